"""Seeds for named streams of random numbers: one seed for a run, and a stream of its own for each purpose.

`seed + 1` for the second purpose gives numbers that the next seed uses for its first one. Streams of other names, or of
another seed, have nothing in common.
"""

from __future__ import annotations

import json
from hashlib import sha256
from operator import index
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def stream(seed: int, *names: str | int) -> int:
    """The seed of the stream with these names, below 2**63. It is the same on every machine and in every version.

    seed: of the run. names: what the stream is for, from the general to the special.

    >>> stream(0, "weights", "layer", 3)
    9212523482940029512
    >>> stream(0, "weights") == stream(1, "weights"), stream(0, "a", "b") == stream(0, "ab")
    (False, False)
    """
    try:
        if any(isinstance(part, bool) for part in (seed, *names)):
            raise TypeError
        parts = [index(seed), *(name if isinstance(name, str) else index(name) for name in names)]
    except TypeError:
        got = f"got {(seed, *names)}"
        raise ValueError(f"a stream has an integer and names that are words or integers, {got}") from None
    # JSON tells the word "3" from the integer 3, keeps ("a", "b") from ("ab",), and is the same in every Python.
    return int.from_bytes(sha256(json.dumps(parts).encode("ascii")).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> torch.Generator:
    """A generator of torch, on the CPU, that begins at `stream(seed, *names)`."""
    import torch

    return torch.Generator().manual_seed(stream(seed, *names))
