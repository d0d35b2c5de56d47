"""K > 1 nodes under exp attention: the talk's dynamics of V, and in which sense V becomes low rank."""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.measure import stable_rank
from joma.runs import Run
from joma.studies.contract import Claim, Drawing, Finding, Progress, Study
from joma.studies.drawing import BLUE, CONTROL, CORRECTED, ORANGE, PRINTED, panels
from joma.studies.verdicts import by_residual, by_test, show
from joma.theory import linear
from joma.theory.attention import Attention, random_orthonormal
from joma.theory.flow import Block, constant_gradient

EXACT = 1e-10  # closed forms against an ODE solver at rtol 1e-12
SHOWN = (1.0, 1e-1, 1e-2, 1e-6, 1e-12)  # values of 1 - t/t* that findings quote
WIDELY = 10.0  # growth rates of rows that differ by this factor vary widely


@dataclass(frozen=True)
class Config:
    """Blocks small enough to follow exactly, and saliency matrices large enough to have a rank."""

    tokens: int = 10
    nodes: int = 8
    samples: int = 30
    draws: int = 3
    """Independent blocks, each once from zero and once from a random start."""
    horizon: float = 0.99
    """How far to follow a block, as a share of its first blow-up time."""
    steps: int = 30
    rows: int = 100
    columns: int = 50
    matrices: int = 4
    """Independent Gaussian saliency matrices, rows x columns, whose stable rank is followed."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise ValueError(f"steps must be at least 2, the start and a later moment, got {self.steps}")


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
        run.record(0, {f"block/{name}": value for name, value in _follow_blocks(config).items()})
    progress(0.5, "stable rank")
    left = 10.0 ** -torch.arange(0, 12.01, 0.25, dtype=torch.float64)
    left[0] = 1 - 1e-6  # at t = 0 itself V is zero and has no stable rank
    run.keep("rank/left", lambda: left)
    if "rank/V" not in run:
        run.record(0, {f"rank/{name}": value for name, value in _follow_ranks(left, config).items()})


def judge(run: Run) -> list[Finding]:
    """Velocities and closed forms on the blocks; ranks, stable ranks and growth rates on the matrices."""
    off = {form: float(run.value(f"block/velocity off/{form}").max()) for form in ("printed", "any A", "corrected")}
    rank, left = run.value("rank/rank of V"), run.value("rank/left")
    v, dv, still, growth = (run.value(f"rank/{name}").mean(-1) for name in ("V", "V'", "V without attention", "growth"))
    later = left <= 0.75  # from t*/4 on: at the start V and V' are parallel
    falls = bool((np.diff(v) < 0).all() and (np.diff(dv) < 1e-9).all())  # V' ends at 1 and stays there, to rounding
    soon = _at(left, 1e-2)
    when = "at 1 − t/t* = " + ", ".join(map(show, SHOWN))
    control = f"without attention: {still.min():.1f} to {still.max():.1f}"
    return [
        by_test(
            DYNAMICS,
            measured=f"V′ of the block missed by {show(off['printed'])}, by {show(off['any A'])} with the best A of "
            f"each moment; with rows summed first by {show(off['corrected'])}",
            expected="equal to V′ of the block",
            as_printed=min(off["printed"], off["any A"]) <= EXACT,
            as_corrected=off["corrected"] <= EXACT,
            tolerance=EXACT,
            residuals={"printed": off["printed"], "corrected": off["corrected"]},
        ),
        by_residual(
            CLOSED,
            printed=min(_node_spread(run, 2.0), _node_spread(run, sqrt(2))),
            corrected=float(np.abs(run.value("block/v") - run.value("block/v closed")).max()),
            tolerance=EXACT,
            expected="no spread over tokens (with v/2 or v/√2); closed form equal to the flow",
        ),
        by_test(
            RANK,
            measured=f"rank {rank.min()} to {rank.max()}; stable rank {_quote(left, v)} {when}",
            expected="a lower rank; corrected: the same rank, a falling stable rank, half of it left at t = 0.99 t*",
            as_printed=bool(rank[-1].max() < rank[0].min()),
            as_corrected=bool((rank == rank[:1]).all() and falls and v[soon] >= v[0] / 2),
            in_direction=falls,
            tolerance=0.5,
            # shares of matrices whose rank does not fall, or changes at any time
            residuals={
                "printed": float((rank[-1] >= rank[0]).mean()),
                "corrected": float((rank != rank[:1]).any(0).mean()),
            },
            control=control,
        ),
        by_test(
            GRADIENT,
            measured=f"stable rank of V′ {_quote(left, dv)}, of V {_quote(left, v)} {when}",
            expected="at most that of V from t*/4 on, both falling",
            as_printed=bool((dv[later] <= v[later]).all()) and falls,
            in_direction=bool(dv[-1] < v[-1]),
            control=control,
        ),
        by_test(
            ROWS,
            measured=f"fastest over slowest |v_l′|/|Δ_l|: {_quote(left, growth)} {when}",
            expected=f"a factor of at least {WIDELY:g} by 1 − t/t* = 0.01",
            as_printed=bool(growth[soon] >= WIDELY),
            in_direction=bool((np.diff(growth) > 0).all()),
            tolerance=WIDELY,
            control=f"without attention: {show(float(run.value('rank/growth without attention').max()))}",
        ),
    ]


def draw(run: Run) -> list[Drawing]:
    """Stable ranks on the way to the blow-up, and the two readings of the talk's equation."""
    left, share = run.value("rank/left"), run.value("block/share")
    figure, (ranks, speeds) = panels(2, width=3.6)
    for name, colour, label in (
        ("V", BLUE, "V"),
        ("V'", ORANGE, "V′"),
        ("V without attention", CONTROL, "V and V′ without attention"),
    ):
        path = run.value(f"rank/{name}")
        ranks.plot(left, path.mean(-1), color=colour, label=label, ls="--" if colour == CONTROL else "-")
        ranks.fill_between(left, path.min(-1), path.max(-1), color=colour, alpha=0.2, lw=0)
    ranks.set(xscale="log", xlim=(1.5, left[-1]), ylim=(0, None), xlabel="time left, 1 − t/t*", ylabel="stable rank")
    ranks.set_title("V falls slowly, V′ fast")
    ranks.legend(loc="lower left", bbox_to_anchor=(0.25, 0.55))
    for form, colour, label in (
        ("printed", PRINTED, "exp(V∘V/2) 1"),
        ("any A", ORANGE, "the same, best A"),
        ("corrected", CORRECTED, "exp((V∘V) 1/2)"),
    ):
        speeds.plot(share, run.value(f"block/velocity off/{form}").max(0) + 1e-17, color=colour, label=label)
    speeds.axhline(EXACT, ls=":", lw=1, color="gray")
    speeds.set(yscale="log", xlabel="time / t*", ylabel="relative error of V′", ylim=(1e-17, 1e3))
    speeds.set_title("Which equation the block obeys")
    speeds.legend(loc="center right", bbox_to_anchor=(1.0, 0.6))
    caption = (
        "Left: stable rank of V and of its gradient for Gaussian saliencies, from a zero start to 1e-12 before the "
        "blow-up (bands: smallest to largest over draws). Right: relative error of the talk's equation along the flow "
        "of real blocks, as printed, with the best normaliser at every moment, and with rows summed before the "
        "exponential; dotted: the tolerance."
    )
    return [Drawing("stable-rank", caption, figure)]


