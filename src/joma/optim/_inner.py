"""What GaLore knows of inner optimizers: their state when a subspace moves (on_move), its size, steps of some or none.

- keep: nothing. Direction i of the new subspace inherits the state of direction i of the old one, as in galore-torch.
- rotate: with R = P_new^T P_old, first moments m become R m, which is exact. Second moments have no exact rotation:
  they become (R * R) v + (1 - sum_j R_ij^2) mean(v). The first term is exact where the old coordinates are
  uncorrelated. The second gives the part of a new direction that lay outside the old subspace the mean second moment.
- reset: the state is forgotten; the inner optimizer starts that matrix anew, its step count included.

A state tensor is moved if it is a plain floating-point matrix with the rank along the projected axis (moments of the
compact shape, and Adafactor's factor along that axis). Quantised states cannot be rotated; they are refused.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from joma.optim._matrix import Matrix, Pack, is_sharded, local

OnMove = Literal["keep", "rotate", "reset"]
SECOND_MOMENTS = ("sq", "square", "sum", "var", "inf", "max", "step_size", "acc_delta")
"""Parts of the names that torch's optimizers give to what is not linear in the gradient."""
_ENTRY_BY_ENTRY = (
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "Adagrad",
    "Adadelta",
    "RMSprop",
    "Rprop",
    "SGD",
    "ASGD",
)
_PER_ENTRY = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adagrad": 1, "Muon": 1}


def state_entries(optimizer: torch.optim.Optimizer, group: dict[str, Any], shape: tuple[int, ...]) -> int | None:
    """How many numbers an optimizer keeps for a parameter of a shape, step counts aside; None if it is not known."""
    name, entries = type(optimizer).__name__, torch.Size(shape).numel()
    if name in _PER_ENTRY:
        return (_PER_ENTRY[name] + bool(group.get("amsgrad"))) * entries
    if name == "SGD":
        return bool(group["momentum"]) * entries
    if name == "RMSprop":
        return (1 + bool(group["momentum"]) + bool(group["centered"])) * entries
    if name == "Adafactor":
        return entries if len(shape) < 2 else entries // shape[-1] + entries // shape[-2]
    return None


def is_entry_by_entry(inner: torch.optim.Optimizer) -> bool:
    """Whether each entry is updated by itself, so that several compact parameters can be one; known of torch's own."""
    return type(inner) in [getattr(torch.optim, name) for name in _ENTRY_BY_ENTRY]


def state_of(inner: torch.optim.Optimizer, matrix: Matrix) -> dict[str, Any]:
    """The inner state of one matrix: parts of the tensors of its pack; what has no axes, as a step count, is shared."""
    found = inner.state.get(matrix.pack.compact, {})
    if len(matrix.pack.matrices) == 1:
        return dict(found)
    return {key: value[matrix.place] if _has_axes(value) else value for key, value in found.items()}


def _has_axes(value: object) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def join_states(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The state of a pack from those of its matrices, which have the same step count."""
    if len(states) == 1:
        return states[0]
    joined: dict[str, Any] = {}
    for key, value in states[0].items():
        each = [state[key] for state in states]
        joined[key] = torch.stack(each) if _has_axes(value) else value
    return joined


def regroup(inner: torch.optim.Optimizer, packs: list[Pack], form: Callable[[list[Matrix]], list[Pack]]) -> list[Pack]:
    """Form new packs of the matrices of these, and move bases and inner states into them."""
    matrices = [matrix for pack in packs for matrix in pack.matrices]
    states = {id(matrix): _copied(state_of(inner, matrix)) for matrix in matrices}
    subspaces = {id(matrix): (matrix.basis, matrix.energies) for matrix in matrices}
    for pack in packs:
        inner.state.pop(pack.compact, None)
    found = form(matrices)
    for pack in found:
        for matrix in pack.matrices:
            basis, energies = subspaces[id(matrix)]
            if basis is not None and energies is not None:
                matrix.take_subspace(basis, energies)
        if state := join_states([states[id(matrix)] for matrix in pack.matrices]):
            inner.state[pack.compact] = state
    return found


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """With memory of its own, so that nobody keeps that of a pack which is gone."""
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}


@contextmanager
def only(inner: torch.optim.Optimizer, some: list[tuple[dict[str, Any], list[Tensor]]]) -> Iterator[None]:
    """Let the inner optimizer see some parameters of some of its groups, and no others."""
    groups, before = inner.param_groups, [group["params"] for group, _ in some]
    for group, parameters in some:
        group["params"] = parameters
    inner.param_groups = [group for group, _ in some]
    try:
        yield
    finally:
        inner.param_groups = groups
        for (group, _), parameters in zip(some, before, strict=True):
            group["params"] = parameters


def move_state(
    inner: torch.optim.Optimizer, matrix: Matrix, old: Tensor, on_move: OnMove, *, sound: Tensor | None = None
) -> None:
    """Move the inner state of one matrix from the subspace `old` to matrix.basis. `reset` needs a pack of one.

    - inner, matrix, old, on_move: whose state, from where, and how
    - sound: False on the device where the subspace has not moved. A state is not turned there. It is forgotten there
      all the same, since the host does not know: the next step finds that subspace anew, and would forget it then
    """
    state = inner.state.get(matrix.pack.compact, {})
    if on_move == "reset" and "sum" in state:  # Adagrad fills its state when it is made, not at its first step
        state["step"].zero_()
        state["sum"].fill_(inner.defaults.get("initial_accumulator_value", 0.0))
    elif on_move == "reset":
        inner.state.pop(matrix.pack.compact, None)
    if on_move != "rotate" or matrix.basis is None:
        return
    precise = torch.promote_types(matrix.product_dtype, torch.float32)
    rotation = matrix.directions().to(precise).mT @ old.to(precise)
    axis = matrix.projected_axis
    for name, value in state_of(inner, matrix).items():
        plain, sharded = type(value) is Tensor, is_sharded(value)
        if isinstance(value, Tensor) and value.ndim and not sharded and not (plain and value.dtype != torch.uint8):
            # kept in few bits: a tensor of bytes, or a class of its own
            raise ValueError(f"on_move='rotate' cannot turn the quantised state {name}: use keep or reset")
        sides = (plain or sharded) and value.is_floating_point() and value.ndim == 2 and value.shape
        if sides and sides[axis] == matrix.rank and sides[1 - axis] in (1, matrix.longer):
            here = local(value)
            rows = here.to(rotation.dtype) if axis == 0 else here.to(rotation.dtype).mT
            if any(part in name for part in SECOND_MOMENTS):
                known = rotation.square()
                outside = (1 - known.sum(1, keepdim=True)).clamp_min(0)  # rounding may put it below 0
                moved = torch.addmm(outside * rows.mean(0, keepdim=True), known, rows)
            else:
                moved = rotation @ rows
            moved = (moved if axis == 0 else moved.mT).contiguous().to(here.dtype)
            here.copy_(moved if sound is None else torch.where(sound, moved, here))


def narrow_state(inner: torch.optim.Optimizer, matrix: Matrix, before: int) -> None:
    """Cut state that was made for the largest rank to the rank that was chosen; the matrix is alone in its pack."""
    state = inner.state.get(matrix.pack.compact, {})
    for name, value in state.items():
        if isinstance(value, Tensor) and value.ndim == 2 and value.shape[matrix.projected_axis] == before:
            state[name] = value.narrow(matrix.projected_axis, 0, matrix.rank).clone()
