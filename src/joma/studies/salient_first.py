"""Theorem 4, eq. 7, 80 and the remarks: how much faster salient components converge, and from when on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import log, pi, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.runs import Run
from joma.studies.contract import Claim, Drawing, Finding, Progress, Study
from joma.studies.drawing import CONTROL, CORRECTED, GREEN, ORANGE, PRINTED, panels
from joma.studies.verdicts import by_residual, by_test, show
from joma.theory import salience
from joma.theory._arguments import together
from joma.theory.flow import integrate

EXACT = 1e-9  # closed forms against an ODE solver at rtol 1e-12
BOUND = sqrt(2 * pi) + 2  # of |λ| in the paper
SMALL = 0.2  # what "|Λ| ≪ 1" is taken to mean at a tenth of the threshold that is to grant it
NEAR = 0.02  # of the limit μ_j/μ_k at t = 1000: the deviation falls like 1/t
SHALLOW = 0.01  # of δ: F is compared while an error of v is not yet multiplied by more than 1/δ
PAIR = (3.0, 2.0)
SHOWN = (3.0, 1.0)  # the μ_j drawn against the second of the pair
LINEAR_PAIR = (3.0, 1.0)


@dataclass(frozen=True)
class Config:
    """Targets whose pairs are compared."""

    mu: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
    horizon: float = 20.0
    """Of the flow; eq. 7 then compares depths of up to exp(μ²/2) times as much."""
    steps: int = 40
    grid: int = 40
    """Targets a side, up to the largest, for the search for the worst λ."""
    linear_start: float = 0.001
    """Linear attention does not move from zero."""

    def __post_init__(self) -> None:
        if len(set(self.mu)) < 2 or min(self.mu) <= 0 or max(self.mu) > 5:
            raise ValueError(f"mu must hold two or more different targets in (0, 5], got {self.mu}")
        if not 0 < self.linear_start < min(LINEAR_PAIR):
            raise ValueError(f"linear_start must lie between 0 and {min(LINEAR_PAIR):g}, got {self.linear_start:g}")


CLOCK = Claim(
    "equal-F",
    "JoMA eq. 80",
    "F(r, μ), with r = v/μ of each component, takes one and the same value at all components at any time.",
)
RATIO = Claim(
    "depth-ratio",
    "JoMA eq. 7",
    "ln 1/δ_j over ln 1/δ_k is exp(μ_j²/2)/exp(μ_k²/2) times 1 + Λ, with Λ = λ exp(μ_k²/2)/ln(1/δ_k), "
    "where λ is the difference of the two bounded parts of F.",
)
LAMBDA = Claim("lambda-bound", "JoMA Thm 4", "|λ| never exceeds √(2π) + 2.")
CONDITION = Claim(
    "lambda-condition",
    "JoMA Thm 4",
    "|Λ| ≪ 1 as soon as δ_k ≪ exp[−(√(2π) + 2) exp(−μ_k²)].",
    "|Λ| ≪ 1 as soon as δ_k ≪ exp[−(√(2π) + 2) exp(+μ_k²/2)]: far later.",
)
FIRST = Claim("salient-first", "JoMA Thm 4", "Of two components the one with the larger |μ| has the smaller δ.")
LINEAR = Claim(
    "linear-attention-ratio",
    "JoMA Thm 4",
    "Under linear attention the depths have another ratio (which is not given).",
)
LINEAR_ZERO = Claim(
    "linear-attention-start",
    "JoMA Thm 4",
    "From v(0) = 0, as in the theorem, the components also converge under linear attention.",
    "From v(0) = 0 nothing moves under linear attention; from any start of the right sign v is a logistic.",
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Follow weights and depths by an ODE solver, and record the closed forms beside them."""
    mu = torch.tensor(sorted(set(config.mu)), dtype=torch.float64)
    t = torch.linspace(0, config.horizon, config.steps + 1, dtype=torch.float64)
    early = torch.linspace(0, 1.0, config.steps + 1, dtype=torch.float64)
    run.keep("mu", lambda: mu)
    run.keep("t", lambda: t)
    run.keep("early t", lambda: early)
    progress(0.0, "flow of the weights")
    run.keep("v", lambda: integrate(lambda time, v: (mu - v) * torch.exp(v**2 / 2), torch.zeros_like(mu), early))
    share = (torch.from_numpy(run.value("v").copy()) / mu).clamp(max=1.0)  # the solver may round to above μ
    run.keep("F of v", lambda: salience.time_to(share, mu))
    progress(0.4, "flow of the depths")
    run.keep("depth", lambda: integrate(lambda time, d: torch.exp((mu * torch.expm1(-d)) ** 2 / 2), 0 * mu, t))
    run.keep("predicted ratio", lambda: _predicted_ratio(mu, t[1:]))
    run.keep("v without attention", lambda: integrate(lambda time, v: mu - v, torch.zeros_like(mu), early))
    progress(0.6, "search for the largest λ")
    if "lambda" not in run:
        run.record(0, _worst_lambda(config))
    progress(0.8, "thresholds and linear attention")
    _record_thresholds(run, mu)
    _record_linear(run, config)


