"""Theorem 2, eq. 3, 4, 20, 22 and their remarks: exp attention under a linear MLP."""

from dataclasses import dataclass
from math import erf, pi, sqrt
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Least, Progress, Study, StudyConfig, Within
from joma.claims.declare import Claims
from joma.claims.verdicts import above, at_least, at_most, below, by_residual, by_tests
from joma.figures.bands import bound
from joma.figures.labels import end_label
from joma.figures.reading import number
from joma.figures.style import CORRECTED, PRINTED, SERIES, panels
from joma.runs import Run
from joma.theory import linear
from joma.theory.flow import integrate

EXACT = 1e-10  # closed forms against an ODE solver at rtol 1e-12
NEARLY_ALL = 0.99  # of Σ|v| in one token: one-hot, as far as anybody could see


@dataclass(frozen=True)
class Thm2Config(StudyConfig):
    """Random saliencies, once from zero and once from random starts."""

    tokens: Annotated[int, Least(2, "a winner and a loser")] = 12
    draws: int = 8
    """Independent saliency vectors."""
    horizon: Annotated[float, Within(0, 1, "the winner's blow-up", open=True)] = 0.99
    """How far to follow the flow, as a share of the winner's blow-up time."""
    steps: Annotated[int, Least(2, "the start and a later moment")] = 60
    seed: int = 0


CLAIMS = Claims()


def run(config: Thm2Config, run: Run, progress: Progress) -> None:
    """Follow the flow by an ODE solver and record it beside the closed form."""
    generator = torch.Generator().manual_seed(config.seed)
    shape = (config.draws, config.tokens)
    delta, v0, z0 = (size * torch.randn(shape, generator=generator, dtype=torch.float64) for size in (1.0, 0.5, 0.5))
    zero = torch.zeros_like(delta)
    run.keep("delta", lambda: delta)
    run.keep("share", lambda: torch.linspace(0, config.horizon, config.steps, dtype=torch.float64))
    for i, (start, v, z) in enumerate((("zero", zero, zero), ("random", v0, z0))):
        progress(0.3 * i, f"flow from a {start} start")
        _record_start(run, start, delta, v, z, config)
    progress(0.6, "flow with a normaliser")
    run.keep("normalised/v", lambda: _normalised_flow(delta, config))
    progress(0.8, "the winner's last moments")
    run.keep("limits", lambda: linear.limits(delta))
    gap = torch.logspace(-1, -12, 45, dtype=torch.float64)
    run.keep("growth/gap", lambda: gap)
    run.keep("growth/share of weight", lambda: _winner_share(delta, gap))
    exact = linear.trajectory([1.0], sqrt(pi / 2) * (1 - gap))[:, 0]
    run.keep("growth/asymptote off", lambda: (linear.winner_growth(1 - gap) / exact - 1).abs())


def _record_start(run: Run, start: str, delta: Tensor, v0: Tensor, z0: Tensor, config: Thm2Config) -> None:
    run.keep(f"{start}/constant", lambda: z0 - v0**2 / 2)
    run.keep(f"{start}/blow-up", lambda: linear.blow_up_time(delta, v0=v0, z0=z0))
    run.keep(f"{start}/blow-up by quadrature", lambda: _time_to_infinity(delta, v0, z0))
    end = linear.blow_up_time(delta, v0=v0, z0=z0).amin(-1)  # (draws,)
    times = end[:, None] * torch.linspace(0, config.horizon, config.steps, dtype=torch.float64)  # (draws, steps)
    starts = list(zip(delta, v0, z0, times, strict=True))
    run.keep(f"{start}/v", lambda: torch.stack([_flow(*draw) for draw in starts]))  # (draws, steps, tokens)
    run.keep(f"{start}/v closed", lambda: torch.stack([linear.trajectory(d, t, v0=v, z0=z) for d, v, z, t in starts]))


