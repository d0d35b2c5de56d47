"""Numbers on their way from a device: on CUDA on a stream of their own, into pinned memory, so that nothing waits."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor


class Arrival:
    """A copy of a tensor in the host's memory, which is there at once or later.

    >>> Arrival(torch.ones(2)).numbers()
    tensor([1., 1.])
    """

    def __init__(self, tensor: Tensor) -> None:
        """tensor: what is copied."""
        self._host, self._event = _sent(tensor)

    @property
    def at_once(self) -> bool:
        """Whether there is nothing to wait for."""
        return self._event is None

    def is_there(self) -> bool:
        """Whether the numbers can be read without waiting."""
        return self._event is None or bool(self._event.query())

    def numbers(self) -> Tensor:
        """They, waited for if need be."""
        if self._event is not None:
            self._event.synchronize()
        return self._host


def _sent(flat: Tensor) -> tuple[Tensor, Any]:
    """The numbers in memory of the CPU, and what says that they are there; None where they are at once."""
    if flat.device.type != "cuda":
        return flat.cpu(), None
    aside = _aside(flat.device)
    aside.wait_stream(torch.cuda.current_stream(flat.device))
    with torch.cuda.stream(aside):
        host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
        host.copy_(flat, non_blocking=True)
        flat.record_stream(aside)  # its memory is not given away before it was read
        event = torch.cuda.Event()
        event.record(aside)
    return host, event


@cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    """The stream on which numbers leave a device."""
    return torch.cuda.Stream(device)
