"""Theorem 2, eq. 3, 4, 20, 22 and their remarks: exp attention under a linear MLP."""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, pi, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, each_claim
from joma.claims.evidence import above, at_least, at_most, below
from joma.claims.verdicts import by_residual, by_tests
from joma.figures.bands import bound
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import between, number
from joma.figures.style import CORRECTED, PRINTED, SERIES, panels
from joma.runs import Run
from joma.theory import linear
from joma.theory.flow import integrate

EXACT = 1e-10  # closed forms against an ODE solver at rtol 1e-12
NEARLY_ALL = 0.99  # of Σ|v| in one token: one-hot, as far as anybody could see


@dataclass(frozen=True)
class Config:
    """Random saliencies, once from zero and once from random starts."""

    tokens: int = 12
    draws: int = 8
    """Independent saliency vectors."""
    horizon: float = 0.99
    """How far to follow the flow, as a share of the winner's blow-up time."""
    steps: int = 60
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 2:
            raise ValueError(f"tokens must be at least 2, a winner and a loser, got {self.tokens}")
        if self.steps < 2:
            raise ValueError(f"steps must be at least 2, the start and a later moment, got {self.steps}")
        if not 0 < self.horizon < 1:
            raise ValueError(f"horizon must lie between 0 and 1, the winner's blow-up, got {self.horizon}")


