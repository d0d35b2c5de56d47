"""One piece of work in several shares: which part of it falls to which shard, the same on every machine.

What falls to a shard follows from the list of the work alone, never from what is there already or who asks.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from joma.host.errors import BadInput
from joma.host.words import short

MOST = 100_000
"""Shards of one piece of work: more than any array of jobs has."""
_SHARD = re.compile(r"([0-9]{1,18})/([0-9]{1,18})")
T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """One of `of` shares of some work, counted from 1."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def folder(self, out: Path) -> Path:
        """Where it writes below `out`: two shards never write to one file."""
        return out / f"shard-{self.number}-of-{self.of}"

    def dealt(self, work: Sequence[T]) -> list[T]:
        """Its part of the work, dealt out in turn: what is added at the end of a list moves nothing before it."""
        return list(work[self.number - 1 :: self.of])

    def balanced(self, work: Mapping[str, float]) -> list[str]:
        """Its part of work whose times are known, in the order of `work`.

        What takes longest is given out first, each to the shard that has least to do, of several such to the first.
        """
        loads, mine = [0.0] * self.of, set[str]()
        for name in sorted(work, key=lambda name: -work[name]):  # a stable sort: equal times keep their order
            least = min(range(self.of), key=loads.__getitem__)
            loads[least] += work[name]
            mine |= {name} if least == self.number - 1 else set()
        return [name for name in work if name in mine]


def read_shard(text: str) -> Shard:
    """The shard that a text names."""
    found = _SHARD.fullmatch(text)
    number, of = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= of:
        raise BadInput(f"shard must be I/N with I from 1 to N, as 2/4, got {short(text)}", argument="shard")
    if of > MOST:
        raise BadInput(f"shard must be I/N with N at most {MOST:,}, got {short(text)}", argument="shard")
    return Shard(number, of)
