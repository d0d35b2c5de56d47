"""The lock of a dead process: the next writer takes it over at once. That of a living one holds."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from unittest import mock

from chaos.score import Score, Setting
from chaos.writer import Acknowledged
from joma.runs import Run, RunError


def disturb(setting: Setting) -> Score:
    score = Score("lock")
    path = setting.place("run") / "a.sqlite"
    with Run.create(path, study="chaos", config={}) as run:
        run.append("x", 0, 0.0)
    for _ in range(setting.rounds):
        _killed(setting, score, path)
        _left_by_hand(score, path)
    return score


def _killed(setting: Setting, score: Score, path: Path) -> None:
    pipe = Acknowledged(path.with_name("pipe"))
    holder = setting.warm.start("chaos.work:hold", path, pipe.path)
    while "held" not in pipe.read():
        assert holder.status() is None, holder.said()
        time.sleep(0.002)
    if setting.dice.random() < 0.5:
        holder.kill(signal.SIGSTOP)  # a process that sleeps still holds it
    _refused(score, path, holder.pid)
    holder.kill()
    holder.wait()
    pipe.close()
    score.disturbances, score.kills = score.disturbances + 1, score.kills + 1
    _taken_over(score, path)


def _left_by_hand(score: Score, path: Path) -> None:
    """A file with the number of a process that lives: another took the number of the dead one."""
    path.with_name(path.name + ".lock").write_text(str(os.getpid()))
    score.disturbances += 1
    _taken_over(score, path)


def _refused(score: Score, path: Path, holder: int) -> None:
    try:
        Run.open(path, write=True).close()
    except RunError as error:
        if f"by process {holder}" not in str(error):
            score.wonder(f"a lock that is held: {error}")
    else:
        score.err("two processes write one run")


def _taken_over(score: Score, path: Path) -> None:
    naps: list[float] = []
    try:
        with mock.patch("joma.runs.file.sleep", naps.append), Run.open(path, write=True) as run:
            last = run.last_step("x")
            assert last is not None
            run.append("x", last + 1, 1.0)
            score.same(run.steps("x").tolist(), list(range(last + 2)), "the list of steps")
    except RunError as error:
        score.lose(f"the lock of a dead process holds: {error}")
    if naps:
        score.wonder(f"taking over waited {len(naps)} times for {naps[0]} s")
