"""Lemma 1, eq. 23, 33-36: what a node sees of an isotropic cluster."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, StudyConfig
from joma.claims.declare import Claims
from joma.claims.verdicts import above, at_least, at_most, below, by_residual, by_tests
from joma.figures.labels import end_label
from joma.figures.reading import number
from joma.figures.style import BLUE, GREEN, ORANGE, PURPLE, panels
from joma.runs import Run
from joma.studies.isotropic._forms import CURVE, LAWS, LENGTHS, by_samples, draw_forms, laws, record_forms, sample_mean
from joma.theory import isotropic
from joma.theory.radial import RadialLaw

EXACT = 1e-12
NEAR = 0.02  # of θ₁ to 0 and 1 at the ends of the grid, which heavy tails only approach
STEP, SIGMOID = 0, 1
PSIS = (None, torch.sigmoid)
RHO = 0.4  # the signed distance in all cases


@dataclass(frozen=True)
class Lemma1Config(StudyConfig):
    """Four laws in a subspace, seen by a v that sticks out of it, at three lengths."""

    samples: int = 200_000
    ambient: int = 7
    dimension: int = 5
    """Of the subspace that the clusters live in."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ambient < self.dimension:
            raise ValueError(
                f"ambient must be at least the dimension of the subspace, {self.dimension}, got {self.ambient}"
            )


CLAIMS = Claims()


def run(config: Lemma1Config, run: Run, progress: Progress) -> None:
    """Sample means beside both forms of the lemma, then the functions themselves on a grid."""
    run.keep("curve/lengths", lambda: np.array(CURVE))
    for i, (name, law) in enumerate(zip(LAWS, laws(config.dimension), strict=True)):
        progress(0.2 * i, f"sampling the {LAWS[name]} law")
        case = _Case(config, law)
        record_forms(
            run,
            name,
            partial(sample_mean, case.statistic, law, config.samples, config.seed + i),
            drawn=(..., 0),
            corrected=partial(case.form, isotropic.hyperplane_mean),
            printed=partial(case.form, isotropic.printed_hyperplane_mean),
        )
    progress(0.8, "θ₁, θ₂ and the marginals")
    s = torch.linspace(-6, 6, 241, dtype=torch.float64)
    run.keep("thetas/s", lambda: s)
    run.keep("thetas", lambda: torch.stack([_thetas(law, s) for law in laws(config.dimension)]))
    run.keep("marginal error", _marginal_error)


class _Case:
    """One law in a random subspace, with a centre and a direction of v; v has a part outside the subspace too."""

    def __init__(self, config: Lemma1Config, law: RadialLaw) -> None:
        generator = torch.Generator().manual_seed(config.seed + 100)
        normal = partial(torch.randn, generator=generator, dtype=torch.float64)
        self.law = law
        self.basis = torch.linalg.qr(normal(config.ambient, config.dimension)).Q
        inside = self.basis @ normal(config.dimension)
        self.direction = inside / inside.norm()
        anywhere = normal(config.ambient)
        self.outside = anywhere - self.basis @ (self.basis.mT @ anywhere)
        self.centre = normal(config.ambient)

    def hyperplanes(self, lengths: tuple[float, ...]) -> tuple[Tensor, Tensor]:
        length = torch.tensor(lengths, dtype=torch.float64)
        v = length[:, None] * (self.direction + self.outside)
        return v, RHO * length - v @ self.centre

    def form(self, lemma: Callable[..., isotropic.HyperplaneMean], lengths: tuple[float, ...]) -> Tensor:
        v, xi = self.hyperplanes(lengths)
        cases = [lemma(v, xi, self.centre, self.law, psi=psi, basis=self.basis) for psi in PSIS]
        return torch.stack([torch.cat([case.mean[:, None], case.vector], -1) for case in cases], 1)

    def statistic(self, inner: Tensor) -> Tensor:
        """(samples, lengths, psis, 1 + d): ψ and x ψ."""
        v, xi = self.hyperplanes(LENGTHS)
        x = self.centre + inner @ self.basis.mT
        active = x @ v.mT + xi  # (samples, lengths)
        psi = torch.stack([(active > 0).to(active), torch.sigmoid(active)], -1)[..., None]
        return torch.cat([psi, psi * x[:, None, None, :]], -1)


def _thetas(law: RadialLaw, s: Tensor) -> Tensor:
    """(psis, 2, s) at ‖v‖ = 1."""
    return torch.stack(
        [torch.stack(isotropic.thetas(s, law)), torch.stack(isotropic.smooth_thetas(s, 1.0, law, torch.sigmoid))]
    )


def _marginal_error() -> Tensor:
    """Relative error of eq. 36 against the closed marginals, (laws, dimensions)."""
    s = torch.linspace(-1.9, 1.9, 39, dtype=torch.float64)
    rows = [
        [(isotropic.printed_marginal(s, law) / law.density(s) - 1).abs().max() for law in laws(n)] for n in range(2, 10)
    ]
    return torch.tensor(rows, dtype=torch.float64).mT


CLAIMS.declare(
    "hyperplane-mean",
    "JoMA Lemma 1",
    "E[ψ(v·x + ξ)] = θ₁(r)/‖v‖ with r = v·x̄ + ξ."
    "\n\nCorrected: It is ∫ψ(‖v‖u + r)pₙ(u)du. For a step this is θ₁(r/‖v‖). ‖v‖ is the length of v within the "
    "subspace.",
    uses=("lemma1/marginal-density",),
)(partial(by_samples, part=slice(0, 1)))
CLAIMS.declare(
    "hyperplane-vector",
    "JoMA eq. 23",
    "E[x ψ(v·x + ξ)] = θ₁(r) x̄/‖v‖ + θ₂(r) v/‖v‖³."
    "\n\nCorrected: It is θ₁ x̄ + θ₂ v/‖v‖, without other powers of ‖v‖. For a step both θ are taken at the "
    "distance r/‖v‖.",
    uses=("lemma1/marginal-density",),
)(partial(by_samples, part=slice(1, None)))