@CLAIMS.declare("erf-invariant", "JoMA eq. 4", uses=("thm2/closed-form",))
def _one_value(run: Run, claim: Claim, name: str = "zero/v") -> Finding:
    """From a zero start erf(v/2)/Δ has the same value at all tokens at every time.

    Corrected: erf(v/√2)/Δ has the same value at all tokens.
    Expected: The value is the same at all tokens.
    """
    delta, v = run.value("delta")[:, None], run.value(name)[:, run.value("share") > 0]
    return by_residual(
        claim,
        printed=_spread(_erf(v / 2) / delta),
        corrected=_spread(_erf(v / sqrt(2)) / delta),
        tolerance=EXACT,
        what="spread over tokens",
        control={"v/Δ, without the error function": _spread(v / delta)},
    )


@CLAIMS.declare("erf-invariant-any-start", "JoMA eq. 22", uses=("thm2/closed-form",))
def _any_start(run: Run, claim: Claim) -> Finding:
    """From any start, the values of erf(v/2)/Δ at two tokens differ by a constant.

    Corrected: This holds for erf(v/√2)/(Δ eᶜ) with c = z(0) − v(0)²/2. Tokens with different c need the factor eᶜ.
    Expected: Differences between tokens stay constant in time.
    """
    v, delta, constant = (run.value(name) for name in ("random/v", "delta", "random/constant"))
    return by_residual(
        claim,
        printed=_unequal_spread(v, 2.0, delta, 0 * constant),
        corrected=_unequal_spread(v, sqrt(2), delta, constant),
        tolerance=EXACT,
        what="change of the differences between tokens",
        control={"erf(v/√2)/Δ, without the factor eᶜ": _unequal_spread(v, sqrt(2), delta, 0 * constant)},
    )


@CLAIMS.declare("closed-form", "JoMA eq. 20", uses=("thm1/exp-invariant",))
def _closed_form(run: Run, claim: Claim) -> Finding:
    """v′ = Δ exp(v²/2 + c)/A can be integrated with the error function.

    Expected: The closed form equals the flow.
    """
    paths = [(run.value(f"{start}/v"), run.value(f"{start}/v closed")) for start in ("zero", "random")]
    return by_residual(
        claim,
        printed=float(np.max([np.abs(v - closed).max() for v, closed in paths])),
        tolerance=EXACT,
        what="largest difference",
        control={"weights that stay at their start": float(np.min([np.abs(v - v[:, :1]).max() for v, _ in paths]))},
    )


@CLAIMS.declare("finite-blow-up", "JoMA Thm 2", uses=("thm2/closed-form",))
def _blow_up(run: Run, claim: Claim) -> Finding:
    """The weight of the winner tends to infinity during training (no time is given).

    Corrected: It becomes infinite at the finite time t* = √(π/2) A (1 − sgn Δ erf(v(0)/√2)) / (|Δ| eᶜ).
    Expected: As printed: no finite time. As corrected: t* equals the time found by quadrature.

    By rates 1/t, which are 0 where the time is infinite: as printed it is, or at least nothing says otherwise.
    """
    share = run.value("random/blow-up") / run.value("random/blow-up by quadrature")
    return by_residual(
        claim,
        printed=float(np.abs(share).max()),
        corrected=float(np.abs(share - 1).max()),
        tolerance=EXACT,
        what="relative error of 1/t*",
    )


@CLAIMS.declare("losers-stop", "JoMA Thm 2", uses=("thm2/erf-invariant", "thm2/finite-blow-up"))
def _losers(run: Run, claim: Claim) -> Finding:
    """The weights of all other tokens converge to finite values.

    Expected: At t* the weights of the losers are √2 erfinv(Δ/max|Δ|), which is finite.

    The flow's last recorded moment is carried to t* by the flow's own invariant, erf(v/√2) in proportion to t.
    """
    delta, v, share = run.value("delta"), run.value("zero/v")[:, -1], run.value("share")[-1]
    size = np.abs(delta)
    loser = size < size.max(-1, keepdims=True)
    end = _erf(v / sqrt(2)) / share  # at t*; -1 and 1 are the infinite weights
    off = np.abs(end - _erf(run.value("limits") / sqrt(2)))
    return by_tests(
        claim,
        printed=[
            at_most("losers: largest distance of erf(v/√2) from its limit", off[loser].max(), EXACT),
            below("losers: largest |erf(v/√2)|", np.abs(end[loser]).max(), 1.0),
        ],
        controls=[
            at_most("winners: largest distance of |erf(v/√2)| from 1", np.abs(np.abs(end[~loser]) - 1).max(), EXACT)
        ],
    )


