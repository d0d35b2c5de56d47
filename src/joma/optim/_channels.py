"""What APOLLO and Fira share: how long the inner optimizer makes a gradient, by channel, and a limit on growth.

A channel is an entry of the longer side: a column of a wide matrix, a row of a tall one. With R the projected gradient
and C what the inner optimizer made of it (a step, its rate included), the ratio |C_j| / |R_j| of a channel says how
long the step of that channel would be, were the gradient itself its direction.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from joma.optim._arguments import Projected
from joma.optim._forms import Form
from joma.optim._matrix import Pack, is_sharded, one_number, shrink_and_add, unless
from joma.optim.projector import Energy

LAST_NORM = "last_norm"
"""In the state of the inner optimizer: the norm of what was added last, the rate left out. (1,) for each matrix."""
ONE_NORM = Form((1,), needed=False)
GROWTH = 1.01
"""What both papers let it grow by in one step."""


def check_growth(growth: float | None) -> None:
    """Refuse what is no limit."""
    if growth is not None and not (isinstance(growth, int | float) and 1 <= growth < float("inf")):
        raise ValueError(f"growth must be a number of at least 1, or None for no limit, got {growth!r}")


def gradients_of(pack: Pack) -> Tensor:
    """(matrices, rows, columns), as backward left them, in at least float32."""
    gradients = [each.grad for each in pack.parameters if each.grad is not None]
    return _precise(torch.stack(gradients) if len(gradients) > 1 else gradients[0][None])


def compact_parts(pack: Pack) -> tuple[Tensor, Tensor]:
    """R and C, (matrices, rank, longer) or (matrices, longer, rank), in at least float32."""
    assert pack.compact.grad is not None
    seen, moved = pack.compact.grad, pack.compact.detach()
    return (_precise(seen), _precise(moved)) if seen.ndim == 3 else (_precise(seen[None]), _precise(moved[None]))


def _precise(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def norm_ratios(pack: Pack, *, by_channel: bool) -> Tensor:
    """|C_j| / |R_j|, (matrices, 1, columns) or (matrices, rows, 1); of all channels together (matrices, 1, 1).

    Where a projected gradient is zero, so is the ratio: there is no direction to go.
    """
    dims = (1 if pack.side == "left" else 2,) if by_channel else (1, 2)
    seen, moved = (torch.linalg.vector_norm(one, dim=dims, keepdim=True) for one in compact_parts(pack))
    return torch.where(seen > 0, moved / torch.where(seen > 0, seen, 1.0), 0.0)


def limit_growth(
    inner: torch.optim.Optimizer, pack: Pack, added: Tensor, growth: float, rate: float | Tensor, held: Tensor | None
) -> Tensor:
    """What is added to the matrices, (matrices, rows, columns), so that no norm grows by more than `growth` a step.

    - rate: of the inner optimizer; norms are compared without it, so that a schedule is no growth
    - held: 1 on the device where the step does not happen: norms stay as they were

    The first norm is taken as it is, and so is one that follows a zero.
    """
    state = inner.state[pack.compact]
    tiny = torch.finfo(added.dtype).tiny
    norms = torch.linalg.vector_norm(added, dim=(1, 2))
    bare = norms / (one_number(rate).clamp_min(tiny) if isinstance(rate, Tensor) else max(rate, tiny))
    before: Tensor | None = state.get(LAST_NORM)
    last = torch.zeros_like(bare) if before is None else before.to(bare.dtype).reshape(-1)
    limited = torch.where(last > 0, torch.minimum(bare, growth * last), bare)
    factor = torch.where(limited < bare, limited / torch.where(bare > 0, bare, 1.0), 1.0)
    kept = limited if held is None else torch.where(held > 0, last, limited)
    if before is None:
        shape = (1,) if len(pack.matrices) == 1 else (len(pack.matrices), 1)
        state[LAST_NORM] = kept.to(pack.zero.dtype).reshape(shape)
    else:
        before.copy_(kept.reshape(before.shape))
    return added * factor[:, None, None]


def add_to_weights(pack: Pack, added: Tensor, scale: float, shrink: float | Tensor, held: Tensor | None) -> None:
    """W = shrink * W + scale * added; where `held` is 1 on the device, W stays, whatever is not finite in `added`."""
    if held is not None:
        added = torch.where(held > 0, torch.zeros((), dtype=added.dtype, device=added.device), added)
    kept = unless(held, shrink, pack.parameters[0].dtype)
    for weight, one in zip(pack.parameters, added.unbind(), strict=True):
        shrink_and_add(weight, one, scale, kept)


def direction_of(group: dict[str, Any]) -> float:
    """-1, down the gradient, or 1 for `maximize`."""
    return 1.0 if group.get("maximize") else -1.0


_OTHERS = {  # options of GaLore that a user may look for
    "clip": "clip the gradients themselves, as torch.nn.utils.clip_grad_norm_ does",
    "projector": "directions are drawn at random",
}


def check_others(kind: str, given: Collection[str], per_layer: object, projected: Projected) -> None:
    """Refuse options that GaLore has and this member has not; what is left belongs to the inner optimizer."""
    if unknown := next((name for name in given if name in _OTHERS), None):
        raise ValueError(f"{kind} has no {unknown}: {_OTHERS[unknown]}")
    if per_layer == "project":
        raise ValueError(f"{kind} has no per_layer='project': the step needs the gradient itself; give per_layer=True")
    if projected.decay != "decoupled":
        raise ValueError(f"{kind} has no decay: weight_decay shrinks the matrices themselves")


def check_members(kind: str, group: dict[str, Any]) -> None:
    """Refuse matrices whose gradients are not here: their norms would be those of a part."""
    if any(is_sharded(each) for each in group["params"]):
        raise ValueError(f"{kind} takes matrices that lie on one process; those of FSDP2 are GaLore's")


def check_fixed_rank(kind: str, group: dict[str, Any]) -> None:
    """Refuse a rank by energy where directions are drawn: they are in no order."""
    if isinstance(group["rank"], Energy):
        raise ValueError(f"{kind} draws its directions, so its rank must be a whole number, got {group['rank']}")
