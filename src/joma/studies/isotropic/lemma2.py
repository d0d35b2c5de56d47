"""Lemmas 2, 3 and 5, eq. 42-43, 48-49, 53, 61: the flow of one node on a mixture of isotropic clusters."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, StudyConfig
from joma.claims.declare import Claims
from joma.claims.verdicts import above, below, by_residual, by_tests
from joma.figures.reading import number
from joma.figures.style import CORRECTED, GREEN, PRINTED, panels
from joma.runs import Run
from joma.studies.isotropic import _forms as forms
from joma.studies.isotropic._forms import LENGTHS, UNIT, by_forms, by_samples, difference
from joma.theory import isotropic
from joma.theory.radial import Gaussian, RadialLaw

SAME_GRID = ("gaussian", "student", "exponential")  # laws whose θ are recorded at the same distances
SLOPES = {"ReLU": (0.0, 1.0), "leaky": (0.1, 1.0), "identity": (1.0, 1.0), "|x|": (-1.0, 1.0)}
EXACT = 1e-11  # identities between closed forms
DIFFERENCES = 1e-8  # closed derivatives against differences of sixth order


@dataclass(frozen=True)
class Lemma2Config(StudyConfig):
    """Random clusters of either sign in the full space, and a random direction of v."""

    samples: int = 200_000
    dimension: int = 5
    clusters: int = 3
    seed: int = 0


CLAIMS = Claims()


def run(config: Lemma2Config, run: Run, progress: Progress) -> None:
    """The velocity by sampling and by both forms, then Lemmas 3 and 5 by differences and quadrature."""
    run.keep("curve/lengths", lambda: np.array(forms.CURVE))
    for i, (name, law) in enumerate(zip(forms.LAWS, forms.laws(config.dimension), strict=True)):
        progress(0.15 * i, f"sampling the {forms.LAWS[name]} law")
        case = _Case(config, law)
        forms.record_forms(
            run,
            name,
            partial(forms.sample_mean, case.statistic, law, config.samples, config.seed + i),
            corrected=partial(case.form, isotropic.velocity),
            printed=partial(case.form, isotropic.printed_velocity),
        )
        run.keep(f"{name}/growth", case.growth)
        _record_lemmas(run, name, law)
    progress(0.8, "slopes of other activations")
    s = torch.linspace(-3, 3, 121, dtype=torch.float64)
    run.keep("slopes/s", lambda: s)
    for name, slopes in SLOPES.items():
        _record_slopes(run, name, slopes, s)


class _Case:
    """Random clusters of either sign and a random direction of (v, xi)."""

    def __init__(self, config: Lemma2Config, law: RadialLaw) -> None:
        generator = torch.Generator().manual_seed(config.seed + 200)
        normal = partial(torch.randn, generator=generator, dtype=torch.float64)
        self.law = law
        self.centres, self.weights = normal(config.clusters, config.dimension), normal(config.clusters)
        direction = normal(config.dimension)
        self.direction, self.bias = direction / direction.norm(), 0.3 * normal(1)

    def nodes(self, lengths: tuple[float, ...]) -> tuple[Tensor, Tensor]:
        """v (lengths, d) and xi (lengths,) of one direction."""
        length = torch.tensor(lengths, dtype=torch.float64)
        return length[:, None] * self.direction, length * self.bias

    def form(self, lemma: Callable[..., isotropic.Velocity], lengths: tuple[float, ...]) -> Tensor:
        motion = lemma(*self.nodes(lengths), self.centres, self.weights, self.law)
        return torch.cat([motion.v, motion.xi[:, None]], -1)

    def statistic(self, inner: Tensor) -> Tensor:
        v, xi = self.nodes(LENGTHS)
        x = self.centres + inner[:, None, :]  # (samples, clusters, d)
        pull = self.weights[:, None] * ((x @ v.mT + xi) > 0).to(x)  # (samples, clusters, lengths)
        return torch.cat([pull.mT @ x, pull.sum(1)[..., None]], -1)

    def growth(self) -> Tensor:
        v, xi = self.nodes(LENGTHS)
        setting = (self.centres, self.weights, self.law)
        motion = isotropic.velocity(v, xi, *setting)
        printed = isotropic.printed_growth(v, xi, motion.xi, *setting)
        return torch.stack([printed, isotropic.objective(v, xi, *setting) - xi * motion.xi, (v * motion.v).sum(-1)])


def _record_lemmas(run: Run, name: str, law: RadialLaw) -> None:
    end = min(3.0, 0.9 * law.radius)
    s = torch.linspace(-end, end, 61, dtype=torch.float64)
    first, second = isotropic.thetas(s, law)
    run.keep(f"{name}/theta1", lambda: first)
    run.keep(f"{name}/F by differences", lambda: difference(lambda x: law.theta2(x) + x * law.theta1(x), s))
    run.keep(f"{name}/theta2", lambda: second)
    run.keep(f"{name}/theta2 by quadrature", lambda: law.theta2(0.0) - s * first + _integral(law, s))


def _record_slopes(run: Run, name: str, slopes: tuple[float, float], s: Tensor) -> None:
    law = Gaussian(3)
    below, above = slopes
    share = lambda x: below * (1 - law.theta1(x)) + above * law.theta1(x)  # E[phi'(u + s)], by its definition
    pull = lambda x: (above - below) * law.theta2(x)
    run.keep(f"slopes/{name}/truth", lambda: torch.stack([difference(share, s), difference(pull, s)]))
    run.keep(f"slopes/{name}/corrected", lambda: torch.stack(isotropic.theta_derivatives(s, law, slopes=slopes)))
    run.keep(f"slopes/{name}/printed", lambda: torch.stack(isotropic.printed_theta_derivatives(s, law, slopes=slopes)))
    run.keep(f"slopes/{name}/F", lambda: isotropic.excess(s, law, slopes=slopes))


def _integral(law: RadialLaw, s: Tensor) -> Tensor:
    """∫₀ˢ θ₁ by Gauss-Legendre."""
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(60))
    return s / 2 * (law.theta1(s[:, None] * (nodes + 1) / 2) * weights).sum(-1)


def _off(run: Run, one: str, other: str) -> float:
    return float(np.abs(run.value(one) - run.value(other)).max())


def _lemma_3(run: Run, claim: Claim, *, one: str, theta: int, tolerance: float) -> Finding:
    """`one` of each law beside θ₁ or θ₂ of it; the smallest distance from that of the next law must not be small."""
    pairs = zip(SAME_GRID, (*SAME_GRID[1:], SAME_GRID[0]), strict=True)
    wrong = np.min([_off(run, f"{law}/{one}", f"{following}/theta{theta}") for law, following in pairs])
    return by_residual(
        claim,
        printed=np.max([_off(run, f"{law}/{one}", f"{law}/theta{theta}") for law in forms.LAWS]),
        tolerance=tolerance,
        what="largest difference",
        control={f"θ{'₁₂'[theta - 1]} of another law": wrong},
    )


CLAIMS.declare(
    "mixture-weight",
    "JoMA Lemma 2",
    "v′ = ‖v‖⁻¹ Σ aⱼθ₁(rⱼ)x̄ⱼ + ‖v‖⁻³ Σ aⱼθ₂(rⱼ) v, with rⱼ = v·x̄ⱼ + ξ."
    "\n\nCorrected: v′ = Σ aⱼθ₁(ρⱼ)x̄ⱼ + Σ aⱼθ₂(ρⱼ) v/‖v‖, with ρⱼ = rⱼ/‖v‖. Only the direction of (v, ξ) "
    "matters.",
    uses=("lemma1/hyperplane-vector",),
)(partial(by_samples, part=slice(0, -1)))
CLAIMS.declare(
    "mixture-bias",
    "JoMA eq. 43",
    "ξ′ = ‖v‖⁻¹ Σ aⱼθ₁(rⱼ).\n\nCorrected: ξ′ = Σ aⱼθ₁(ρⱼ).",
    uses=("lemma1/hyperplane-mean",),
)(partial(by_samples, part=slice(-1, None)))
CLAIMS.declare(
    "f-derivative",
    "JoMA eq. 48",
    "(θ₂ + rθ₁)′ = θ₁ for a homogeneous activation."
    "\n\nExpected: Numerical differences of F give θ₁, in the scaled distance.",
    uses=("lemma2/theta-slopes",),
)(partial(_lemma_3, one="F by differences", theta=1, tolerance=DIFFERENCES))
CLAIMS.declare(
    "f-primitive",
    "JoMA eq. 49",
    "θ₂(r) = θ₂(0) − rθ₁(r) + ∫₀ʳ θ₁.\n\nExpected: Quadrature of θ₁ gives θ₂, in the scaled distance.",
    uses=("lemma2/f-derivative",),
)(partial(_lemma_3, one="theta2 by quadrature", theta=2, tolerance=EXACT))


@CLAIMS.declare("f-increasing", "JoMA Lemma 3", uses=("lemma2/f-derivative",))
def _shape(run: Run, claim: Claim) -> Finding:
    """F = θ₂ + rθ₁ increases for every homogeneous activation.

    Corrected: It increases if φ′ ≥ 0. For |x| it falls at negative distances.
    Expected: F rises from each point of a grid to the next.
    """
    step = {name: np.diff(run.value(f"slopes/{name}/F")) for name in SLOPES}
    least = {name: float(steps.min()) for name, steps in step.items()}
    monotone = [least[name] for name, (c_minus, _) in SLOPES.items() if c_minus >= 0]
    left = run.value("slopes/s")[1:] <= 0  # steps that end at a distance of zero or below
    return by_tests(
        claim,
        printed=[above("smallest increment of F, every activation", np.min(list(least.values())), 0)],
        corrected=[
            above("smallest increment of F, activations with φ′ ≥ 0", np.min(monotone), 0),
            below("largest increment of F for |x| at negative distances", step["|x|"][left].max(), 0),
        ],
        details={"smallest increment of F": least},
    )


@CLAIMS.declare("growth", "JoMA eq. 53", uses=("lemma2/mixture-weight", "lemma2/mixture-bias"))
def _growth(run: Run, claim: Claim) -> Finding:
    """‖v‖ v·v′ = Σ aⱼF(rⱼ) − ‖v‖ ξξ′.

    Corrected: v·v′ + ξξ′ = ‖v‖ Σ aⱼF(ρⱼ). This is E[g h].
    Expected: The formula gives v·v′ of the flow.
    """
    growth = np.stack([run.value(f"{law}/growth") for law in forms.LAWS])  # (laws, 3, lengths)
    off = np.abs(growth[:, :2] - growth[:, 2:])
    agree = {"the printed form at ‖v‖ = 1": off[:, 0, UNIT].max()}
    return by_forms(claim, printed=off[:, 0].max(), corrected=off[:, 1].max(), tolerance=EXACT, agree=agree)


@CLAIMS.declare("theta-slopes", "JoMA Lemma 5", uses=("lemma1/hyperplane-mean", "lemma1/hyperplane-vector"))
def _slope(run: Run, claim: Claim) -> Finding:
    """A homogeneous φ is c₋ below zero and c₊ above zero. Then θ₁′ = (c₋ + c₊)pₙ and θ₂′ = −(c₋ + c₊) r pₙ.

    Corrected: φ is c₋x below zero and c₊x above zero, and the factor is c₊ − c₋.
    Expected: The formulas equal numerical differences of θ₁ and θ₂ for four activations.
    """
    off = {
        form: {name: _off(run, f"slopes/{name}/{form}", f"slopes/{name}/truth") for name in SLOPES}
        for form in ("printed", "corrected")
    }
    return by_forms(
        claim,
        printed=np.max(list(off["printed"].values())),
        corrected=np.max(list(off["corrected"].values())),
        tolerance=DIFFERENCES,
        agree={"the printed form for ReLU, where c₋ = 0": off["printed"]["ReLU"]},
    )


def draw(run: Run) -> list[Drawing]:
    """The speed against the length of v, and Lemma 5 for four activations."""
    figure, (left, right) = panels(2, width=4.2)
    speed: Callable[[Any], Any] = partial(np.linalg.norm, axis=-1)
    left.set(xlabel="‖v‖, direction of (v, ξ) fixed", ylabel="speed ‖(v′, ξ′)‖")
    left.set_title("The speed does not depend on ‖v‖")
    forms.draw_forms(left, run, (0.5, 1, 2, 5, 10), speed(run.value("student/sampled")[0]), {}, speed)
    at, places = int(np.argmin(np.abs(run.value("slopes/s") - 0.7))), np.arange(len(SLOPES))
    for form, marker, size, colour, label in (
        ("truth", "o", 9, GREEN, "by differences"),
        ("corrected", "o", 4, CORRECTED, "corrected"),
        ("printed", "s", 4.5, PRINTED, "printed"),
    ):
        values = [run.value(f"slopes/{name}/{form}")[0, at] for name in SLOPES]
        face = "none" if form == "truth" else colour
        right.plot(places, values, marker, ms=size, mfc=face, color=colour, label=label)
    right.set_xticks(places, list(SLOPES))
    right.set(xlabel="activation φ", ylabel="θ₁′ at ρ = 0.7", xlim=(-0.5, 3.5), ylim=(-0.05, 0.75))
    right.set_title("Lemma 5: the factor is c₊ − c₋")
    first, *_, last = speed(run.value("student/printed curve"))
    caption = (
        f"The speed of a node does not depend on its length; as printed it falls from {number(first)} to "
        f"{number(last)}. In eq. 61 the values for |x| and for the identity are exchanged. "
        "Left: the speed on Student-t clusters against the length of v. Right: θ₁′ of four activations by numerical "
        "differences, as corrected and as printed."
    )
    return [Drawing("mixture-dynamics", caption, figure)]


STUDY = Study(
    name="lemma2",
    title="Lemmas 2, 3 and 5: the flow of one node on a mixture of clusters",
    version=1,
    claims=CLAIMS,
    quick=Lemma2Config(),
    paper=Lemma2Config(samples=2_000_000, clusters=8),
    run=run,
    draw=draw,
    about=(
        "The velocity of one ReLU node on clusters of four laws is sampled at three lengths of v. It is compared with "
        "eq. 42-43 as printed and as corrected. Numerical differences and quadrature of θ₁ and θ₂ check Lemma 3. "
        "Numerical differences check Lemma 5 for ReLU, leaky ReLU, identity and |x|."
    ),
)
