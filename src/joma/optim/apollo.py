"""APOLLO and Fira: lengths of an adaptive step, by channel, given to the gradient itself or to what GaLore leaves out.

A channel is an entry of the longer side: a column of a wide matrix, a row of a tall one. With R the projected gradient
and C what the inner optimizer made of it (a step, its rate included), the ratio s_j = |C_j| / |R_j| of a channel says
how long the step of that channel would be, were the gradient itself its direction.

APOLLO (arXiv 2412.05270). For a matrix W with gradient G, R = P G is a random projection of its shorter side to `rank`
directions, drawn anew every `refresh` updates. The inner optimizer, AdamW, steps on R alone, and only lengths are kept
of that step:

    W -= scale * G diag(s)

With scaling="tensor" one s is the ratio of the norms of all of C and R. So the states are as small as GaLore's with as
many directions, no SVD is needed, and rank 1 is enough for scaling="tensor" (APOLLO-Mini). The paper draws P from a
normal distribution with variance 1 / rank. Here its rows are random and orthogonal, of length sqrt(m / rank) with m the
shorter side: |R_j| is then |G_j| on average as well, and varies less.

Fira (arXiv 2410.01390). GaLore leaves out the residual G - P P^T G. Fira adds it:

    W += scale * (P C - s_j (G - P R)_j),   R = P^T G

So all directions are trained, with the states of GaLore. The norm of what is scaled by channel grows by at most
`growth` from step to step: a subspace that is found anew would otherwise bring a jump.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from joma.optim._groups import Params
from joma.optim._matrix import Pack, local, one_number, shrink_and_add, stacked, unless
from joma.optim._state import Form
from joma.optim.galore import GaLore

Scaling = Literal["channel", "tensor"]
LAST_NORM = "last_norm"
"""In the state of the inner optimizer: the norm of what was added last, the rate left out. (1,) for each matrix."""
GROWTH = 1.01
"""What both papers let it grow by in one step."""


class ByChannel(GaLore):
    """What APOLLO and Fira share: ratios of norms by channel, and a limit on their growth."""

    looks_at_gradients = True

    def __init__(
        self, params: Params, inner: Callable[..., torch.optim.Optimizer], *, growth: float | None, **options: Any
    ) -> None:
        """Refuse options that GaLore has and this member has not."""
        if growth is not None and not (isinstance(growth, int | float) and 1 <= growth < float("inf")):
            raise ValueError(f"growth must be a number of at least 1, or None for no limit, got {growth!r}")
        if options.get("clip") is not None:
            raise ValueError(
                f"{self.member} has no clip: clip the gradients themselves, as torch.nn.utils.clip_grad_norm_ does"
            )
        if options.get("per_layer") == "project":
            raise ValueError(
                f"{self.member} has no per_layer='project': the step needs the gradient itself; give per_layer=True"
            )
        self.growth = growth
        super().__init__(params, inner, **options)

    def _extra_forms(self) -> dict[str, Form]:
        return {LAST_NORM: Form((1,), needed=False)}

    def _add_scaled(self, pack: Pack, along: Tensor, scale: float, shrink: float | Tensor, held: Tensor | None) -> None:
        """W = shrink * W - scale * what lies along the gradient; W stays where `held` is 1 on the device."""
        group = self.param_groups[pack.group]
        added = along if group.get("maximize") else -along
        if self.growth is not None:
            added = limit_growth(self.inner, pack, added, self.growth, group.get("lr", 1.0), held)
        if held is not None:  # whatever is not finite in it
            added = torch.where(held > 0, torch.zeros((), dtype=added.dtype, device=added.device), added)
        kept = unless(held, shrink, pack.parameters[0].dtype)
        for weight, one in zip(pack.parameters, added.unbind(), strict=True):
            shrink_and_add(local(weight.detach()), one, scale, kept)


class APOLLO(ByChannel):
    """Steps along the gradient, scaled by what an optimizer does with a random projection of it.

    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 64))
    >>> optimizer = APOLLO(model, rank=4, lr=0.01)
    >>> model(torch.ones(3, 64)).square().mean().backward()
    >>> optimizer.step()
    >>> sorted(optimizer.state[model[0].weight])
    ['basis', 'count', 'energies', 'exp_avg', 'exp_avg_sq', 'last_norm', 'refreshed', 'step']
    """

    member = "APOLLO"

    def __init__(
        self,
        params: Params,
        inner: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        *,
        rank: int = 256,
        scale: float = 1.0,
        scaling: Scaling = "channel",
        growth: float | None = GROWTH,
        **options: Any,
    ) -> None:
        """Take the parameters and make the inner optimizer.

        - params: as of `GaLore`; a group may have its own rank, refresh and scale
        - inner: makes the inner optimizer; one whose step does not depend on the size of gradients, as AdamW
        - rank: directions of the projection; 1 is enough with scaling="tensor"
        - scale: of the step; the paper takes 1 by channel, and sqrt(128) with rank 1 and scaling="tensor"
        - scaling: by channel, or one number for each matrix (tensor)
        - growth: the norm of a step is at most this times that of the one before; None: no limit
        - options: refresh, on_move, skip, nonfinite, per_layer (not "project"), seed and projected of `GaLore`; others
          are handed to the inner optimizer, and its weight_decay shrinks the matrices themselves
        """
        if scaling not in get_args(Scaling):
            raise ValueError(f"scaling must be one of {', '.join(get_args(Scaling))}, got {scaling!r}")
        self.scaling = scaling
        if "projector" in options:
            raise ValueError("APOLLO has no projector: directions are drawn at random")
        super().__init__(params, inner, rank=rank, scale=scale, growth=growth, projector="random", **options)

    def _write_back(self, pack: Pack, scale: float, shrink: float | Tensor, found_inf: Tensor | None) -> None:
        """W = shrink * W - scale * G diag(s)."""
        first = pack.matrices[0]
        length = sqrt(first.rank / first.shorter)  # directions are of length 1 here, and sqrt(m / rank) in R
        ratios = norm_ratios(pack, by_channel=self.scaling == "channel")
        self._add_scaled(pack, gradients_of(pack) * (length * ratios), scale, shrink, found_inf)


class Fira(ByChannel):
    """GaLore that trains the rest of the gradient too.

    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 64))
    >>> optimizer = Fira(model, rank=4, lr=0.01)
    >>> model(torch.ones(3, 64)).square().mean().backward()
    >>> optimizer.step()
    >>> "last_norm" in optimizer.state[model[0].weight]
    True
    """

    member = "Fira"

    def __init__(
        self,
        params: Params,
        inner: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        *,
        rank: int = 128,
        scale: float = 1.0,
        growth: float | None = GROWTH,
        **options: Any,
    ) -> None:
        """Take the parameters and make the inner optimizer.

        - params: as of `GaLore`; a group may have its own rank, refresh and scale
        - inner: makes the inner optimizer from groups, for instance torch.optim.AdamW
        - rank: of the subspaces
        - scale: of all that is added, residual included
        - growth: the norm of the residual's part is at most this times that of the step before; None: no limit
        - options: refresh, projector, on_move, skip, nonfinite, per_layer (not "project"), seed and projected of
          `GaLore`; others are handed to the inner optimizer, and its weight_decay shrinks the matrices themselves
        """
        super().__init__(params, inner, rank=rank, scale=scale, growth=growth, **options)

    def _write_back(self, pack: Pack, scale: float, shrink: float | Tensor, found_inf: Tensor | None) -> None:
        """W = shrink * W + scale * (P C - s (G - P R))."""
        assert pack.compact.grad is not None
        along = (gradients_of(pack) - pack.lift(pack.compact.grad)) * norm_ratios(pack, by_channel=True)
        pack.apply(scale, shrink, found_inf)
        self._add_scaled(pack, along, scale, 1.0, found_inf)


def gradients_of(pack: Pack) -> Tensor:
    """(matrices, rows, columns), as backward left them, in at least float32; of one in parts the rows that are here."""
    return stacked([local(each.grad) for each in pack.parameters if each.grad is not None])


def norm_ratios(pack: Pack, *, by_channel: bool) -> Tensor:
    """|C_j| / |R_j|, (matrices, 1, columns) or (matrices, rows, 1); of all channels together (matrices, 1, 1).

    Where a projected gradient is zero, so is the ratio: there is no direction to go.
    """
    assert pack.compact.grad is not None
    seen = pack.norms(pack.compact.grad, by_channel=by_channel)
    moved = pack.norms(pack.compact.detach(), by_channel=by_channel)
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
    norms = pack.whole_norms(torch.linalg.vector_norm(added, dim=(1, 2)))
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
