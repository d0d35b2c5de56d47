"""Lemmas 6 and 7, eq. 75, 84-88: the bounds behind Theorem 4, against quadratures of their own definitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import exp, pi, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.runs import Run
from joma.studies.contract import Claim, Drawing, Finding, Progress, Study
from joma.studies.drawing import BLUE, CORRECTED, GREEN, PRINTED, panels
from joma.studies.verdicts import by_residual, by_test, show
from joma.theory import salience

IDENTITY = 1e-10  # equations between integrals that are each known to about 1e-14
PLACE = 1e-6  # where a maximum is: a flat top hides the square root of rounding error
BOUND_88 = sqrt(pi / 2) + 1
LATE = 100.0  # the depth ln 1/δ at which errata #24 is looked at: near convergence by any measure


@dataclass(frozen=True)
class Config:
    """Grids in μ and in depth ln 1/(1 − r)."""

    largest_mu: float = 6.0
    targets: int = 48
    depths: int = 24
    deepest: float = 30.0

    def __post_init__(self) -> None:
        if self.targets < 2 or self.depths < 2:
            raise ValueError("targets and depths must be 2 or more")
        if not (0 < self.largest_mu <= 12 and self.deepest > 0.01):
            raise ValueError(
                f"largest_mu must lie in (0, 12] and deepest above 0.01, got {self.largest_mu:g}, {self.deepest:g}"
            )


LEMMA_6 = Claim("lemma-6", "JoMA Lemma 6", "(1 − exp(−y²))/y never exceeds 1/√2 for y ≥ 0.")
STATIONARY = Claim("lemma-6-maximum", "JoMA eq. 75", "Where (1 − exp(−y²))/y is largest, exp(−y²) = 1/(2y² + 1).")
LEMMA_7 = Claim("lemma-7", "JoMA Lemma 7", "exp(−y²/2) times the integral of exp(x²/2) from 0 to y lies in [0, 1].")
SLOPE = Claim("dF-dmu", "JoMA eq. 84", "∂F/∂μ = ζ(r, μ) − μ F(r, μ).")
ZETA = Claim("zeta-bound", "JoMA eq. 85", "ζ(r, μ) lies between 0 and √(π/2) + 1 for every r in [0, 1] and μ > 0.")
SOLVED = Claim(
    "F-by-zeta", "JoMA eq. 86", "F(r, μ) = exp(−μ²/2) [F(r, 0) + the integral of ζ(r, x) exp(x²/2) from 0 to μ]."
)
MEAN = Claim(
    "mean-value",
    "JoMA eq. 87",
    "The second term of F is ζ at some place between 0 and μ, times the function of Lemma 7.",
)
BOUND = Claim("F-bound", "JoMA eq. 88", "F(r, μ) − exp(−μ²/2) ln 1/(1 − r) lies between 0 and √(π/2) + 1.")
EXPONENT = Claim(
    "late-form",
    "JoMA eq. 88",
    "Near convergence F − exp(−μ²) ln 1/δ stays between 0 and √(π/2) + 1.",
    "F − exp(−μ²/2) ln 1/δ does.",
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Maxima by grid and golden section, identities on a grid of targets and depths."""
    progress(0.0, "maxima of the lemmas")
    y = np.linspace(0.0, 6.0, 601)
    run.keep("y", lambda: y)
    run.keep("g/top", lambda: _peak(_g, 6.0))
    run.keep("G/top", lambda: _peak(_dawson, 10.0))
    run.keep("zeta/top", lambda: _peak(lambda mu: _zeta(torch.ones(()), torch.as_tensor(mu)).numpy(), 35.0))
    run.keep("R/top", lambda: _peak(_whole_remainder, 12.0))
    run.keep("g", lambda: _g(y[1:]))
    run.keep("G", lambda: _dawson(y[1:]))
    progress(0.4, "identities")
    mu = torch.linspace(config.largest_mu / config.targets, config.largest_mu, config.targets, dtype=torch.float64)
    depth = torch.logspace(-2, np.log10(config.deepest), config.depths, dtype=torch.float64)[:, None]
    run.keep("mu", lambda: mu)
    run.keep("depth", lambda: depth[:, 0])
    run.keep("F", lambda: _elapsed(depth, mu))
    run.keep("F of joma", lambda: salience.time_to_depth(depth, mu))
    run.keep("slope", lambda: _slope(depth, mu))
    run.keep("zeta", lambda: _zeta(-torch.expm1(-depth), mu))
    run.keep("zeta integral", lambda: _zeta_integral(depth, mu))
    run.keep("zeta range", lambda: _zeta_range(depth, mu))
    run.keep("lemma 7 at mu", lambda: _dawson(mu.numpy()))
    run.keep("late F", lambda: _elapsed(torch.full((1, 1), LATE, dtype=torch.float64), mu)[0])


