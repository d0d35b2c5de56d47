"""A step that does not happen where a gradient is not finite, without waiting for the device.

To look at a number that a GPU computes, Python waits until the GPU has caught up, and the GPU then waits for Python.
torch's fused optimizers take a flag, `found_inf`, that makes their step do nothing. With such an inner optimizer the
flag is set on the device, and Python reads it at the next step, when it has long been there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from joma.optim._matrix import Matrix


class Pending(NamedTuple):
    """Flags that are on their way from the device."""

    names: list[str]
    fine: Tensor
    arrived: torch.cuda.Event | None
    matrices: list[Matrix]


class Guard:
    """Holds back what a step would do, and remembers to look why."""

    devices = ("cuda",)
    """Kinds of devices on which waiting costs something."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        """Of one inner optimizer."""
        self.inner = inner
        self.pending: Pending | None = None

    def serves(self, matrices: list[Matrix]) -> bool:
        """Whether the inner optimizer takes the flag, and everything is on one device of the right kind."""
        places = {matrix.parameter.device for matrix in matrices}
        if len(places) != 1 or next(iter(places)).type not in self.devices:
            return False
        fused = all(group.get("fused") for group in self.inner.param_groups)
        return fused and bool(getattr(self.inner, "_step_supports_amp_scaling", False))

    def hold(self, names: list[str], fine: Tensor, matrices: list[Matrix]) -> Tensor:
        """Let the inner optimizer's next step do nothing if not all is fine; 1.0 where it acts, 0.0 where not."""
        acts = fine.all().to(torch.float32)
        self.inner.found_inf = 1 - acts  # type: ignore[attr-defined]
        arrived = torch.cuda.Event() if fine.device.type == "cuda" else None
        there = fine.to("cpu", non_blocking=True)
        if arrived is not None:
            arrived.record()
        self.pending = Pending(names, there, arrived, matrices)
        return acts

    def release(self) -> None:
        """The inner optimizer has stepped."""
        if hasattr(self.inner, "found_inf"):
            del self.inner.found_inf

    def look(self) -> str | None:
        """The name of a gradient that was not finite in the step before, which then did not count."""
        if self.pending is None:
            return None
        (names, fine, arrived, matrices), self.pending = self.pending, None
        if arrived is not None:
            arrived.synchronize()
        if bool(fine.all()):
            return None
        for matrix in matrices:
            matrix.count -= 1
        return names[fine.tolist().index(False)]
