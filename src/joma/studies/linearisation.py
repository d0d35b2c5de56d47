"""Theorem 3, eq. 5, 69, 72-74: how a ReLU node moves near a critical point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.runs import Run
from joma.studies._critical_point import DIMENSION, JACOBIAN, LAW, Point, Record, on_ray, with_decay
from joma.studies._isotropic import jacobian
from joma.studies.contract import Claim, Drawing, Finding, Progress, Study
from joma.studies.drawing import BLUE, CORRECTED, GREEN, GREY, ORANGE, PRINTED, panels
from joma.studies.verdicts import by_residual, by_test, show
from joma.theory import isotropic
from joma.theory.radial import Ball, Gaussian, RadialLaw

DECAYED: tuple[RadialLaw, ...] = (Gaussian(DIMENSION), LAW, Ball(DIMENSION, 2.0))
NEUTRAL = 1e-10
ORDER = 0.1  # of the fitted order of a remainder
COUPLED = 0.01  # of the largest rate in C: more than this is no small term
ARRIVED = 1e-3  # share of the first distance that may be left at the end of a flow


@dataclass(frozen=True)
class Config:
    """Critical rays of the Student-t law, seen at one length of mu, and isolated points under weight decay."""

    separations: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    length: float = 1.7
    decay: float = 0.1
    steps: int = 160
    """Of the flows towards the critical points."""
    starts: int = 12
    seed: int = 0


EQ69 = Claim(
    "theta2-jacobian",
    "JoMA eq. 69",
    "∂(θ₂(r)v/‖v‖ᵖ)/∂vⱼ contains [θ₂′x̄ⱼ‖v‖² − p vⱼθ₂] times ‖v‖.",
    "The bracket multiplies the vector v, not its length.",
)
BETA1 = Claim(
    "beta1",
    "JoMA eq. 73",
    "Across μ the flow contracts at the rate β₁ = s a₊‖x̄₊‖θ₁(r₊)/‖μ‖².",
    "β₁ = s a₊‖x̄₊‖θ₁(ρ₊)/‖μ‖, with or without weight decay.",
)
BETA2 = Claim(
    "beta2",
    "JoMA eq. 74",
    "β₂ = s a₊‖x̄₊‖(ξθ₁′(r₊) − 2θ₁(r₊))/‖μ‖⁴.",
    "β₂‖μ‖² = λ − ρ₋²D/‖μ‖ − β₁, D = a₊pₙ(ρ₊) − a₋pₙ(ρ₋), λ the weight decay.",
)
POSITIVE = Claim(
    "positive-definite",
    "JoMA Thm 3",
    "C(μ) can be positive definite at a μ along x̄₊ with ξ < 0, the typical case.",
    "With the corrected β it is, wherever s = +1; with the printed ones it never is for ξ < 0.",
)
SIGN = Claim(
    "sign-once",
    "JoMA Thm 3",
    "C = s{β₁I + β₂μμᵀ}, where β₁ carries the factor s as well.",
    "s stands once: a μ pointing away from x̄₊ is unstable.",
)
FACTOR = Claim(
    "remainder",
    "JoMA eq. 5",
    "v′ = C(μ)(1 + λ)(μ − v) with a small number λ.",
    "v′ = C(μ)(μ − v) plus a vector of order ‖v − μ‖², which no number can absorb.",
)
FROZEN = Claim(
    "frozen-bias",
    "JoMA Thm 3",
    "Near μ the weight obeys an equation of its own, the bias staying at ξ*.",
    "v and ξ couple at first order: ∂v′/∂ξ = −ρ₋D v/‖v‖², which does not vanish beside C.",
)
ISOLATED = Claim(
    "convergence",
    "JoMA Thm 3",
    "A stable μ attracts the weights near it.",
    "It attracts across its ray and is neutral along it; with weight decay it is isolated and attracts.",
)
PARALLEL = Claim("direction", "JoMA Thm 3", "Critical weights are parallel to x̄₊.")


def run(config: Config, run: Run, progress: Progress) -> None:
    """Jacobians by differences at critical points, remainders around them, and flows towards them."""
    run.keep("separations", lambda: np.array(config.separations))
    run.keep("eq69", lambda: _eq69(config.seed))
    progress(0.1, "Jacobians on critical rays")
    run.keep("ray +1", lambda: torch.stack([on_ray(each, config.length, 1).record() for each in config.separations]))
    run.keep("ray -1", lambda: torch.stack([on_ray(each, config.length, -1).record() for each in config.separations]))
    progress(0.3, "the printed equation at its own critical points")
    run.keep("own", lambda: torch.stack([_own(each) for each in config.separations]))
    progress(0.4, "weight decay")
    pairs = [(law, each) for law in DECAYED for each in config.separations]
    run.keep("decayed", lambda: torch.stack([with_decay(law, m, config.decay).record() for law, m in pairs]))
    progress(0.5, "remainders")
    gamma = torch.logspace(-1, -4, 13, dtype=torch.float64)
    run.keep("gamma", lambda: gamma)
    run.keep("remainder", lambda: _remainders(on_ray(2.0, config.length, 1), gamma, config.seed))
    progress(0.6, "flows")
    run.keep("critical ray", lambda: on_ray(2.0, config.length, 1).state)
    run.keep("flow/ray", lambda: _flow(on_ray(2.0, config.length, 1), 0.3, config))
    run.keep("flow/decayed", lambda: _flow(with_decay(DECAYED[0], 2.0, config.decay), 1.0, config))


def judge(run: Run) -> list[Finding]:
    """Closed forms against differences, eigenvalues of what was differenced, and where the flows ended."""
    ray, away, decayed = (Record(run.value(name)) for name in ("ray +1", "ray -1", "decayed"))
    corrected = [np.concatenate([part.off(i) for part in (ray, away, decayed)]) for i in (0, 1)]
    printed = [np.concatenate([part.off(i, printed=True) for part in (ray, away)]) for i in (0, 1)]
    own = run.value("own").max(0)
    eq69 = run.value("eq69")
    return [
        by_residual(
            EQ69,
            printed=eq69[0],
            corrected=eq69[1],
            tolerance=JACOBIAN,
            expected="equal to the Jacobian by differences",
        ),
        by_residual(
            BETA1,
            printed=float(printed[0].max()),
            corrected=float(corrected[0].max()),
            tolerance=JACOBIAN,
            expected="minus the eigenvalue of ∂v′/∂v across μ",
            control=f"on the Jacobian of the printed velocity itself the printed form is off by {show(own[0])}",
        ),
        by_residual(
            BETA2,
            printed=float(printed[1].max()),
            corrected=float(corrected[1].max()),
            tolerance=JACOBIAN,
            expected="β₁ + β₂‖μ‖² is minus the eigenvalue along μ",
            control=f"on the Jacobian of the printed velocity itself the printed form is off by {show(own[1])}",
        ),
        _judge_positive(ray),
        by_test(
            SIGN,
            measured=f"rate across μ by differences between {show(away.rates[:, 0].min())} and "
            f"{show(away.rates[:, 0].max())} for s = −1, between {show(ray.rates[:, 0].min())} and "
            f"{show(ray.rates[:, 0].max())} for s = +1",
            expected="with s twice both are positive, with s once each has the sign of s",
            as_printed=bool((away.rates[:, 0] > 0).all()),
            as_corrected=bool((away.rates[:, 0] < 0).all() and (ray.rates[:, 0] > 0).all()),
            residuals=_wrong_signs(ray.rates[:, 0], away.rates[:, 0]),
        ),
        _judge_factor(run),
        by_test(
            FROZEN,
            measured=f"‖∂v′/∂ξ‖ is {show(ray.coupling.min())} to {show(ray.coupling.max())} of the largest rate in C; "
            f"closed form off by {show(float(ray.coupling_off.max()))}",
            expected="no coupling at first order",
            as_printed=bool(ray.coupling.max() <= JACOBIAN),
            as_corrected=bool(ray.coupling_off.max() <= JACOBIAN and ray.coupling.min() > COUPLED),
            tolerance=JACOBIAN,
            residuals={  # of ∂v′/∂ξ, relative to the largest rate in C; as printed it is 0
                "printed": float(ray.coupling.max()),
                "corrected": float((ray.coupling_off / np.abs(ray.rates).max(1)).max()),
            },
        ),
        _judge_flow(run, ray, decayed),
        by_residual(
            PARALLEL,
            printed=max(float(run.value(f"flow/{name}")[-1, :, 2].max()) for name in ("ray", "decayed")),
            tolerance=ARRIVED,
            expected="the sine of the angle to x̄₊ vanishes at the end of every flow",
            control=f"{show(float(run.value('flow/ray')[0, :, 2].max()))} at the start",
        ),
    ]


def _judge_positive(ray: Record) -> Finding:
    worst = ray.printed.min(1)
    return by_test(
        POSITIVE,
        measured=f"ξ between {show(ray.xi.min())} and {show(ray.xi.max())}; least eigenvalue of C printed "
        f"{show(worst.min())} to {show(worst.max())}, by differences {show(ray.rates.min())} or more",
        expected="all eigenvalues of C positive for s = +1 and ξ < 0",
        as_printed=bool((worst > 0).any()),
        as_corrected=bool((ray.xi < 0).all() and (ray.rates > 0).all() and ray.off(0).max() <= JACOBIAN),
        # of the eigenvalues of C, relative to the larger one
        residuals={
            form: max(float(ray.off(i, printed=form == "printed").max()) for i in (0, 1))
            for form in ("printed", "corrected")
        },
    )


def _wrong_signs(towards: Any, away: Any) -> dict[str, float]:
    """Shares of critical points whose rate across mu has another sign than s twice (always +) or s once gives it."""
    every = np.concatenate([towards, away])
    once = np.concatenate([towards, -away])
    return {"printed": float((every <= 0).mean()), "corrected": float((once <= 0).mean())}


def _judge_factor(run: Run) -> Finding:
    gamma, remainder = run.value("gamma"), run.value("remainder")  # (gammas, directions, 2)
    whole, across = remainder.mean(1).T
    order = float(np.polyfit(np.log(gamma), np.log(whole), 1)[0]) + 1
    first = int(np.argmin(np.abs(gamma - 0.01)))
    return by_test(
        FACTOR,
        measured=f"at ‖v − μ‖ = 0.01‖μ‖ the linear term misses {show(whole[first])} of v′, and the best number λ still "
        f"misses {show(across[first])}; the remainder is of order {order:.3f}",
        expected="nothing missed with the best λ",
        as_printed=bool(across[first] <= JACOBIAN),
        as_corrected=abs(order - 2) <= ORDER,
        tolerance=ORDER,
        # shares of v′ at 0.01‖μ‖; the corrected remainder has the size that its order carries over from the nearest v
        residuals={
            "printed": float(across[first]),
            "corrected": float(abs(whole[first] - whole[-1] * gamma[first] / gamma[-1])),
        },
    )


def _judge_flow(run: Run, ray: Record, decayed: Record) -> Finding:
    left = {name: run.value(f"flow/{name}")[-1] / run.value(f"flow/{name}")[0] for name in ("ray", "decayed")}
    neutral, slowest = float(np.abs(ray.spectrum[:, -1]).max()), float(ray.spectrum[:, -2].max())
    return by_test(
        ISOLATED,
        measured=f"without decay {show(float(left['ray'][:, 0].max()))} of the distance to (μ, ξ) is left, "
        f"{show(float(left['ray'][:, 1].max()))} of that to the ray; with decay "
        f"{show(float(left['decayed'][:, 0].max()))}; eigenvalues along the ray {show(neutral)}, "
        f"across it {show(slowest)} or less, with decay {show(float(decayed.spectrum.max()))} or less",
        expected=f"less than {show(ARRIVED)} of the distance left",
        as_printed=bool(left["ray"][:, 0].max() <= ARRIVED),
        as_corrected=bool(
            left["ray"][:, 1].max() <= ARRIVED
            and left["decayed"][:, 0].max() <= ARRIVED
            and neutral <= NEUTRAL
            and slowest < 0
            and decayed.spectrum.max() < 0
        ),
        tolerance=ARRIVED,
        residuals={  # shares of the distance left: to the point, or to the ray and to the point with decay
            "printed": float(left["ray"][:, 0].max()),
            "corrected": float(max(left["ray"][:, 1].max(), left["decayed"][:, 0].max())),
        },
    )


def draw(run: Run) -> list[Drawing]:
    """Rates of C as printed and as corrected; the remainder; and two flows."""
    figure, (left, right) = panels(2)
    ray, m = Record(run.value("ray +1")), run.value("separations")
    places = np.arange(len(m))
    for i, marker in ((0, "o"), (1, "s")):
        label = ("by differences", "corrected", "printed") if i == 0 else (None, None, None)
        left.plot(places - 0.08, ray.rates[:, i], marker, ms=9, mfc="none", color=GREEN, label=label[0])
        left.plot(places - 0.08, ray.corrected[:, i], marker, ms=4, color=CORRECTED, label=label[1])
        left.plot(places + 0.08, ray.printed[:, i], marker, ms=4, color=PRINTED, label=label[2])
    left.axhline(0, lw=0.8, ls="--", color=GREY)
    left.set_xticks(places, [f"{each:g}" for each in m])
    left.set(xlabel="separation m = ‖x̄₊‖", ylabel="eigenvalue of C", title="Rates: circles across μ, squares along")
    left.legend(loc="upper left")
    gamma, remainder = run.value("gamma"), run.value("remainder").mean(1)
    right.plot(gamma, remainder[:, 0], "o-", ms=4, color=CORRECTED, label="missed by C(μ − v)")
    right.plot(gamma, remainder[:, 1], "s-", ms=4, color=PRINTED, label="by the best (1 + λ)C(μ − v)")
    right.plot(
        gamma, remainder[0, 0] * gamma / gamma[0] / 3, ls="--", lw=1, color=GREY, label="proportional to ‖v − μ‖"
    )
    right.set(xscale="log", yscale="log", xlabel="‖v − μ‖ / ‖μ‖", ylabel="relative to v′", title="The remainder")
    right.set_ylim(1e-6, 0.1)
    right.legend(loc="lower right", fontsize=8)
    caption = (
        "Left: eigenvalues of C at critical points of a Student-t mixture; as printed, C is not positive definite. "
        "Right: what the linear term misses is one order smaller than the term itself, and no number λ repairs it."
    )
    return [Drawing("linearisation", caption, figure), _draw_flows(run)]


def _draw_flows(run: Run) -> Drawing:
    figure, (left, right) = panels(2)
    for axes, name, title in ((left, "ray", "Student-t, no decay"), (right, "decayed", "Gaussian, weight decay")):
        path = run.value(f"flow/{name}")  # (steps, starts, 5)
        axes.plot(path[..., 3], path[..., 4], lw=1, color=BLUE)
        axes.plot(path[0, :, 3], path[0, :, 4], "o", ms=3, color=GREY)
        axes.plot(path[-1, :, 3], path[-1, :, 4], "o", ms=4.5, color=CORRECTED)
        axes.set(xlabel="‖v‖", ylabel="ξ", title=title)
    *mu, xi = run.value("critical ray")
    length = float(np.linalg.norm(mu))
    left.axline((length, xi), slope=float(xi) / length, ls="--", lw=1, color=ORANGE, zorder=0)
    left.annotate("critical ray", (0.98, 0.92), xycoords="axes fraction", ha="right", fontsize=8.5, color=ORANGE)
    caption = (
        "Flows from starts (grey) around a critical point to their ends (blue). Without decay they stop anywhere on "
        "the critical ray; with weight decay they meet in one point."
    )
    return Drawing("flows", caption, figure)


def _eq69(seed: int) -> Tensor:
    """Largest error of eq. 69 as printed and as corrected, against differences, at a random v."""
    generator = torch.Generator().manual_seed(seed)
    v, centre = torch.randn(2, DIMENSION, generator=generator, dtype=torch.float64)

    def pushed(v: Tensor) -> Tensor:
        length: Tensor = v.norm(dim=-1, keepdim=True)
        return LAW.theta2(v @ centre + 0.3)[..., None] * v / length**3

    truth = jacobian(pushed, v, step=1e-3)
    forms = (isotropic.printed_theta2_jacobian, isotropic.theta2_jacobian)
    return torch.stack([(form(v, 0.3, centre, LAW, power=3) - truth).abs().max() for form in forms])


def _own(m: float) -> Tensor:
    """Errors of eq. 73 and 74 on the equation they were derived from, at its own critical point with |v| = 1/2."""
    gap = m / 2
    found = isotropic.printed_critical_point(m, gap, LAW)
    ratio = isotropic.critical_rays(gap, LAW).ratio
    point = Point(LAW, m, ratio, found.norm * torch.eye(DIMENSION, dtype=torch.float64)[0], found.xi)
    printed = isotropic.printed_linearisation(point.mu, point.xi, point.setting[0][0], 1.0, ratio, LAW)
    truth = -jacobian(lambda v: isotropic.printed_velocity(v, point.xi, *point.setting).v, point.mu, step=1e-3)
    truth_rates = point.rates(truth)
    return (point.rates(printed.C) - truth_rates).abs() / truth_rates.abs().max()


def _remainders(point: Point, gamma: Tensor, seed: int) -> Tensor:
    """(gammas, directions, 2): |v' - C(mu - v)| / |v'|, whole and after the best scalar factor; xi fixed."""
    generator = torch.Generator().manual_seed(seed)
    step = torch.randn(16, DIMENSION, generator=generator, dtype=torch.float64)
    step = gamma[:, None, None] * point.mu.norm() * step / step.norm(dim=-1, keepdim=True)
    exact = isotropic.linearisation(point.mu, point.xi, point.setting[0][0], 1.0, point.ratio, point.law)
    true = isotropic.velocity(point.mu + step, point.xi, *point.setting).v
    linear = -step @ exact.C
    best = (true * linear).sum(-1, keepdim=True) / (linear**2).sum(-1, keepdim=True) * linear
    missed = torch.stack([(true - linear).norm(dim=-1), (true - best).norm(dim=-1)], -1)
    size: Tensor = true.norm(dim=-1)[..., None]
    return missed / size


def _flow(point: Point, step: float, config: Config) -> Tensor:
    """(steps, starts, 5): distance to the point, to its ray, sine of the angle to xbar_+, |v|, xi."""
    generator = torch.Generator().manual_seed(config.seed)
    noise = torch.randn(config.starts, DIMENSION + 1, generator=generator, dtype=torch.float64)
    state = point.state + 0.35 * point.mu.norm() * noise / noise.norm(dim=-1, keepdim=True)
    unit = point.state / point.state.norm()
    rows = []
    for i in range(config.steps + 1):
        v, off = state[:, :-1], state - point.state
        beside = state - (state @ unit)[:, None] * unit
        length = v.norm(dim=-1)
        sine = v[:, 1:].norm(dim=-1) / length
        rows.append(torch.stack([off.norm(dim=-1), beside.norm(dim=-1), sine, length, state[:, -1]], -1))
        if i < config.steps:
            state = _runge_kutta(point.field, state, step)
    return torch.stack(rows)


def _runge_kutta(field: Callable[[Tensor], Tensor], state: Tensor, step: float) -> Tensor:
    """One classical step of fourth order; the ends of these flows do not depend on its accuracy."""
    one = field(state)
    two = field(state + step / 2 * one)
    three = field(state + step / 2 * two)
    four = field(state + step * three)
    return state + step / 6 * (one + 2 * two + 2 * three + four)


STUDY = Study(
    name="thm3",
    title="Theorem 3: the flow near a critical point",
    version=1,
    claims=(EQ69, BETA1, BETA2, POSITIVE, SIGN, FACTOR, FROZEN, ISOLATED, PARALLEL),
    quick=Config(),
    paper=Config(separations=(0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0), steps=400, starts=64),
    run=run,
    judge=judge,
    draw=draw,
    about=(
        "Critical points of a ReLU node between two clusters come from the corrected Lemma 4 (Student-t rays) and, "
        "under weight decay, from a solver. The Jacobian of the velocity there, by differences of sixth order, is the "
        "truth for eq. 69, 73 and 74; flows from around the points show what attracts and what does not."
    ),
)
