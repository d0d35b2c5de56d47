"""SIGTERM to `joma verify -j 2` in its first seconds, as it starts its workers: no process is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from chaos.score import Score, Setting, plain
from chaos.verify import command, ends_right
from chaos.work import STUDIES, findings

MARK = "JOMA_CHAOS_OF"
"""In the environment of the command, and so of every process that it starts."""
FIRST = 2.0
"""Seconds within which it is told to end: after its start, or after its first worker."""


def disturb(setting: Setting) -> Score:
    score = Score("early")
    for number in range(setting.rounds):
        out = setting.place(f"out-{number}")
        _told_to_end(setting, score, out, aimed=number % 4 != 3)
    whole = setting.place("undisturbed")
    setting.warm.done("chaos.work:joma", *command(STUDIES[0], whole))
    ends_right(setting, STUDIES[0], out, findings(whole / "findings.json"), score)
    return score


def _told_to_end(setting: Setting, score: Score, out: Path, *, aimed: bool) -> None:
    """The command alone gets the signal. Whatever it started must have ended when it has."""
    said = out.with_suffix(".err")
    running = _started(out, said)
    until = time.monotonic() + 600.0  # more than any machine needs
    while aimed and len(_of(out)) < 2 and running.poll() is None and time.monotonic() < until:
        time.sleep(0.001)
    # Most of what it loads after its first worker takes it a second.
    time.sleep(setting.dice.choice((0.1, 0.5, 1.0)) * setting.dice.uniform(0.0, FIRST))
    workers = max(len(_of(out)) - 1, 0)
    running.send_signal(signal.SIGTERM)
    status = running.wait()
    left = _of(out)
    score.disturbances, score.kills = score.disturbances + 1, score.kills + 1
    score.count(f"SIGTERM with {workers} workers")
    if status not in (-signal.SIGTERM, 143) or not plain(said.read_text().strip()):
        score.wonder(f"status {status}; it said {said.read_text()[-300:]!r}")
    if left:
        score.err(f"verify ended and left {len(left)} of {workers} workers behind")
    for pid in left:
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(pid, signal.SIGKILL)


def _started(out: Path, said: Path) -> subprocess.Popen[bytes]:
    """Three studies, two at a time, in a process that loads everything itself: that is when the signal comes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", MARK: str(out)}
    words = [sys.executable, "-m", "joma", "verify", *STUDIES, "-j", "2", "--out", str(out)]
    with said.open("wb") as errors:
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors, env=environment)


def _of(out: Path) -> list[int]:
    """The processes of the command on this folder that have not ended: one that has ended shows no environment."""
    mark, found = f"{MARK}={out}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it ended meanwhile, or belongs to somebody else
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
