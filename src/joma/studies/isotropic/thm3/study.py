"""The study of Theorem 3: its claims, its sizes and its figures."""

from functools import partial
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.evidence import above, at_most, below
from joma.claims.verdicts import by_residual, by_tests
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import number
from joma.figures.style import BLUE, CORRECTED, GREEN, GREY, ORANGE, PRINTED, panels
from joma.runs import Run
from joma.studies.isotropic._forms import by_forms
from joma.studies.isotropic.thm3.run import JACOBIAN, Thm3Config, run

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
PARALLEL = Claim("direction", "JoMA Thm 3", "Critical weights are parallel to x̄₊.", uses=("lemma4/critical-points",))


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
        """Relative to the larger of the two rates."""
        form = self.printed if printed else self.corrected
        return np.abs(form[:, which] - self.rates[:, which]) / np.abs(self.rates).max(1)


def distance_left(run: Run, name: str) -> Any:
    """Shares of the first distances to the point and to its ray, of the start that comes least near."""
    path = run.value(f"flow/{name}")
    return (path[-1, :, :2] / path[0, :, :2]).max(0)


def jacobian_of_theta2(run: Run) -> Finding:
    """Eq. 69 as printed and as corrected."""
    printed, corrected = run.value("eq69")
    expected = "The formula equals the Jacobian by numerical differences."
    return by_residual(
        EQ69, printed=printed, corrected=corrected, tolerance=JACOBIAN, what="largest difference", expected=expected
    )


def rate(run: Run, *, claim: Claim, which: int) -> Finding:
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


def positive(run: Run) -> Finding:
    """The eigenvalues of C for s = +1; for s = −1 one must be negative."""
    ray, away = (Record(run, name) for name in ("ray +1", "ray -1"))
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


def sign(run: Run) -> Finding:
    """The rates at right angles to μ, for both signs."""
    towards, away = (Record(run, name).rates[:, 0] for name in ("ray +1", "ray -1"))
    positive = above("smallest rate at right angles to μ for s = +1", towards.min(), 0)
    return by_tests(
        SIGN,
        expected="If s appears twice, both rates are positive. If it appears once, each rate has the sign of s.",
        printed=[positive, above("smallest rate at right angles to μ for s = −1", away.min(), 0)],
        corrected=[positive, below("largest rate at right angles to μ for s = −1", away.max(), 0)],
    )


def factor(run: Run) -> Finding:
    """What the linear term misses of v′, and what the best λ does."""
    gamma, remainder = run.value("gamma"), run.value("remainder")  # (gammas, directions, 2)
    linear, best = remainder.mean(1).T
    order = float(np.polyfit(np.log(gamma), np.log(linear), 1)[0]) + 1
    near = int(np.argmin(np.abs(gamma - 0.01)))
    return by_tests(
        FACTOR,
        expected="With the best number λ the formula gives all of v′.",
        printed=[at_most("share of v′ that the formula misses with the best λ", best[near], JACOBIAN)],
        corrected=[at_most("distance of the order of the remainder from 2", abs(order - 2), ORDER)],
        details={
            "shares of v′ missed at ‖v − μ‖ = 0.01‖μ‖": {"by C(μ − v)": linear[near], "with the best λ": best[near]},
            "remainder": {"order": order},
        },
    )


def frozen(run: Run) -> Finding:
    """How strongly v and ξ are coupled."""
    ray = Record(run, "ray +1")
    size = "‖∂v′/∂ξ‖ relative to the largest rate in C"
    printed = [at_most(f"largest {size}", ray.coupling.max(), JACOBIAN)]
    corrected = [
        at_most("largest error of the closed form of ∂v′/∂ξ", ray.coupling_off.max(), JACOBIAN),
        above(f"smallest {size}", ray.coupling.min(), COUPLED),
    ]
    return by_tests(FROZEN, expected="v and ξ are not coupled at first order.", printed=printed, corrected=corrected)


def isolated(run: Run) -> Finding:
    """The distances that are left at the end of flows, and the spectra."""
    ray, decayed = (Record(run, name).spectrum for name in ("ray +1", "decayed"))  # ascending
    left, left_with_decay = (distance_left(run, name) for name in ("ray", "decayed"))
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


def parallel(run: Run) -> Finding:
    """The angle to x̄₊ at the end of flows; at their start there must be one."""
    first, last = (np.array([run.value(f"flow/{name}")[i, :, 2].max() for name in ("ray", "decayed")]) for i in (0, -1))
    expected = "The sine of the angle to x̄₊ vanishes at the end of every flow."
    control = {"at the start": first.min()}
    return by_residual(
        PARALLEL, printed=last.max(), tolerance=ARRIVED, expected=expected, what="sine of the angle", control=control
    )


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
    for axis in (left, right):
        label_lines(axis)
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
        label_lines(axis)
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
    claims={
        EQ69: jacobian_of_theta2,
        BETA1: partial(rate, claim=BETA1, which=0),
        BETA2: partial(rate, claim=BETA2, which=1),
        POSITIVE: positive,
        SIGN: sign,
        FACTOR: factor,
        FROZEN: frozen,
        ISOLATED: isolated,
        PARALLEL: parallel,
    },
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
