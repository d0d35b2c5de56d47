"""`joma export` that is killed: its file is whole, or the old one, or absent, and nothing stays beside it for good."""

from __future__ import annotations

import os
import time
from pathlib import Path

from chaos.score import Score, Setting, kill_within, timed

FORMATS = ("csv", "parquet", "npz")
TWO_HOURS = 7200.0


def disturb(setting: Setting) -> Score:
    score = Score("export")
    run, before = (setting.place(name) / "a.sqlite" for name in ("run", "run-of-yesterday"))
    setting.warm.done("chaos.work:make_run", run)
    setting.warm.done("chaos.work:make_run", before, 3)
    for place, to in enumerate(FORMATS):
        _format(setting, score, run, before, to, setting.rounds * (place + 1) // len(FORMATS))
    return score


def _format(setting: Setting, score: Score, run: Path, before: Path, to: str, kills: int) -> None:
    out = setting.place(to) / f"a.{to}"
    seconds = timed(setting.warm.joma("export", run, "--to", to, "--out", out))
    whole = out.read_bytes()
    timed(setting.warm.joma("export", before, "--to", to))
    yesterdays = before.with_suffix(f".{to}").read_bytes()  # an export too: no other file is replaced
    while score.kills < kills:
        old = setting.dice.choice((yesterdays, whole, None))
        out.unlink(missing_ok=True)
        if old is not None:
            out.write_bytes(old)
        if not kill_within(setting.warm.joma("export", run, "--to", to, "--out", out), seconds, setting.dice, score):
            score.same(out.read_bytes() if out.exists() else None, whole, f"an export to {to} that ended well")
            continue
        found = out.read_bytes() if out.exists() else None
        if found is None and old is not None:
            score.lose(f"the old {to} file is gone")
        elif found not in (old, whole):
            score.err(f"half of a {to} file")
        score.count("left over by kills", _aged(out))
    last = setting.warm.joma("export", run, "--to", to, "--out", out)
    if last.wait() != 0:
        score.lose(f"export to {to} does not go on: {last.said()[-300:]!r}")
    score.same(out.read_bytes() if out.exists() else None, whole, f"the last export to {to}")
    if left := sorted(each.name for each in out.parent.iterdir() if each != out):
        score.err(f"left over beside the {to} file: {left}")


def _aged(out: Path) -> int:
    """Make what a kill left look two hours old, as the next day finds it: younger files stay."""
    left = [each for each in out.parent.iterdir() if each != out]
    for each in left:
        os.utime(each, (time.time() - TWO_HOURS,) * 2)
    return len(left)