INVARIANT = Claim(
    "erf-invariant",
    "JoMA eq. 4",
    "From a zero start erf(v/2)/Δ has the same value at all tokens at every time.",
    "erf(v/√2)/Δ has the same value at all tokens.",
    uses=("thm2/closed-form",),
)
UNEQUAL = Claim(
    "erf-invariant-any-start",
    "JoMA eq. 22",
    "From any start, the values of erf(v/2)/Δ at two tokens differ by a constant.",
    "This holds for erf(v/√2)/(Δ eᶜ) with c = z(0) − v(0)²/2. Tokens with different c need the factor eᶜ.",
    uses=("thm2/closed-form",),
)
CLOSED = Claim(
    "closed-form",
    "JoMA eq. 20",
    "v′ = Δ exp(v²/2 + c)/A can be integrated with the error function.",
    uses=("thm1/exp-invariant",),
)
TIME = Claim(
    "finite-blow-up",
    "JoMA Thm 2",
    "The weight of the winner tends to infinity during training (no time is given).",
    "It becomes infinite at the finite time t* = √(π/2) A (1 − sgn Δ erf(v(0)/√2)) / (|Δ| eᶜ).",
    uses=("thm2/closed-form",),
)
LOSERS = Claim(
    "losers-stop",
    "JoMA Thm 2",
    "The weights of all other tokens converge to finite values.",
    uses=("thm2/erf-invariant", "thm2/finite-blow-up"),
)
WINNER = Claim(
    "who-wins",
    "JoMA Thm 2",
    "The winner is the token with the largest |Δ|.",
    "The winner is the token with the smallest t*. This is the largest |Δ| only if all tokens start equal.",
    uses=("thm2/finite-blow-up",),
)
NORMALISED = Claim(
    "shared-normaliser",
    "JoMA eq. 3",
    "If all samples share a normaliser A(t), erf(v/2)/Δ still has the same value at all tokens.",
    "erf(v/√2)/Δ has the same value at all tokens. A(t) only changes the speed of time.",
    uses=("thm2/erf-invariant",),
)
ONE_HOT = Claim(
    "one-hot",
    "JoMA Thm 2",
    "The weights become one-hot during training.",
    uses=("thm2/finite-blow-up", "thm2/losers-stop"),
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Follow the flow by an ODE solver and record it beside the closed form."""
    generator = torch.Generator().manual_seed(config.seed)
    shape = (config.draws, config.tokens)
    delta = torch.randn(shape, generator=generator, dtype=torch.float64)
    v0 = 0.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
    z0 = 0.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
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
    run.keep("growth/asymptote off", lambda: _asymptote_error(gap))


def _record_start(run: Run, start: str, delta: Tensor, v0: Tensor, z0: Tensor, config: Config) -> None:
    run.keep(f"{start}/constant", lambda: z0 - v0**2 / 2)
    run.keep(f"{start}/blow-up", lambda: linear.blow_up_time(delta, v0=v0, z0=z0))
    run.keep(f"{start}/blow-up by quadrature", lambda: _time_to_infinity(delta, v0, z0))
    end = linear.blow_up_time(delta, v0=v0, z0=z0).amin(-1)  # (draws,)
    run.keep(f"{start}/v", lambda: _flow(delta, v0, z0, end, config))
    run.keep(f"{start}/v closed", lambda: _closed(delta, v0, z0, end, config))


def _invariant(run: Run) -> Finding:
    return _one_value(run, INVARIANT, "zero/v")


def _normalised(run: Run) -> Finding:
    return _one_value(run, NORMALISED, "normalised/v")


def _one_value(run: Run, claim: Claim, name: str) -> Finding:
    delta, v = run.value("delta")[:, None], run.value(name)[:, run.value("share") > 0]
    return by_residual(
        claim,
        printed=_spread(_erf(v / 2) / delta),
        corrected=_spread(_erf(v / sqrt(2)) / delta),
        tolerance=EXACT,
        what="spread over tokens",
        expected="The value is the same at all tokens.",
        control={"v/Δ, without the error function": _spread(v / delta)},
    )


def _any_start(run: Run) -> Finding:
    v, delta, constant = (run.value(name) for name in ("random/v", "delta", "random/constant"))
    return by_residual(
        UNEQUAL,
        printed=_unequal_spread(v, 2.0, delta, 0 * constant),
        corrected=_unequal_spread(v, sqrt(2), delta, constant),
        tolerance=EXACT,
        what="change of the differences between tokens",
        expected="Differences between tokens stay constant in time.",
        control={"erf(v/√2)/Δ, without the factor eᶜ": _unequal_spread(v, sqrt(2), delta, 0 * constant)},
    )


def _closed_form(run: Run) -> Finding:
    paths = [(run.value(f"{start}/v"), run.value(f"{start}/v closed")) for start in ("zero", "random")]
    return by_residual(
        CLOSED,
        printed=float(np.max([np.abs(v - closed).max() for v, closed in paths])),
        tolerance=EXACT,
        what="largest difference",
        expected="The closed form equals the flow.",
        control={"weights that stay at their start": float(np.min([np.abs(v - v[:, :1]).max() for v, _ in paths]))},
    )


def _blow_up(run: Run) -> Finding:
    """By rates 1/t, which are 0 where the time is infinite: as printed it is, or at least nothing says otherwise."""
    share = run.value("random/blow-up") / run.value("random/blow-up by quadrature")
    return by_residual(
        TIME,
        printed=float(np.abs(share).max()),
        corrected=float(np.abs(share - 1).max()),
        tolerance=EXACT,
        what="relative error of 1/t*",
        expected="As printed: no finite time. As corrected: t* equals the time found by quadrature.",
    )


def _losers(run: Run) -> Finding:
    """The flow's last recorded moment is carried to t* by the flow's own invariant, erf(v/√2) in proportion to t."""
    delta, v, share = run.value("delta"), run.value("zero/v")[:, -1], run.value("share")[-1]
    size = np.abs(delta)
    loser = size < size.max(-1, keepdims=True)
    end = _erf(v / sqrt(2)) / share  # at t*; -1 and 1 are the infinite weights
    off = np.abs(end - _erf(run.value("limits") / sqrt(2)))
    return by_tests(
        LOSERS,
        expected="At t* the weights of the losers are √2 erfinv(Δ/max|Δ|), which is finite.",
        printed=[
            at_most("losers: largest distance of erf(v/√2) from its limit", float(off[loser].max()), EXACT),
            below("losers: largest |erf(v/√2)|", float(np.abs(end[loser]).max()), 1.0),
        ],
        controls=[
            at_most(
                "winners: largest distance of |erf(v/√2)| from 1", float(np.abs(np.abs(end[~loser]) - 1).max()), EXACT
            )
        ],
    )


def _winner(run: Run) -> Finding:
    salient = np.abs(run.value("delta")).argmax(-1)
    first, first_from_zero = (run.value(f"{start}/blow-up by quadrature").argmin(-1) for start in ("random", "zero"))
    soonest = run.value("random/blow-up").argmin(-1)
    return by_tests(
        WINNER,
        expected="As printed: the largest |Δ| always wins. As corrected: the smallest t* always wins.",
        printed=[at_least("random starts won by the largest |Δ|", float((salient == first).mean()), 1.0, "%")],
        corrected=[
            at_least("random starts won by the smallest t*", float((soonest == first).mean()), 1.0, "%"),
            at_least("zero starts won by the largest |Δ|", float((salient == first_from_zero).mean()), 1.0, "%"),
        ],
    )


def _one_hot(run: Run) -> Finding:
    size, gap = np.abs(run.value("delta")), run.value("growth/gap")
    weight, off = run.value("growth/share of weight").mean(-1), run.value("growth/asymptote off")
    alone = float((size.max(-1) / size.sum(-1)).mean())
    return by_tests(
        ONE_HOT,
        expected="The winner holds 99 % of Σ|v| at 1 − t/t* = 1e-12, before floating point runs out.",
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


def draw(run: Run) -> list[Drawing]:
    """The trajectories with their limits, and the invariant as printed and as corrected."""
    order = np.argsort(-np.abs(run.value("delta")[0]))[:6]
    figure, (left, right) = panels(2, width=4.5)
    seen = [_draw_weights(run, left, order), _draw_invariant(run, right, order)]
    share, end = run.value("share")[-1], np.abs(run.value("zero/v")[0, -1, order[0]])
    caption = (
        "One token takes all: the weight of the most salient token blows up, and the others stop at their predicted "
        f"limits. At {number(share, '%')} of its blow-up time the winner is at {number(end)}. Left: the weights of "
        "the six most salient tokens. Right: how much the printed and the corrected quantity differ between these "
        "tokens; the corrected one is the same at all of them."
    )
    return [Drawing("winner-take-all", caption, figure, "Two panels. " + " ".join(seen))]


def _draw_weights(run: Run, axis: Any, order: Any) -> str:
    share, size, delta = run.value("share"), np.abs(run.value("zero/v")[0]), np.abs(run.value("delta")[0])
    limits = np.abs(run.value("limits")[0])
    for rank, (token, colour) in enumerate(zip(order, SERIES, strict=False)):
        axis.plot(share, size[:, token], color=colour, label=f"|Δ| = {delta[token]:.2f}", zorder=9 - rank)
        if rank:
            axis.axhline(limits[token], xmin=0.72, ls=":", lw=1, color=colour)
    end_label(axis, "dotted: limit", ls=":", lw=1)
    axis.set(xlabel="time / t* of the winner", ylabel="|v|", title="The winner blows up, the others stop")
    label_lines(axis)
    winner, others = order[0], order[1:]
    return (
        f"Left: the winner, |Δ| = {number(delta[winner])}, rises ever more steeply from 0 to "
        f"{number(size[-1, winner])} at {number(share[-1], '%')} of t*. The other lines end "
        f"{between(size[-1, others])}; their predicted limits lie {between(limits[others])}."
    )


def _draw_invariant(run: Run, axis: Any, order: Any) -> str:
    share, v, delta, spreads = run.value("share"), run.value("zero/v")[0], run.value("delta")[0], []
    for scale, colour, label in (
        (2, PRINTED, "printed:\nerf(v/2)/Δ"),
        (sqrt(2), CORRECTED, "corrected:\nerf(v/√2)/Δ"),
    ):
        value = _erf(v[1:] / scale) / delta
        spread = np.abs(value[:, order[1:]] / value[:, order[:1]] - 1).max(1) + 1e-17
        axis.plot(share[1:], spread, color=colour, label=label)
        spreads.append(float(spread.max()))
    bound(axis, EXACT)
    axis.set(yscale="log", xlabel="time / t* of the winner", ylabel="relative spread over tokens", ylim=(1e-17, 10))
    axis.set_title("erf(v/√2)/Δ is the same at all tokens")
    label_lines(axis)
    return (
        f"Right, on a log scale: the printed quantity differs between tokens by up to {number(spreads[0])}, the "
        f"corrected one by at most {number(spreads[1])}; the tolerance is {number(EXACT)}."
    )


def _times(end: Tensor, config: Config) -> Tensor:
    return end[:, None] * torch.linspace(0, config.horizon, config.steps, dtype=torch.float64)  # (draws, steps)


def _flow(delta: Tensor, v0: Tensor, z0: Tensor, end: Tensor, config: Config) -> Tensor:
    """The flow v' = Δ e^z, z' = v v' with its logits, by the solver: it knows nothing of Theorem 1 or 2."""
    paths = []
    for d, v, z, t in zip(delta, v0, z0, _times(end, config), strict=True):

        def field(time: float, y: Tensor, d: Tensor = d) -> Tensor:
            dv = d * y[1].exp()
            return torch.stack([dv, y[0] * dv])

        paths.append(integrate(field, torch.stack([v, z]), t)[:, 0])
    return torch.stack(paths)  # (draws, steps, tokens)


def _closed(delta: Tensor, v0: Tensor, z0: Tensor, end: Tensor, config: Config) -> Tensor:
    rows = zip(delta, v0, z0, _times(end, config), strict=True)
    return torch.stack([linear.trajectory(d, t, v0=v, z0=z) for d, v, z, t in rows])


def _normalised_flow(delta: Tensor, config: Config) -> Tensor:
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


def _asymptote_error(gap: Tensor) -> Tensor:
    exact = linear.trajectory([1.0], sqrt(pi / 2) * (1 - gap))[:, 0]
    return (linear.winner_growth(1 - gap) / exact - 1).abs()


def _erf(x: Any) -> Any:
    return np.vectorize(erf, otypes=[float])(x)


@np.errstate(invalid="ignore")  # weights that stand still spread by 0/0, which is not a number and keeps no bound
def _spread(value: Any) -> float:
    """Largest relative deviation from the mean over tokens, at any time of any draw."""
    mean = value.mean(-1, keepdims=True)
    return float(np.abs(value / mean - 1).max())


@np.errstate(invalid="ignore")
def _unequal_spread(v: Any, scale: float, delta: Any, constant: Any) -> float:
    """How much the differences between tokens change in time, against how far the quantity itself moves."""
    value = _erf(v / scale) / (delta * np.exp(constant))[:, None]
    moved = value - value[:, :1]
    return float(np.abs(moved - moved.mean(-1, keepdims=True)).max() / np.abs(moved).max())


STUDY = Study(
    name="thm2",
    title="Theorem 2: winner take all under a linear MLP",
    version=1,
    claims=(INVARIANT, UNEQUAL, CLOSED, TIME, LOSERS, WINNER, ONE_HOT, NORMALISED),
    quick=Config(),
    paper=Config(tokens=64, draws=64, steps=200),
    run=run,
    judge=each_claim(_invariant, _any_start, _closed_form, _blow_up, _losers, _winner, _one_hot, _normalised),
    draw=draw,
    about=(
        "An adaptive ODE solver follows the weights and logits of one linear node under exp attention. It does not use "
        "Theorem 1 or Theorem 2. It starts from zero and from random values and stops at 99 % of the blow-up time of "
        "the winner. The printed and the corrected invariant are computed on that flow. Quadrature gives the times to "
        "infinity."
    ),
)
