"""What happens to the state of the inner optimizer when the subspace moves.

- keep: nothing. Direction i of the new subspace inherits the state of direction i of the old one, as in galore-torch.
- rotate: with R = P_new^T P_old, first moments m become R m, which is exact. Second moments have no exact rotation:
  they become (R * R) v + (1 - sum_j R_ij^2) mean(v). The first term is exact where the old coordinates are
  uncorrelated. The second gives the part of a new direction that lay outside the old subspace the mean second moment.
- reset: the state is forgotten; the inner optimizer starts that matrix anew, its step count included.

A state tensor is moved if it is a plain floating-point matrix with the rank along the projected axis (moments of the
compact shape, and Adafactor's factor along that axis). Quantised states cannot be rotated, and that is said.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from joma.optim._matrix import Matrix
from joma.optim._places import is_sharded, local

OnMove = Literal["keep", "rotate", "reset"]
SECOND = ("sq", "square", "sum", "var", "inf", "max", "step_size", "acc_delta")
"""Parts of the names that torch's optimizers give to what is not linear in the gradient."""


def move(inner: torch.optim.Optimizer, matrix: Matrix, old: Tensor, on_move: OnMove) -> None:
    """Move the inner state of one matrix from the subspace `old` to matrix.basis."""
    if on_move == "reset":
        _forget(inner, matrix)
    if on_move != "rotate" or matrix.basis is None:
        return
    turn = matrix.basis.mT @ old.to(matrix.basis)
    mine = inner.state.get(matrix.compact, {})
    for name, value in mine.items():
        if _is_packed(value):
            raise ValueError(f"on_move='rotate' cannot turn the quantised state {name}: use keep or reset")
        if _moves(value, matrix):
            here = local(value)
            here.copy_(_turned(here, turn, matrix.projected_axis, second=any(part in name for part in SECOND)))


def _forget(inner: torch.optim.Optimizer, matrix: Matrix) -> None:
    """Adagrad fills its state when it is made and not at its first step: what is there is filled again."""
    if "sum" not in inner.state.get(matrix.compact, {}):
        inner.state.pop(matrix.compact, None)
        return
    mine = inner.state[matrix.compact]
    mine["step"].zero_()
    mine["sum"].fill_(inner.defaults.get("initial_accumulator_value", 0.0))


def _is_packed(value: Any) -> bool:
    """Whether a state is kept in few bits: a tensor of bytes, or a class of its own."""
    if not isinstance(value, Tensor) or value.ndim == 0 or is_sharded(value):
        return False
    return type(value) is not Tensor or value.dtype == torch.uint8


def _moves(value: Any, matrix: Matrix) -> bool:
    axis = matrix.projected_axis
    return (
        (type(value) is Tensor or is_sharded(value))
        and value.is_floating_point()
        and value.ndim == 2
        and value.shape[axis] == matrix.rank
        and value.shape[1 - axis] in (1, matrix.longer)
    )


def _turned(value: Tensor, turn: Tensor, axis: int, *, second: bool) -> Tensor:
    rows = value.to(turn.dtype) if axis == 0 else value.to(turn.dtype).mT
    moved = _second(rows, turn) if second else turn @ rows
    return (moved if axis == 0 else moved.mT).contiguous().to(value.dtype)


def _second(rows: Tensor, turn: Tensor) -> Tensor:
    known = turn.square()
    outside = (1 - known.sum(1, keepdim=True)).clamp_min(0)
    return torch.addmm(outside * rows.mean(0, keepdim=True), known, rows)


def narrow(state: dict[Any, dict[str, Any]], matrix: Matrix, before: int) -> None:
    """Cut state that was made for the largest rank to the rank that was chosen."""
    for name, value in state.get(matrix.compact, {}).items():
        if isinstance(value, Tensor) and value.ndim == 2 and value.shape[matrix.projected_axis] == before:
            state[matrix.compact][name] = value.narrow(matrix.projected_axis, 0, matrix.rank).clone()
