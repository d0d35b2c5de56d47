"""Gradients that are not finite: seeing them, and holding a step back without waiting for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from joma.optim._matrix import Matrix, is_sharded, is_stacked_on, local

LARGE = 1 << 22  # entries of a tensor whose largest is looked for alone on a GPU
NameOf = Callable[[int], str]
"""The name of the parameter that a flag is of, asked for where it is False."""


def are_finite(tensors: Sequence[Tensor], stacks: Sequence[Tensor] = ()) -> Tensor:
    """For each tensor whether all of it is finite, on the device of the first; the same answer on all processes.

    - tensors: one flag for each
    - stacks: (matrices, rows, columns), one flag for each row; their flags come first
    """
    if not tensors and not stacks:
        return torch.ones(0, dtype=torch.bool)
    here = [local(one) for one in tensors]
    if not all(one.numel() for one in here):  # a process that has no row of a tensor has nothing to object to
        here = [one if one.numel() else one.new_zeros(1) for one in here]
    if not stacks and _have_finite_sums(here):
        finite = torch.ones(len(here), dtype=torch.bool)
    else:
        finite = _have_finite_norms(here, stacks)
    meshes: dict[Any, None] = {one.device_mesh: None for one in tensors if is_sharded(one)}  # type: ignore[attr-defined]
    if not meshes:
        return finite
    # Where one process sees a fault, all that hold parts must: otherwise some would step and others would not.
    everywhere = finite.to(torch.int32)
    for group in (mesh.get_group(dimension) for mesh in meshes for dimension in range(mesh.ndim)):
        dist.all_reduce(everywhere, dist.ReduceOp.MIN, group=group)
    return everywhere.bool()


def _have_finite_sums(tensors: Sequence[Tensor]) -> bool:
    """On a CPU, which adds much faster than it takes norms. A sum that is not finite may be an overflow."""
    if any(one.device.type != "cpu" for one in tensors) or is_stacked_on(tensors[0].device):
        return False
    return all(isfinite(float(one.sum())) for one in tensors)


def _have_finite_norms(tensors: Sequence[Tensor], stacks: Sequence[Tensor]) -> Tensor:
    norms = [torch.linalg.vector_norm(one, torch.inf, dim=-1).flatten() for one in stacks]
    if tensors:
        singles = _largest_entries(tensors)
        alike = all(one.dtype == singles[0].dtype and one.device == singles[0].device for one in singles)
        norms += [torch.stack(singles)] if alike else [one[None] for one in singles]
    first = norms[0]
    norms = [one if one.device == first.device else one.to(first.device) for one in norms]
    return (torch.cat(norms) if len(norms) > 1 else first) < torch.inf  # NaN is not below it either


def _largest_entries(tensors: Sequence[Tensor]) -> list[Tensor]:
    """In size, or 0 for any that is finite. Many small tensors are read at once; a large one fills a device alone."""
    small = [one for one in tensors if one.numel() < LARGE or one.device.type == "cpu"]
    found = iter(torch._foreach_norm(small, torch.inf) if small else ())
    alone = {id(one) for one in small}
    return [next(found) if id(one) in alone else _of_large(one) for one in tensors]


def _of_large(one: Tensor) -> Tensor:
    if one.device.type == "cuda" and _has_triton():
        from joma.optim._finite_triton import covers, zero_if_finite

        if covers(one):
            return zero_if_finite(one)
    largest: Tensor = torch.linalg.vector_norm(one, torch.inf)
    return largest


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


class Sent:
    """Flags that are on their way from the device to the host, which does not wait for them."""

    def __init__(self, flags: Tensor) -> None:
        """Send them; what is on the host already is there."""
        self._arrived = torch.cuda.Event() if flags.device.type == "cuda" else None
        self._flags = flags.to("cpu", non_blocking=True)
        if self._arrived is not None:
            self._arrived.record(torch.cuda.current_stream(flags.device))

    def read(self) -> np.ndarray:
        """Wait until they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        found: np.ndarray = self._flags.numpy()
        return found