@CLAIMS.declare("who-wins", "JoMA Thm 2", uses=("thm2/finite-blow-up",))
def _winner(run: Run, claim: Claim) -> Finding:
    """The winner is the token with the largest |Δ|.

    Corrected: The winner is the token with the smallest t*. This is the largest |Δ| only if all tokens start equal.
    Expected: As printed: the largest |Δ| always wins. As corrected: the smallest t* always wins.
    """
    salient = np.abs(run.value("delta")).argmax(-1)
    by_quadrature = {start: run.value(f"{start}/blow-up by quadrature") for start in ("random", "zero")}
    soonest = run.value("random/blow-up").argmin(-1)

    def won_by(tokens: Any, start: str) -> float:
        times = by_quadrature[start]
        return float(np.where(np.isnan(times).any(-1), np.nan, tokens == times.argmin(-1)).mean())

    return by_tests(
        claim,
        printed=[at_least("random starts won by the largest |Δ|", won_by(salient, "random"), 1.0, "%")],
        corrected=[
            at_least("random starts won by the smallest t*", won_by(soonest, "random"), 1.0, "%"),
            at_least("zero starts won by the largest |Δ|", won_by(salient, "zero"), 1.0, "%"),
        ],
    )


@CLAIMS.declare("one-hot", "JoMA Thm 2", uses=("thm2/finite-blow-up", "thm2/losers-stop"))
def _one_hot(run: Run, claim: Claim) -> Finding:
    """The weights become one-hot during training.

    Expected: The winner holds 99 % of Σ|v| at 1 − t/t* = 1e-12, before floating point runs out.
    """
    size, gap = np.abs(run.value("delta")), run.value("growth/gap")
    weight, off = run.value("growth/share of weight").mean(-1), run.value("growth/asymptote off")
    alone = float((size.max(-1) / size.sum(-1)).mean())
    return by_tests(
        claim,
        printed=[at_least("winner's share of Σ|v| at the end", float(weight[-1]), NEARLY_ALL, "%")],
        direction=[above("smallest gain of that share from one moment to the next", float(np.diff(weight).min()), 0.0)],
        controls=[above("gain compared with its share without attention", float(weight[-1]) - alone, 0.0, "%")],
        details={
            "at the first moment": {"1 − t/t*": float(gap[0]), "winner's share": float(weight[0])},
            "at the last moment": {
                "1 − t/t*": float(gap[-1]),
                "relative error of √W₀(2/(π(1 − t/t*)²))": float(off[-1]),
            },
        },
    )


@CLAIMS.declare("shared-normaliser", "JoMA eq. 3", uses=("thm2/erf-invariant",))
def _with_normaliser(run: Run, claim: Claim) -> Finding:
    """If all samples share a normaliser A(t), erf(v/2)/Δ still has the same value at all tokens.

    Corrected: erf(v/√2)/Δ has the same value at all tokens. A(t) only changes the speed of time.
    Expected: The value is the same at all tokens.
    """
    return _one_value(run, claim, "normalised/v")


def draw(run: Run) -> list[Drawing]:
    """The trajectories with their limits, and the invariant as printed and as corrected."""
    figure, (left, right) = panels(2, width=4.5)
    share, v, delta = run.value("share"), run.value("zero/v")[0], run.value("delta")[0]
    order = np.argsort(-np.abs(delta))[:6]
    for rank, (token, colour) in enumerate(zip(order, SERIES, strict=False)):
        label = f"|Δ| = {abs(delta[token]):.2f}"
        left.plot(share, np.abs(v[:, token]), color=colour, label=label, zorder=9 - rank)
        if rank:
            left.axhline(abs(run.value("limits")[0, token]), xmin=0.72, ls=":", lw=1, color=colour)
    end_label(left, "dotted: limit", ls=":", lw=1)
    left.set(ylabel="|v|", title="The winner blows up, the others stop")
    for scale, colour, label in ((2, PRINTED, "printed:\nerf(v/2)/Δ"), (sqrt(2), CORRECTED, "corrected:\nerf(v/√2)/Δ")):
        value = _erf(v[1:] / scale) / delta
        spread = np.abs(value[:, order[1:]] / value[:, order[:1]] - 1).max(1) + 1e-17
        right.plot(share[1:], spread, color=colour, label=label)
    bound(right, EXACT)
    right.set(yscale="log", ylabel="relative spread over tokens", ylim=(1e-17, 10))
    right.set_title("erf(v/√2)/Δ is the same at all tokens")
    for axis in (left, right):
        axis.set_xlabel("time / t* of the winner")
    caption = (
        "One token takes all: the weight of the most salient token blows up, and the others stop at their predicted "
        f"limits. At {number(share[-1], '%')} of its blow-up time the winner is at {number(abs(v[-1, order[0]]))}. "
        "Left: the weights of the six most salient tokens. Right: how much the printed and the corrected quantity "
        "differ between these tokens; the corrected one is the same at all of them."
    )
    return [Drawing("winner-take-all", caption, figure)]


