"""Fira: GaLore, and what of the gradient lies outside its subspace, with lengths from inside (arXiv 2410.01390).

GaLore leaves out the residual G - P P^T G. Fira adds it, each channel as long as the inner optimizer made the same
channel inside the subspace:

    W += scale * (P C - s_j (G - P R)_j),   R = P^T G,   s_j = |C_j| / |R_j|

with C the step of the inner optimizer, its rate included, and j a column of a wide matrix, a row of a tall one. So all
directions are trained, with the states of GaLore. The residual's norm grows by at most `growth` from step to step: a
subspace that is found anew would otherwise bring a jump.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from joma.optim._arguments import NonFinite, Params, Projected, Refresh
from joma.optim._channels import (
    GROWTH,
    LAST_NORM,
    ONE_NORM,
    add_to_weights,
    check_growth,
    check_members,
    check_others,
    compact_parts,
    direction_of,
    gradients_of,
    limit_growth,
    norm_ratios,
)
from joma.optim._forms import Form
from joma.optim._inner import OnMove
from joma.optim._matrix import Pack
from joma.optim.galore import SKIP, GaLore
from joma.optim.projector import Kind, Rank


class Fira(GaLore):
    """GaLore that trains the rest of the gradient too.

    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 64))
    >>> optimizer = Fira(model, rank=4, lr=0.01)
    >>> model(torch.ones(3, 64)).square().mean().backward()
    >>> optimizer.step()
    >>> "last_norm" in optimizer.state[model[0].weight]
    True
    """

    member = "Fira"
    looks_at_gradients = True

    def __init__(
        self,
        params: Params,
        inner: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        *,
        rank: Rank = 128,
        refresh: int | Refresh = 200,
        scale: float = 1.0,
        growth: float | None = GROWTH,
        projector: Kind = "randomized",
        on_move: OnMove = "keep",
        skip: Iterable[str] = SKIP,
        nonfinite: NonFinite = "raise",
        per_layer: bool = False,
        seed: int = 0,
        projected: Projected = Projected(),  # noqa: B008
        **inner_options: Any,
    ) -> None:
        """Take the parameters and make the inner optimizer.

        - params: as of `GaLore`; a group may have its own rank, refresh and scale
        - inner: makes the inner optimizer from groups, for instance torch.optim.AdamW
        - rank: of the subspaces, or an `Energy`
        - refresh: updates after which a subspace is found anew, or a `Refresh`
        - scale: of all that is added, residual included
        - growth: the norm of the residual's part is at most this times that of the step before; None: no limit
        - projector: randomized, exact or random, see `find_projector`
        - on_move: what becomes of the inner state when the subspace moves: keep, rotate or reset
        - skip: matrices that pass to the inner optimizer, as of `GaLore`
        - nonfinite: raise, or skip the whole step and count it in `skipped`
        - per_layer: update each parameter during backward and free its gradient; step() then only counts
        - seed: of the randomised and the random projector
        - projected: as of `GaLore`, but for its decay
        - inner_options: handed to the inner optimizer; its weight_decay shrinks the matrices themselves
        """
        check_growth(growth)
        check_others("Fira", inner_options, per_layer, projected)
        self.growth = growth
        super().__init__(
            params, inner, rank=rank, refresh=refresh, scale=scale, projector=projector, on_move=on_move, skip=skip,
            nonfinite=nonfinite, per_layer=per_layer, seed=seed, projected=projected, **inner_options,
        )  # fmt: skip

    def _init_group(self, group: dict[str, Any], number: int) -> list[dict[str, Any]]:
        found = super()._init_group(group, number)
        check_members("Fira", group)
        return found

    def _kept_beside(self) -> dict[str, Form]:
        return {LAST_NORM: ONE_NORM}

    def _write_back(self, pack: Pack, scale: float, shrink: float | Tensor, found_inf: Tensor | None) -> None:
        """W = shrink * W + scale * (P C - s (G - P R))."""
        group = self.param_groups[pack.group]
        seen, _ = compact_parts(pack)
        bases = pack.bases().to(seen.dtype)
        inside = bases @ seen if pack.side == "left" else seen @ bases.mT
        added = (gradients_of(pack) - inside) * (direction_of(group) * norm_ratios(pack, by_channel=True))
        if self.growth is not None:
            added = limit_growth(self.inner, pack, added, self.growth, group.get("lr", 1.0), found_inf)
        pack.apply(scale, shrink, found_inf)
        add_to_weights(pack, added, scale, 1.0, found_inf)
