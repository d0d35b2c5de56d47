"""Another order of the tests, to find those that lean on others: `pytest --shuffle SEED`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from random import Random
from typing import TypeVar

Item = TypeVar("Item")


def shuffled(items: list[Item], seed: int, file_of: Callable[[Item], Hashable]) -> list[Item]:
    """Files in another order, and the tests within each. A file stays together: what its tests share is made once."""
    files: dict[Hashable, list[Item]] = {}
    for item in items:
        files.setdefault(file_of(item), []).append(item)
    random, found = Random(seed), list(files.values())
    random.shuffle(found)
    for tests in found:
        random.shuffle(tests)
    return [item for tests in found for item in tests]