def judge(run: Run) -> list[Finding]:
    """Maxima against their bounds, both sides of each equation against each other."""
    mu, depth, time = run.value("mu"), run.value("depth")[:, None], run.value("F")
    g, dawson, zeta, rest = (run.value(f"{name}/top") for name in ("g", "G", "zeta", "R"))
    zetas, floor = run.value("zeta"), np.exp(-(mu**2) / 2)
    second = time - floor * depth
    place = second / run.value("lemma 7 at mu")
    low, high = run.value("zeta range")
    outside = np.maximum(np.maximum(low - place, place - high), 0.0)
    late = run.value("late F")
    printed, corrected = late - np.exp(-(mu**2)) * LATE, late - floor * LATE
    worst = int(np.abs(printed).argmax())
    agreement = float(np.abs(run.value("F of joma") / time - 1).max())
    return [
        by_test(
            LEMMA_6,
            measured=f"largest value {g[1]:.6f}, at y = {g[0]:.6f}",
            expected=f"at most {1 / sqrt(2):.4f}",
            as_printed=bool(g[1] <= 1 / sqrt(2)),
        ),
        by_residual(
            STATIONARY, printed=abs(exp(-(g[0] ** 2)) - 1 / (2 * g[0] ** 2 + 1)), tolerance=PLACE, expected="equality"
        ),
        by_test(
            LEMMA_7,
            measured=f"from {show(float(run.value('G').min()))} to {dawson[1]:.6f}, reached at y = {dawson[0]:.6f}",
            expected="in [0, 1]",
            as_printed=bool(dawson[1] <= 1 and run.value("G").min() >= 0),
        ),
        by_residual(
            SLOPE,
            printed=float(np.abs(run.value("slope") - (zetas - mu * time)).max()),
            tolerance=IDENTITY,
            expected="equality on a grid of r and μ",
        ),
        by_test(
            ZETA,
            measured=f"smallest {show(float(zetas.min()))}, largest {zeta[1]:.4f} at r = 1, μ = {zeta[0]:.4f}",
            expected=f"in [0, {BOUND_88:.4f}]",
            as_printed=bool(zetas.min() >= 0 and max(zeta[1], zetas.max()) <= BOUND_88),
        ),
        by_residual(
            SOLVED,
            printed=float(np.abs(second - run.value("zeta integral")).max()),
            tolerance=IDENTITY,
            expected=f"equality on a grid of r and μ (joma's F is off the integral by {show(agreement)}, relatively)",
        ),
        by_residual(
            MEAN, printed=float(outside.max()), tolerance=IDENTITY, expected="nowhere outside the range of ζ on [0, μ]"
        ),
        by_test(
            BOUND,
            measured=f"from {show(float(second.min()))} to {rest[1]:.6f}, reached at r = 1, μ = {rest[0]:.3f}: "
            f"the printed bound is safe and {BOUND_88 / rest[1]:.1f} times too wide",
            expected=f"in [0, {BOUND_88:.4f}]",
            as_printed=bool(second.min() >= -IDENTITY and max(rest[1], second.max()) <= BOUND_88),
        ),
        by_test(
            EXPONENT,
            measured=f"at ln 1/δ = {LATE:g}: printed up to {printed.max():.3g} (at μ = {mu[worst]:.3g}), "
            f"corrected from {show(float(corrected.min()))} to {show(float(corrected.max()))}",
            expected=f"in [0, {BOUND_88:.4f}]",
            as_printed=bool(printed.min() >= -IDENTITY and printed.max() <= BOUND_88),
            as_corrected=bool(corrected.min() >= -IDENTITY and corrected.max() <= BOUND_88),
            residuals={"printed": float(_excess(printed)), "corrected": float(_excess(corrected))},
        ),
    ]


