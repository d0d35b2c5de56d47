"""APOLLO: the gradient itself, each channel as long as an adaptive optimizer would make it (arXiv 2412.05270).

For a matrix W with gradient G, R = P G is a random projection of its shorter side to `rank` directions, drawn anew
every `refresh` updates. The inner optimizer, AdamW, steps on R alone, and only lengths are kept of that step:

    s_j = |C_j| / |R_j|,   W -= scale * G diag(s)

with C the step in the small space, its rate included, and j a channel: a column of a wide matrix, a row of a tall one.
With scaling="tensor" one s is the ratio of the norms of all of C and R. So the states are as small as GaLore's with as
many directions, no SVD is needed, and rank 1 is enough for scaling="tensor" (APOLLO-Mini).

The paper draws P from a normal distribution with variance 1 / rank. Here its rows are random and orthogonal, of length
sqrt(m / rank) with m the shorter side: |R_j| is then |G_j| on average as well, and varies less.
"""

from collections.abc import Callable, Iterable
from math import sqrt
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from joma.optim._arguments import NonFinite, Params, Projected, Refresh
from joma.optim._channels import (
    GROWTH,
    LAST_NORM,
    ONE_NORM,
    add_to_weights,
    check_fixed_rank,
    check_growth,
    check_members,
    check_others,
    direction_of,
    gradients_of,
    limit_growth,
    norm_ratios,
)
from joma.optim._forms import Form
from joma.optim._inner import OnMove
from joma.optim._matrix import Pack
from joma.optim.galore import SKIP, GaLore

Scaling = Literal["channel", "tensor"]


class APOLLO(GaLore):
    """Steps along the gradient, scaled by what an optimizer does with a random projection of it.

    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 64))
    >>> optimizer = APOLLO(model, rank=4, lr=0.01)
    >>> model(torch.ones(3, 64)).square().mean().backward()
    >>> optimizer.step()
    >>> sorted(optimizer.state[model[0].weight])
    ['basis', 'count', 'energies', 'exp_avg', 'exp_avg_sq', 'last_norm', 'refreshed', 'step']
    """

    member = "APOLLO"
    looks_at_gradients = True

    def __init__(
        self,
        params: Params,
        inner: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        *,
        rank: int = 256,
        refresh: int | Refresh = 200,
        scale: float = 1.0,
        scaling: Scaling = "channel",
        growth: float | None = GROWTH,
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
        - inner: makes the inner optimizer; one whose step does not depend on the size of gradients, as AdamW
        - rank: directions of the projection; 1 is enough with scaling="tensor"
        - refresh: updates after which a projection is drawn anew, or a `Refresh`
        - scale: of the step; the paper takes 1 by channel, and sqrt(128) with rank 1 and scaling="tensor"
        - scaling: by channel, or one number for each matrix (tensor)
        - growth: the norm of a step is at most this times that of the one before; None: no limit
        - on_move: what becomes of the inner state when the projection is drawn anew: keep, rotate or reset
        - skip: matrices that pass to the inner optimizer, as of `GaLore`
        - nonfinite: raise, or skip the whole step and count it in `skipped`
        - per_layer: update each parameter during backward and free its gradient; step() then only counts
        - seed: of the projections
        - projected: as of `GaLore`, but for its decay
        - inner_options: handed to the inner optimizer; its weight_decay shrinks the matrices themselves
        """
        if scaling not in get_args(Scaling):
            raise ValueError(f"scaling must be one of {', '.join(get_args(Scaling))}, got {scaling!r}")
        check_growth(growth)
        check_others("APOLLO", inner_options, per_layer, projected)
        self.scaling, self.growth = scaling, growth
        super().__init__(
            params, inner, rank=rank, refresh=refresh, scale=scale, projector="random", on_move=on_move, skip=skip,
            nonfinite=nonfinite, per_layer=per_layer, seed=seed, projected=projected, **inner_options,
        )  # fmt: skip

    def _init_group(self, group: dict[str, Any], number: int) -> list[dict[str, Any]]:
        found = super()._init_group(group, number)
        check_fixed_rank("APOLLO", group)
        check_members("APOLLO", group)
        return found

    def _kept_beside(self) -> dict[str, Form]:
        return {LAST_NORM: ONE_NORM}

    def _write_back(self, pack: Pack, scale: float, shrink: float | Tensor, found_inf: Tensor | None) -> None:
        """W = shrink * W - scale * G diag(s)."""
        group, first = self.param_groups[pack.group], pack.matrices[0]
        length = sqrt(first.rank / first.shorter)  # directions are of length 1 here, and sqrt(m / rank) in R
        ratios = norm_ratios(pack, by_channel=self.scaling == "channel")
        added = gradients_of(pack) * (direction_of(group) * length * ratios)
        if self.growth is not None:
            added = limit_growth(self.inner, pack, added, self.growth, group.get("lr", 1.0), found_inf)
        add_to_weights(pack, added, scale, shrink, found_inf)
