"""Theorem 3, eq. 5, 69, 72-74: how a ReLU node moves near a critical point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Finding, Progress, Study, each_claim
from joma.claims.evidence import above, at_most, below
from joma.claims.verdicts import by_residual, by_tests
from joma.runs import Run
from joma.studies.isotropic._critical_point import DIMENSION, JACOBIAN, LAW, Point, Record, on_ray, with_decay
from joma.studies.isotropic._forms import by_forms, jacobian
from joma.studies.isotropic._thm3_figures import distance_left, draw
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
    "The bracket is multiplied by the vector v, not by its length.",
)
BETA1 = Claim(
    "beta1",
    "JoMA eq. 73",
    "At right angles to μ the flow contracts at the rate β₁ = s a₊‖x̄₊‖θ₁(r₊)/‖μ‖².",
    "The rate is β₁ = s a₊‖x̄₊‖θ₁(ρ₊)/‖μ‖, with or without weight decay.",
    uses=("lemma2/mixture-weight", "lemma4/critical-points"),
)
BETA2 = Claim(
    "beta2",
    "JoMA eq. 74",
    "β₂ = s a₊‖x̄₊‖(ξθ₁′(r₊) − 2θ₁(r₊))/‖μ‖⁴.",
    "β₂‖μ‖² = λ − ρ₋²D/‖μ‖ − β₁, where D = a₊pₙ(ρ₊) − a₋pₙ(ρ₋) and λ is the weight decay.",
    uses=("lemma2/theta-slopes", "lemma4/critical-points", "thm3/theta2-jacobian"),
)
POSITIVE = Claim(
    "positive-definite",
    "JoMA Thm 3",
    "C(μ) can be positive definite if μ is parallel to x̄₊ and ξ < 0, the typical case.",
    "With the corrected β it is positive definite whenever s = +1. With the printed β it never is for ξ < 0.",
    uses=("thm3/beta1", "thm3/beta2"),
)
SIGN = Claim(
    "sign-once",
    "JoMA Thm 3",
    "C = s{β₁I + β₂μμᵀ}, and β₁ also contains the factor s.",
    "The factor s appears only once. A μ that points away from x̄₊ is unstable.",
    uses=("thm3/beta1",),
)
FACTOR = Claim(
    "remainder",
    "JoMA eq. 5",
    "v′ = C(μ)(1 + λ)(μ − v) with a small number λ.",
    "v′ = C(μ)(μ − v) plus a vector of order ‖v − μ‖². No number λ can replace this vector.",
    uses=("thm3/beta1", "thm3/beta2"),
)
FROZEN = Claim(
    "frozen-bias",
    "JoMA Thm 3",
    "Near μ the weight has its own equation, in which the bias stays at ξ*.",
    "v and ξ are coupled at first order by ∂v′/∂ξ = −ρ₋D v/‖v‖². This is not small compared with C.",
    uses=("lemma2/mixture-weight", "lemma2/theta-slopes"),
)
ISOLATED = Claim(
    "convergence",
    "JoMA Thm 3",
    "A stable μ attracts the weights near it.",
    "It attracts towards its ray and is neutral along the ray. With weight decay it is isolated and attracts.",
    uses=("thm3/positive-definite", "thm3/frozen-bias"),
)
PARALLEL = Claim(
    "direction",
    "JoMA Thm 3",
    "Critical weights are parallel to x̄₊.",
    uses=("lemma4/critical-points",),
)


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


def _jacobian_of_theta2(run: Run) -> Finding:
    printed, corrected = run.value("eq69")
    return by_residual(
        EQ69,
        printed=printed,
        corrected=corrected,
        tolerance=JACOBIAN,
        what="largest difference",
        expected="The formula equals the Jacobian by numerical differences.",
    )


def _beta1(run: Run) -> Finding:
    return _rate(BETA1, run, 0, "β₁ is minus the eigenvalue of ∂v′/∂v at right angles to μ, by numerical differences.")


def _beta2(run: Run) -> Finding:
    return _rate(BETA2, run, 1, "β₁ + β₂‖μ‖² is minus the eigenvalue of ∂v′/∂v along μ, by numerical differences.")


def _rate(claim: Claim, run: Run, which: int, expected: str) -> Finding:
    """One of the two rates in C. The printed velocity has rates of its own, and the printed form must give those."""
    ray, away, decayed = (Record(run.value(name)) for name in ("ray +1", "ray -1", "decayed"))
    return by_forms(
        claim,
        printed=np.concatenate([part.off(which, printed=True) for part in (ray, away)]).max(),
        corrected=np.concatenate([part.off(which) for part in (ray, away, decayed)]).max(),
        tolerance=JACOBIAN,
        expected=expected,
        agree={"the printed form for the printed velocity": run.value("own")[:, which].max()},
    )


def _positive(run: Run) -> Finding:
    ray, away = (Record(run.value(name)) for name in ("ray +1", "ray -1"))
    return by_tests(
        POSITIVE,
        expected="All eigenvalues of C are positive for s = +1 and ξ < 0.",
        printed=[above("smaller eigenvalue of C as printed, at the best point", ray.printed.min(1).max(), 0)],
        corrected=[
            above("smallest eigenvalue of C by differences", ray.rates.min(), 0),
            at_most("relative error of the corrected eigenvalues of C", np.max([ray.off(0), ray.off(1)]), JACOBIAN),
        ],
        controls=[
            below("largest ξ", ray.xi.max(), 0),
            below("smaller eigenvalue of C for s = −1, at the best point", away.rates.min(1).max(), 0),
        ],
    )


def _sign(run: Run) -> Finding:
    towards, away = (Record(run.value(name)).rates[:, 0] for name in ("ray +1", "ray -1"))
    positive = above("smallest rate at right angles to μ for s = +1", towards.min(), 0)
    return by_tests(
        SIGN,
        expected="If s appears twice, both rates are positive. If it appears once, each rate has the sign of s.",
        printed=[positive, above("smallest rate at right angles to μ for s = −1", away.min(), 0)],
        corrected=[positive, below("largest rate at right angles to μ for s = −1", away.max(), 0)],
    )


def _factor(run: Run) -> Finding:
    gamma, remainder = run.value("gamma"), run.value("remainder")  # (gammas, directions, 2)
    whole, best = remainder.mean(1).T
    order = float(np.polyfit(np.log(gamma), np.log(whole), 1)[0]) + 1
    near = int(np.argmin(np.abs(gamma - 0.01)))
    return by_tests(
        FACTOR,
        expected="With the best number λ the formula gives all of v′.",
        printed=[at_most("share of v′ that the formula misses with the best λ", best[near], JACOBIAN)],
        corrected=[at_most("distance of the order of the remainder from 2", abs(order - 2), ORDER)],
        details={
            "shares of v′ missed at ‖v − μ‖ = 0.01‖μ‖": {"by C(μ − v)": whole[near], "with the best λ": best[near]},
            "remainder": {"order": order},
        },
    )


def _frozen(run: Run) -> Finding:
    ray = Record(run.value("ray +1"))
    size = "‖∂v′/∂ξ‖ relative to the largest rate in C"
    return by_tests(
        FROZEN,
        expected="v and ξ are not coupled at first order.",
        printed=[at_most(f"largest {size}", ray.coupling.max(), JACOBIAN)],
        corrected=[
            at_most("largest error of the closed form of ∂v′/∂ξ", ray.coupling_off.max(), JACOBIAN),
            above(f"smallest {size}", ray.coupling.min(), COUPLED),
        ],
    )


def _isolated(run: Run) -> Finding:
    ray, decayed = (Record(run.value(name)).spectrum for name in ("ray +1", "decayed"))  # ascending
    left, left_with_decay = (distance_left(run.value(f"flow/{name}")) for name in ("ray", "decayed"))
    return by_tests(
        ISOLATED,
        expected="At the end of a flow almost no distance to μ is left.",
        printed=[at_most("share of the distance to (μ, ξ) left", left[0], ARRIVED)],
        corrected=[
            at_most("share of the distance to the ray left", left[1], ARRIVED),
            at_most("share of the distance to (μ, ξ) left with decay", left_with_decay[0], ARRIVED),
            at_most("size of the eigenvalue along the ray", np.abs(ray[:, -1]).max(), NEUTRAL),
            below("largest eigenvalue across the ray", ray[:, -2].max(), 0),
            below("largest eigenvalue with decay", decayed.max(), 0),
        ],
    )


def _parallel(run: Run) -> Finding:
    first, last = (np.array([run.value(f"flow/{name}")[i, :, 2].max() for name in ("ray", "decayed")]) for i in (0, -1))
    return by_residual(
        PARALLEL,
        printed=last.max(),
        tolerance=ARRIVED,
        expected="The sine of the angle to x̄₊ vanishes at the end of every flow.",
        what="sine of the angle",
        control={"at the start": first.min()},
    )


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
    judge=each_claim(_jacobian_of_theta2, _beta1, _beta2, _positive, _sign, _factor, _frozen, _isolated, _parallel),
    draw=draw,
    about=(
        "The critical points of a ReLU node between two clusters come from the corrected Lemma 4 (rays of Student-t "
        "laws). With weight decay they come from a solver. The reference for eq. 69, 73 and 74 is the Jacobian of the "
        "velocity at these points, by numerical differences of sixth order. Flows from starts near the points show "
        "which points attract."
    ),
)
