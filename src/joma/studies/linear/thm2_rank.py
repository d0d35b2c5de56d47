"""K > 1 nodes under exp attention: the talk's dynamics of V, and in which sense V becomes low rank."""

from dataclasses import dataclass
from math import erf, sqrt
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Least, Progress, Study, StudyConfig
from joma.claims.declare import Claims
from joma.claims.sentences import show
from joma.claims.verdicts import at_least, at_most, below, by_effect, by_residual
from joma.figures.bands import bound, mean_and_band
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, CORRECTED, ORANGE, PRINTED, panels
from joma.measure import stable_rank
from joma.measure.intervals import compare
from joma.runs import Run
from joma.theory import linear
from joma.theory.attention import Attention, random_orthonormal
from joma.theory.flow import Block, constant_gradient

EXACT = 1e-10  # closed forms against an ODE solver at rtol 1e-12
SHOWN = (1.0, 1e-1, 1e-2, 1e-6, 1e-12)  # values of 1 - t/t* that findings quote
SOON = 1e-2  # where the corrected claim still has half of the stable rank, and where rows are compared
WIDELY = 10.0  # growth rates of rows that differ by this factor vary widely
SHARE = 0.05  # of a rank: one direction of twenty; whoever loses less has not become lower in rank
ROUNDING = 1e-9  # V' ends at a stable rank of 1 and stays there, to rounding


@dataclass(frozen=True)
class Thm2RankConfig(StudyConfig):
    """Blocks small enough to follow exactly, and saliency matrices large enough to have a rank."""

    tokens: int = 10
    nodes: int = 8
    samples: int = 30
    draws: int = 3
    """Independent blocks, each once from zero and once from a random start."""
    horizon: float = 0.99
    """How far to follow a block, as a share of its first blow-up time."""
    steps: Annotated[int, Least(2, "the start and a later moment")] = 30
    rows: int = 100
    columns: int = 50
    matrices: int = 4
    """Independent Gaussian saliency matrices, rows x columns, whose stable rank is followed."""
    seed: int = 0


CLAIMS = Claims()


def run(config: Thm2RankConfig, run: Run, progress: Progress) -> None:
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


@CLAIMS.declare("nodes-dynamics", "JoMA talk slide K", uses=("thm1/exp-invariant",))
def _dynamics(run: Run, claim: Claim) -> Finding:
    """With K nodes V′ = diag(exp(V∘V/2) 1) Δ / A. The exponential comes first, then the sum over each row.

    Corrected: V′ = diag(exp((V∘V) 1/2)) Δ / A. The sum over each row comes first, then the exponential.
    Expected: The equation gives V′ of the block. As printed, the best A at each moment is allowed.
    """
    printed, any_scale, corrected = (
        float(run.value(f"block/velocity off/{form}").max()) for form in ("printed", "any A", "corrected")
    )
    return by_residual(
        claim,
        printed=float(np.min([printed, any_scale])),
        corrected=corrected,
        tolerance=EXACT,
        what="relative error of V′",
        details={"the printed equation": {"with A = 1": printed, "with the best A": any_scale}},
    )


@CLAIMS.declare("nodes-closed-form", "JoMA talk Thm 2", uses=("thm2/closed-form", "thm2-rank/nodes-dynamics"))
def _closed(run: Run, claim: Claim) -> Finding:
    """For each node, erf(v_l/2)/Δ_l has the same value at all tokens (stated for one node).

    Corrected: Each row of V moves along its row of Δ. It follows the closed form of one node with saliency |Δ_l|.
    Expected: As printed: no spread over tokens, with v/2 or v/√2. As corrected: the closed form equals the flow.
    """
    v, closed = run.value("block/v"), run.value("block/v closed")
    return by_residual(
        claim,
        printed=float(np.min([_node_spread(run, 2.0), _node_spread(run, sqrt(2))])),
        corrected=float(np.abs(v - closed).max()),
        tolerance=EXACT,
        what="largest difference",
        control={"rows that stay at their start": float(np.abs(v - v[:, :1]).max())},
    )


