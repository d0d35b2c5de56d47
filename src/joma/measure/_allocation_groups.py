"""States and groups of `joma.measure.allocation`: read, compared with each other, refused in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from joma.host.arguments import as_numbers, as_tensor, described, real, shown

State = dict[str, Tensor]
Share = dict[str, Tensor | None]
"""What a group holds: the names of parameters, each with a mask of the entries that are its own (None: all of them)."""
REST = "rest"  # The group of what no group names.
_TYPES = (torch.float32, torch.float64)


def read_states(states: Iterable[Mapping[str, Any]]) -> Iterator[State]:
    """The states one after the other, each like the first: an iterator over files holds two of them at a time."""
    if isinstance(states, Mapping | str | Tensor) or not isinstance(states, Iterable):
        raise ValueError(f"states must be a sequence of dicts of parameters, one per checkpoint, got {shown(states)}")
    first, count = None, 0
    for count, state in enumerate(states, start=1):
        name = f"states[{count - 1}]"
        if not isinstance(state, Mapping) or not state:
            raise ValueError(f"{name} must be a dict of parameters by name, got {shown(state)}")
        read = {key: _parameter(value, f"{name}[{key!r}]") for key, value in state.items()}
        first = read if first is None else first
        _must_be_alike(read, first, name)
        yield read
    if count < 2:
        raise ValueError(f"states must hold at least two states, got {count}")


def _parameter(value: Any, name: str) -> Tensor:
    """Floating numbers without NaN; whole numbers of tensors and arrays (buffers, counters) stay what they are."""
    tensor = (as_numbers if isinstance(value, Sequence | float | int) else as_tensor)(value, name).detach()
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    tensor = real(tensor, name)
    if tensor.dtype not in _TYPES:
        raise ValueError(f"{name} must be float32 or float64, got {tensor.dtype}: the way between two states would "
                         "be rounded away")  # fmt: skip
    return tensor


def _must_be_alike(state: State, first: State, name: str) -> None:
    if state.keys() != first.keys():
        lacks, adds = (sorted(a.keys() - b.keys()) for a, b in ((first, state), (state, first)))
        raise ValueError(f"{name} must have the names of states[0]: it lacks {lacks} and adds {adds}")
    for key, tensor in state.items():
        if tensor.shape != first[key].shape or tensor.dtype != first[key].dtype:
            raise ValueError(f"{name}[{key!r}] must be as in states[0], {described(first[key])}, "
                             f"got {described(tensor)}")  # fmt: skip
        if not tensor.is_floating_point() and not torch.equal(tensor, first[key].to(tensor.device)):
            raise ValueError(f"{name}[{key!r}] holds whole numbers that are not those of states[0]: there is no "
                             "straight way between them")  # fmt: skip


def read_groups(groups: Mapping[str, Any], state: State) -> dict[str, Share]:
    """The share of every group, and last of "rest" where something is left. No entry is in two of them."""
    if not isinstance(groups, Mapping) or not groups:
        raise ValueError(f"groups must be a dict of lists of parameter names, got {shown(groups)}")
    owners: dict[str, dict[str, Tensor]] = {name: {} for name in state}
    shares = {group: _share(group, listed, state, owners) for group, listed in groups.items()}
    rest: Share = {}
    for name, parameter in state.items():
        taken = torch.zeros(parameter.shape, dtype=torch.bool, device=parameter.device)
        for mask in owners[name].values():
            taken |= mask
        if parameter.is_floating_point() and not taken.all():
            rest[name] = ~taken if taken.any() else None
    if rest and REST in shares:
        raise ValueError(f"groups[{REST!r}] must have another name: it is that of what no group holds, here {list(rest)}")  # fmt: skip # noqa: E501
    return {**shares, REST: rest} if rest else shares


def _share(group: str, listed: object, state: State, owners: dict[str, dict[str, Tensor]]) -> Share:
    if isinstance(listed, str | Mapping) or not isinstance(listed, Iterable):
        raise ValueError(f"groups[{group!r}] must be a list of parameter names, got {shown(listed)}")
    masks: dict[str, Tensor] = {}
    for entry in listed:
        name, index = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, ...)
        if not isinstance(name, str) or name not in state:
            some = ", ".join(map(repr, list(state)[:6])) + (f" and {len(state) - 6} more" if len(state) > 6 else "")
            raise ValueError(f"groups[{group!r}] names {shown(name)}, which is no parameter: states have {some}")
        if not state[name].is_floating_point():
            raise ValueError(f"groups[{group!r}] names {name!r}, which holds whole numbers and has no gradient")
        mask = torch.zeros(state[name].shape, dtype=torch.bool, device=state[name].device)
        try:
            mask[index] = True
        except (IndexError, TypeError, ValueError, RuntimeError):
            what = f"groups[{group!r}]: {name!r} of shape {tuple(mask.shape)}"
            raise ValueError(f"{what} cannot be indexed by {shown(index)}") from None
        for other, taken in owners[name].items():
            if (mask & taken).any():
                where = f"both {other!r} and {group!r}" if other != group else f"{group!r} twice"
                raise ValueError(f"groups must share no parameter, but {name!r} is in {where}")
        masks[name] = owners[name][group] = mask | masks.get(name, mask)
    return {name: None if mask.all() else mask for name, mask in masks.items()}
