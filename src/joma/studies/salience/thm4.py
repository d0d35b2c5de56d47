"""Theorem 4, eq. 7, 80 and the remarks: how much faster salient components converge, and from when on."""

from dataclasses import dataclass
from functools import partial
from math import log, pi, sqrt
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Above, Claim, Drawing, Finding, Progress, Study, StudyConfig, Values, Within
from joma.claims.declare import Claims
from joma.claims.verdicts import above, at_most, below, by_residual, by_tests
from joma.figures.bands import bound
from joma.figures.labels import end_label
from joma.figures.reading import number
from joma.figures.style import CONTROL, CORRECTED, GREEN, ORANGE, PRINTED, panels
from joma.host.arguments import together
from joma.runs import Run
from joma.theory import salience
from joma.theory.flow import integrate

EXACT = 1e-9  # closed forms against an ODE solver at rtol 1e-12
BOUND = sqrt(2 * pi) + 2  # of |λ| in the paper
SMALL = 0.2  # what "|Λ| ≪ 1" is taken to mean at a tenth of the threshold that is to grant it
NEAR = 0.02  # of the limit μ_j/μ_k at t = 1000: the deviation falls like 1/t
SHALLOW = 0.01  # of δ: F is compared while an error of v is not yet multiplied by more than 1/δ
PAIR = (3.0, 2.0)
SHOWN = (3.0, 1.0)  # the μ_j drawn against the second of the pair
LINEAR_PAIR = (3.0, 1.0)
HALF = 0.5  # of the way to μ at t = 10: a component that has more left is not converging


@dataclass(frozen=True)
class Thm4Config(StudyConfig):
    """Targets whose pairs are compared."""

    mu: Annotated[tuple[float, ...], Values(2), Above(0), Within(0, 5)] = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
    horizon: float = 20.0
    """Of the flow; eq. 7 then compares depths of up to exp(μ²/2) times as much."""
    steps: int = 40
    grid: int = 40
    """Targets per side of the grid on which the largest λ is searched."""
    linear_start: Annotated[float, Within(0, min(LINEAR_PAIR), open=True)] = 0.001
    """Linear attention does not move from zero."""


CLAIMS = Claims()


def run(config: Thm4Config, run: Run, progress: Progress) -> None:
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


@CLAIMS.declare("equal-f", "JoMA eq. 80", uses=("eq6/speed-factor",))
def _clock(run: Run, claim: Claim) -> Finding:
    """At any time F(r, μ), with r = v/μ of each component, has the same value at all components.

    F of the recorded weights beside the time; ln 1/δ is the clock of a component without attention.
    """
    left, t = 1 - run.value("v") / run.value("mu"), run.value("early t")[:, None]
    shallow = ~(left < SHALLOW)  # what is not a number is looked at
    plain = -np.log(np.where(shallow, left, 1.0))
    return by_residual(
        claim,
        printed=float(np.abs(run.value("F of v") - t)[shallow].max()),
        tolerance=EXACT,
        what="largest difference from the time",
        expected=f"F = t at every component along the flow while δ ≥ {SHALLOW:g}.",
        control={"the clock without attention": float(np.abs(plain - t)[shallow].max())},
    )


def _depths(run: Run) -> Any:
    """The ratio of depths of all pairs along the flow. (steps, j, k)."""
    depth = run.value("depth")[1:]
    return depth[:, :, None] / depth[:, None, :]


@CLAIMS.declare("depth-ratio", "JoMA eq. 7", uses=("thm4/equal-f",))
def _ratio(run: Run, claim: Claim) -> Finding:
    """The ratio of ln 1/δ_j and ln 1/δ_k is exp(μ_j²/2)/exp(μ_k²/2) times 1 + Λ. Here Λ = λ exp(μ_k²/2)/ln(1/δ_k), and
    λ is the difference of the two bounded parts of F.

    Expected: Both sides are equal along the flow for all pairs.
    """
    seen, squares = _depths(run), run.value("mu") ** 2
    return by_residual(
        claim,
        printed=float(np.abs(seen / run.value("predicted ratio") - 1).max()),
        tolerance=EXACT,
        what="relative error",
        control={"without Λ": float(np.abs(seen / np.exp((squares[:, None] - squares) / 2) - 1).max())},
    )


