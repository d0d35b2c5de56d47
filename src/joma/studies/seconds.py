"""What every study took once, on the machines of the kept records; `results/seconds.py` writes the numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from statistics import median


def times(names: Sequence[str], scale: str) -> dict[str, float]:
    """Seconds that studies took once; of those that nobody knows, as the one in the middle.

    >>> sorted(times(["thm2", "a-study-of-your-own"], "quick"))
    ['a-study-of-your-own', 'thm2']
    """
    took = known()[scale]
    middle = median(took.values())
    return {name: took.get(name, middle) for name in names}


@cache
def known() -> Mapping[str, Mapping[str, float]]:
    """By scale and study."""
    found: dict[str, dict[str, float]] = json.loads(files(__package__).joinpath("seconds.json").read_text("utf-8"))
    return found