class Pending(NamedTuple):
    """A step that was left to the device."""

    name_of: NameOf
    finite: Sent
    matrices: list[Matrix]


class Replays:
    """Counts on the device, in every replay of a CUDA graph, the updates that are held back."""

    def __init__(self) -> None:
        """Nothing is captured yet."""
        self._held: dict[torch.device, Tensor] = {}  # not made in a graph: that would begin anew with each replay
        self._counts = False
        self._known = 0
        self._sent: list[Sent] = []

    def prepare(self, found_inf: Tensor) -> None:
        """Memory for the count beside such a flag, before anything is captured."""
        if found_inf.device not in self._held:
            self._held[found_inf.device] = torch.zeros_like(found_inf)

    def count(self, found_inf: Tensor) -> None:
        """Let a graph that is captured count this update where it is held back."""
        if found_inf.device not in self._held:
            raise ValueError("this optimizer has made no step yet: make one as usual before you capture one")
        self._held[found_inf.device].add_(found_inf)
        self._counts = True

    def read(self, *, wait: bool) -> int:
        """How many were held back since the last answer.

        - wait: for the last replay; if not, the answer is that of the moment when it was asked for before
        """
        if not self._counts:
            return 0
        before, self._sent = self._sent, [Sent(each) for each in self._held.values()]
        if not (arriving := self._sent if wait else before):
            return 0
        last, self._known = self._known, sum(int(each.read()) for each in arriving)
        return self._known - last


class Guard:
    """Holds a step back where a gradient is not finite, without waiting for the device.

    To look at a number that a GPU computes, Python waits until the GPU has caught up, and the GPU then waits for
    Python. torch's fused optimizers take a flag, `found_inf`, that makes their step do nothing. With such an inner
    optimizer the flag is set on the device, and Python reads it at the next step, when it has long been there.
    """

    devices = ("cuda",)  # kinds of devices on which waiting costs something

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.pending: list[Pending] = []
        self._replays = Replays()

    def serves(self, devices: Iterable[torch.device]) -> bool:
        """Whether the inner optimizer takes the flag, and everything is on one device of the right kind."""
        places = set(devices)
        if len(places) != 1 or next(iter(places)).type not in self.devices:
            return False
        fused = all(group.get("fused") for group in self.inner.param_groups)
        return fused and bool(getattr(self.inner, "_step_supports_amp_scaling", False))

    def hold(self, name_of: NameOf, finite: Tensor, matrices: list[Matrix], *, captured: bool = False) -> Tensor:
        """Let the inner optimizer's next step do nothing if not all is finite; the flag, 1.0 where nothing may change.

        What a CUDA graph captures has no flags of its own: there the device counts, see `held_in_replays`.
        """
        found_inf = torch.empty((), dtype=torch.float32, device=finite.device)
        torch.logical_not(finite.all(), out=found_inf)
        self.inner.found_inf = found_inf  # type: ignore[attr-defined]
        if captured:
            self._replays.count(found_inf)
        else:
            self._replays.prepare(found_inf)
            self.pending.append(Pending(name_of, Sent(finite), matrices))
        return found_inf

    def held_in_replays(self, *, wait: bool) -> int:
        """Updates in replays of CUDA graphs that did not happen, since the last question; see `Replays.read`."""
        return self._replays.read(wait=wait)

    def release(self) -> None:
        """The inner optimizer has stepped."""
        vars(self.inner).pop("found_inf", None)

    def look_back(self) -> list[str]:
        """Of each update since the last look that did not happen: a gradient that was not finite. It does not count."""
        pending, self.pending = self.pending, []
        names = []
        for one in pending:
            finite = one.finite.read()
            if not finite.all():
                for matrix in one.matrices:
                    matrix.count -= 1
                names.append(one.name_of(int(finite.argmin())))
        return names
