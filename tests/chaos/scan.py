"""`joma scan` that is killed and given again until it ends: its curves must be those of one left in peace."""

from __future__ import annotations

from pathlib import Path

from chaos.score import Score, Setting, kill_within, timed
from chaos.warm import Child
from chaos.work import curves


def disturb(setting: Setting) -> Score:
    score = Score("scan")
    source = setting.place("checkpoints")
    setting.warm.done("chaos.work:make_checkpoints", source)
    whole = setting.place("undisturbed")
    seconds = timed(started(setting, source, whole))
    expected, scanned = curves(whole / "curves.json"), 0
    while score.kills < setting.rounds:
        out = setting.place(f"out-{scanned}")
        for _ in range(min(setting.dice.randint(1, 6), setting.rounds - score.kills)):
            jobs = setting.dice.choice((1, 3))
            if not kill_within(started(setting, source, out, jobs), seconds, setting.dice, score):
                break
        ends_right(setting, source, out, expected, score)
        scanned += 1
    score.count("scanned to the end", scanned)
    return score


def started(setting: Setting, source: Path, out: Path, jobs: int = 1) -> Child:
    return setting.warm.joma("scan", source, "--out", out, "--json", out / "curves.json", "--jobs", jobs, "--no-page")


def ends_right(setting: Setting, source: Path, out: Path, expected: object, score: Score) -> None:
    """Left in peace now, it ends with the same curves."""
    last = started(setting, source, out)
    if last.wait() != 0:
        score.lose(f"the scan cannot be taken up: {(last.said() or last.printed())[-300:]!r}")
        return
    score.same(curves(out / "curves.json"), expected, "a curve of the scan")
