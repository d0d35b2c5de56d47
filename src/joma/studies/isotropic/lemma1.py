"""Lemma 1, eq. 23, 33-36: what a node sees of an isotropic cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, each_claim
from joma.claims.evidence import Test, above, at_least, at_most, below
from joma.claims.verdicts import by_residual, by_tests
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import course, listing, number
from joma.figures.style import BLUE, CORRECTED, GREEN, ORANGE, PRINTED, PURPLE, panels
from joma.runs import Run
from joma.studies.isotropic._isotropic import CURVE, LAWS, LENGTHS, by_samples, laws, plain_ticks, sample_mean
from joma.theory import isotropic
from joma.theory.radial import Ball, ExponentialRadial, Gaussian, RadialLaw, StudentT

EXACT = 1e-12
NEAR = 0.02  # of θ₁ to 0 and 1 at the ends of the grid, which heavy tails only approach
STEP, SIGMOID = 0, 1
PSIS = (None, torch.sigmoid)
RHO = 0.4  # the signed distance in all cases


@dataclass(frozen=True)
class Config:
    """Four laws in a subspace, seen by a v that sticks out of it, at three lengths."""

    samples: int = 200_000
    ambient: int = 7
    dimension: int = 5
    """Of the subspace that the clusters live in."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.ambient < self.dimension:
            raise ValueError(
                f"ambient must be at least the dimension of the subspace, {self.dimension}, got {self.ambient}"
            )