def draw(run: Run) -> list[Drawing]:
    """The two lemmas under their bounds, and what is left of F late in training."""
    y, mu, late = run.value("y")[1:], run.value("mu"), run.value("late F")
    figure, (left, right) = panels(2, width=3.7, height=2.9)
    for name, bound, colour, label in (
        ("g", 1 / sqrt(2), BLUE, "Lemma 6: (1 − exp(−y²))/y"),
        ("G", 1.0, GREEN, "Lemma 7: exp(−y²/2) ∫ exp(x²/2)"),
    ):
        left.plot(y, run.value(name), color=colour, label=label)
        left.axhline(bound, ls="--", lw=1, color=colour)
        left.plot(*run.value(f"{name}/top"), "o", ms=4, color=colour)
    left.set(xlabel="y", ylabel="value", ylim=(0, 1.45), title="The lemmas (dashed: their bounds)")
    left.legend(loc="upper right")
    floor = np.exp(-(mu**2) / 2)
    right.plot(mu, late - floor**2 * LATE, color=PRINTED, label="printed: F − exp(−μ²) ln 1/δ")
    right.plot(mu, late - floor * LATE, color=CORRECTED, label="corrected: F − exp(−μ²/2) ln 1/δ")
    right.axhline(BOUND_88, ls="--", lw=1, color="gray")
    right.annotate("√(π/2) + 1", (mu[-1], BOUND_88 * 1.12), ha="right", fontsize=8)
    right.set(yscale="log", ylim=(0.1, 400), xlabel="μ", ylabel="time left over")
    right.set_title(f"What eq. 88 bounds, at ln 1/δ = {LATE:g}")
    right.legend(loc="upper right")
    caption = (
        "Left: the functions of Lemmas 6 and 7 stay below their bounds; dots mark the true maxima. Right: the part of "
        "the time F that should stay bounded near convergence, with the exponent as printed after eq. 88 and as "
        "corrected."
    )
    return [Drawing("convergence-bounds", caption, figure)]


def _g(y: Any) -> Any:
    return -np.expm1(-(y**2)) / y


def _dawson(y: Any) -> Any:
    """The function of Lemma 7 by quadrature: the integral of y exp(−y²(1 − s²)/2) over s in [0, 1]."""
    s, weight = _rule(120)
    y = np.asarray(y)[..., None]
    return (y * np.exp(-(y**2) * (1 - s**2) / 2) * weight).sum(-1)


def _zeta(r: Tensor, mu: Tensor) -> Tensor:
    return sqrt(pi / 2) * torch.erf(r * mu / sqrt(2)) - torch.expm1(-((r * mu) ** 2) / 2) / mu