@CLAIMS.declare("lambda-bound", "JoMA Thm 4", uses=("lemma6/f-bound",))
def _lambda(run: Run, claim: Claim) -> Finding:
    """|λ| never exceeds √(2π) + 2."""
    first, second = run.value("lambda/at")
    printed = [at_most("largest |λ|", run.value("lambda").max(), BOUND)]
    details = {
        "largest between": {"μ_j": float(first), "μ_k": float(second)},
        "in theory": {"|λ| at most": salience.REMAINDER_BOUND},
    }
    return by_tests(claim, expected=f"|λ| is at most {BOUND:.4f}.", printed=printed, details=details)


@CLAIMS.declare("lambda-condition", "JoMA Thm 4", uses=("thm4/depth-ratio", "thm4/lambda-bound"))
def _condition(run: Run, claim: Claim) -> Finding:
    """|Λ| ≪ 1 as soon as δ_k ≪ exp[−(√(2π) + 2) exp(−μ_k²)].

    Corrected: |Λ| ≪ 1 as soon as δ_k ≪ exp[−(√(2π) + 2) exp(+μ_k²/2)]. This is much later.
    """
    what = "largest |Λ| of all pairs at a tenth of the threshold"
    worst = {form: np.abs(run.value(f"{form}/Lambda")).max() for form in ("printed", "corrected")}
    of_pair = {f"|Λ| {form}": abs(float(run.value(f"{form}/Lambda of the pair"))) for form in worst}
    return by_tests(
        claim,
        expected=f"|Λ| is at most {SMALL:g} at a tenth of the threshold.",
        printed=[at_most(what, worst["printed"], SMALL)],
        corrected=[at_most(what, worst["corrected"], SMALL)],
        details={f"μ = {PAIR[0]:g} and {PAIR[1]:g}": of_pair},
    )


@CLAIMS.declare("salient-first", "JoMA Thm 4", uses=("thm4/depth-ratio",))
def _salient_first(run: Run, claim: Claim) -> Finding:
    """Of two components, the one with the larger |μ| has the smaller δ.

    Expected: The ratio is above 1 for all pairs at all times.

    All pairs, salient over less salient; without attention no component may get ahead.
    """
    first, second = np.triu_indices(len(run.value("mu")), 1)  # targets increase, so the second of a pair is salient
    ahead = _depths(run)[:, second, first]
    return by_tests(
        claim,
        printed=[above("smallest ratio of depths, more salient / less salient", ahead.min(), 1.0)],
        controls=[at_most("without attention: largest |ratio − 1|", np.abs(_plain_ratio(run) - 1).max(), EXACT)],
        details={"over all pairs and times": {"largest ratio": float(ahead.max())}},
    )


def _off_logistic(run: Run) -> float:
    return float(np.abs(run.value("linear/v") - run.value("linear/v closed")).max())


@CLAIMS.declare("linear-attention-ratio", "JoMA Thm 4", uses=("thm1/linear-invariant",))
def _linear(run: Run, claim: Claim) -> Finding:
    """Under linear attention the ratio of depths is different (its value is not given)."""
    early, late = (float(first / second) for first, second in run.value("linear/depth"))
    limit, pair = LINEAR_PAIR[0] / LINEAR_PAIR[1], f"μ = {LINEAR_PAIR[0]:g} and {LINEAR_PAIR[1]:g}"
    exponential = np.exp((LINEAR_PAIR[0] ** 2 - LINEAR_PAIR[1] ** 2) / 2)
    return by_tests(
        claim,
        expected=f"The ratio tends to μ_j/μ_k, which is {limit:g} for {pair}.",
        printed=[
            at_most("distance of the ratio of depths at t = 1000 from μ_j/μ_k", abs(late - limit), NEAR),
            at_most("largest difference of logistic and flow", _off_logistic(run), EXACT),
        ],
        controls=[above("distance of the ratio at t = 1000 from that of exp attention", abs(late - exponential), NEAR)],
        details={pair: {"ratio at t = 30": early, "at t = 1000": late, "of exp attention": float(exponential)}},
    )


