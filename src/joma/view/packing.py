"""Numbers as a page gets them: four bytes each where that is enough, eight where it is not."""

import json
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

import numpy as np

_EXACT = 2**24  # whole numbers up to here are the same in four bytes


@dataclass(frozen=True)
class Answer:
    """What a page gets for a question: words as JSON, and numbers beside them.

    - head: what JSON can carry
    - steps: (steps,) float64; values: (steps, ...) float32 or float64
    """

    head: dict[str, Any]
    steps: np.ndarray
    values: np.ndarray

    @property
    def buffers(self) -> list[bytes]:
        return [each.astype(each.dtype.newbyteorder("<"), copy=False).tobytes() for each in (self.steps, self.values)]

    def as_text(self) -> dict[str, Any]:
        return {**self.head, "buffers": [b64encode(each).decode() for each in self.buffers]}

    def as_bytes(self) -> bytes:
        """For the wire: the length of the head, the head, the numbers, each beginning at a multiple of eight."""
        head = json.dumps(self.head).encode()
        head += b" " * (-(len(head) + 8) % 8)
        return b"".join([len(head).to_bytes(8, "little"), head, *self.buffers])


def packed(steps: np.ndarray, values: np.ndarray, **words: Any) -> Answer:
    """An answer with its shape and kind in the head."""
    plain = _narrow(np.abs(values) if np.iscomplexobj(values) else values)
    lost = int(plain.size - np.isfinite(plain).sum())
    kind = "f4" if plain.dtype == np.float32 else "f8"
    return Answer({"shape": list(plain.shape), "kind": kind, "lost": lost, **words}, steps.astype(np.float64), plain)


def _narrow(values: np.ndarray) -> np.ndarray:
    """float32, unless a number would become infinite, zero or another whole number there."""
    wide = values.astype(np.float64)
    if values.dtype.kind in "iu" and values.size and np.abs(wide).max() > _EXACT:
        return wide
    with np.errstate(over="ignore", under="ignore"):
        narrow = wide.astype(np.float32)
    return wide if (np.isfinite(wide) & ~np.isfinite(narrow)).any() or ((wide != 0) & (narrow == 0)).any() else narrow
