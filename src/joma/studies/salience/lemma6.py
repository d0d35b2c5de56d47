"""Lemmas 6 and 7, eq. 75, 84-88: the bounds behind Theorem 4, against quadratures of their own definitions."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import exp, pi, sqrt
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Above, Claim, Drawing, Finding, Least, Progress, Study, StudyConfig, Within
from joma.claims.declare import Claims
from joma.claims.verdicts import Test, at_least, at_most, by_residual, by_tests
from joma.figures import bands
from joma.figures.reading import number
from joma.figures.style import BLUE, CORRECTED, GREEN, PRINTED, panels
from joma.runs import Run
from joma.theory import salience

IDENTITY = 1e-10  # equations between integrals that are each known to about 1e-14
PLACE = 1e-6  # where a maximum is: a flat top hides the square root of rounding error
BOUND_88 = sqrt(pi / 2) + 1
LATE = 100.0  # the depth ln 1/δ at which errata #24 is looked at: near convergence by any measure


@dataclass(frozen=True)
class Lemma6Config(StudyConfig):
    """Grids in μ and in depth ln 1/(1 − r)."""

    largest_mu: Annotated[float, Above(0), Within(0, 12)] = 6.0
    targets: Annotated[int, Least(2)] = 48
    depths: Annotated[int, Least(2)] = 24
    deepest: Annotated[float, Above(0.01)] = 30.0


CLAIMS = Claims()


def run(config: Lemma6Config, run: Run, progress: Progress) -> None:
    """Maxima by grid and golden section, identities on a grid of targets and depths."""
    progress(0.0, "maxima of the lemmas")
    y = np.linspace(0.0, 6.0, 601)
    run.keep("y", lambda: y)
    run.keep("g/top", lambda: _peak(_g, 6.0))
    run.keep("G/top", lambda: _peak(_dawson, 10.0))
    run.keep("zeta/top", lambda: _peak(lambda mu: _zeta(torch.ones(()), torch.as_tensor(mu)).numpy(), 35.0))
    run.keep("R/top", lambda: _peak(_remainder, 12.0))
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


@CLAIMS.declare("lemma-6", "JoMA Lemma 6", uses=("lemma6/lemma-6-maximum",))
def _lemma_6(run: Run, claim: Claim) -> Finding:
    """(1 − exp(−y²))/y never exceeds 1/√2 for y ≥ 0."""
    place, top = run.value("g/top")
    expected = f"The value is at most 1/√2 = {1 / sqrt(2):.4f}."
    printed = [at_most("largest value", top, 1 / sqrt(2))]
    return by_tests(claim, expected=expected, printed=printed, details={"reached at": {"y": float(place)}})


@CLAIMS.declare("lemma-6-maximum", "JoMA eq. 75")
def _stationary(run: Run, claim: Claim) -> Finding:
    """At the maximum of (1 − exp(−y²))/y we have exp(−y²) = 1/(2y² + 1).

    Expected: Both sides are equal at the maximum.

    At the maximum of Lemma 6; at that of Lemma 7, another place, the two sides must differ.
    """
    here, elsewhere = (abs(exp(-(y**2)) - 1 / (2 * y**2 + 1)) for y in (run.value(f"{of}/top")[0] for of in ("g", "G")))
    control = {"at the maximum of the function of Lemma 7": elsewhere}
    return by_residual(claim, printed=here, tolerance=PLACE, what="difference of both sides", control=control)


@CLAIMS.declare("lemma-7", "JoMA Lemma 7")
def _lemma_7(run: Run, claim: Claim) -> Finding:
    """The product of exp(−y²/2) and the integral of exp(x²/2) from 0 to y lies in [0, 1].

    Expected: The value lies in [0, 1].
    """
    place, top = run.value("G/top")
    printed = [
        at_least("smallest value", run.value("G").min(), 0.0),
        at_most("largest value", np.maximum(top, run.value("G").max()), 1.0),
    ]
    return by_tests(claim, printed=printed, details={"largest at": {"y": float(place)}})


@CLAIMS.declare("df-dmu", "JoMA eq. 84")
def _slope_of_f(run: Run, claim: Claim) -> Finding:
    """∂F/∂μ = ζ(r, μ) − μ F(r, μ).

    Expected: Both sides are equal on a grid of r and μ.
    """
    slope, zeta = run.value("slope"), run.value("zeta")
    return by_residual(
        claim,
        printed=float(np.abs(slope - (zeta - run.value("mu") * run.value("F"))).max()),
        tolerance=IDENTITY,
        what="largest difference of both sides",
        control={"without −μF": float(np.abs(slope - zeta).max())},
    )


@CLAIMS.declare("zeta-bound", "JoMA eq. 85", uses=("lemma6/lemma-6",))
def _zeta_bound(run: Run, claim: Claim) -> Finding:
    """ζ(r, μ) lies between 0 and √(π/2) + 1 for every r in [0, 1] and μ > 0."""
    (place, top), zetas = run.value("zeta/top"), run.value("zeta")
    expected = f"ζ lies in [0, {BOUND_88:.4f}]."
    printed = _within("ζ", zetas.min(), np.maximum(top, zetas.max()))
    return by_tests(claim, expected=expected, printed=printed, details={"largest at r = 1": {"μ": float(place)}})


def _within(what: str, low: float, high: float, floor: float = 0.0) -> list[Test]:
    """In [0, √(π/2) + 1]; `floor`: 0 up to the error of the integrals."""
    return [at_least(f"smallest {what}", low, floor), at_most(f"largest {what}", high, BOUND_88)]


def _second_term(run: Run) -> Any:
    """F − exp(−μ²/2) ln 1/(1 − r). (depths, targets)."""
    return run.value("F") - np.exp(-(run.value("mu") ** 2) / 2) * run.value("depth")[:, None]


@CLAIMS.declare("f-by-zeta", "JoMA eq. 86", uses=("lemma6/df-dmu",))
def _solved(run: Run, claim: Claim) -> Finding:
    """F(r, μ) = exp(−μ²/2) [F(r, 0) + the integral of ζ(r, x) exp(x²/2) from 0 to μ].

    Expected: Both sides are equal on a grid of r and μ.
    """
    second = _second_term(run)
    agreement = float(np.abs(run.value("F of joma") / run.value("F") - 1).max())
    return by_residual(
        claim,
        printed=float(np.abs(second - run.value("zeta integral")).max()),
        tolerance=IDENTITY,
        what="largest difference of both sides",
        control={"without the integral of ζ": float(np.abs(second).max())},
        details={"F of joma": {"relative difference from the quadrature": agreement}},
    )


@CLAIMS.declare("mean-value", "JoMA eq. 87", uses=("lemma6/f-by-zeta",))
def _mean_value(run: Run, claim: Claim) -> Finding:
    """The second term of F is the function of Lemma 7 times the value of ζ at some point between 0 and μ.

    Expected: The value lies inside the range of ζ on [0, μ] everywhere.

    What the second term is a multiple of must be a value of ζ; with the first term counted in it must not be.
    """
    second, both = (part / run.value("lemma 7 at mu") for part in (_second_term(run), run.value("F")))
    return by_residual(
        claim,
        printed=_outside(second, *run.value("zeta range")),
        tolerance=IDENTITY,
        what="largest distance outside the range",
        control={"with the first term included": _outside(both, *run.value("zeta range"))},
    )


def _outside(place: Any, low: Any, high: Any) -> float:
    return float(np.maximum(np.maximum(low - place, place - high), 0.0).max())


@CLAIMS.declare("f-bound", "JoMA eq. 88", uses=("lemma6/mean-value", "lemma6/zeta-bound", "lemma6/lemma-7"))
def _bound_of_f(run: Run, claim: Claim) -> Finding:
    """F(r, μ) − exp(−μ²/2) ln 1/(1 − r) lies between 0 and √(π/2) + 1."""
    (place, top), second = run.value("R/top"), _second_term(run)
    printed = _within("second term of F", second.min(), np.maximum(top, second.max()), -IDENTITY)
    details = {"largest at r = 1": {"μ": float(place), "bound / value": BOUND_88 / float(top)}}
    return by_tests(claim, expected=f"The second term lies in [0, {BOUND_88:.4f}].", printed=printed, details=details)


@CLAIMS.declare("late-form", "JoMA eq. 88", uses=("lemma6/f-bound",))
def _late_form(run: Run, claim: Claim) -> Finding:
    """Near convergence F − exp(−μ²) ln 1/δ stays between 0 and √(π/2) + 1.

    Corrected: F − exp(−μ²/2) ln 1/δ stays between these bounds.

    Either exponent at a depth of 100, where almost all of the way is done.
    """
    mu, late = run.value("mu"), run.value("late F")
    what = f"value at ln 1/δ = {LATE:g}"
    forms = [late - np.exp(-power * mu**2) * LATE for power in (1.0, 0.5)]
    printed, corrected = (_within(what, rest.min(), rest.max(), -IDENTITY) for rest in forms)
    expected = f"The value lies in [0, {BOUND_88:.4f}]."
    details = {"as printed, furthest from 0 at": {"μ": float(mu[np.abs(forms[0]).argmax()])}}
    return by_tests(claim, expected=expected, printed=printed, corrected=corrected, details=details)


def draw(run: Run) -> list[Drawing]:
    """The two lemmas under their bounds, and what is left of F late in training."""
    figure, (left, right) = panels(2, width=4.6, height=2.9)
    for name, limit, colour, label, limit_label in (
        ("g", 1 / sqrt(2), BLUE, "Lemma 6:\n(1 − exp(−y²))/y", "bound of\nLemma 6: 1/√2"),
        ("G", 1.0, GREEN, "Lemma 7:\nexp(−y²/2) ∫ exp(x²/2)", "bound of\nLemma 7: 1"),
    ):
        left.plot(run.value("y")[1:], run.value(name), color=colour, label=label)
        left.axhline(limit, ls="--", lw=1, color=colour, label=limit_label)
        left.plot(*run.value(f"{name}/top"), "o", ms=4, color=colour)
    left.set(xlabel="y", ylabel="value", ylim=(0, 1.1), title="Both lemmas stay below their bounds")
    mu, late = run.value("mu"), run.value("late F")
    floor = np.exp(-(mu**2) / 2)
    right.plot(mu, late - floor**2 * LATE, color=PRINTED, label="printed:\nF − exp(−μ²) ln 1/δ")
    right.plot(mu, late - floor * LATE, color=CORRECTED, label="corrected:\nF − exp(−μ²/2) ln 1/δ")
    bands.bound(right, BOUND_88, "bound √(π/2) + 1")
    right.set(yscale="log", ylim=(0.1, 400), xlabel="μ", ylabel="time left over")
    right.set_title(f"What eq. 88 bounds, at ln 1/δ = {LATE:g}")
    tops = [number(run.value(f"{name}/top")[1]) for name in ("g", "G")]
    caption = (
        "The functions of both lemmas stay below their bounds, and the time left over stays below its bound only with "
        f"the corrected exponent. Their maxima are {tops[0]} and {tops[1]} (dots); the bounds are 0.707 and 1. Left: "
        "the functions of Lemmas 6 and 7. Right: the part of the time F that should stay bounded near convergence, "
        "with the exponent as printed after eq. 88 and as corrected."
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
    """F(r, μ) by quadrature of eq. 79 in x = 1 − exp(−l): ∫ exp(−μ²x²/2) dl from 0 to ln 1/(1 − r)."""
    nodes, weight = (torch.from_numpy(a) for a in _rule(24))
    edges = torch.linspace(0, 1, 17, dtype=torch.float64) ** 3  # dense near 0, where exp(−μ²l²/2) falls fast
    near = depth.clamp(max=45.0)
    total = torch.exp(-(mu**2) / 2) * (depth - near)
    for start, end in pairwise(edges):
        x = -torch.expm1(-near[..., None] * (start + (end - start) * nodes))
        total = total + near * (end - start) * (torch.exp(-((mu[..., None] * x) ** 2) / 2) * weight).sum(-1)
    return total


def _remainder(mu: Any) -> Any:
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
    return mu * (_zeta(-torch.expm1(-depth)[..., None], x) * torch.exp((x**2 - mu[:, None] ** 2) / 2) * weight).sum(-1)


def _zeta_range(depth: Tensor, mu: Tensor) -> Tensor:
    """Smallest and largest ζ(r, x) for x in (0, μ]. (2, depths, targets)."""
    zeta = _zeta(-torch.expm1(-depth)[..., None], mu[:, None] * torch.linspace(1e-6, 1, 200, dtype=torch.float64))
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


STUDY = Study(
    name="lemma6",
    title="Lemmas 6 and 7 and the bounds behind Theorem 4",
    version=1,
    claims=CLAIMS,
    quick=Lemma6Config(),
    paper=Lemma6Config(largest_mu=12.0, targets=240, depths=120, deepest=200.0),
    run=run,
    draw=draw,
    about=(
        "Gauss-Legendre quadrature computes every function from its own definition, on a grid of targets μ and depths "
        "ln 1/(1 − r). A grid and golden sections give the maxima. Differentiating the quadrature gives the "
        "derivatives. Both sides of each equation are recorded and compared."
    ),
)
