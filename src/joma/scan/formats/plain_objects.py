"""Plain objects that lie beside the weights in torch files, read without what they are instances of.

Options of a training script, numpy's numbers and random states, DeepSpeed's loss scale: each becomes a stand-in that
keeps what was stored and can do nothing. The class that a file names is never imported. A file that names anything
else is refused.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_NUMBERS = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
    "f2": "e", "f4": "f", "f8": "d",
}  # fmt: skip
_one_at_a_time = threading.Lock()  # what torch allows, it allows in all threads


class StandIn:
    """What stands for an object of a class that is not imported."""

    def __init__(self, *given: Any, **_: Any) -> None:
        """given: what the object was made from."""
        self.given = given
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class Namespace(StandIn):
    """Stands for argparse.Namespace."""

    def __new__(cls, *_: Any) -> Namespace:
        made = super().__new__(cls)
        made.state = None
        return made


class NumberType(StandIn):
    """Stands for numpy.dtype."""


class NumberArray(StandIn):
    """Stands for numpy.ndarray."""


def _array(*_: Any) -> NumberArray:
    return NumberArray()


def _scalar(kind: Any = None, data: Any = None) -> Any:
    """One of numpy's numbers as one of Python's; a stand-in where it is no plain number."""
    name = kind.given[0] if isinstance(kind, NumberType) and kind.given else None
    data = data.encode("latin-1") if isinstance(data, str) else data
    code = _NUMBERS.get(name) if isinstance(name, str) else None
    if code is None or not isinstance(data, bytes) or len(data) != struct.calcsize("<" + code):
        return StandIn()
    little = isinstance(kind.state, tuple) and len(kind.state) > 1 and kind.state[1] == ">"
    return struct.unpack((">" if little else "<") + code, data)[0]


_DEEPSPEED = (
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
)
_ALLOWED: list[Any] = [
    (Namespace, "argparse.Namespace"),
    (NumberType, "numpy.dtype"),
    (NumberArray, "numpy.ndarray"),
    *((_array, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    *((type(name.rpartition(".")[2], (Namespace,), {}), name) for name in _DEEPSPEED),
]
NAMES = tuple(name for _, name in _ALLOWED)
"""The globals that a torch file may name beyond tensors and containers."""


@contextmanager
def stood_in_for() -> Iterator[None]:
    """Within this block torch's restricted unpickler reads plain objects as stand-ins, and allows nothing else.

    Other libraries allow classes of their own for the whole process; these are set aside meanwhile.
    """
    with _one_at_a_time:
        others = torch.serialization.get_safe_globals()
        torch.serialization.clear_safe_globals()
        try:
            with torch.serialization.safe_globals(_ALLOWED):
                yield
        finally:
            torch.serialization.add_safe_globals(others)
