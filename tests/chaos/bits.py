"""Bits that turn over and rows that vanish on the disk: noticed, or without effect; never a wrong number in silence."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from chaos import trainer
from chaos.score import Score, Setting
from chaos.work import series
from joma.runs import Run, RunError


def disturb(setting: Setting) -> Score:
    score = Score("bits")
    expected, seconds = trainer.undisturbed(setting)
    run = setting.place("run") / "a.sqlite"
    setting.warm.done("chaos.work:make_run", run, 12)
    recorded = series(run)
    for number in range(setting.rounds):
        _checkpoint(setting, score, setting.place(f"trained-{number}") / "a.sqlite", expected, seconds)
        _flipped_run(setting, score, run, setting.place(f"flipped-{number}") / "a.sqlite", recorded)
        _row_gone(setting, score, run, setting.place(f"gone-{number}") / "a.sqlite")
    return score


def _checkpoint(setting: Setting, score: Score, path: Path, expected: object, seconds: float) -> None:
    """A bit of the checkpoint of a training that was killed: it begins anew rather than go on from wrong weights."""
    child = setting.warm.start(trainer.TRAIN, path)
    until = time.monotonic() + 20 * seconds
    while not (made := list(path.parent.glob("*.checkpoint"))) and time.monotonic() < until and child.status() is None:
        time.sleep(0.002)
    time.sleep(setting.dice.uniform(0.0, seconds / 3))
    child.kill()
    child.wait()
    if not (made := list(path.parent.glob("*.checkpoint"))):
        score.count("no checkpoint to spoil")
        return
    _flip(setting, made[0])
    score.disturbances += 1
    trainer.ends_right(setting, path, expected, score)


def _flipped_run(setting: Setting, score: Score, run: Path, copy: Path, recorded: object) -> None:
    copy.write_bytes(run.read_bytes())
    _flip(setting, copy)
    score.disturbances += 1
    try:
        found = series(copy)
    except RunError:
        score.count("noticed")
    except Exception as error:
        score.wonder(f"{type(error).__name__}: {error}")
    else:
        score.count("without effect")
        score.same(found, recorded, "a run with a bit turned over")


def _row_gone(setting: Setting, score: Score, run: Path, copy: Path) -> None:
    copy.write_bytes(run.read_bytes())
    step = setting.dice.randrange(12)
    with sqlite3.connect(copy) as connection:
        connection.execute("DELETE FROM entries WHERE step = ? AND series = 1", (step,))
    connection.close()
    score.disturbances += 1
    with Run.open(copy) as damaged:
        try:
            damaged.array(damaged.names()[0])
        except RunError:
            score.count("noticed")
        else:
            score.err(f"step {step} is gone, and nobody noticed")


def _flip(setting: Setting, path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[setting.dice.randrange(len(content))] ^= 1 << setting.dice.randrange(8)
    path.write_bytes(content)
