"""SIGTERM to `joma verify -j 2` in its first seconds, as it starts its workers: no process is left behind."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from chaos.score import Score, Setting, sentence_at_the_end
from chaos.verify import command, ends_right
from chaos.work import STUDIES, findings, joma

MARK = "JOMA_CHAOS_OF"
"""In the environment of the command, and so of every process that it starts."""
FIRST = 3.0
"""Seconds within which it is told to end."""


def disturb(setting: Setting) -> Score:
    score = Score("early")
    for number in range(setting.rounds):
        out = setting.place(f"out-{number}")
        _told_to_end(setting, score, out)
    whole = setting.place("undisturbed")
    setting.warm.done("chaos.work:joma", *command(STUDIES[0], whole))
    ends_right(setting, STUDIES[0], out, findings(whole / "findings.json"), score)
    return score


def _told_to_end(setting: Setting, score: Score, out: Path) -> None:
    """The command alone gets the signal. Whatever it started must have ended when it has."""
    child = setting.warm.start("chaos.early:marked", out)
    workers, moment = 0, setting.dice.uniform(0.0, 0.4) if setting.dice.random() < 0.5 else setting.dice.uniform(0, FIRST)
    if setting.dice.random() < 0.5:  # aimed: as soon as the first worker is there
        until = time.monotonic() + 20 * FIRST
        while not _of(out) and child.status() is None and time.monotonic() < until:
            time.sleep(0.001)
    until = time.monotonic() + moment
    while time.monotonic() < until and child.status() is None:
        time.sleep(0.005)
    workers = len(_of(out))
    if child.status() is None:
        os.kill(child.pid, signal.SIGTERM)
    if child.wait() == 0:
        score.count("ended before the signal")
        return
    left = _of(out)
    score.disturbances, score.kills = score.disturbances + 1, score.kills + 1
    score.count(f"SIGTERM with {workers} workers")
    sentence_at_the_end(child, score, {-signal.SIGTERM, 143})
    if left:
        score.err(f"verify ended and left {len(left)} processes behind")
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def marked(out: str) -> int:
    """Three studies, two at a time, in a process whose children can be told from all others."""
    os.environ[MARK] = out
    return joma("verify", *STUDIES, "-j", "2", "--out", out)


def _of(out: Path) -> list[int]:
    """The processes that the command on this folder started and that have not ended."""
    mark, found = f"{MARK}={out}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it ended meanwhile, or belongs to somebody else; one that has ended shows nothing
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
