"""A writer that is killed: every record that it acknowledged must be there and right."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from chaos.score import Score, Setting
from chaos.work import content
from joma.runs import Run, RunError

KILLS_PER_RUN = 40


class Acknowledged:
    """The reading end of the writer's pipe."""

    def __init__(self, path: Path) -> None:
        self.path, self.unread = path, b""
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        self.descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def read(self) -> list[str]:
        """The whole lines that came; one that a kill cut was not acknowledged."""
        while True:
            try:
                more = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                break
            if not more:
                break
            self.unread += more
        *lines, self.unread = self.unread.split(b"\n")
        return [line.decode() for line in lines]

    def close(self) -> None:
        os.close(self.descriptor)
        self.path.unlink()


def disturb(setting: Setting) -> Score:
    score, path, begun = Score("writer"), setting.folder, 0
    while score.kills < setting.rounds:
        path = setting.place(f"run-{begun}") / "a.sqlite"
        Run.create(path, study="chaos", config={}).close()
        _one_run(
            setting, score, path, min(KILLS_PER_RUN, setting.rounds - score.kills), "wal" if begun % 3 else "rollback"
        )
        begun += 1
    return score


def _one_run(setting: Setting, score: Score, path: Path, kills: int, journal: str) -> None:
    sure = -1  # the last step that is known to be there
    for _ in range(kills):
        pipe = Acknowledged(path.with_name("pipe"))
        writer = setting.warm.start("chaos.work:write", path, pipe.path, setting.dice.choice((3, 20, 1000)), journal)
        lines = _heard(setting, pipe, 80 if journal == "wal" else 10)
        number = signal.SIGTERM if setting.dice.random() < 0.1 else signal.SIGKILL
        writer.kill(number)
        if writer.wait() != -number:
            score.wonder(f"the writer ended with {writer.wait()} before it was killed: {writer.said()[-300:]!r}")
        lines += pipe.read()
        pipe.close()
        score.disturbances, score.kills = score.disturbances + 1, score.kills + 1
        score.count(signal.Signals(number).name)
        score.count("acknowledged records", len(lines))
        sure = _checked(path, sure, max([sure, *map(int, lines)]), score)
    _all_right(path, sure, score)


def _heard(setting: Setting, pipe: Acknowledged, most: int) -> list[str]:
    lines: list[str] = []
    until, wanted = time.monotonic() + setting.dice.choice((0.02, 5.0, 5.0, 5.0)), setting.dice.randrange(most)
    while time.monotonic() < until and len(lines) < wanted:
        lines += pipe.read()
        time.sleep(0.001)
    time.sleep(setting.dice.uniform(0.0, 0.02))
    return lines


def _checked(path: Path, before: int, acknowledged: int, score: Score) -> int:
    """Look at what came since the last kill; the step in flight may be there or not."""
    try:
        with Run.open(path) as run:
            found = -1 if (last := run.last_step("x")) is None else last
            if found < acknowledged:
                score.lose(f"{acknowledged - found} acknowledged records, the first is step {found + 1}")
            if found > acknowledged + 1:
                score.err(f"step {found} was recorded, and only {acknowledged} acknowledged")
            for step in range(before + 1, found + 1):
                if run.at("x", step).tobytes() != content(step).tobytes() or run.at("square", step) != step * step:
                    score.err(f"step {step} holds something else")
            return found
    except RunError as error:
        score.lose(f"the run cannot be read: {error}")
        return before


def _all_right(path: Path, last: int, score: Score) -> None:
    """The whole run once more, finished, as a single file."""
    try:
        with Run.open(path, write=True) as run:
            if last >= 0:
                score.same(run.steps("x").tolist(), list(range(last + 1)), "the list of steps")
                score.same(run.array("square").tolist(), [step**2 for step in range(last + 1)], "series 'square'")
                score.same(run.array("x").tobytes(), b"".join(content(s).tobytes() for s in range(last + 1)), "'x'")
            run.finish()
    except RunError as error:
        score.lose(f"the run cannot be taken up: {error}")
    if left := sorted(each.name for each in path.parent.iterdir() if each != path):
        score.err(f"left over beside the run: {left}")