def judge(run: Run) -> list[Finding]:
    """Residuals, the largest λ, and Λ at a tenth of either threshold."""
    mu, depth = run.value("mu"), run.value("depth")[1:]
    shallow = 1 - run.value("v") / mu >= SHALLOW
    first, second = np.triu_indices(len(mu), 1)
    ratio = depth[:, :, None] / depth[:, None, :]
    plain = _plain_ratio(run)
    residual = float(np.abs(ratio / run.value("predicted ratio") - 1).max())
    ahead = ratio[:, second, first]  # targets increase, so the second of a pair is the salient one
    printed, corrected = (np.abs(run.value(f"{form}/Lambda")) for form in ("printed", "corrected"))
    pair = {form: abs(float(run.value(f"{form}/Lambda of the pair"))) for form in ("printed", "corrected")}
    linear, flow = run.value("linear/depth"), run.value("linear/v")
    off_logistic = flow - run.value("linear/v closed")
    logistic = float(np.abs(off_logistic).max())
    late = float(linear[-1, 0] / linear[-1, 1])
    from_zero, target = run.value("linear/v from zero"), np.array(LINEAR_PAIR)
    stuck, from_start = float(np.abs(from_zero).max()), float(flow[-1].min())
    exponential = np.exp((LINEAR_PAIR[0] ** 2 - LINEAR_PAIR[1] ** 2) / 2)
    limit = LINEAR_PAIR[0] / LINEAR_PAIR[1]
    return [
        by_residual(
            CLOCK,
            printed=float(np.abs(run.value("F of v") - run.value("early t")[:, None])[shallow].max()),
            tolerance=EXACT,
            expected=f"F = t at every component along the flow, while δ ≥ {SHALLOW:g}",
        ),
        by_residual(RATIO, printed=residual, tolerance=EXACT, expected="equality along the flow, all pairs"),
        by_test(
            LAMBDA,
            measured=f"largest |λ| {float(run.value('lambda').max()):.3f}, between μ = {run.value('lambda/at')[0]:.2g} "
            f"and {run.value('lambda/at')[1]:.2g}; it cannot exceed {salience.REMAINDER_BOUND:.4f}",
            expected=f"at most {BOUND:.4f}",
            as_printed=bool(run.value("lambda").max() <= BOUND),
        ),
        by_test(
            CONDITION,
            measured=f"largest |Λ| over pairs at a tenth of the threshold: printed {printed.max():.2f}, corrected "
            f"{corrected.max():.3f} (μ = {PAIR[0]:g}, {PAIR[1]:g}: {pair['printed']:.2f}, {pair['corrected']:.3f})",
            expected=f"at most {SMALL:g}",
            as_printed=bool(printed.max() <= SMALL),
            as_corrected=bool(corrected.max() <= SMALL),
            tolerance=SMALL,
            residuals={"printed": float(printed.max()), "corrected": float(corrected.max())},
        ),
        by_test(
            FIRST,
            measured=f"ratio of depths between {show(float(ahead.min()))} and {show(float(ahead.max()))} over all "
            "pairs and times",
            expected="above 1",
            as_printed=bool((ahead > 1).all()),
            control=f"without attention: 1 up to {show(float(np.abs(plain - 1).max()))}",
        ),
        by_test(
            LINEAR,
            measured=f"μ = {LINEAR_PAIR[0]:g}, {LINEAR_PAIR[1]:g}: ratio {linear[0, 0] / linear[0, 1]:.2f} at t = 30, "
            f"{late:.3f} at t = 1000; logistic off the flow by {show(logistic)}",
            expected=f"tends to μ_j/μ_k = {limit:g}",
            as_printed=bool(abs(late - limit) <= NEAR and logistic <= EXACT and abs(late / exponential - 1) > NEAR),
            tolerance=NEAR,
            control=f"exp attention: {exponential:.1f}",
        ),
        by_test(
            LINEAR_ZERO,
            measured=f"largest |v| at t = 10 from zero {show(stuck)}; smallest v from "
            f"{show(float(flow[0, 0]))}: {from_start:.2f}",
            expected="every v on its way to μ",
            as_printed=stuck > 0,
            as_corrected=stuck == 0 and logistic <= EXACT and bool(from_start > flow[0, 0]),
            # in units of μ: what is left of the way from zero, or how far v is off zero and off the logistic
            residuals={
                "printed": float(np.abs(1 - from_zero[-1] / target).max()),
                "corrected": float(max(np.abs(path / target).max() for path in (from_zero, off_logistic))),
            },
        ),
    ]


