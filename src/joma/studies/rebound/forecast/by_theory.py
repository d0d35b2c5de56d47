"""What JoMA foretells, from the past alone: the words' logits, and the entropy of a layer.

Theorem 1 ties logits z to the MLP's view of the words: dz = a/2 (dS - b d sum_l S_l), S_l = sum_k v_lk^2, b = the mean
attention. It has no time in it: to look ahead, S must be known ahead. Two ways are tried:

    theorem    S goes on as it did, linearly in the logarithm of the step
    equation   sqrt(a S) follows eq. 6, u' = h (mu - u) e^(u^2/2), with h of the layer and mu of each word

In print b is that of the start (ERRATA 8). Corrected it is that of the time: along the past as recorded, ahead as it is
now. Constants that the theory leaves open (a, h, mu) are fitted to the past since step t/2. The theorem wants a > 0;
any sign is allowed here, in its favour.

For entropy, the curve that eq. 6 draws is fitted to the past. It has as many components as the attention had keys to
choose from at the start, exp(H), with targets mu spread evenly from one value to another, and a clock: three constants
on a grid, fitted to all of the past. Several of these curves may fit the past as well and part in the future. So the
forecast is their mean, each with the likelihood of its errors, which are taken as Gaussian and as large as those of the
best. It goes on from the present value as these curves do. The attention is softmax(v^2/2), which Theorem 1 gives with
eq. 6. The caption of Figure 4 prints softmax(v^2) (ERRATA 26).
"""

from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.measure.forecast import log_linear
from joma.theory import salience

Form = Literal["printed", "corrected"]
Way = Literal["theorem", "equation"]

FARTHEST = 30.0  # no component of eq. 6 is sent farther: e^(u^2/2) then is beyond any training.
SLOWEST = 1e-3
"""Of one over the time since the start: a clock h that is fitted to be slower, or to run backwards, is set to this."""
SCALES = {"printed": 1.0, "corrected": 0.5}  # of v^2 in the softmax
LOWEST, HIGHEST = np.arange(0.25, 2.1, 0.25), np.arange(0.5, 4.1, 0.25)  # ends of the spread of mu that are tried
CLOCKS = np.geomspace(1e-3, 30.0, 120)  # times of eq. 6 that the present is tried to be.
SMALLEST = 0.003
"""Nats: no smaller error of a curve is taken for granted. Of 0.003, 0.01 and 0.03 and the best curve alone, this served
eq. 6 best on small networks and on 512 steps at paper scale; it was settled before the run that is judged."""
_TIMES = np.geomspace(1e-4, 100.0, 300)


class Past(NamedTuple):
    """What was recorded up to now, the present last. Classes of words last of all, the rare ones the last of these."""

    steps: Tensor  # (points,)
    logits: Tensor  # (points, ..., classes), as the others
    squares: Tensor
    attention: Tensor


def until(past: Past, place: int) -> Past:
    """The past up to a point and that point, and nothing of what came after."""
    return Past(*(part[: place + 1] for part in past))


def logit_shift(
    past: Past, to: float, sizes: Tensor, shares: Tensor, *, way: Way = "theorem", form: Form = "corrected"
) -> Tensor:
    """How far every class's logit will have moved at step `to`, (..., classes)."""
    if way == "theorem":
        squares = log_linear(past.steps, past.squares.movedim(0, -1), to).clamp(min=0)
    else:
        strength = tie(past, sizes, form).clamp(min=1e-9)[..., None]
        squares = along_equation_6(past.steps, (strength * past.squares).sqrt(), to).square() / strength
    return known_shift(past, squares, sizes, shares, form=form)


def known_shift(past: Past, squares: Tensor, sizes: Tensor, shares: Tensor, *, form: Form = "corrected") -> Tensor:
    """The same if the squares to come were known: no forecast, but what a perfect one of them would give."""
    bbar = past.attention[0 if form == "printed" else -1]
    shift = tie(past, sizes, form)[..., None] * drift(squares - past.squares[-1], bbar, sizes)
    return shift - (shares * shift).sum(-1, keepdim=True)  # less what all keys have in common: softmax sees none of it


def drift(grown: Tensor, bbar: Tensor, sizes: Tensor) -> Tensor:
    """(dS - b d sum_l S_l) / 2 of Theorem 1, (..., classes); of a class of several words b is their mean."""
    return (grown - bbar / sizes * (grown * sizes).sum(-1, keepdim=True)) / 2


def tie(past: Past, sizes: Tensor, form: Form) -> Tensor:
    """a of Theorem 1, (...): by least squares over the frequent words, from what moved since step t/2."""
    recent = _recent(past.steps)
    grown = past.squares[recent].diff(dim=0)
    bbar = past.attention[:1] if form == "printed" else past.attention[recent][:-1]
    due = drift(grown, bbar, sizes).sum(0)[..., :-1]
    moved = (past.logits[-1] - past.logits[recent][0])[..., :-1]
    due, moved = (x - x.mean(-1, keepdim=True) for x in (due, moved))
    size = due.square().sum(-1)
    return (due * moved).sum(-1) / torch.where(size > 0, size, 1.0)