def _elapsed(depth: Tensor, mu: Tensor) -> Tensor:
    """F(r, μ) by quadrature of eq. 79 in x = 1 − exp(−l), and nothing else: ∫ exp(−μ²x²/2) dl from 0 to ln 1/(1 − r).

    Beyond l = 45 the integrand is exp(−μ²/2) to the last digit.
    """
    nodes, weight = (torch.from_numpy(a) for a in _rule(24))
    edges = torch.linspace(0, 1, 17, dtype=torch.float64) ** 3  # dense near 0, where exp(−μ²l²/2) falls fast
    near = depth.clamp(max=45.0)
    total = torch.exp(-(mu**2) / 2) * (depth - near)
    for start, end in pairwise(edges):
        x = -torch.expm1(-near[..., None] * (start + (end - start) * nodes))
        panel = (torch.exp(-((mu[..., None] * x) ** 2) / 2) * weight).sum(-1)
        total = total + near * (end - start) * panel
    return total


def _whole_remainder(mu: Any) -> Any:
    """F − exp(−μ²/2) ln 1/(1 − r) at r = 1."""
    target, level = torch.as_tensor(mu), torch.tensor(45.0, dtype=torch.float64)
    return (_elapsed(level, target) - torch.exp(-(target**2) / 2) * level).numpy()


def _slope(depth: Tensor, mu: Tensor) -> Tensor:
    """∂F/∂μ at fixed r, by differentiating the quadrature itself."""
    target = mu.expand(len(depth), -1).clone().requires_grad_()
    (slope,) = torch.autograd.grad(_elapsed(depth, target).sum(), target)
    return slope


def _zeta_integral(depth: Tensor, mu: Tensor) -> Tensor:
    """exp(−μ²/2) times the integral of ζ(r, x) exp(x²/2) over [0, μ]."""
    nodes, weight = (torch.from_numpy(a) for a in _rule(80))
    x = mu[:, None] * nodes
    zeta = _zeta(-torch.expm1(-depth)[..., None], x)
    return mu * (zeta * torch.exp((x**2 - mu[:, None] ** 2) / 2) * weight).sum(-1)


def _zeta_range(depth: Tensor, mu: Tensor) -> Tensor:
    """Smallest and largest ζ(r, x) for x in (0, μ]. (2, depths, targets)."""
    x = mu[:, None] * torch.linspace(1e-6, 1, 200, dtype=torch.float64)
    zeta = _zeta(-torch.expm1(-depth)[..., None], x)
    return torch.stack([zeta.amin(-1), zeta.amax(-1)])


def _rule(nodes: int) -> tuple[Any, Any]:
    """Gauss-Legendre on [0, 1]."""
    x, weight = np.polynomial.legendre.leggauss(nodes)
    return (x + 1) / 2, weight / 2


def _peak(function: Callable[[Any], Any], high: float) -> Any:
    """Where in (0, high] `function` is largest and how large: a grid, then golden sections of the best interval."""
    grid = np.linspace(0.0, high, 401)[1:]
    best = int(function(grid).argmax())
    a, b = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    golden = (sqrt(5) - 1) / 2
    while b - a > 1e-9:
        c, d = b - golden * (b - a), a + golden * (b - a)
        left, right = function(np.array([c, d]))
        a, b = (a, d) if left > right else (c, b)
    middle = (a + b) / 2
    return np.array([middle, float(function(np.array([middle]))[0])])


def _excess(values: Any) -> Any:
    """How far the worst value is outside [0, √(π/2) + 1]."""
    return np.maximum(np.maximum(values - BOUND_88, -values), 0.0).max()


STUDY = Study(
    name="lemma6",
    title="Lemmas 6 and 7 and the bounds behind Theorem 4",
    version=1,
    claims=(LEMMA_6, STATIONARY, LEMMA_7, SLOPE, ZETA, SOLVED, MEAN, BOUND, EXPONENT),
    quick=Config(),
    paper=Config(largest_mu=12.0, targets=240, depths=120, deepest=200.0),
    run=run,
    judge=judge,
    draw=draw,
    about=(
        "Every function is evaluated by Gauss-Legendre quadrature of its own definition, on a grid of targets μ and "
        "depths ln 1/(1 − r). Maxima come from a grid and golden sections; derivatives from differentiating the "
        "quadrature. Both sides of each equation are recorded and compared."
    ),
)