@CLAIMS.declare("linear-attention-start", "JoMA Thm 4", uses=("thm1/zero-start-linear",))
def _linear_from_zero(run: Run, claim: Claim) -> Finding:
    """Under linear attention the components also converge from v(0) = 0, the start in the theorem.

    Corrected: Under linear attention nothing moves from v(0) = 0. From any start of the right sign v is a logistic
    function.
    Expected: As printed: v is near μ at t = 10. As corrected: v stays at 0, and is a logistic from other starts.

    From zero, where nothing may move, beside the flow from a small start, which must rise.
    """
    from_zero, flow = run.value("linear/v from zero"), run.value("linear/v")
    way_left = np.abs(1 - from_zero[-1] / np.array(LINEAR_PAIR)).max()
    return by_tests(
        claim,
        printed=[below("share of the way to μ left at t = 10, from a zero start", way_left, HALF, "%")],
        corrected=[
            at_most("largest |v| from a zero start", np.abs(from_zero).max(), 0.0),
            at_most("largest difference of logistic and flow", _off_logistic(run), EXACT),
        ],
        controls=[above("smallest ratio of v at t = 10 and v at the start", (flow[-1] / flow[0]).min(), 1.0)],
    )


def draw(run: Run) -> list[Drawing]:
    """Λ against depth with both thresholds, and the ratio of depths under three attentions."""
    figure, (left, right) = panels(2, width=4.4, height=3.0)
    for mu_j, style in zip(SHOWN, ("-", ":"), strict=True):
        curve = np.abs(run.value(f"curve/{mu_j:g}"))
        left.plot(run.value("curve/depth"), curve, style, color=GREEN, label=f"|Λ|, μ_j = {mu_j:g}")
    for form, colour in (("printed", PRINTED), ("corrected", CORRECTED)):
        threshold = float(run.value(f"{form}/threshold of the pair"))
        left.axvline(threshold, color=colour, ls="--", lw=1.2)
        where: Any = left.get_xaxis_transform()
        offset: Any = {"xytext": (3, 0), "textcoords": "offset points", "fontsize": 8}
        left.annotate(f"threshold,\n{form}", (threshold, 0.03), xycoords=where, **offset)
    bound(left, SMALL, f"|Λ| = {SMALL:g}")
    left.set(xscale="log", yscale="log", xlabel=f"depth ln 1/δ_k  (μ_k = {PAIR[1]:g})", ylabel="|Λ|")
    left.set_title("When is Λ small?")
    limits, ends = (np.exp((LINEAR_PAIR[0] ** 2 - LINEAR_PAIR[1] ** 2) / 2), LINEAR_PAIR[0] / LINEAR_PAIR[1]), []
    for name, colour, limit in zip(("exp", "linear"), (GREEN, ORANGE), limits, strict=True):
        ratio = run.value(f"curve/ratio {name}")
        right.plot(run.value("curve/t"), ratio, color=colour, label=f"{name} attention")
        right.axhline(limit, ls=":", lw=1, color=colour)
        ends.append(number(float(ratio[-1])))
    right.axhline(float(_plain_ratio(run).mean()), color=CONTROL, label="no attention")
    end_label(right, "dotted: limits", ls=":", lw=1)
    right.set(xscale="log", yscale="log", ylim=(0.7, 400), xlabel="time", ylabel="ratio of ln 1/δ_j and ln 1/δ_k")
    right.set_title(f"Depth of μ = {LINEAR_PAIR[0]:g} against μ = {LINEAR_PAIR[1]:g}")
    caption = (
        f"The salient component converges deeper: {ends[0]} times under exp attention, {ends[1]} times under linear "
        "attention, 1 time without attention. Left: the deviation Λ of eq. 7 against the depth of the slower "
        "component. The dashed lines mark the depth from which Theorem 4 calls Λ small, as printed and as "
        "corrected. Right: the ratio of the two depths over time (linear attention starts from v = 0.001)."
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


def _worst_lambda(config: Thm4Config) -> dict[str, Tensor]:
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
        run.keep(f"{form}/Lambda", partial(_deviation, mu[:, None], mu, BOUND * torch.exp(power * mu**2) + log(10)))
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


def _record_linear(run: Run, config: Thm4Config) -> None:
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
    claims=CLAIMS,
    quick=Thm4Config(),
    paper=Thm4Config(mu=(0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5), horizon=100.0, steps=200, grid=160),
    run=run,
    draw=draw,
    about=(
        "An adaptive ODE solver follows eq. 6, once as printed and once in the depth L = ln 1/δ, which obeys "
        "L′ = exp(v²/2) and does not underflow. The ratios of depths of all pairs of targets are compared with eq. 7. "
        "Λ is measured at a tenth of the threshold below which it should be small. Without attention all depths are "
        "equal."
    ),
)
