"""Little memory, and a clock that jumps by years: the same numbers in the end, no record spoiled, nothing removed."""

from __future__ import annotations

import ctypes
import datetime as module_datetime
import os
import random
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos.kills import JOMA, SCAN, TRAIN, VERIFY, ends_right, undisturbed
from chaos.score import Score, Setting, plain
from chaos.work import called, series

MEGABYTES = (0, 0.3, 0.6, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 24)
"""Beyond what the process has when it begins."""
DEATHS = (-9, -11, -6, -7)
"""Signals that a process dies of which got no memory."""
M_MMAP_THRESHOLD = -3
YEARS = 365.25 * 86400.0


def memory(setting: Setting) -> Score:
    score = Score("memory")
    for command in VERIFY[:1] if setting.short else (VERIFY[0], SCAN, TRAIN):
        expected, _ = undisturbed(setting, command)
        for number in range(setting.rounds):
            out, limit = setting.place(f"{command.name}-{number}"), setting.dice.choice(("RLIMIT_AS", "RLIMIT_DATA"))
            _little(setting, score, limit, setting.dice.choice(MEGABYTES), *command.words(out, setting))
            for path in [*out.glob("runs/*.sqlite"), *out.glob("*.sqlite")]:
                try:
                    series(path)
                except Exception as error:
                    score.err(f"{path.name} is broken after a run with little memory: {error}")
            ends_right(setting, command, out, expected, score)
    return score


def _little(setting: Setting, score: Score, limit: str, more: float, *words: Any) -> None:
    child = setting.warm.start("chaos.surroundings:limited", limit, more, *words)
    status, said = child.wait(), child.said().strip()
    score.disturbances += 1
    score.count("ended well" if status == 0 else "died of a signal" if status < 0 else "ended in a sentence")
    out_of_memory = "emory" in said or "alloc" in said or "failed to map segment" in said
    if status not in (0, 1, 2, *DEATHS) or not (plain(said) or status < 0 or out_of_memory):
        score.wonder(f"{words[:2]} with {limit} of {more} MB more: status {status}; it said {said[-300:]!r}")


def limited(limit: str, megabytes: float, *words: Any) -> int:
    with suppress(OSError, AttributeError):  # another C library
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(M_MMAP_THRESHOLD, 1 << 16)
        library.malloc_trim(0)
    sizes = Path("/proc/self/statm").read_text().split()
    now = int(sizes[0 if limit == "RLIMIT_AS" else 5]) * resource.getpagesize()
    resource.setrlimit(getattr(resource, limit), (now + int(megabytes * 1e6),) * 2)
    return called(*words)


def clock(setting: Setting) -> Score:
    score, commands = Score("clock"), (TRAIN, SCAN, VERIFY[0])
    expected = [undisturbed(setting, command)[0] for command in commands]
    for number in range(setting.rounds):
        out = setting.place(f"out-{number}")
        foreign = [out / "notes.txt", out / ".report.html.1-0.new", out / f".findings.json.{os.getpid()}-0.new"]
        for each in foreign:
            each.write_text("not joma's to remove: a user's, one of a process that lives, another")
        words = [command.words(out, setting) for command in commands]
        if setting.dice.random() < 0.5:
            child = setting.warm.start("chaos.surroundings:jumping", setting.dice.random(), *words[0])
            time.sleep(setting.dice.uniform(0.0, 0.2))
            child.kill()
            child.wait()
            score.disturbances, score.kills = score.disturbances + 1, score.kills + 1
        for given in (*words, *[(JOMA, "report", out)] * (not setting.short)):
            child = setting.warm.start("chaos.surroundings:jumping", setting.dice.random(), *given)
            score.disturbances += 1
            if child.wait() != 0:
                score.lose(f"{given[:2]} with a clock that jumps: {child.said()[-300:]!r}")
        for command, whole in zip(commands, expected, strict=True):
            score.same(command.left(out), whole, f"what {command.name} leaves")
        for each in foreign:
            if not each.exists():
                score.lose(f"{each.name} was removed")
    return score


def jumping(seed: float, *words: Any) -> int:
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
    return called(*words)


def _replaced(old: object, new: Callable[..., object]) -> None:
    for module in [time, module_datetime, *(each for name, each in sys.modules.items() if name.startswith("joma."))]:
        for name, value in list(vars(module).items()):
            if value is old:
                setattr(module, name, new)