@CLAIMS.declare(
    "nodes-low-rank", "JoMA talk slide K", matters=SHARE, unit="%", ceiling=1.0, uses=("thm2-rank/nodes-closed-form",)
)
def _low_rank(run: Run, claim: Claim) -> Finding:
    """V becomes low rank over time.

    Corrected: The rank of V never changes. Its stable rank falls, but only with the logarithm of the time left to the
    blow-up.
    Expected: As printed: the rank falls. As corrected: only the stable rank falls, by at most half at 0.99 t*.
    """
    left, rank, path, alone = (run.value(f"rank/{name}") for name in ("left", "rank of V", "V", "V without attention"))
    mean, soon = path.mean(-1), _at(left, SOON)
    return by_effect(
        claim,
        {"rank": compare(1 - rank[-1] / rank[0], 0.0)},
        corrected={"stable rank": compare(1 - path[-1] / path[0], 1 - alone[-1] / alone[0])},
        what="share lost",
        over="matrices",
        corrected_size=[
            at_most("matrices whose rank changes", (rank != rank[:1]).any(0).mean(), 0.0, "%"),
            below("largest change of the stable rank from one moment to the next", _steepest(path), 0.0),
            at_least("share of the stable rank left at 0.99 t*", mean[soon] / mean[0], 0.5, "%"),
        ],
        details=_quote(run, {"stable rank": "V"}),
    )


@CLAIMS.declare(
    "nodes-gradient-rank",
    "JoMA talk slide K",
    matters=SHARE,
    unit="%",
    ceiling=1.0,
    uses=("thm2-rank/nodes-closed-form",),
)
def _gradient(run: Run, claim: Claim) -> Finding:
    """The gradient V′ reaches an even lower rank than V.

    Expected: From t*/4 on, V′ has a lower stable rank than V in every matrix, and both fall.

    Both losses are shares of the stable rank that V has at the start, where V and V' are parallel.
    """
    left, path, velocity = (run.value(f"rank/{name}") for name in ("left", "V", "V'"))
    later = left <= 0.75  # from t*/4 on
    lost, lost_of_velocity = (1 - each / path[0] for each in (path, velocity))
    return by_effect(
        claim,
        {_when(value): compare(lost_of_velocity[_at(left, value)], lost[_at(left, value)]) for value in SHOWN[1:]},
        what="share of the stable rank lost by V′",
        over="matrices",
        size=[
            at_most("largest ratio of the stable ranks of V′ and V from t*/4 on", (velocity / path)[later].max(), 1.0),
            below("largest change of the stable rank of V from one moment to the next", _steepest(path), 0.0),
            at_most("the same for V′", _steepest(velocity), ROUNDING),
        ],
        details=_quote(run, {"stable rank of V": "V", "of V′": "V'"}),
    )


@CLAIMS.declare("nodes-row-growth", "JoMA talk slide K", matters=WIDELY - 1, uses=("thm2-rank/nodes-closed-form",))
def _row_growth(run: Run, claim: Claim) -> Finding:
    """The growth rates of the rows of V vary widely.

    Expected: The ratio is at least 10. Without attention it is 1.
    """
    growth, alone = run.value("rank/growth"), run.value("rank/growth without attention").max(0)
    return by_effect(
        claim,
        compare(growth[_at(run.value("rank/left"), SOON)], alone),
        what="ratio of the fastest to the slowest |v_l′|/|Δ_l| at 1 − t/t* = 0.01",
        over="matrices",
        details=_quote(run, {"fastest / slowest": "growth"}),
    )


def draw(run: Run) -> list[Drawing]:
    """Stable ranks on the way to the blow-up, and the two readings of the talk's equation."""
    figure, (ranks, speeds) = panels(2, width=4.6)
    left = run.value("rank/left")
    for name, colour, style, label in (
        ("V", BLUE, "-", "V"),
        ("V'", ORANGE, "-", "V′"),
        ("V without attention", CONTROL, "--", "V and V′\nwithout attention"),
    ):
        mean_and_band(ranks, left, run.value(f"rank/{name}"), color=colour, label=label, ls=style)
    ranks.set(xscale="log", xlim=(1.5, left[-1]), ylim=(0, None), xlabel="time left, 1 − t/t*", ylabel="stable rank")
    ranks.set_title("V falls slowly, V′ fast")
    for form, colour, label in (
        ("printed", PRINTED, "printed:\nexp(V∘V/2) 1"),
        ("any A", ORANGE, "printed, best A"),
        ("corrected", CORRECTED, "corrected:\nexp((V∘V) 1/2)"),
    ):
        error = run.value(f"block/velocity off/{form}").max(0) + 1e-17
        speeds.plot(run.value("block/share"), error, color=colour, label=label)
    bound(speeds, EXACT)
    speeds.set(yscale="log", xlabel="time / t*", ylabel="relative error of V′", ylim=(1e-17, 1e3))
    speeds.set_title("Summing rows first gives V′")
    start, end, gradient = (number(run.value(f"rank/{of}")[at].mean()) for of, at in (("V", 0), ("V", -1), ("V'", -1)))
    caption = (
        f"V loses its stable rank slowly and its gradient V′ loses it fast: from {start} to {end} for V and to "
        f"{gradient} for V′. Left: stable rank for Gaussian saliencies, from a zero start to 1e-12 before the "
        "blow-up (lines: mean over matrices; bands: smallest to largest). Right: relative error of the equation in "
        "the talk on real blocks: as printed, with the best normaliser at every moment, and with rows summed before "
        "the exponential."
    )
    return [Drawing("stable-rank", caption, figure)]


