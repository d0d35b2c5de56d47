"""What a subject of the suite is given, and what it counts."""

from __future__ import annotations

import random
import re
import signal
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chaos.warm import Child, Warm

SLOW = re.compile(r"  \S+ +\d+% |(step|epoch) \d+  |allocation  ")
"""How a line begins that is written only where work takes long."""


@dataclass
class Score:
    """How joma stood one kind of disturbance."""

    subject: str
    disturbances: int = 0
    kills: int = 0
    lost: int = 0
    """Things that were acknowledged or there before, and are gone."""
    wrong: int = 0
    """Things that are there and differ from the undisturbed run."""
    odd: int = 0
    """Endings without a plain sentence, or with a status that is not documented."""
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def lose(self, note: str) -> None:
        self.lost += 1
        self.notes.append(f"lost: {note}")

    def err(self, note: str) -> None:
        self.wrong += 1
        self.notes.append(f"wrong: {note}")

    def wonder(self, note: str) -> None:
        self.odd += 1
        self.notes.append(f"odd: {note}")

    def same(self, found: Any, expected: Any, what: str) -> None:
        if found is None:
            self.lose(f"{what} is not there")
        elif found != expected:
            self.err(f"{what} differs from that of the undisturbed run")

    @property
    def sound(self) -> bool:
        return not self.lost and not self.wrong

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"seconds": round(self.seconds, 1)}


@dataclass
class Setting:
    """A folder of its own, dice of its own, the loaded process, and how much to do."""

    folder: Path
    dice: random.Random
    warm: Warm
    rounds: int
    short: bool = False

    def place(self, name: str) -> Path:
        path = self.folder / name.replace(" ", "-")
        path.mkdir(parents=True)
        return path

    def checkpoints(self) -> Path:
        if not (path := self.folder / "checkpoints").exists():
            self.warm.done("chaos.work:make_checkpoints", self.place("checkpoints"))
        return path


def timed(child: Child) -> float:
    start = time.perf_counter()
    assert child.wait() == 0, child.said()
    return time.perf_counter() - start


def kill_within(child: Child, seconds: float, dice: random.Random, score: Score, *, well: int = 0) -> bool:
    """Kill it at a random moment of `seconds`, one time in four with SIGTERM. False: it had ended before, `well`."""
    number = signal.SIGTERM if dice.random() < 0.25 else signal.SIGKILL
    until = time.monotonic() + dice.uniform(0.0, seconds)
    while time.monotonic() < until and child.status() is None:
        time.sleep(min(0.02, max(until - time.monotonic(), 0.0)))
    child.kill(number)
    status = child.wait()
    if status == well:
        score.count("ended before the kill")
        return False
    score.disturbances += 1
    score.kills += 1
    score.count(signal.Signals(number).name)
    sentence_at_the_end(child, score, {-signal.SIGKILL} if number == signal.SIGKILL else {-signal.SIGTERM, 143})
    return True


def sentence_at_the_end(child: Child, score: Score, statuses: set[int]) -> None:
    status, said = child.wait(), child.said().strip()
    if status not in statuses:
        score.wonder(f"status {status}, not one of {sorted(statuses)}; it said {said[-300:]!r}")
    elif status >= 0 and not plain(said):
        score.wonder(f"status {status}; it said {said[-300:]!r}")


def plain(said: str) -> bool:
    """Sentences of joma, and none that takes the blame; on a slow machine it also says how far it is."""
    lines = [line for line in said.splitlines() if not SLOW.match(line)]
    return len(lines) < 3 and all(line.startswith("joma: ") for line in lines) and "a fault of joma" not in said