def draw(run: Run) -> list[Drawing]:
    """Λ against depth with both thresholds, and the ratio of depths under three attentions."""
    figure, (left, right) = panels(2, width=3.8, height=3.0)
    curve = run.value("curve/depth")
    for mu_j, style in zip(SHOWN, ("-", ":"), strict=True):
        left.plot(curve, np.abs(run.value(f"curve/{mu_j:g}")), style, color=GREEN, label=f"|Λ|, μ_j = {mu_j:g}")
    for form, colour in (("printed", PRINTED), ("corrected", CORRECTED)):
        left.axvline(
            float(run.value(f"{form}/threshold of the pair")), color=colour, ls="--", lw=1.2, label=f"threshold, {form}"
        )
    left.axhline(SMALL, color="gray", lw=0.8)
    left.annotate(f"|Λ| = {SMALL:g}", (curve[0], SMALL * 0.72), fontsize=8)
    left.set(
        xscale="log", yscale="log", xlabel=f"ln 1/δ_k  (μ_k = {PAIR[1]:g})", ylabel="|Λ|", title="When is Λ small?"
    )
    left.legend(loc="lower left", bbox_to_anchor=(0.13, 0.0), fontsize=7.5)
    t = run.value("curve/t")
    for name, colour, label in (
        ("exp", GREEN, "exp attention"),
        ("linear", ORANGE, "linear attention"),
    ):
        right.plot(t, run.value(f"curve/ratio {name}"), color=colour, label=label)
    right.axhline(float(_plain_ratio(run).mean()), color=CONTROL, label="no attention")
    leading = np.exp((LINEAR_PAIR[0] ** 2 - LINEAR_PAIR[1] ** 2) / 2)
    for value, colour in ((leading, GREEN), (LINEAR_PAIR[0] / LINEAR_PAIR[1], ORANGE)):
        right.axhline(value, ls=":", lw=1, color=colour)
    right.set(xscale="log", yscale="log", ylim=(0.7, 400), xlabel="time", ylabel="ln 1/δ_j over ln 1/δ_k")
    right.set_title(f"μ = {LINEAR_PAIR[0]:g} against {LINEAR_PAIR[1]:g} (dotted: limits)")
    right.legend(loc="upper right")
    caption = (
        "Left: the deviation Λ of eq. 7 against how far the slower component has converged, with the depth at which "
        "Theorem 4 calls it small, as printed and as corrected. Right: how many times deeper the salient component is "
        "under exp attention, under linear attention (from v = 0.001) and without attention."
    )
    return [Drawing("salient-first", caption, figure)]


def _plain_ratio(run: Run) -> Any:
    """The ratio of depths of all pairs, salient over less salient, along v' = μ − v. (steps, pairs)."""
    depth = -np.log1p(-run.value("v without attention")[1:] / run.value("mu"))
    first, second = np.triu_indices(depth.shape[1], 1)
    return depth[:, second] / depth[:, first]


def _predicted_ratio(mu: Tensor, t: Tensor) -> Tensor:
    """The right-hand side of eq. 7 for all pairs. (steps, j, k)."""
    _, leading, deviation = salience.convergence_ratio(mu[:, None], mu, t)
    return (leading * (1 + deviation)).movedim(-1, 0)


