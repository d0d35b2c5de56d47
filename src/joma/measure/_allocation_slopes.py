"""States and groups of `joma.measure.allocation`, and how fast a measure changes through each group between two states.

One forward pass and one backward pass per measure give all groups. Members of an ensemble do not see each other, so
the gradient of their sum is the gradient of each.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from joma.host.arguments import as_numbers, as_tensor, described, real, shown

State = dict[str, Tensor]
Share = dict[str, Tensor | None]
"""What a group holds: the names of parameters, each with a mask of the entries that are its own (None: all of them)."""
Function = Callable[[State], Tensor]

REST = "rest"  # The group of what no group names.
FEW, LARGE = 3, 1 << 20
"""So few groups in a parameter of so many numbers are summed one by one: a matrix would be larger than the parameter,
and those of a model of 1B parameters that holds queries, keys and values in one take 1.6 GB."""


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
    if tensor.dtype not in (torch.float32, torch.float64):
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
        here = f"it is that of what no group holds, here {list(rest)}"
        raise ValueError(f"groups[{REST!r}] must have another name: {here}")
    return {**shares, REST: rest} if rest else shares


def _share(group: str, listed: object, state: State, owners: dict[str, dict[str, Tensor]]) -> Share:
    if isinstance(listed, str | Mapping) or not isinstance(listed, Iterable):
        raise ValueError(f"groups[{group!r}] must be a list of parameter names, got {shown(listed)}")
    masks: dict[str, Tensor] = {}
    for entry in listed:
        name, index = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, ...)
        if not isinstance(name, str) or name not in state:
            some = ", ".join(map(repr, list(state)[:6])) + (f" and {len(state) - 6} more" if len(state) > 6 else "")
            raise ValueError(f"groups[{group!r}] names {shown(name)}, which is not a parameter: states have {some}")
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


class GroupSums:
    """Which groups each parameter belongs to, as a matrix to multiply with.

    One product per parameter, not one per group: a decoder of ten layers has forty groups in a dozen tensors. Sums
    taken group by group would be most of the time.
    """

    def __init__(self, shares: dict[str, Share]) -> None:
        self.owners: dict[str, list[int]] = {}
        self.masks: dict[str, list[Tensor | None]] = {}
        for group, share in enumerate(shares.values()):
            for key, mask in share.items():
                self.owners.setdefault(key, []).append(group)
                self.masks.setdefault(key, []).append(mask)
        self.matrices: dict[str, Tensor] = {}

    def add(self, total: Tensor, key: str, products: Tensor) -> None:
        """Add to total (groups, members) the products of one parameter, summed over the entries of each group."""
        owners = self.owners.get(key, [])
        if not owners:
            return
        members = total.shape[1]
        rows = products.reshape(members, -1)  # (members, entries)
        if (len(owners) <= FEW and products.numel() > LARGE) or self.masks[key] == [None]:
            for group, mask in zip(owners, self.masks[key], strict=True):
                mine = products if mask is None else products * mask.to(products.device)
                total[group] += mine.reshape(members, -1).sum(1).to(total)
            return
        matrix = self._matrix(key, members, products)
        sums = rows @ matrix if matrix.ndim == 2 else torch.einsum("me,emg->mg", rows, matrix)
        total[owners] += sums.mT.to(total)

    def _matrix(self, key: str, members: int, like: Tensor) -> Tensor:
        """(entries, groups) of 0 and 1; (entries, members, groups) where members differ in what a group holds."""
        if key not in self.matrices:
            every = torch.ones_like(like, dtype=torch.bool)
            masks = torch.stack([every if mask is None else mask.to(like.device) for mask in self.masks[key]], dim=-1)
            each = masks.reshape(members, -1, masks.shape[-1]).movedim(0, 1)
            alike = bool((each == each[:, :1]).all())
            self.matrices[key] = (each[:, 0] if alike else each).to(like.dtype).contiguous()
        return self.matrices[key]


class Line:
    """The straight way between two states, and a function on it."""

    def __init__(
        self, function: Function, start: State, end: State, shares: dict[str, Share], *, members: bool, name: str
    ) -> None:
        self.function, self.shares, self.members, self.name = function, shares, members, name
        self.start, self.end, self.sums = start, end, GroupSums(shares)
        moves = {key: end[key].to(old.device) - old for key, old in start.items() if old.is_floating_point()}
        self.moves = {key: move for key, move in moves.items() if bool(move.any())}

    def at(self, s: float) -> State:
        if s in (0, 1):
            return dict(self.end if s else self.start)
        return {key: old.add(self.moves[key], alpha=s) if key in self.moves else old for key, old in self.start.items()}

    def value(self, s: float) -> Tensor:
        with torch.no_grad():
            return self.call(self.at(s), s).detach()

    def call(self, state: State, s: float) -> Tensor:
        found = self.function(state)
        if not isinstance(found, Tensor) or not found.is_floating_point():
            got = found.dtype if isinstance(found, Tensor) else shown(found)
            raise ValueError(f"function must return a floating tensor of measures, got {got}")
        shapes = {"the result of function": found.shape} | {repr(key): state[key].shape for key in self.moves}
        for name, shape in shapes.items() if self.members else ():
            if not shape or shape[0] != found.shape[0]:
                both = f"{tuple(found.shape)} and {name} of shape {tuple(shape)}"
                raise ValueError("members=True: the first dimension of the result of function and of every parameter "
                                 f"must be the member, got {both}")  # fmt: skip
        _must_be_finite(found, f"function gave NaN or infinity {self._place(s)}")
        return found

    def _place(self, s: float) -> str:
        return f"at {self.name}, {s:.0%} of the way"

    def slopes(self, s: float) -> Tensor:
        """d function / ds through every group: (groups, *measures), by one backward pass per measure."""
        with torch.inference_mode(False), torch.enable_grad():
            state = self.at(s)
            leaves = {key: state[key].detach().requires_grad_() for key in self.moves}
            found = self.call({**state, **leaves}, s)
            columns = found.reshape(len(found) if self.members else 1, -1)  # (members, measures)
            slopes = columns.new_zeros(len(self.shares), *columns.shape)
            if leaves and found.requires_grad:
                for measure in range(columns.shape[1]):
                    slopes[:, :, measure] = self._by_group(leaves, columns[:, measure].sum(), len(columns))
        result = slopes.detach().reshape(-1, *found.shape)
        _must_be_finite(result, f"the gradient of function has NaN or infinity {self._place(s)}")
        return result

    def _by_group(self, leaves: State, measure: Tensor, members: int) -> Tensor:
        """(groups, members) from one backward pass."""
        gradients = torch.autograd.grad(measure, list(leaves.values()), retain_graph=True, allow_unused=True)
        total = measure.new_zeros(len(self.shares), members)
        for key, gradient in zip(leaves, gradients, strict=True):
            if gradient is not None:
                self.sums.add(total, key, gradient * self.moves[key])
        return total.detach()


def _must_be_finite(tensor: Tensor, sentence: str) -> None:
    if not tensor.isfinite().all():
        raise ValueError(sentence)