@CLAIMS.declare("theta-limits", "JoMA Lemma 1", uses=("lemma1/hyperplane-mean", "lemma1/hyperplane-vector"))
def _limits(run: Run, claim: Claim) -> Finding:
    """If ψ increases from 0 to 1, then θ₁ also does, and θ₂ > 0.

    Corrected: θ₂ > 0 where the hyperplane cuts the support of the cluster. Outside a bounded support a step has θ₂ = 0.
    Expected: θ₁ rises from 0 to 1, and θ₂ is positive.
    """
    thetas, s = run.value("thetas"), run.value("thetas/s")
    first, second = thetas[:, :, 0], thetas[:, :, 1]  # (laws, psis, s)
    step, sigmoid = second[:, STEP], second[:, SIGMOID]
    # The hyperplane cuts the support everywhere but beyond the ball.
    inside = np.abs(s) < 0.999 * np.array([[law.radius] for law in laws(2)])
    rising = [
        at_least("smallest increment of θ₁", np.diff(first).min(), 0),
        at_most("θ₁ of a step far below zero distance", first[:, STEP, 0].max(), NEAR),
        at_least("θ₁ of a step far above zero distance", first[:, STEP, -1].min(), 1 - NEAR),
    ]
    return by_tests(
        claim,
        printed=[*rising, above("smallest θ₂", second.min(), 0)],
        corrected=[
            *rising,
            above("smallest θ₂ of a step inside the support", step[inside].min(), 0),
            at_least("smallest θ₂ of a step", step.min(), 0),
            above("smallest θ₂ of a sigmoid", sigmoid.min(), 0),
        ],
        controls=[below("smallest increment of θ₂, which must fall again", np.diff(second).min(), 0)],
    )


@CLAIMS.declare("marginal-density", "JoMA eq. 36")
def _marginal(run: Run, claim: Claim) -> Finding:
    """The marginal pₙ is an integral of p₀(√(y² + l²)) lⁿ⁻², with the constants printed for even and odd n.

    Expected: Eq. 36 equals the closed forms of four laws for n = 2 to 9.
    """
    off = run.value("marginal error").max()
    return by_residual(claim, printed=off, tolerance=EXACT, what="relative error")


def draw(run: Run) -> list[Drawing]:
    """E[psi] against the length of v, and the two functions of the distance."""
    figure, axes = panels(2, width=4.2)
    for psi, (axis, name) in enumerate(zip(axes, ("step", "sigmoid"), strict=True)):
        mean, error = run.value("student/sampled")[:, :, psi, 0]
        axis.errorbar(LENGTHS, mean, 3 * error, fmt="none", color=GREEN)
        axis.set(xlabel="‖v‖ (the distance r/‖v‖ stays 0.4)", ylabel="E[ψ(v·x + ξ)]")
        axis.set_title(f"Mean of a {name}, {LAWS['student']}")
        printed = {"printed": "printed:\nθ₁(r)/‖v‖"}
        draw_forms(axis, run, (0.2, 0.5, 1, 2), mean, printed, lambda curve, psi=psi: curve[:, psi])
    curve = run.value("student/printed curve")[:, STEP]
    caption = (
        "The printed mean is right only at ‖v‖ = 1. For a step the truth does not depend on ‖v‖, but the printed form "
        f"falls from {number(curve[0])} to {number(curve[-1])}. The panels show the mean of ψ(v·x + ξ) over a "
        "Student-t cluster against the length of v. The cluster keeps its distance from the hyperplane."
    )
    return [Drawing("hyperplane-mean", caption, figure), _draw_thetas(run)]


def _draw_thetas(run: Run) -> Drawing:
    figure, axes = panels(2, width=4.2)
    s, thetas = run.value("thetas/s"), run.value("thetas")
    for which, axis in enumerate(axes):
        for i, (name, colour) in enumerate(zip(LAWS.values(), (BLUE, ORANGE, GREEN, PURPLE), strict=True)):
            axis.plot(s, thetas[i, STEP, which], color=colour, label=name)
            axis.plot(s, thetas[i, SIGMOID, which], color=colour, lw=1, ls=":")
        end_label(axis, "dotted: sigmoid", ls=":", lw=1)
        axis.set_xlabel("signed distance ρ")
    axes[0].set(ylabel="θ₁ = E[ψ]", title="Share of the cluster that is active")
    axes[1].set(ylabel="θ₂ = E[u ψ]", title="Pull along v")
    caption = (
        "θ₁ rises from 0 to 1 and θ₂ is never negative. For a step θ₂ peaks at distance 0, at "
        f"{number(thetas[:, STEP, 1].min(0).max())} to {number(thetas[:, STEP, 1].max())}. The panels show θ₁ and "
        "θ₂ of four isotropic laws against the signed distance, for a step (solid) and for a sigmoid at ‖v‖ = 1 "
        "(dotted)."
    )
    return Drawing("thetas", caption, figure)


STUDY = Study(
    name="lemma1",
    title="Lemma 1: the mean of a hyperplane function over an isotropic cluster",
    version=1,
    claims=CLAIMS,
    quick=Lemma1Config(),
    paper=Lemma1Config(samples=2_000_000),
    run=run,
    draw=draw,
    about=(
        "Clusters of four laws lie in a random subspace. The weight v has three lengths within it and a part outside. "
        "The reference is the sample mean of ψ and xψ, for a step and a sigmoid. The printed and the corrected lemma "
        "are compared with it in standard errors. The marginal of eq. 36 is compared with closed forms."
    ),
)