def _worst_lambda(config: Config) -> dict[str, Tensor]:
    """The largest |λ| over time for each pair of targets, and the pair that has the largest."""
    mu = torch.linspace(0, max(config.mu) + 1, config.grid + 1, dtype=torch.float64)[1:]
    t = torch.logspace(-2, 2, 30, dtype=torch.float64)
    _, _, deviation = salience.convergence_ratio(mu[:, None], mu, t)
    level = salience.depth(mu, t).mT  # (k, steps)
    bounded = (deviation * level * torch.exp(-(mu[:, None] ** 2) / 2)).abs().amax(-1)
    row, column = divmod(int(bounded.argmax()), len(mu))
    return {"lambda": bounded, "lambda/at": torch.stack([mu[row], mu[column]])}


def _record_thresholds(run: Run, mu: Tensor) -> None:
    """Λ at δ_k = a tenth of exp[−(√(2π) + 2) exp(...)] with the exponent of either form, and along depth."""
    salient, other = (torch.tensor(x, dtype=torch.float64) for x in PAIR)
    for form, power in (("printed", -1.0), ("corrected", 0.5)):
        level = BOUND * torch.exp(power * mu**2) + log(10)
        run.keep(f"{form}/Lambda", partial(_deviation, mu[:, None], mu, level))
        pair = BOUND * torch.exp(power * other**2)
        run.keep(f"{form}/threshold of the pair", partial(float, pair))
        run.keep(f"{form}/Lambda of the pair", partial(_deviation, salient, other, pair + log(10)))
    depth = torch.logspace(-1.5, 3, 200, dtype=torch.float64)
    run.keep("curve/depth", lambda: depth)
    for mu_j in SHOWN:
        run.keep(f"curve/{mu_j:g}", partial(_deviation, torch.tensor(mu_j), other, depth))


def _deviation(mu_j: Tensor, mu_k: Tensor, depth_k: Tensor) -> Tensor:
    """Λ when component k has reached a given depth, from the two depths alone: their ratio over its leading term."""
    mu_j, mu_k, depth_k = together(mu_j=mu_j.double(), mu_k=mu_k.double(), depth_k=depth_k)
    t = salience.time_to_depth(depth_k, mu_k).reshape(-1)
    depth_j = salience.depth(mu_j.reshape(-1, 1), t)[..., 0].diagonal().view(mu_j.shape)
    return depth_j / depth_k / torch.exp((mu_j**2 - mu_k**2) / 2) - 1


def _record_linear(run: Run, config: Config) -> None:
    """v' = (μ − v)|v| by the solver from zero and from a small start, and the logistic."""
    mu, t = torch.tensor(LINEAR_PAIR, dtype=torch.float64), torch.linspace(0, 10, 21, dtype=torch.float64)
    start = torch.full_like(mu, config.linear_start)
    run.keep("linear/v", lambda: integrate(lambda time, v: (mu - v) * v.abs(), start, t))
    run.keep("linear/v closed", lambda: salience.linear_attention_trajectory(mu, t, v0=start))
    run.keep("linear/v from zero", lambda: integrate(lambda time, v: (mu - v) * v.abs(), 0 * mu, t))
    run.keep("linear/depth", lambda: salience.linear_attention_depth(mu, [30.0, 1000.0], v0=start))
    times = torch.logspace(-1, 3, 200, dtype=torch.float64)
    run.keep("curve/t", lambda: times)
    run.keep("curve/ratio exp", lambda: salience.convergence_ratio(*LINEAR_PAIR, times).ratio)
    deep = salience.linear_attention_depth(mu, times, v0=start)
    run.keep("curve/ratio linear", lambda: deep[:, 0] / deep[:, 1])


STUDY = Study(
    name="thm4",
    title="Theorem 4: salient components converge first",
    version=1,
    claims=(CLOCK, RATIO, LAMBDA, CONDITION, FIRST, LINEAR, LINEAR_ZERO),
    quick=Config(),
    paper=Config(mu=(0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5), horizon=100.0, steps=200, grid=160),
    run=run,
    judge=judge,
    draw=draw,
    about=(
        "Equation 6 is followed by an adaptive ODE solver, once as it stands and once in the depth ln 1/δ, which obeys "
        "L′ = exp(v²/2) and does not underflow. Ratios of depths over all pairs of targets are compared with eq. 7; "
        "Λ is read off at a tenth of the threshold that is to make it small; without attention all depths are equal."
    ),
)