def _follow_blocks(config: Config) -> dict[str, Tensor]:
    """Real blocks with K nodes, a linear MLP and constant g, time in units of their own t*: (draws, steps, ...)."""
    generator = torch.Generator().manual_seed(config.seed)
    embeddings = random_orthonormal(config.tokens + 1, config.tokens + 1, generator=generator)
    tokens, query = embeddings[:, :-1], torch.zeros(config.samples, dtype=torch.long)
    x = torch.rand(config.draws, config.samples, config.tokens, generator=generator, dtype=torch.float64)
    g = torch.randn(config.draws, config.samples, config.nodes, generator=generator, dtype=torch.float64)
    w0 = 0.3 * torch.randn(config.draws, *embeddings.shape[:1], config.nodes, generator=generator, dtype=torch.float64)
    z0 = 0.3 * torch.randn(config.draws, config.tokens, generator=generator, dtype=torch.float64)
    # first all draws from zero, then all of them from their random start
    x, g = (torch.cat([part, part]) for part in (x, g))
    w0, z0 = (torch.cat([torch.zeros_like(part), part]) for part in (w0, z0))
    v0 = tokens.mT @ w0
    g = g * _blow_up(x.mT @ g / config.samples, v0, z0)[:, None, None]
    delta = x.mT @ g / config.samples
    block = Block(x, query, tokens, embeddings[:, -1:], constant_gradient(g), Attention("exp"))
    share = torch.linspace(0, config.horizon, config.steps, dtype=torch.float64)
    path = block.solve(w0, z0[:, None], share)
    v = block.project(path.w)  # (steps, draws, tokens, nodes)
    velocity = block.project(block.velocity(path.w, path.z).w)
    from_zero = slice(None, config.draws)
    off = _velocity_errors(v[:, from_zero], velocity[:, from_zero], delta[from_zero])
    return {
        "share": share,
        "delta": delta,
        "v": v.movedim(0, 1),
        "v closed": linear.row_trajectory(delta, share, v0=v0, z0=z0),
        **{f"velocity off/{form}": error.mT for form, error in off.items()},
    }


