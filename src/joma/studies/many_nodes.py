"""K > 1 nodes under exp attention: the talk's dynamics of V, and in which sense V becomes low rank."""

from __future__ import annotations

from dataclasses import dataclass
from math import log10, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.runs import Run
from joma.studies.contract import Claim, Drawing, Finding, Progress, Study
from joma.studies.drawing import CONTROL, CORRECTED, ORANGE, PRINTED, panels
from joma.studies.verdicts import by_residual, by_test, show
from joma.theory import linear
from joma.theory.attention import Attention, random_orthonormal
from joma.theory.flow import Block, constant_gradient

EXACT = 1e-10  # closed forms against an ODE solver at rtol 1e-12
LOW = 2.0  # a stable rank that counts as low
WIDELY = 10.0  # growth rates of rows that differ by this factor vary widely


@dataclass(frozen=True)
class Config:
    """Blocks small enough to follow exactly, and saliency matrices large enough to have a rank."""

    tokens: int = 10
    nodes: int = 8
    samples: int = 30
    draws: int = 3
    """Independent blocks."""
    horizon: float = 0.99
    """How far to follow a block, as a share of its first blow-up time."""
    steps: int = 30
    rows: int = 100
    columns: int = 50
    matrices: int = 4
    """Independent Gaussian saliency matrices, rows x columns, whose stable rank is followed."""
    seed: int = 0


DYNAMICS = Claim(
    "nodes-dynamics",
    "JoMA talk slide K",
    "With K nodes V′ = diag(exp(V∘V/2) 1) Δ / A: every entry is exponentiated, then rows are summed.",
    "V′ = diag(exp((V∘V) 1/2)) Δ / A: rows are summed, then exponentiated.",
)
CLOSED = Claim(
    "nodes-closed-form",
    "JoMA talk Thm 2",
    "For each node, erf(v_l/2)/Δ_l takes one value at all tokens (stated for one node).",
    "Each row of V moves along its row of Δ by the law of one node with saliency |Δ_l|, in closed form.",
)
RANK = Claim(
    "nodes-low-rank",
    "JoMA talk slide K",
    "V gradually becomes low rank.",
    "The rank of V never changes; its stable rank falls, only with the logarithm of the time left to the blow-up.",
    empirical=True,
)
GRADIENT = Claim(
    "nodes-gradient-rank",
    "JoMA talk slide K",
    "The gradient V′ becomes even lower in rank than V.",
    empirical=True,
)
ROWS = Claim(
    "nodes-row-growth",
    "JoMA talk slide K",
    "The growth rates of the rows of V vary widely.",
    empirical=True,
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Follow real blocks by an ODE solver; then follow large matrices by the closed form that they confirm."""
    progress(0.0, "blocks with several nodes")
    if "block/v" not in run:
        draws = [_follow(config.seed + i, config) for i in range(config.draws)]
        run.record(0, {f"block/{name}": torch.stack([d[name] for d in draws]) for name in draws[0]})
    progress(0.5, "stable rank")
    left = 10.0 ** -torch.arange(0, 12.01, 0.25, dtype=torch.float64)  # 1 - t/t*
    run.keep("rank/left", lambda: left)
    if "rank/V" not in run:
        run.record(0, {f"rank/{name}": value for name, value in _ranks(left, config).items()})


def judge(run: Run) -> list[Finding]:
    """Velocities and closed forms on the blocks; ranks, stable ranks and growth rates on the matrices."""
    speed, literal = run.value("block/velocity"), run.value("block/velocity printed")
    rank, left = run.value("rank/rank of V"), run.value("rank/left")
    v, dv, still = (run.value(f"rank/{name}").mean(-1) for name in ("V", "V'", "without attention"))
    late = left <= 0.75  # t >= t*/4, as at the very start V and V' are parallel
    shown = [int(np.argmin(np.abs(left - value))) for value in (1.0, 1e-1, 1e-2, 1e-6, 1e-12)]
    growth, growth_still = run.value("rank/row growth").mean(-1), run.value("rank/row growth without attention").max()
    falls = bool((np.diff(v) < 0).all() and (np.diff(dv) <= 0).all())
    per_decade = np.diff(v[:: _DECADE])
    at = "at 1 − t/t* = 1, 0.1, 0.01, 1e-6, 1e-12"
    control = f"without attention: {still[0]:.1f} throughout" if np.ptp(still) < 1e-6 else f"{still.min():.1f} to {still.max():.1f}"
    return [
        by_test(
            DYNAMICS,
            measured=f"V′ of the block missed by {show(_speed_off(literal, speed))} "
            f"({show(float(run.value('block/best constant off').max()))} with the best constant A at every moment), "
            f"row sum first by {show(_speed_off(run.value('block/velocity corrected'), speed))}",
            expected="equal to the block's own V′",
            as_printed=float(run.value("block/best constant off").max()) <= EXACT,
            as_corrected=_speed_off(run.value("block/velocity corrected"), speed) <= EXACT,
            tolerance=EXACT,
        ),
        by_residual(
            CLOSED,
            printed=_per_node_spread(run),
            corrected=float(np.abs(run.value("block/v") - run.value("block/v closed")).max()),
            tolerance=EXACT,
            expected="no spread over tokens; closed form equal to the flow",
        ),
        by_test(
            RANK,
            measured=f"rank {rank.min()} to {rank.max()}, stable rank {_series(v, shown)} {at}",
            expected=f"stable rank below {LOW:g} and lower rank by 1 − t/t* = 1e-12",
            as_printed=bool(v[-1] <= LOW and rank[-1].max() < rank[0].min()),
            as_corrected=bool((rank == rank[0]).all() and falls and (-per_decade <= v[0] / 4).all()),
            in_direction=falls,
            tolerance=LOW,
            control=control,
        ),
        by_test(
            GRADIENT,
            measured=f"stable rank {_series(dv, shown)} against {_series(v, shown)} for V, {at}",
            expected=f"below V from t*/4 on, and below {LOW:g} by 1 − t/t* = 0.01",
            as_printed=bool((dv[late] <= v[late]).all() and falls and dv[shown[2]] <= LOW),
            in_direction=bool((dv[late] <= v[late]).all()),
            tolerance=LOW,
            control=control,
        ),
        by_test(
            ROWS,
            measured=f"fastest over slowest |v_l′|/|Δ_l|: {_series(growth, shown[1:4])} {at[:-11]}",
            expected=f"a factor of {WIDELY:g} by 1 − t/t* = 0.01",
            as_printed=bool(growth[shown[2]] >= WIDELY),
            in_direction=bool(growth[-1] > growth[0]),
            tolerance=WIDELY,
            control=f"without attention: {show(float(growth_still))}",
        ),
    ]
