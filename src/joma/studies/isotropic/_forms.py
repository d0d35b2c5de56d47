"""What the studies of Lemmas 1-5 and Theorem 3 share: laws, and both forms of a lemma against samples."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Finding
from joma.claims.verdicts import above, at_most, by_tests
from joma.figures.style import CORRECTED, GREEN, PRINTED
from joma.figures.types import Axes, Axis
from joma.runs import Run
from joma.theory.radial import Ball, ExponentialRadial, Gaussian, RadialLaw, StudentT

LAWS = {"gaussian": "Gaussian", "ball": "ball", "student": "Student-t, ν = 3", "exponential": "exp-radial"}
"""The laws tried, as series are named and as figures name them."""
LENGTHS = (0.3, 1.0, 2.5)  # of v, where Lemmas 1 and 2 are sampled
UNIT = LENGTHS.index(1.0)  # where powers of ‖v‖ make no difference: here the printed and the corrected form are one
CURVE = tuple(np.geomspace(0.2, 4, 60).tolist())  # of v, where they are drawn
SAMPLING = 4.5  # Tolerance in standard errors: among some 200 sample means chance exceeds it about once in 700 runs
_CHUNK = 50_000
Form = Callable[[tuple[float, ...]], Tensor]


def laws(dimension: int) -> tuple[RadialLaw, ...]:
    """The laws of `LAWS`: light tails, bounded support, power tails, exponential tails."""
    return Gaussian(dimension), Ball(dimension, 2.0), StudentT(dimension, 3.0), ExponentialRadial(dimension, 2.0)


def record_forms(run: Run, name: str, sampled: Callable[[], Tensor], drawn: Any = ..., **forms: Form) -> None:
    """Record sample means beside both forms of a lemma, at the sampled lengths and along the curve."""
    run.keep(f"{name}/sampled", sampled)
    for form, lemma in forms.items():
        run.keep(f"{name}/{form}", partial(lemma, LENGTHS))
    for form, lemma in forms.items():
        run.keep(f"{name}/{form} curve", partial(lambda lemma: lemma(CURVE)[drawn], lemma))


def sample_mean(statistic: Callable[[Tensor], Tensor], law: RadialLaw, count: int, seed: int) -> Tensor:
    """Mean and standard error, stacked (2, ...), of statistic(x') (samples, ...) over `count` samples of the law."""
    generator = torch.Generator().manual_seed(seed)
    total, square = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for start in range(0, count, _CHUNK):
        values = statistic(law.sample(min(_CHUNK, count - start), generator=generator))
        total, square = total + values.sum(0), square + (values**2).sum(0)
    mean = total / count
    return torch.stack([mean, ((square / count - mean**2).clamp(min=0) / count).sqrt()])


def by_forms(
    claim: Claim,
    *,
    printed: float,
    corrected: float,
    tolerance: float,
    expected: str = "",
    agree: Mapping[str, float],
    differ: Mapping[str, float] | None = None,
    what: str = "largest difference",
) -> Finding:
    """How far the printed and the corrected form are from the truth, with controls of both kinds."""
    controls = [at_most(f"{name}: {what}", off, tolerance) for name, off in agree.items()]
    controls += [above(f"{name}: {what}", off, tolerance) for name, off in (differ or {}).items()]
    return by_tests(
        claim,
        expected=expected,
        printed=[at_most(what, printed, tolerance)],
        corrected=[at_most(what, corrected, tolerance)],
        controls=controls,
    )


def by_samples(run: Run, claim: Claim, part: slice) -> Finding:
    """Both forms of Lemma 1 or 2 against sample means. part: of the last dimension, the numbers the claim is about."""
    sampled, printed, corrected = (
        [run.value(f"{law}/{form}")[..., part] for law in LAWS] for form in ("sampled", "printed", "corrected")
    )

    def in_errors(form: Any, mean: Any) -> Any:
        return np.abs(form - mean[0]) / mean[1]  # mean: (2, ...) as `sample_mean` gives it

    off = np.stack([in_errors(*pair) for pair in zip(printed, sampled, strict=True)])  # (laws, lengths, ...)
    every = np.array([[in_errors(form, mean).max() for form in corrected] for mean in sampled])  # each law by each form
    return by_forms(
        claim,
        printed=off.max(),
        corrected=every.diagonal().max(),
        tolerance=SAMPLING,
        expected="The formula equals the sample mean within its sampling error.",
        agree={"the printed form at ‖v‖ = 1": off[:, UNIT].max()},
        differ={"the corrected form of another law": every.max(1).min()},
        what="largest distance in standard errors",
    )


def difference(function: Callable[[Tensor], Tensor], s: Tensor, *, step: float = 0.01) -> Tensor:
    """function'(s) by central differences of sixth order: the truth that closed derivatives are held against."""
    weights = ((1, 45 / 60), (2, -9 / 60), (3, 1 / 60))
    return torch.stack([w * (function(s + k * step) - function(s - k * step)) for k, w in weights]).sum(0) / step


def jacobian(function: Callable[[Tensor], Tensor], at: Tensor, *, step: float = 0.01) -> Tensor:
    """d function_i / d at_j by the same differences. at: (d,), function: (..., d) -> (..., k). Returns (k, d)."""
    directions = torch.eye(len(at), dtype=at.dtype)
    return difference(lambda t: function(at + t * directions), torch.zeros(len(at), 1, dtype=at.dtype), step=step).mT


def plain_ticks(axis: Axis, values: Sequence[float]) -> None:
    """Ticks at these values, written as they are: for a logarithmic axis that spans less than two decades."""
    axis.set_ticks(list(values), [f"{value:g}" for value in values])
    axis.set_ticks([], minor=True)


def draw_forms(axis: Axes, run: Run, ticks: Sequence[float], sampled: Any, labels: Mapping[str, str], at: Any) -> None:
    """Both forms along the curve with the sampled dots, of the Student-t law, on log scales."""
    for form, colour in (("printed", PRINTED), ("corrected", CORRECTED)):
        curve = at(run.value(f"student/{form} curve"))
        axis.plot(run.value("curve/lengths"), curve, color=colour, label=labels.get(form, form))
    axis.plot(LENGTHS, sampled, "o", ms=5, color=GREEN, label="sampled")
    axis.set(xscale="log", yscale="log")
    plain_ticks(axis.xaxis, (0.3, 1, 2.5))
    plain_ticks(axis.yaxis, ticks)
