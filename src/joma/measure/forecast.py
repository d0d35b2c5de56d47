"""Forecasts of a curve over training, and their skill over "it stays as it is".

A forecaster gets the past of a curve, (points,) steps and (..., points) values, and a later step. It gives the value
at that step. `backtest` goes over a recorded curve: from every point at step t it asks for the value at step
`ahead` * t. It hands over the past alone, so that no forecaster can see what it is asked for.
Any function of (steps, curve, to) is a forecaster: that of a theory, say. A curve that holds NaN or infinity is
forecast as it is: leave out runs that diverged.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, as_numbers, must_be_callable, number, real
from joma.host.words import brief_repr

Forecaster = Callable[[Tensor, Tensor, float], Tensor]
"""Of past steps (points,), past values (..., points) and the step that is asked for: the values there, (...)."""

NEARLY = 1.01  #: So much beyond the last recorded point a target may lie and is read there: steps are rounded.


@brief_repr
class Backtest(NamedTuple):
    """What was forecast from every point of a curve, and what came.

    >>> backtest([1, 2, 4, 8], [4.0, 3.0, 2.0, 1.0], log_linear)
    Backtest(at=[2, 4], to=[4, 8], made=[2, 1], truth=[2, 1])
    """

    at: Tensor
    """The steps from which a forecast was made, (origins,)."""
    to: Tensor
    """The steps that were forecast, (origins,)."""
    made: Tensor
    """What was forecast, (..., origins)."""
    truth: Tensor
    """What came, (..., origins)."""


def persistence(steps: Number, curve: Number, to: float) -> Tensor:
    """It stays as it is: the last value of the past. steps: (points,), curve: (..., points) -> (...).

    >>> persistence([1, 2, 4], [4.0, 3.0, 2.0], to=8)
    tensor(2., dtype=torch.float64)
    """
    at, past = _past(steps, curve)
    _later(to, at)
    return past[..., -1]


def linear(steps: Number, curve: Number, to: float) -> Tensor:
    """It goes on from its last value with the slope that it had since step t / 2, t being the last step.

    The slope is that of least squares. It is 0 where the past has a single point. Shapes as in `persistence`.

    >>> linear([2, 3, 4], [3.0, 2.5, 2.0], to=8)
    tensor(0., dtype=torch.float64)
    """
    at, past = _past(steps, curve)
    return past[..., -1] + _slope(at, at, past) * (_later(to, at) - at[-1])


def log_linear(steps: Number, curve: Number, to: float, *, share: float = 1.0) -> Tensor:
    """As `linear`, in the logarithm of the step. Step 0 has none and is left out.

    share: of the slope that it goes on with. Below 1 the line is damped: a curve that slows down.

    >>> log_linear([1, 2, 4], [4.0, 3.0, 2.0], to=8), log_linear([1, 2, 4], [4.0, 3.0, 2.0], to=8, share=0.5)
    (tensor(1.0000, dtype=torch.float64), tensor(1.5000, dtype=torch.float64))
    """
    at, past = _past(steps, curve)
    at, past = at[at > 0], past[..., at > 0]
    if not len(at):
        raise ValueError("steps must hold one above 0: step 0 has no logarithm")
    slope = number(share, "share") * _slope(at.log(), at, past)
    return past[..., -1] + slope * (_later(to, at) / at[-1]).log()


def damped_trend(steps: Number, curve: Number, to: float, *, kept: float, moved: float) -> Tensor:
    """At twice the last step t: D(2t) = kept D(t) + moved (D(t) - D(t/2)), D being how far the curve is from its start.

    kept, moved: with 1 and 1 it moves on as far as since t/2; `fit_damped_trend` gets them from other runs. Only of
    to = 2t, for which these constants are. Shapes as in `persistence`; the past begins at step 0 or at most at t/2.

    >>> damped_trend([0, 1, 2, 4], [5.0, 4.0, 3.0, 2.0], to=8, kept=1.0, moved=0.5)
    tensor(1.5000, dtype=torch.float64)
    """
    at, past = _past(steps, curve)
    if abs(float(_later(to, at)) - 2 * float(at[-1])) > (NEARLY - 1) * 2 * float(at[-1]):
        raise ValueError(f"to must be twice the last step, {2 * float(at[-1]):g}, got {float(to):g}")
    away, before = _trend_terms(at, past)
    return past[..., 0] + number(kept, "kept") * away + number(moved, "moved") * (away - before)


def fit_damped_trend(steps: Number, curves: Number, *, first: float = 1.0) -> tuple[float, float]:
    """`kept` and `moved` of `damped_trend`, by least squares over all forecasts of whole curves (..., points).

    Leave out runs that diverged.

    >>> curve = [5.0, 4.0, 3.5, 3.25, 3.125]
    >>> kept, moved = fit_damped_trend([0, 1, 2, 4, 8], [curve])
    >>> round(kept, 6), round(moved, 6)
    (1.0, 0.5)
    """
    at, values = _past(steps, real(curves, "curves"), curve_name="curves")
    truth = backtest(at, values, first=first)
    terms = []
    for step in truth.at:
        until = at <= step
        away, before = _trend_terms(at[until], values[..., until])
        terms.append(torch.stack([away, away - before], -1).reshape(-1, 2))
    wanted = (truth.truth - values[..., :1]).movedim(-1, 0).reshape(-1, 1)
    # gelsd: curves that never moved leave both constants open, and get the smallest
    kept, moved = torch.linalg.lstsq(torch.cat(terms).cpu(), wanted.cpu(), driver="gelsd").solution[:, 0].tolist()
    return kept, moved


def _trend_terms(at: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    """How far the curve is from its start at the last step t and at t/2, (...) each."""
    return past[..., -1] - past[..., 0], _read(at, past, float(at[-1]) / 2, "half the last step") - past[..., 0]


def earlier_runs(steps: Number, curve: Number, to: float, *, runs_steps: Number, runs: Number) -> Tensor:
    """It changes as the mean of earlier runs did between its last step and `to`.

    runs: (runs, ..., points), recorded to their ends at runs_steps (points,). Between two of them it is read in the
    logarithm of the step. Other shapes as in `persistence`.

    >>> earlier_runs([1, 2], [4.0, 3.5], to=4, runs_steps=[1, 2, 4], runs=[[4.0, 3.0, 2.0], [4.0, 2.0, 2.0]])
    tensor(3., dtype=torch.float64)
    """
    at, past = _past(steps, curve)
    places, known = _past(runs_steps, runs, "runs_steps", "runs")
    if known.ndim < 2 or not len(known) or known.shape[1:-1] != past.shape[:-1]:
        wanted = f"(runs, {', '.join(map(str, past.shape[:-1])) + ', ' if past.ndim > 1 else ''}points)"
        raise ValueError(f"runs must have shape {wanted} to go with curve, got {tuple(known.shape)}")
    mean = known.mean(0)
    return past[..., -1] + _read(places, mean, to, "to") - _read(places, mean, float(at[-1]), "the last of steps")


def value_at(steps: Number, curve: Number, step: float) -> Tensor:
    """A recorded curve at any step between its points, in the logarithm of the step. (..., points) -> (...).

    >>> value_at([1, 4, 16], [3.0, 2.0, 1.0], 8)
    tensor(1.5000, dtype=torch.float64)
    """
    return _read(*_past(steps, curve), step, "step")


def _read(at: Tensor, values: Tensor, step: float, name: str) -> Tensor:
    step = number(step, name)
    if not at[0] <= step <= NEARLY * at[-1]:
        raise ValueError(f"{name} must lie between {at[0]:g} and {at[-1]:g}, which are recorded, got {step:g}")
    right = int(torch.searchsorted(at, step).clamp(1 if len(at) > 1 else 0, len(at) - 1))
    left = max(right - 1, 0)
    if at[right] <= step or left == right:
        return values[..., right]
    # step 0 has no logarithm
    share = step / at[right] if at[left] == 0 else (step / at[left]).log() / (at[right] / at[left]).log()
    return values[..., left] + share * (values[..., right] - values[..., left])


def backtest(
    steps: Number, curve: Number, forecaster: Forecaster = persistence, *, ahead: float = 2.0, first: float = 1.0
) -> Backtest:
    """Forecasts of a recorded curve from each of its points, at step t, for step `ahead` * t.

    steps: (points,), curve: (..., points). The forecaster gets the points up to t and nothing else. Points before step
    `first` are left out, and so are those for which nothing was recorded at `ahead` * t, and the first point above 0,
    which has no past.

    >>> backtest([0, 1, 2, 4, 8], [5.0, 4.0, 3.0, 2.0, 1.0]).made
    tensor([3., 2.], dtype=torch.float64)
    """
    must_be_callable(forecaster, "forecaster")
    at, values = _past(steps, curve)
    first, ahead = number(first, "first"), number(ahead, "ahead")
    if not ahead > 1:
        raise ValueError(f"ahead must be above 1: the step to forecast is ahead * t, got {ahead:g}")
    second = int((at > 0).int().argmax()) + 1
    places = [i for i in range(second, len(at)) if at[i] >= first and ahead * at[i] <= NEARLY * at[-1]]
    if not places:
        raise ValueError(f"steps must go on to {ahead:g} times a step of at least {first:g} that has a past, "
                         f"got {len(at)} steps up to {at[-1]:g}")  # fmt: skip
    to = [min(ahead * float(at[i]), float(at[-1])) for i in places]
    made = []
    for i, step in zip(places, to, strict=True):
        made.append(as_numbers(forecaster(at[: i + 1], values[..., : i + 1], step), "what forecaster gives").to(values))
        if (got := tuple(made[-1].shape)) != (wanted := tuple(values.shape[:-1])):
            raise ValueError(f"forecaster must give {wanted}, one number per curve, got {got}")
    truth = [_read(at, values, step, "ahead") for step in to]
    return Backtest(at[places], torch.tensor(to).to(at), torch.stack(made, -1), torch.stack(truth, -1))


def skill(made: Number, truth: Number, persisted: Number) -> Tensor:
    """Which part of the squared error of persistence a forecast avoids, for every run: (runs, ...) -> (runs,).

    1 is a perfect forecast, 0 is as good as "it stays as it is", a negative one is worse. A run's skill is

        (its error by persistence - its error by the forecast) / (error by persistence, mean over runs),

    errors being means of squares over all but the first dimension. The mean over runs is therefore 1 - MSE / MSE of
    persistence over all of them, and no run counts for more because it happened to stand still. Leave out runs that
    diverged.

    >>> skill(made=[[1.0, 2.0]], truth=[[1.0, 4.0]], persisted=[[3.0, 4.0]])
    tensor([0.], dtype=torch.float64)
    """
    given = {"made": made, "truth": truth, "persisted": persisted}
    first, second, third = (real(value, name).double() / 2 for name, value in given.items())
    if not first.shape == second.shape == third.shape or first.ndim < 1:
        shapes = ", ".join(str(tuple(one.shape)) for one in (first, second, third))
        raise ValueError(f"made, truth and persisted must have one shape, (runs, ...), got {shapes}")
    size = (third - second).abs().amax() if second.numel() else 0.0
    if not size:
        raise ValueError("persisted is the truth in every run: there is no error that a forecast could avoid")
    # in units of the largest error of persistence: no square of it leaves the range
    error, still = (((one - second) / size).square().reshape(len(one), -1).mean(1) for one in (first, third))
    return (still - error) / still.mean()


def _past(steps: Number, curve: Number, steps_name: str = "steps", curve_name: str = "curve") -> tuple[Tensor, Tensor]:
    at, values = as_numbers(steps, steps_name), as_numbers(curve, curve_name)
    if at.ndim != 1 or not len(at) or not bool((at.double().diff() > 0).all() & (at[0] >= 0) & at.isfinite().all()):
        raise ValueError(f"{steps_name} must be one row of increasing numbers from 0 on, got {tuple(at.shape)}")
    if values.ndim < 1 or values.shape[-1] != len(at):
        raise ValueError(f"{curve_name} must have {len(at)} points last, one per step, got {tuple(values.shape)}")
    return at.to(values.device).double(), values.double()


def _later(to: float, at: Tensor) -> Tensor:
    """The step that is asked for: not before the last of the past."""
    return torch.tensor(number(to, "to", least=float(at[-1]))).to(at)


def _slope(x: Tensor, at: Tensor, values: Tensor) -> Tensor:
    """Of least squares over the points since step t / 2, in any case the last two, (...); 0 of a single one."""
    recent = at >= at[-1] / 2 / NEARLY
    recent[-2:] = True
    centred = x[recent] - x[recent].mean()
    spread = centred.square().sum()
    return (values[..., recent] * centred).sum(-1) / torch.where(spread > 0, spread, 1.0)