def _flow(delta: Tensor, v: Tensor, z: Tensor, t: Tensor) -> Tensor:
    """The flow v' = Δ e^z, z' = v v' with its logits, by the solver: it knows nothing of Theorem 1 or 2."""

    def field(time: float, y: Tensor) -> Tensor:
        dv = delta * y[1].exp()
        return torch.stack([dv, y[0] * dv])

    return integrate(field, torch.stack([v, z]), t)[:, 0]


def _normalised_flow(delta: Tensor, config: Thm2Config) -> Tensor:
    """v' = Δ e^z / A(t), A = mean e^z: the remark on softmax with one normaliser for all samples."""
    t = torch.linspace(0, 4.0, config.steps, dtype=torch.float64)

    def field(time: float, y: Tensor) -> Tensor:
        dv = delta * y[1].softmax(-1) * config.tokens
        return torch.stack([dv, y[0] * dv])

    return integrate(field, torch.stack([torch.zeros_like(delta)] * 2), t)[:, 0].transpose(0, 1)


def _time_to_infinity(delta: Tensor, v0: Tensor, z0: Tensor) -> Tensor:
    """∫ dv/v' from v(0) to ±∞, by Gauss-Legendre over a range whose rest is below 1e-16."""
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(80))
    start = (delta.sign() * v0)[..., None]
    u = start + (12.0 - start) * (nodes + 1) / 2
    integrand = torch.exp(-(u**2) / 2 + start**2 / 2 - z0[..., None])
    return (integrand * weights).sum(-1) * (12.0 - start[..., 0]) / 2 / delta.abs()


def _winner_share(delta: Tensor, gap: Tensor) -> Tensor:
    """|v| of the winner over the sum of all |v|, at 1 - t/t* = gap, from a zero start. (gaps, draws)."""
    ends = linear.blow_up_time(delta).amin(-1)
    v = torch.stack([linear.trajectory(d, end * (1 - gap)) for d, end in zip(delta, ends, strict=True)], 1).abs()
    return v.amax(-1) / v.sum(-1)


def _erf(x: Any) -> Any:
    return np.vectorize(erf, otypes=[float])(x)


@np.errstate(invalid="ignore")  # weights that stand still spread by 0/0, which is not a number and keeps no bound
def _spread(value: Any) -> float:
    return float(np.abs(value / value.mean(-1, keepdims=True) - 1).max())


@np.errstate(invalid="ignore")
def _unequal_spread(v: Any, scale: float, delta: Any, constant: Any) -> float:
    value = _erf(v / scale) / (delta * np.exp(constant))[:, None]
    moved = value - value[:, :1]
    return float(np.abs(moved - moved.mean(-1, keepdims=True)).max() / np.abs(moved).max())


STUDY = Study(
    name="thm2",
    title="Theorem 2: winner take all under a linear MLP",
    version=1,
    claims=CLAIMS,
    quick=Thm2Config(),
    paper=Thm2Config(tokens=64, draws=64, steps=200),
    run=run,
    draw=draw,
    about=(
        "An adaptive ODE solver follows the weights and logits of one linear node under exp attention. It does not use "
        "Theorem 1 or Theorem 2. It starts from zero and from random values and stops at 99 % of the blow-up time of "
        "the winner. The printed and the corrected invariant are computed on that flow. Quadrature gives the times to "
        "infinity."
    ),
)
