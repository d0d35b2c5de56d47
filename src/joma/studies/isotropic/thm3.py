"""Theorem 3, eq. 5, 69, 72-74: how a ReLU node moves near a critical point."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, StudyConfig
from joma.claims.declare import Claims
from joma.claims.verdicts import above, at_most, below, by_residual, by_tests
from joma.figures.labels import end_label
from joma.figures.reading import number
from joma.figures.style import BLUE, CORRECTED, GREEN, GREY, ORANGE, PRINTED, panels
from joma.runs import Run
from joma.studies.isotropic._forms import by_forms, jacobian
from joma.theory import isotropic
from joma.theory.isotropic import Side
from joma.theory.radial import Ball, Gaussian, RadialLaw, StudentT

DIMENSION = 4
LAW = StudentT(DIMENSION, 3.0)
DECAYED: tuple[RadialLaw, ...] = (Gaussian(DIMENSION), LAW, Ball(DIMENSION, 2.0))
JACOBIAN = 1e-8  # closed forms against differences of sixth order


@dataclass(frozen=True)
class Thm3Config(StudyConfig):
    """Critical rays of the Student-t law, seen at one length of mu, and isolated points under weight decay."""

    separations: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    length: float = 1.7
    decay: float = 0.1
    steps: int = 160
    """Of the flows towards the critical points."""
    starts: int = 12
    seed: int = 0


def run(config: Thm3Config, run: Run, progress: Progress) -> None:
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


@dataclass(frozen=True)
class Point:
    """A critical point of two clusters, a_+ = 1 at m along the first axis and -a_- at 0."""

    law: RadialLaw
    m: float
    ratio: Tensor
    mu: Tensor
    xi: Tensor
    decay: float = 0.0

    @property
    def setting(self) -> tuple[Tensor, Tensor, RadialLaw]:
        centre = self.m * torch.eye(DIMENSION, dtype=torch.float64)[0]
        return torch.stack([centre, 0 * centre]), torch.stack([torch.ones_like(self.ratio), -self.ratio]), self.law

    @property
    def state(self) -> Tensor:
        return torch.cat([self.mu, self.xi[None]])

    def field(self, state: Tensor) -> Tensor:
        """(v', xi') at states (..., d + 1)."""
        motion = isotropic.velocity(state[..., :-1], state[..., -1], *self.setting, decay=self.decay)
        return torch.cat([motion.v, motion.xi[..., None]], -1)

    def record(self) -> Tensor:
        found = jacobian(self.field, self.state)  # by differences, (d + 1, d + 1)
        centre = self.setting[0][0]
        exact = isotropic.linearisation(self.mu, self.xi, centre, 1.0, self.ratio, self.law, decay=self.decay)
        printed = isotropic.printed_linearisation(self.mu, self.xi, centre, 1.0, self.ratio, self.law)
        closed = isotropic.hessian(self.mu, self.xi, *self.setting, decay=self.decay)
        rates = [self.rates(matrix) for matrix in (-found[:-1, :-1], exact.C, printed.C)]
        coupling = torch.stack([found[:-1, -1].norm(), (found - closed)[:-1, -1].abs().max()])
        return torch.cat([*rates, coupling, self.xi[None], torch.linalg.eigvalsh((found + found.mT) / 2)])

    def rates(self, matrix: Tensor) -> Tensor:
        """Eigenvalues across and along mu of a matrix beta1 I + beta2 mu mu^T; NaN if it is not of that form."""
        along = self.mu / self.mu.norm()
        parallel = along @ matrix @ along
        across = (matrix.trace() - parallel) / (DIMENSION - 1)
        form = across * (torch.eye(DIMENSION) - torch.outer(along, along)) + parallel * torch.outer(along, along)
        rates = torch.stack([across, parallel])
        return rates if (form - matrix).abs().max() <= JACOBIAN else torch.full_like(rates, torch.nan)


def on_ray(m: float, length: float, side: Side) -> Point:
    """The point at a length of v on the critical ray of two clusters m apart."""
    ray = isotropic.critical_rays(m, LAW, side=side)
    mu = side * length * torch.eye(DIMENSION, dtype=torch.float64)[0]
    return Point(LAW, m, ray.ratio, mu, length * ray.rho_minus)


def with_decay(law: RadialLaw, m: float, decay: float) -> Point:
    """The isolated critical point that weight decay makes."""
    point = isotropic.decayed_point(m, 1.0, 1.0, law, decay)
    axis = torch.eye(DIMENSION, dtype=torch.float64)[0]
    return Point(law, m, torch.ones((), dtype=torch.float64), point.norm * axis, point.xi, decay)


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
    true = isotropic.velocity(point.mu + step, point.xi, *point.setting).v
    linear = -step @ isotropic.linearisation(point.mu, point.xi, point.setting[0][0], 1.0, point.ratio, point.law).C
    best = (true * linear).sum(-1, keepdim=True) / (linear**2).sum(-1, keepdim=True) * linear
    size: Tensor = true.norm(dim=-1)[..., None]
    return torch.stack([(true - linear).norm(dim=-1), (true - best).norm(dim=-1)], -1) / size


def _flow(point: Point, step: float, config: Thm3Config) -> Tensor:
    """(steps, starts, 5): distance to the point, to its ray, sine of the angle to xbar_+, |v|, xi."""
    generator = torch.Generator().manual_seed(config.seed)
    noise = torch.randn(config.starts, DIMENSION + 1, generator=generator, dtype=torch.float64)
    state = point.state + 0.35 * point.mu.norm() * noise / noise.norm(dim=-1, keepdim=True)
    unit = point.state / point.state.norm()
    rows = []
    for i in range(config.steps + 1):
        v, off, off_ray = state[:, :-1], state - point.state, state - (state @ unit)[:, None] * unit
        length = v.norm(dim=-1)
        sine = v[:, 1:].norm(dim=-1) / length
        rows.append(torch.stack([off.norm(dim=-1), off_ray.norm(dim=-1), sine, length, state[:, -1]], -1))
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


CLAIMS = Claims()


NEUTRAL = 1e-10
ORDER = 0.1  # of the fitted order of a remainder
COUPLED = 0.01  # of the largest rate in C: more than this is no small term
ARRIVED = 1e-3  # share of the first distance that may be left at the end of a flow


class Record:
    """Names for the columns that `Point.record` writes: one row per critical point."""

    def __init__(self, run: Run, name: str) -> None:
        rows = run.value(name)
        self.rates, self.corrected, self.printed = rows[:, 0:2], rows[:, 2:4], rows[:, 4:6]  # across, along
        self.coupling = rows[:, 6] / np.abs(self.rates).max(1)
        self.coupling_off, self.xi = rows[:, 7], rows[:, 8]
        self.spectrum = rows[:, 9:]  # of the full Jacobian in (v, xi), ascending

    def off(self, which: int, *, printed: bool = False) -> Any:
        form = self.printed if printed else self.corrected
        return np.abs(form[:, which] - self.rates[:, which]) / np.abs(self.rates).max(1)


def distance_left(run: Run, name: str) -> Any:
    """Shares of the first distances to the point and to its ray, of the start that comes least near."""
    path = run.value(f"flow/{name}")
    return (path[-1, :, :2] / path[0, :, :2]).max(0)


@CLAIMS.declare("theta2-jacobian", "JoMA eq. 69")
def jacobian_of_theta2(run: Run, claim: Claim) -> Finding:
    """∂(θ₂(r)v/‖v‖ᵖ)/∂vⱼ contains [θ₂′x̄ⱼ‖v‖² − p vⱼθ₂] times ‖v‖.

    Corrected: The bracket is multiplied by the vector v, not by its length.
    Expected: The formula equals the Jacobian by numerical differences.
    """
    printed, corrected = run.value("eq69")
    return by_residual(claim, printed=printed, corrected=corrected, tolerance=JACOBIAN, what="largest difference")


def rate(run: Run, claim: Claim, which: int) -> Finding:
    """One of the two rates in C. The printed velocity has rates of its own, and the printed form must give those."""
    ray, away, decayed = (Record(run, name) for name in ("ray +1", "ray -1", "decayed"))
    rate, where = (("β₁", "at right angles to μ"), ("β₁ + β₂‖μ‖²", "along μ"))[which]
    return by_forms(
        claim,
        printed=np.concatenate([part.off(which, printed=True) for part in (ray, away)]).max(),
        corrected=np.concatenate([part.off(which) for part in (ray, away, decayed)]).max(),
        tolerance=JACOBIAN,
        expected=f"{rate} is minus the eigenvalue of ∂v′/∂v {where}, by numerical differences.",
        agree={"the printed form for the printed velocity": run.value("own")[:, which].max()},
    )


CLAIMS.declare(
    "beta1",
    "JoMA eq. 73",
    "At right angles to μ the flow contracts at the rate β₁ = s a₊‖x̄₊‖θ₁(r₊)/‖μ‖²."
    "\n\nCorrected: The rate is β₁ = s a₊‖x̄₊‖θ₁(ρ₊)/‖μ‖, with or without weight decay.",
    uses=("lemma2/mixture-weight", "lemma4/critical-points"),
)(partial(rate, which=0))
CLAIMS.declare(
    "beta2",
    "JoMA eq. 74",
    "β₂ = s a₊‖x̄₊‖(ξθ₁′(r₊) − 2θ₁(r₊))/‖μ‖⁴."
    "\n\nCorrected: β₂‖μ‖² = λ − ρ₋²D/‖μ‖ − β₁, where D = a₊pₙ(ρ₊) − a₋pₙ(ρ₋) and λ is the weight decay.",
    uses=("lemma2/theta-slopes", "lemma4/critical-points", "thm3/theta2-jacobian"),
)(partial(rate, which=1))


@CLAIMS.declare("positive-definite", "JoMA Thm 3", uses=("thm3/beta1", "thm3/beta2"))
def positive(run: Run, claim: Claim) -> Finding:
    """C(μ) can be positive definite if μ is parallel to x̄₊ and ξ < 0, the typical case.

    Corrected: With the corrected β it is positive definite whenever s = +1. With the printed β it never is for ξ < 0.
    Expected: All eigenvalues of C are positive for s = +1 and ξ < 0.

    The eigenvalues of C for s = +1; for s = −1 one must be negative.
    """
    ray, away = (Record(run, name) for name in ("ray +1", "ray -1"))
    return by_tests(
        claim,
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


@CLAIMS.declare("sign-once", "JoMA Thm 3", uses=("thm3/beta1",))
def sign(run: Run, claim: Claim) -> Finding:
    """C = s{β₁I + β₂μμᵀ}, and β₁ also contains the factor s.

    Corrected: The factor s appears only once. A μ that points away from x̄₊ is unstable.
    Expected: If s appears twice, both rates are positive. If it appears once, each rate has the sign of s.
    """
    towards, away = (Record(run, name).rates[:, 0] for name in ("ray +1", "ray -1"))
    positive = above("smallest rate at right angles to μ for s = +1", towards.min(), 0)
    return by_tests(
        claim,
        printed=[positive, above("smallest rate at right angles to μ for s = −1", away.min(), 0)],
        corrected=[positive, below("largest rate at right angles to μ for s = −1", away.max(), 0)],
    )


@CLAIMS.declare("remainder", "JoMA eq. 5", uses=("thm3/beta1", "thm3/beta2"))
def factor(run: Run, claim: Claim) -> Finding:
    """v′ = C(μ)(1 + λ)(μ − v) with a small number λ.

    Corrected: v′ = C(μ)(μ − v) plus a vector of order ‖v − μ‖². No number λ can replace this vector.
    Expected: With the best number λ the formula gives all of v′.

    What the linear term misses of v′, and what the best λ does.
    """
    gamma, remainder = run.value("gamma"), run.value("remainder")  # (gammas, directions, 2)
    linear, best = remainder.mean(1).T
    order = float(np.polyfit(np.log(gamma), np.log(linear), 1)[0]) + 1
    near = int(np.argmin(np.abs(gamma - 0.01)))
    return by_tests(
        claim,
        printed=[at_most("share of v′ that the formula misses with the best λ", best[near], JACOBIAN)],
        corrected=[at_most("distance of the order of the remainder from 2", abs(order - 2), ORDER)],
        details={
            "shares of v′ missed at ‖v − μ‖ = 0.01‖μ‖": {"by C(μ − v)": linear[near], "with the best λ": best[near]},
            "remainder": {"order": order},
        },
    )


@CLAIMS.declare("frozen-bias", "JoMA Thm 3", uses=("lemma2/mixture-weight", "lemma2/theta-slopes"))
def frozen(run: Run, claim: Claim) -> Finding:
    """Near μ the weight has its own equation, in which the bias stays at ξ*.

    Corrected: v and ξ are coupled at first order by ∂v′/∂ξ = −ρ₋D v/‖v‖². This is not small compared with C.
    Expected: v and ξ are not coupled at first order.
    """
    ray = Record(run, "ray +1")
    size = "‖∂v′/∂ξ‖ relative to the largest rate in C"
    printed = [at_most(f"largest {size}", ray.coupling.max(), JACOBIAN)]
    corrected = [
        at_most("largest error of the closed form of ∂v′/∂ξ", ray.coupling_off.max(), JACOBIAN),
        above(f"smallest {size}", ray.coupling.min(), COUPLED),
    ]
    return by_tests(claim, printed=printed, corrected=corrected)


@CLAIMS.declare("convergence", "JoMA Thm 3", uses=("thm3/positive-definite", "thm3/frozen-bias"))
def isolated(run: Run, claim: Claim) -> Finding:
    """A stable μ attracts the weights near it.

    Corrected: It attracts towards its ray and is neutral along the ray. With weight decay it is isolated and attracts.
    Expected: At the end of a flow almost no distance to μ is left.

    The distances that are left at the end of flows, and the spectra.
    """
    ray, decayed = (Record(run, name).spectrum for name in ("ray +1", "decayed"))  # ascending
    left, left_with_decay = (distance_left(run, name) for name in ("ray", "decayed"))
    return by_tests(
        claim,
        printed=[at_most("share of the distance to (μ, ξ) left", left[0], ARRIVED)],
        corrected=[
            at_most("share of the distance to the ray left", left[1], ARRIVED),
            at_most("share of the distance to (μ, ξ) left with decay", left_with_decay[0], ARRIVED),
            at_most("size of the eigenvalue along the ray", np.abs(ray[:, -1]).max(), NEUTRAL),
            below("largest eigenvalue across the ray", ray[:, -2].max(), 0),
            below("largest eigenvalue with decay", decayed.max(), 0),
        ],
    )


@CLAIMS.declare("direction", "JoMA Thm 3", uses=("lemma4/critical-points",))
def parallel(run: Run, claim: Claim) -> Finding:
    """Critical weights are parallel to x̄₊.

    Expected: The sine of the angle to x̄₊ vanishes at the end of every flow.

    The angle to x̄₊ at the end of flows; at their start there must be one.
    """
    first, last = (np.array([run.value(f"flow/{name}")[i, :, 2].max() for name in ("ray", "decayed")]) for i in (0, -1))
    control = {"at the start": first.min()}
    return by_residual(claim, printed=last.max(), tolerance=ARRIVED, what="sine of the angle", control=control)


def _draw_linearisation(run: Run) -> Drawing:
    figure, (left, right) = panels(2, width=4.4)
    ray, m = Record(run, "ray +1"), run.value("separations")
    places = np.arange(len(m))
    for i, marker in enumerate("os"):
        names = ("by differences", "corrected", "printed") if i == 0 else (None, None, None)
        left.plot(places - 0.08, ray.rates[:, i], marker, ms=9, mfc="none", color=GREEN, label=names[0])
        left.plot(places - 0.08, ray.corrected[:, i], marker, ms=4, color=CORRECTED, label=names[1])
        left.plot(places + 0.08, ray.printed[:, i], marker, ms=4, color=PRINTED, label=names[2])
    left.axhline(0, lw=0.8, ls="--", color=GREY)
    end_label(left, "circles: across μ", marker="o", ms=4, ls="")
    end_label(left, "squares: along μ", marker="s", ms=4, ls="")
    left.set_xticks(places, [f"{each:g}" for each in m])
    left.set(xlabel="separation m = ‖x̄₊‖", ylabel="eigenvalue of C", title="Corrected rates are positive")
    gamma, remainder = run.value("gamma"), run.value("remainder").mean(1)
    right.plot(gamma, remainder[:, 0], "o-", ms=4, color=CORRECTED, label="missed by\nC(μ − v)")
    right.plot(gamma, remainder[:, 1], "s-", ms=4, color=PRINTED, label="missed with\nthe best λ")
    line = remainder[0, 0] * gamma / gamma[0] / 3
    right.plot(gamma, line, ls="--", lw=1, color=GREY, label="proportional\nto ‖v − μ‖")
    right.set(xscale="log", yscale="log", xlabel="‖v − μ‖ / ‖μ‖", ylabel="share of v′ missed", ylim=(1e-6, 0.1))
    right.set_title("No number λ repairs the remainder")
    caption = (
        "With the corrected rates C is positive definite, with the printed rates it is not: the smallest eigenvalue is "
        f"{number(ray.corrected.min())} and {number(ray.printed.min())}. Left: eigenvalues of C at critical points "
        "of a Student-t mixture. Right: what the linear term misses of v′ is one order smaller than the term "
        "itself, and no number λ repairs it."
    )
    return Drawing("linearisation", caption, figure)


def _draw_flows(run: Run) -> Drawing:
    figure, axes = panels(2, width=4.2)
    *mu, xi = run.value("critical ray")
    length = float(np.linalg.norm(mu))
    axes[0].axline((length, xi), slope=float(xi) / length, ls="--", lw=1, color=ORANGE, zorder=0, label="critical ray")
    titles = ("Student-t, no decay: the ends lie on a ray", "Gaussian, weight decay: one end point")
    for axis, name, title in zip(axes, ("ray", "decayed"), titles, strict=True):
        path = run.value(f"flow/{name}")  # (steps, starts, 5)
        axis.plot(path[..., 3], path[..., 4], lw=1, color=BLUE)
        axis.plot(path[0, :, 3], path[0, :, 4], "o", ms=3, color=GREY, label="start")
        axis.plot(path[-1, :, 3], path[-1, :, 4], "o", ms=4.5, color=CORRECTED, label="end")
        axis.set(xlabel="‖v‖", ylabel="bias ξ", title=title)
    left, left_with_decay = (number(distance_left(run, name)[0], "%") for name in ("ray", "decayed"))
    caption = (
        "Without weight decay a critical point attracts only towards its ray; with weight decay it attracts in every "
        f"direction. At the end up to {left} of the first distance to the point is left without decay, "
        f"and {left_with_decay} with decay. The lines are flows from starts around a critical point."
    )
    return Drawing("flows", caption, figure)


STUDY = Study(
    name="thm3",
    title="Theorem 3: the flow near a critical point",
    version=1,
    claims=CLAIMS,
    quick=Thm3Config(),
    paper=Thm3Config(separations=(0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0), steps=400, starts=64),
    run=run,
    draw=lambda run: [_draw_linearisation(run), _draw_flows(run)],
    about=(
        "The critical points of a ReLU node between two clusters come from the corrected Lemma 4 (rays of Student-t "
        "laws). With weight decay they come from a solver. The reference for eq. 69, 73 and 74 is the Jacobian of the "
        "velocity at these points, by numerical differences of sixth order. Flows from starts near the points show "
        "which points attract."
    ),
)
