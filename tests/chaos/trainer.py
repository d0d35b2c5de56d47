"""Training that is killed and taken up again until it ends: its series must be those of training left in peace."""

from __future__ import annotations

from pathlib import Path

from chaos.score import Score, Setting, kill_within, timed
from chaos.work import series

TRAIN = "chaos.work:train"


def disturb(setting: Setting) -> Score:
    score = Score("trainer")
    expected, seconds = undisturbed(setting)
    trained = 0
    while score.kills < setting.rounds:
        path = setting.place(f"run-{trained}") / "a.sqlite"
        for _ in range(min(setting.dice.randint(1, 6), setting.rounds - score.kills)):
            if not kill_within(setting.warm.start(TRAIN, path), seconds * 0.7, setting.dice, score):
                break
        ends_right(setting, path, expected, score)
        trained += 1
    score.count("trained to the end", trained)
    return score


def undisturbed(setting: Setting) -> tuple[object, float]:
    """The series to compare with, and how long they take."""
    path = setting.place("undisturbed") / "a.sqlite"
    seconds = timed(setting.warm.start(TRAIN, path))
    return series(path), seconds


def ends_right(setting: Setting, path: Path, expected: object, score: Score) -> None:
    """Left in peace now, it ends, with the same series and with nothing beside them."""
    last = setting.warm.start(TRAIN, path)
    if last.wait() != 0:
        score.lose(f"training cannot be taken up: {last.said()[-300:]!r}")
        return
    score.same(series(path), expected, "a series of the training")
    if left := sorted(each.name for each in path.parent.glob("*.checkpoint")):
        score.err(f"left over beside the run: {left}")
