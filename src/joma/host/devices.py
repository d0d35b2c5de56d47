"""Which devices there are, and one sentence for those that are not. Loads no torch before it is asked."""

from __future__ import annotations

import re
from dataclasses import dataclass

_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def must_be_a_device(name: str) -> None:
    """Refuse what is no name of a device, whether or not this machine has it.

    >>> must_be_a_device("tpu")
    Traceback (most recent call last):
        ...
    ValueError: device must be cpu, cuda or cuda:NUMBER, got 'tpu'
    """
    if not isinstance(name, str) or not _DEVICE.fullmatch(name):
        raise ValueError(f"device must be cpu, cuda or cuda:NUMBER, got {name!r}")


def gpus() -> int:
    """How many CUDA GPUs torch sees here."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


@dataclass(frozen=True)
class Lacking:
    """A device that this machine does not have; it reads as a sentence.

    >>> print(Lacking("cuda", 0))
    device cuda needs a CUDA GPU, and torch sees none here
    """

    device: str
    seen: int

    def __str__(self) -> str:
        return f"device {self.device} needs a CUDA GPU, and torch sees {self.seen or 'none'} here"


def lacking(device: str) -> Lacking | None:
    """What is missing for `device` to be used here; None if nothing is.

    >>> lacking("cpu") is None
    True
    """
    must_be_a_device(device)
    if device == "cpu":
        return None
    wanted = int(device.partition(":")[2] or 0)
    seen = gpus()
    return Lacking(device, seen) if wanted >= seen else None