def along_equation_6(steps: Tensor, u: Tensor, to: float) -> Tensor:
    """u (points, ..., classes) at step `to` by eq. 6, u' = h (mu - u) e^(u^2/2): (..., classes).

    From the last two halves of the past since step t/2: each gives du = h (mu A - B), A = int e^(u^2/2) dt,
    B = int u e^(u^2/2) dt. Taken together they give h, by least squares over the classes, and then every mu.
    """
    recent = _recent(steps)
    at, u = steps[recent], u[recent].clamp(max=FARTHEST)
    middle = max(len(at) // 2, 1)
    early, late = (_integrals(at[part], u[part]) for part in (slice(middle + 1), slice(middle, None)))
    if middle == len(at) - 1:  # two points: no way to tell how fast it slows down
        clock = torch.zeros_like(u[0, ..., 0])
    else:
        slowing = early.moved / early.pull - late.moved / late.pull
        passed = late.push / late.pull - early.push / early.pull
        size = passed.square().sum(-1)
        clock = (slowing * passed).sum(-1) / torch.where(size > 0, size, 1.0)
    clock = clock.clamp(min=SLOWEST / float(at[-1]))[..., None]
    both = _integrals(at, u)
    mu = ((both.moved / clock + both.push) / both.pull).clamp(-FARTHEST, FARTHEST)
    moved = [
        salience.trajectory(goal, float(to - at[-1]) * float(h), v0=start)[0]
        for goal, h, start in zip(mu.flatten(0, -2), clock.flatten(), u[-1].flatten(0, -2), strict=True)
    ]
    return torch.stack(moved).view_as(mu)


class _Integrals(NamedTuple):
    moved: Tensor
    pull: Tensor
    push: Tensor


def _integrals(at: Tensor, u: Tensor) -> _Integrals:
    speed = (u.square() / 2).exp()
    return _Integrals(u[-1] - u[0], torch.trapezoid(speed, at, dim=0), torch.trapezoid(u * speed, at, dim=0))


def _recent(steps: Tensor) -> Tensor:
    """Places of the points since step t/2, (some,); at least the last two."""
    places = torch.arange(len(steps))
    return places[(steps.cpu() >= float(steps[-1]) / 2 / 1.01) | (places >= len(steps) - 2)]


def equation_6(steps: Tensor, curve: Tensor, to: float, *, scale: float) -> Tensor:
    """A forecaster for `joma.measure.forecast.backtest`: steps (points,), curve (..., points) -> (...)."""
    at, rows = np.asarray(steps, dtype=float), np.asarray(curve, dtype=float)
    made = [_curve_at(at, row, float(to), scale) for row in rows.reshape(-1, rows.shape[-1])]
    return torch.tensor(made, dtype=torch.float64).view(curve.shape[:-1])


def _curve_at(at: np.ndarray, past: np.ndarray, to: float, scale: float) -> float:
    if not np.isfinite(past).all():
        return float("nan")
    keys = int(np.clip(round(float(np.exp(past[0]))), 2, 1000))
    shape = np.append(at, to)[None] * CLOCKS[:, None] / at[-1]  # (clocks, points + 1), times of eq. 6
    table = _table(keys, scale)
    # read linearly in the logarithm of time; at time 0 as at the first
    place = np.log(np.maximum(shape, _TIMES[0]) / _TIMES[0]) / np.log(_TIMES[1] / _TIMES[0])
    left = np.minimum(place.astype(int), len(_TIMES) - 2)
    share = np.minimum(place - left, 1.0)
    drawn = (1 - share) * table[:, left] + share * table[:, left + 1]  # (spreads, clocks, points + 1)
    drawn = drawn - drawn[..., -2:-1]  # from the present on
    off = ((past - past[-1] - drawn[..., :-1]) ** 2).mean(-1)
    chance = np.exp(-len(past) * (off - off.min()) / (2 * max(off.min(), SMALLEST**2)))
    return float(past[-1] + (chance * drawn[..., -1]).sum() / chance.sum())


@lru_cache(maxsize=16)
def _table(keys: int, scale: float) -> np.ndarray:
    """Entropy by spread and by time of `_TIMES`, (spreads, times)."""
    spreads = [(low, high) for low in LOWEST for high in HIGHEST if low < high]
    mu = torch.stack([torch.linspace(low, high, keys, dtype=torch.float64) for low, high in spreads])
    return np.asarray(salience.entropy_curve(mu, torch.from_numpy(_TIMES), scale=scale))
