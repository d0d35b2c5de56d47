"""A clock that jumps by years, forwards and backwards: the same numbers, and nothing is removed."""

from __future__ import annotations

import datetime as module_datetime
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from chaos import scan, trainer, verify
from chaos.score import Score, Setting, timed
from chaos.work import curves, findings, joma, series, train

YEARS = 365.25 * 86400.0


def disturb(setting: Setting) -> Score:
    score = Score("clock")
    source, whole = setting.place("checkpoints"), setting.place("undisturbed")
    setting.warm.done("chaos.work:make_checkpoints", source, 3)
    timed(verify.started(setting, "thm5", whole))
    timed(scan.started(setting, source, whole))
    timed(setting.warm.start(trainer.TRAIN, whole / "trained.sqlite"))
    for number in range(setting.rounds):
        _one_round(setting, score, source, whole, setting.place(f"out-{number}"))
    return score


def _one_round(setting: Setting, score: Score, source: Path, whole: Path, out: Path) -> None:
    foreign = [out / "notes.txt", out / ".report.html.1-0.new", out / f".findings.json.{os.getpid()}-0.new"]
    for each in foreign:
        each.write_text("not joma's to remove: a user's, one of a process that lives, another")
    path, commands = out / "trained.sqlite", ("scan", "verify") if setting.short else ("verify", "scan", "report")
    child = setting.warm.start("chaos.clock:trained", setting.dice.random(), path)
    if setting.dice.random() < 0.5:
        time.sleep(setting.dice.uniform(0.0, 0.2))
        child.kill()
        score.disturbances, score.kills = score.disturbances + 1, score.kills + 1
    child.wait()
    _end(setting, score, "chaos.clock:trained", path)
    score.same(series(path), series(whole / "trained.sqlite"), "a series of the training")
    told = {
        "verify": verify.command("thm5", out),
        "scan": ("scan", str(source), "--out", str(out), "--json", str(out / "curves.json")),
        "report": ("report", str(out)),
    }
    for name in commands:
        _end(setting, score, "chaos.clock:command", *told[name])
    score.same(findings(out / "findings.json"), findings(whole / "findings.json"), "findings.json")
    score.same(curves(out / "curves.json"), curves(whole / "curves.json"), "a curve of the scan")
    for each in foreign:
        if not each.exists():
            score.lose(f"{each.name} was removed")


def _end(setting: Setting, score: Score, function: str, *arguments: object) -> None:
    child = setting.warm.start(function, setting.dice.random(), *arguments)
    score.disturbances += 1
    if child.wait() != 0:
        score.lose(f"{function} {arguments[0]} with a clock that jumps: {child.said()[-300:]!r}")


def trained(seed: float, path: str) -> int:
    jumping(seed)
    return train(path)


def command(seed: float, *arguments: str) -> int:
    jumping(seed)
    return joma(*arguments)


def jumping(seed: float) -> None:
    """From now on every look at the clock of this process gives a day within 20 years; monotonic time goes on."""
    dice, real = random.Random(seed), time.time

    def now() -> float:
        return real() + dice.uniform(-20, 20) * YEARS

    class Jumping(module_datetime.datetime):
        @classmethod
        def now(cls, tz: module_datetime.tzinfo | None = None) -> module_datetime.datetime:  # type: ignore[override]
            return module_datetime.datetime.fromtimestamp(now(), tz)

    _replaced(time.time, now)
    _replaced(module_datetime.datetime, Jumping)


def _replaced(old: object, new: Callable[..., object]) -> None:
    """In the module that has it and wherever joma imported it from there."""
    for module in [time, module_datetime, *(each for name, each in sys.modules.items() if name.startswith("joma."))]:
        for name, value in list(vars(module).items()):
            if value is old:
                setattr(module, name, new)