def _blow_up(delta: Tensor, v0: Tensor, z0: Tensor) -> Tensor:
    """When the first row becomes infinite, (draws,)."""
    length = delta.norm(dim=-1)
    return linear.blow_up_time(length, v0=(v0 * delta).sum(-1) / length, z0=z0).amin(-1)


def _velocity_errors(v: Tensor, truth: Tensor, delta: Tensor) -> dict[str, Tensor]:
    """Relative errors of both readings of the slide along the flow from zero, (steps, draws)."""
    printed = (v.square() / 2).exp().sum(-1, keepdim=True) * delta
    corrected = (v.square().sum(-1, keepdim=True) / 2).exp() * delta
    best = (printed * truth).sum((-1, -2), keepdim=True) / printed.square().sum((-1, -2), keepdim=True)
    forms = {"printed": printed, "any A": best * printed, "corrected": corrected}
    size = truth.flatten(-2).norm(dim=-1)
    return {name: (form - truth).flatten(-2).norm(dim=-1) / size for name, form in forms.items()}


def _follow_ranks(left: Tensor, config: Config) -> dict[str, Tensor]:
    """Gaussian saliencies from a zero start by the closed form, at 1 - t/t* = left. (times, matrices) each."""
    generator = torch.Generator().manual_seed(config.seed)
    shape = (config.matrices, config.rows, config.columns)
    delta = torch.randn(shape, generator=generator, dtype=torch.float64)
    length = delta.norm(dim=-1)
    delta = delta / length.amax(-1)[:, None, None] * sqrt(torch.pi / 2)  # so that t* = 1
    t = 1 - left
    v = linear.row_trajectory(delta, t).movedim(0, 1)
    s = linear.trajectory(delta.norm(dim=-1), t).movedim(0, 1)
    growth = (s.square() / 2).exp()  # |v_l'| / |Δ_l|
    alone = t[:, None, None, None] * delta  # V without attention
    return {
        "V": stable_rank(v),
        "V'": stable_rank(growth[..., None] * delta),
        "V without attention": stable_rank(alone),
        "rank of V": torch.linalg.matrix_rank(v),
        "growth": growth.amax(-1) / growth.amin(-1),
        "growth without attention": _spread_of_growth(alone, t, delta),
    }


def _spread_of_growth(v: Tensor, t: Tensor, delta: Tensor) -> Tensor:
    """Fastest over slowest |Δv_l|/|Δ_l| between neighbouring times, (times - 1, matrices)."""
    speed: Tensor = v.diff(dim=0).norm(dim=-1) / (t.diff()[:, None, None] * delta.norm(dim=-1))
    return speed.amax(-1) / speed.amin(-1)


def _node_spread(run: Run, scale: float) -> float:
    """Largest relative deviation over tokens of erf(v/scale)/Δ at one node, from zero starts."""
    draws = len(run.value("block/velocity off/printed"))
    v, delta = run.value("block/v")[:draws, 1:], run.value("block/delta")[:draws, None]
    value = np.vectorize(erf, otypes=[float])(v / scale) / delta
    return float(np.abs(value / value.mean(-2, keepdims=True) - 1).max())


def _at(left: Any, value: float) -> int:
    return int(np.argmin(np.abs(np.log(left / value))))


def _quote(left: Any, path: Any) -> str:
    return ", ".join(show(float(f"{path[_at(left, value)]:.3g}")) for value in SHOWN)


STUDY = Study(
    name="thm2-rank",
    title="More than one node: in which sense V becomes low rank",
    version=1,
    claims=(DYNAMICS, CLOSED, RANK, GRADIENT, ROWS),
    quick=Config(),
    paper=Config(draws=16, steps=100, rows=400, columns=200, matrices=16),
    run=run,
    judge=judge,
    draw=draw,
    about=(
        "Blocks with several linear nodes under exp attention are followed by an adaptive ODE solver to 99 % of their "
        "blow-up time and compared with both readings of the talk's equation and with the closed form. The closed form "
        "then carries Gaussian saliency matrices to the last representable moments before the blow-up, where ranks and "
        "stable ranks are taken; without attention V = tΔ keeps both."
    ),
)
