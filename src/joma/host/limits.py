"""How much is believed of files that come from outside. Whoever needs more sets the constant before the call.

A limit is far above what honest files have and far below what hurts a machine.
"""

from __future__ import annotations

from typing import Any

JSON_DEPTH = 100
"""Lists and mappings inside one another."""
DIMENSIONS = 64
"""Of a tensor; torch itself has no more."""
TENSORS = 500_000
"""In one checkpoint, with all else that its dictionaries hold."""
PICKLE_BYTES = 256 * 2**20
"""Of what describes the tensors of a torch file, names and shapes; the numbers lie beside it."""
LISTING_BYTES = 64 * 2**20
"""Of one page of what a hub lists."""
LISTING_PAGES = 1_000
"""Of one listing."""
LISTING_SECONDS = 60.0
"""Until one page has come; a hub that lets its bytes drip is given up."""
REVISIONS = 50_000
"""Of one model."""


def depth_of(value: Any, most: int) -> int:
    """How deep lists and mappings lie inside one another; counting stops beyond `most`.

    >>> depth_of({"a": [1, [2]]}, 10), depth_of(3, 10), depth_of([[[]]], 1)
    (3, 0, 2)
    """
    depth, level = 0, [value]
    while depth <= most:
        inside = [list(each.values()) if isinstance(each, dict) else each for each in level if _holds(each)]
        if not inside:
            break
        depth, level = depth + 1, [one for each in inside for one in each]
    return depth


def _holds(value: Any) -> bool:
    return isinstance(value, dict | list | tuple)