MEAN = Claim(
    "hyperplane-mean",
    "JoMA Lemma 1",
    "E[ψ(v·x + ξ)] = θ₁(r)/‖v‖ with r = v·x̄ + ξ.",
    "It is ∫ψ(‖v‖u + r)pₙ(u)du. For a step this is θ₁(r/‖v‖). ‖v‖ is the length of v within the subspace.",
    uses=("lemma1/marginal-density",),
)
VECTOR = Claim(
    "hyperplane-vector",
    "JoMA eq. 23",
    "E[x ψ(v·x + ξ)] = θ₁(r) x̄/‖v‖ + θ₂(r) v/‖v‖³.",
    "It is θ₁ x̄ + θ₂ v/‖v‖, without other powers of ‖v‖. For a step both θ are taken at the distance r/‖v‖.",
    uses=("lemma1/marginal-density",),
)
LIMITS = Claim(
    "theta-limits",
    "JoMA Lemma 1",
    "If ψ increases from 0 to 1, then θ₁ also does, and θ₂ > 0.",
    "θ₂ > 0 where the hyperplane cuts the support of the cluster. Outside a bounded support a step has θ₂ = 0.",
    uses=("lemma1/hyperplane-mean", "lemma1/hyperplane-vector"),
)
MARGINAL = Claim(
    "marginal-density",
    "JoMA eq. 36",
    "The marginal pₙ is an integral of p₀(√(y² + l²)) lⁿ⁻², with the constants printed for even and odd n.",
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Sample means beside both forms of the lemma, then the functions themselves on a grid."""
    run.keep("curve/lengths", lambda: np.array(CURVE))
    for i, (name, law) in enumerate(zip(LAWS, laws(config.dimension), strict=True)):
        progress(0.2 * i, f"sampling the {LAWS[name]} law")
        _record_law(run, name, _Case(config, law), config.samples, config.seed + i)
    progress(0.8, "θ₁, θ₂ and the marginals")
    s = torch.linspace(-6, 6, 241, dtype=torch.float64)
    run.keep("thetas/s", lambda: s)
    run.keep("thetas", lambda: torch.stack([_thetas(law, s) for law in laws(config.dimension)]))
    run.keep("marginal error", _marginal_error)


def _record_law(run: Run, name: str, case: _Case, samples: int, seed: int) -> None:
    run.keep(f"{name}/sampled", lambda: case.sampled(samples, seed))
    run.keep(f"{name}/corrected", lambda: case.form(isotropic.hyperplane_mean, LENGTHS))
    run.keep(f"{name}/printed", lambda: case.form(isotropic.printed_hyperplane_mean, LENGTHS))
    run.keep(f"{name}/corrected curve", lambda: case.form(isotropic.hyperplane_mean, CURVE)[..., 0])
    run.keep(f"{name}/printed curve", lambda: case.form(isotropic.printed_hyperplane_mean, CURVE)[..., 0])


def _mean(run: Run) -> Finding:
    return by_samples(MEAN, run, slice(0, 1))


def _vector(run: Run) -> Finding:
    return by_samples(VECTOR, run, slice(1, None))


def _limits(run: Run) -> Finding:
    thetas, s = run.value("thetas"), run.value("thetas/s")
    first, second = thetas[:, :, 0], thetas[:, :, 1]  # (laws, psis, s)
    step, sigmoid = second[:, STEP], second[:, SIGMOID]
    return by_tests(
        LIMITS,
        expected="θ₁ rises from 0 to 1, and θ₂ is positive.",
        printed=[*_rising(first), above("smallest θ₂", second.min(), 0)],
        corrected=[
            *_rising(first),
            above("smallest θ₂ of a step inside the support", step[_inside(s)].min(), 0),
            at_least("smallest θ₂ of a step", step.min(), 0),
            above("smallest θ₂ of a sigmoid", sigmoid.min(), 0),
        ],
        controls=[below("smallest increment of θ₂, which must fall again", np.diff(second).min(), 0)],
    )


def _rising(first: Any) -> list[Test]:
    """That θ₁ rises on the grid, and for a step from 0 to 1."""
    return [
        at_least("smallest increment of θ₁", np.diff(first).min(), 0),
        at_most("θ₁ of a step far below zero distance", first[:, STEP, 0].max(), NEAR),
        at_least("θ₁ of a step far above zero distance", first[:, STEP, -1].min(), 1 - NEAR),
    ]


def _marginal(run: Run) -> Finding:
    return by_residual(
        MARGINAL,
        printed=run.value("marginal error").max(),
        tolerance=EXACT,
        what="relative error",
        expected="Eq. 36 equals the closed forms of four laws for n = 2 to 9.",
    )


def draw(run: Run) -> list[Drawing]:
    """E[psi] against the length of v, and the two functions of the distance."""
    figure, (left, right) = panels(2, width=4.2)
    seen = [_draw_mean(run, left, STEP, "step"), _draw_mean(run, right, SIGMOID, "sigmoid")]
    printed = run.value("student/printed curve")[:, STEP]
    caption = (
        "The printed mean is right only at ‖v‖ = 1. For a step the truth does not depend on ‖v‖, but the printed form "
        f"falls from {number(printed[0])} to {number(printed[-1])}. The panels show the mean of ψ(v·x + ξ) over a "
        "Student-t cluster against the length of v. The cluster keeps its distance from the hyperplane."
    )
    alt = "Two panels, both on log scales. " + " ".join(seen)
    return [Drawing("hyperplane-mean", caption, figure, alt), _draw_thetas(run)]


def _draw_mean(run: Run, axis: Any, psi: int, name: str) -> str:
    lengths, law = run.value("curve/lengths"), "student"
    sampled = run.value(f"{law}/sampled")[:, :, psi, 0]
    printed, corrected = (run.value(f"{law}/{form} curve")[:, psi] for form in ("printed", "corrected"))
    axis.plot(lengths, printed, color=PRINTED, label="printed:\nθ₁(r)/‖v‖")
    axis.plot(lengths, corrected, color=CORRECTED, label="corrected")
    axis.errorbar(LENGTHS, sampled[0], 3 * sampled[1], fmt="none", color=GREEN)
    axis.plot(LENGTHS, sampled[0], "o", ms=5, color=GREEN, label="sampled")
    axis.set(xscale="log", yscale="log", xlabel="‖v‖ (the distance r/‖v‖ stays 0.4)", ylabel="E[ψ(v·x + ξ)]")
    axis.set_title(f"Mean of a {name}, {LAWS[law]}")
    plain_ticks(axis.xaxis, (0.3, 1, 2.5))
    plain_ticks(axis.yaxis, (0.2, 0.5, 1, 2))
    label_lines(axis)
    return (
        f"The {name}, ‖v‖ from {number(lengths[0])} to {number(lengths[-1])}: the printed line "
        f"{course(lengths, printed, at='length', log=True)}, the corrected line "
        f"{course(lengths, corrected, at='length', log=True)} and passes through the {len(LENGTHS)} sampled dots."
    )


def _draw_thetas(run: Run) -> Drawing:
    figure, axes = panels(2, width=4.2)
    s, thetas = run.value("thetas/s"), run.value("thetas")
    for axis, which in zip(axes, (0, 1), strict=True):
        for i, (name, colour) in enumerate(zip(LAWS.values(), (BLUE, ORANGE, GREEN, PURPLE), strict=True)):
            axis.plot(s, thetas[i, STEP, which], color=colour, label=name)
            axis.plot(s, thetas[i, SIGMOID, which], color=colour, lw=1, ls=":")
        end_label(axis, "dotted: sigmoid", ls=":", lw=1)
    axes[0].set(xlabel="signed distance ρ", ylabel="θ₁ = E[ψ]", title="Share of the cluster that is active")
    axes[1].set(xlabel="signed distance ρ", ylabel="θ₂ = E[u ψ]", title="Pull along v")
    for axis in axes:
        label_lines(axis)
    peaks = [f"{name} {number(thetas[i, STEP, 1].max())}" for i, name in enumerate(LAWS.values())]
    caption = (
        "θ₁ rises from 0 to 1 and θ₂ is never negative. For a step θ₂ peaks at distance 0, at "
        f"{number(thetas[:, STEP, 1].min(0).max())} to {number(thetas[:, STEP, 1].max())}. The panels show θ₁ and "
        "θ₂ of four isotropic laws against the signed distance, for a step (solid) and for a sigmoid at ‖v‖ = 1 "
        "(dotted)."
    )
    alt = (
        f"Two panels over distances from {number(s[0])} to {number(s[-1])}. Left: all curves of θ₁ rise from near 0 to "
        f"near 1 and cross at distance 0; the step rises more steeply than the sigmoid. Right: θ₂ has one peak at "
        f"distance 0. The peaks of the step are {listing(peaks)}; those of the sigmoid are lower and wider."
    )
    return Drawing("thetas", caption, figure, alt)


class _Case:
    """One law in a random subspace, with a centre and a direction of v; v has a part outside the subspace too."""

    def __init__(self, config: Config, law: RadialLaw) -> None:
        generator = torch.Generator().manual_seed(config.seed + 100)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.law = law
        self.basis = torch.linalg.qr(normal(config.ambient, config.dimension)).Q
        inside = self.basis @ normal(config.dimension)
        self.direction = inside / inside.norm()
        beside = normal(config.ambient)
        self.details = beside - self.basis @ (self.basis.mT @ beside)
        self.centre = normal(config.ambient)

    def hyperplanes(self, lengths: tuple[float, ...]) -> tuple[Tensor, Tensor]:
        """v (lengths, d) and the xi (lengths,) that puts each at distance RHO."""
        length = torch.tensor(lengths, dtype=torch.float64)
        v = length[:, None] * (self.direction + self.details)
        return v, RHO * length - v @ self.centre

    def form(self, lemma: Callable[..., isotropic.HyperplaneMean], lengths: tuple[float, ...]) -> Tensor:
        """(lengths, psis, 1 + d): the mean, then the vector."""
        v, xi = self.hyperplanes(lengths)
        cases = [lemma(v, xi, self.centre, self.law, psi=psi, basis=self.basis) for psi in PSIS]
        return torch.stack([torch.cat([case.mean[:, None], case.vector], -1) for case in cases], 1)

    def sampled(self, count: int, seed: int) -> Tensor:
        """(2, lengths, psis, 1 + d): sample means and their standard errors."""
        v, xi = self.hyperplanes(LENGTHS)

        def statistic(inner: Tensor) -> Tensor:
            x = self.centre + inner @ self.basis.mT
            active = x @ v.mT + xi  # (samples, lengths)
            psi = torch.stack([(active > 0).to(active), torch.sigmoid(active)], -1)[..., None]
            return torch.cat([psi, psi * x[:, None, None, :]], -1)

        return sample_mean(statistic, self.law, count, seed)


def _thetas(law: RadialLaw, s: Tensor) -> Tensor:
    """(psis, 2, s) at ‖v‖ = 1."""
    return torch.stack(
        [torch.stack(isotropic.thetas(s, law)), torch.stack(isotropic.smooth_thetas(s, 1.0, law, torch.sigmoid))]
    )


def _inside(s: Any) -> Any:
    """Where the hyperplane cuts the support, (laws, s): everywhere but beyond the ball."""
    radius = np.array([law.radius for law in laws(2)])
    return np.abs(s) < 0.999 * radius[:, None]


def _marginal_error() -> Tensor:
    """Relative error of eq. 36 against the closed marginals, (laws, dimensions)."""
    s = torch.linspace(-1.9, 1.9, 39, dtype=torch.float64)
    rows = []
    for n in range(2, 10):
        tried: tuple[RadialLaw, ...] = (Gaussian(n), Ball(n, 2.0), StudentT(n, 3.0), ExponentialRadial(n, 2.0))
        errors = [(isotropic.printed_marginal(s, law) / law.density(s) - 1).abs().max() for law in tried]
        rows.append(torch.stack(errors))
    return torch.stack(rows, 1)


STUDY = Study(
    name="lemma1",
    title="Lemma 1: the mean of a hyperplane function over an isotropic cluster",
    version=1,
    claims=(MEAN, VECTOR, LIMITS, MARGINAL),
    quick=Config(),
    paper=Config(samples=2_000_000),
    run=run,
    judge=each_claim(_mean, _vector, _limits, _marginal),
    draw=draw,
    about=(
        "Clusters of four laws lie in a random subspace. The weight v has three lengths within it and a part outside. "
        "The reference is the sample mean of ψ and xψ, for a step and a sigmoid. The printed and the corrected lemma "
        "are compared with it in standard errors. The marginal of eq. 36 is compared with closed forms."
    ),
)