def _follow_blocks(config: Thm2RankConfig) -> dict[str, Tensor]:
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
    v0, delta = tokens.mT @ w0, x.mT @ g / config.samples
    length = delta.norm(dim=-1)
    first = linear.blow_up_time(length, v0=(v0 * delta).sum(-1) / length, z0=z0).amin(-1)  # of any row, (draws,)
    g = g * first[:, None, None]
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


def _velocity_errors(v: Tensor, truth: Tensor, delta: Tensor) -> dict[str, Tensor]:
    printed = (v.square() / 2).exp().sum(-1, keepdim=True) * delta
    corrected = (v.square().sum(-1, keepdim=True) / 2).exp() * delta
    best = (printed * truth).sum((-1, -2), keepdim=True) / printed.square().sum((-1, -2), keepdim=True)
    forms = {"printed": printed, "any A": best * printed, "corrected": corrected}
    size = truth.flatten(-2).norm(dim=-1)
    return {name: (form - truth).flatten(-2).norm(dim=-1) / size for name, form in forms.items()}


def _follow_ranks(left: Tensor, config: Thm2RankConfig) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(config.seed)
    shape = (config.matrices, config.rows, config.columns)
    delta = torch.randn(shape, generator=generator, dtype=torch.float64)
    delta = delta / delta.norm(dim=-1).amax(-1)[:, None, None] * sqrt(torch.pi / 2)  # so that t* = 1
    t = 1 - left
    v = linear.row_trajectory(delta, t).movedim(0, 1)
    growth = (linear.trajectory(delta.norm(dim=-1), t).movedim(0, 1).square() / 2).exp()  # |v_l'| / |Δ_l|
    alone = t[:, None, None, None] * delta  # V without attention, and |Δv_l|/|Δ_l| between neighbouring times
    speed = alone.diff(dim=0).norm(dim=-1) / (t.diff()[:, None, None] * delta.norm(dim=-1))
    return {
        "V": stable_rank(v),
        "V'": stable_rank(growth[..., None] * delta),
        "V without attention": stable_rank(alone),
        "rank of V": torch.linalg.matrix_rank(v),
        "growth": growth.amax(-1) / growth.amin(-1),
        "growth without attention": speed.amax(-1) / speed.amin(-1),
    }


@np.errstate(invalid="ignore")  # weights that stand still spread by 0/0, which is not a number and keeps no bound
def _node_spread(run: Run, scale: float) -> float:
    draws = len(run.value("block/velocity off/printed"))
    v, delta = run.value("block/v")[:draws, 1:], run.value("block/delta")[:draws, None]
    value = np.vectorize(erf, otypes=[float])(v / scale) / delta
    return float(np.abs(value / value.mean(-2, keepdims=True) - 1).max())


def _steepest(path: Any) -> float:
    """The largest change of the mean over matrices between neighbouring moments; below zero if it always falls."""
    return float(np.diff(path.mean(-1)).max())


def _at(left: Any, value: float) -> int:
    return int(np.argmin(np.abs(np.log(left / value))))


def _when(value: float) -> str:
    return f"at 1 − t/t* = {show(value)}"


def _quote(run: Run, series: dict[str, str]) -> dict[str, dict[str, float]]:
    left = run.value("rank/left")
    return {
        _when(value): {
            called: float(run.value(f"rank/{name}")[_at(left, value)].mean()) for called, name in series.items()
        }
        for value in SHOWN
    }


STUDY = Study(
    name="thm2-rank",
    title="More than one node: how V loses stable rank",
    version=1,
    claims=CLAIMS,
    quick=Thm2RankConfig(),
    paper=Thm2RankConfig(draws=16, steps=100, rows=400, columns=200, matrices=16),
    run=run,
    draw=draw,
    about=(
        "An adaptive ODE solver follows blocks with several linear nodes under exp attention to 99 % of their blow-up "
        "time. The flow is compared with both readings of the equation in the talk and with the closed form. The "
        "closed form then takes Gaussian saliency matrices to the last moments before the blow-up that floating point "
        "can represent. There the ranks and stable ranks are measured. Intervals are over these matrices. The control "
        "is V = tΔ, which is V without attention."
    ),
)
