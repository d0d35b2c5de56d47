"""Commands that are killed and given again until they end: they must leave what they leave when left in peace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.score import Score, Setting, kill_within, timed
from chaos.warm import Child
from chaos.work import STUDIES, curves, findings, series

JOMA = "chaos.work:joma"


@dataclass(frozen=True)
class Command:
    """A function with its arguments for a folder, what it leaves there, and in which share of its time it is killed."""

    name: str
    words: Callable[[Path, Setting], tuple[Any, ...]]
    left: Callable[[Path], object]
    share: float = 1.0

    def started(self, setting: Setting, out: Path, *more: Any) -> Child:
        return setting.warm.start(*self.words(out, setting), *more)


def _verify(study: str) -> Command:
    words = (JOMA, "verify", study, "--threads", "1", "--out")
    return Command(f"verify {study}", lambda out, _: (*words, out), lambda out: findings(out / "findings.json"))


VERIFY = [_verify(study) for study in STUDIES]
TRAIN = Command(
    "a training", lambda out, _: ("chaos.work:train", out / "a.sqlite"), lambda out: series(out / "a.sqlite"), share=0.7
)
SCAN = Command(
    "scan",
    lambda out, setting: (
        JOMA,
        "scan",
        setting.checkpoints(),
        "--out",
        out,
        "--json",
        out / "curves.json",
        "--no-page",
    ),
    lambda out: curves(out / "curves.json"),
)


def disturb(setting: Setting, subject: str, commands: Sequence[Command]) -> Score:
    score, commands = Score(subject), commands[:1] if setting.short else commands
    for place, command in enumerate(commands):
        expected, seconds = undisturbed(setting, command)
        ended = 0
        while score.kills < setting.rounds * (place + 1) // len(commands):
            out = setting.place(f"{command.name}-{ended}")
            for _ in range(min(setting.dice.randint(1, 6), setting.rounds - score.kills)):
                more = ("--jobs", "3") if command is SCAN and setting.dice.random() < 0.5 else ()
                child = command.started(setting, out, *more)
                if not kill_within(child, seconds * command.share, setting.dice, score):
                    break
            ends_right(setting, command, out, expected, score)
            ended += 1
        score.count(f"{command.name}: to the end", ended)
    return score


def undisturbed(setting: Setting, command: Command) -> tuple[object, float]:
    whole = setting.place(f"{command.name}-undisturbed")
    seconds = timed(command.started(setting, whole))
    return command.left(whole), seconds


def ends_right(setting: Setting, command: Command, out: Path, expected: object, score: Score) -> None:
    """Left in peace now, it ends, leaves the same, a whole page, and nothing beside."""
    last = command.started(setting, out)
    if last.wait() != 0:
        score.lose(f"{command.name} cannot be taken up: {(last.said() or last.printed())[-300:]!r}")
        return
    score.same(command.left(out), expected, f"what {command.name} leaves")
    page = out / "report.html"
    if page.exists() and not page.read_text(encoding="utf-8").rstrip().endswith("</html>"):
        score.err("report.html is cut off")
    if left := sorted(each.name for each in out.glob("*.checkpoint")):
        score.err(f"left over beside the run: {left}")
