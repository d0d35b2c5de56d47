"""How each claim is judged by the record."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import above, at_most, below
from joma.claims.verdicts import by_residual, by_tests
from joma.runs import Run
from joma.studies.isotropic._forms import by_forms
from joma.studies.isotropic.thm3 import claims
from joma.studies.isotropic.thm3.run import JACOBIAN

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
    return by_residual(
        claims.EQ69,
        printed=printed,
        corrected=corrected,
        tolerance=JACOBIAN,
        what="largest difference",
        expected="The formula equals the Jacobian by numerical differences.",
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
        claims.POSITIVE,
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
        claims.SIGN,
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
        claims.FACTOR,
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
    return by_tests(
        claims.FROZEN,
        expected="v and ξ are not coupled at first order.",
        printed=[at_most(f"largest {size}", ray.coupling.max(), JACOBIAN)],
        corrected=[
            at_most("largest error of the closed form of ∂v′/∂ξ", ray.coupling_off.max(), JACOBIAN),
            above(f"smallest {size}", ray.coupling.min(), COUPLED),
        ],
    )


def isolated(run: Run) -> Finding:
    """The distances that are left at the end of flows, and the spectra."""
    ray, decayed = (Record(run, name).spectrum for name in ("ray +1", "decayed"))  # ascending
    left, left_with_decay = (distance_left(run, name) for name in ("ray", "decayed"))
    return by_tests(
        claims.ISOLATED,
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
    return by_residual(
        claims.PARALLEL,
        printed=last.max(),
        tolerance=ARRIVED,
        expected="The sine of the angle to x̄₊ vanishes at the end of every flow.",
        what="sine of the angle",
        control={"at the start": first.min()},
    )
