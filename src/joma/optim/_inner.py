"""What GaLore knows of inner optimizers: their state when a subspace moves (on_move), its size, steps that do nothing.

- keep: nothing. Direction i of the new subspace inherits the state of direction i of the old one, as in galore-torch.
- rotate: with R = P_new^T P_old, first moments m become R m, which is exact. Second moments have no exact rotation:
  they become (R * R) v + (1 - sum_j R_ij^2) mean(v). The first term is exact where the old coordinates are
  uncorrelated. The second gives the part of a new direction that lay outside the old subspace the mean second moment.
- reset: the state is forgotten; the inner optimizer starts that matrix anew, its step count included.

A state tensor is moved if it is a plain floating-point matrix with the rank along the projected axis (moments of the
compact shape, and Adafactor's factor along that axis). Quantised states cannot be rotated; they are refused.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from joma.optim._matrix import Matrix, is_sharded, local

OnMove = Literal["keep", "rotate", "reset"]
SECOND_MOMENTS = ("sq", "square", "sum", "var", "inf", "max", "step_size", "acc_delta")
"""Parts of the names that torch's optimizers give to what is not linear in the gradient."""
_ADAM = ("step", "exp_avg", "exp_avg_sq")
REQUIRED_STATE = {  # what torch's optimizers cannot go on without
    **dict.fromkeys(("Adam", "AdamW", "RAdam"), _ADAM),
    "NAdam": (*_ADAM, "mu_product"),
    "Adamax": ("step", "exp_avg", "exp_inf"),
    "RMSprop": ("step", "square_avg"),
    "Adagrad": ("step", "sum"),
    "Muon": ("momentum_buffer",),
}
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


def move_state(inner: torch.optim.Optimizer, matrix: Matrix, old: Tensor, on_move: OnMove) -> None:
    """Move the inner state of one matrix from the subspace `old` to matrix.basis."""
    state = inner.state.get(matrix.compact, {})
    if on_move == "reset" and "sum" in state:  # Adagrad fills its state when it is made, not at its first step
        state["step"].zero_()
        state["sum"].fill_(inner.defaults.get("initial_accumulator_value", 0.0))
    elif on_move == "reset":
        inner.state.pop(matrix.compact, None)
    if on_move != "rotate" or matrix.basis is None:
        return
    rotation = matrix.basis.mT @ old.to(matrix.basis)
    axis = matrix.projected_axis
    for name, value in state.items():
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
            here.copy_((moved if axis == 0 else moved.mT).contiguous().to(here.dtype))


def narrow_state(inner: torch.optim.Optimizer, matrix: Matrix, before: int) -> None:
    """Cut state that was made for the largest rank to the rank that was chosen."""
    for name, value in inner.state.get(matrix.compact, {}).items():
        if isinstance(value, Tensor) and value.ndim == 2 and value.shape[matrix.projected_axis] == before:
            inner.state[matrix.compact][name] = value.narrow(matrix.projected_axis, 0, matrix.rank).clone()


class Guard:
    """Holds a step back where a gradient is not finite, without waiting for the device.

    To look at a number that a GPU computes, Python waits until the GPU has caught up, and the GPU then waits for
    Python. torch's fused optimizers take a flag, `found_inf`, that makes their step do nothing. With such an inner
    optimizer the flag is set on the device, and Python reads it at the next step, when it has long been there.
    """

    devices = ("cuda",)  # kinds of devices on which waiting costs something

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.pending: tuple[list[str], Tensor, torch.cuda.Event | None, list[Matrix]] | None = None

    def serves(self, matrices: list[Matrix]) -> bool:
        """Whether the inner optimizer takes the flag, and everything is on one device of the right kind."""
        places = {matrix.parameter.device for matrix in matrices}
        if len(places) != 1 or next(iter(places)).type not in self.devices:
            return False
        fused = all(group.get("fused") for group in self.inner.param_groups)
        return fused and bool(getattr(self.inner, "_step_supports_amp_scaling", False))

    def hold(self, names: list[str], finite: Tensor, matrices: list[Matrix]) -> Tensor:
        """Let the inner optimizer's next step do nothing if not all is finite; 1.0 where it acts, 0.0 where not."""
        acts = finite.all().to(torch.float32)
        self.inner.found_inf = 1 - acts  # type: ignore[attr-defined]
        arrived = torch.cuda.Event() if finite.device.type == "cuda" else None
        copied = finite.to("cpu", non_blocking=True)
        if arrived is not None:
            arrived.record()
        self.pending = names, copied, arrived, matrices  # flags that are on their way from the device
        return acts

    def release(self) -> None:
        """The inner optimizer has stepped."""
        vars(self.inner).pop("found_inf", None)

    def look_back(self) -> str | None:
        """The name of a gradient that was not finite in the step before, which then did not count."""
        if self.pending is None:
            return None
        (names, finite, arrived, matrices), self.pending = self.pending, None
        if arrived is not None:
            arrived.synchronize()
        if bool(finite.all()):
            return None
        for matrix in matrices:
            matrix.count -= 1
        return names[finite.tolist().index(False)]
