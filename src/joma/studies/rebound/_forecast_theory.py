"""What JoMA foretells of the words' logits, from their past alone.

Theorem 1 ties logits z to the MLP's view of the words: dz = a/2 (dS - b d sum_l S_l), S_l = sum_k v_lk^2, b = the mean
attention. It has no time in it: to look ahead, S must be known ahead. Two ways are tried:

    theorem    S goes on as it did, linearly in the logarithm of the step
    equation   sqrt(a S) follows eq. 6, u' = h (mu - u) e^(u^2/2), with h of the layer and mu of each word

In print b is that of the start (ERRATA 8). Corrected it is that of the time: along the past as recorded, ahead as it is
now. Constants that the theory leaves open (a, h, mu) are fitted to the past since step t/2. The theorem wants a > 0;
any sign is allowed here, in its favour.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from joma.measure.forecast import log_linear
from joma.theory import salience

Form = Literal["printed", "corrected"]
Way = Literal["theorem", "equation"]

FARTHEST = 30.0
"""No component of eq. 6 is sent farther: e^(u^2/2) then is beyond any training."""
SLOWEST = 1e-3
"""Of one over the time since the start: a clock h that is fitted to be slower, or to run backwards, is set to this."""


class Past(NamedTuple):
    """What was recorded up to now, the present last. Classes of words last of all, the rare ones the last of these."""

    steps: Tensor
    """(points,)."""
    logits: Tensor
    """(points, ..., classes)."""
    squares: Tensor
    """(points, ..., classes)."""
    attention: Tensor
    """(points, ..., classes)."""


def logit_shift(
    past: Past, to: float, sizes: Tensor, shares: Tensor, *, way: Way = "theorem", form: Form = "corrected"
) -> Tensor:
    """How far every class's logit will have moved at step `to`, (..., classes).

    sizes: words per class. shares: of the keys; logits are counted from their row's mean, and so are these.
    """
    ahead = _squares_ahead(past, to, sizes, way, form) - past.squares[-1]
    bbar = past.attention[0 if form == "printed" else -1]
    return _of_rows(tie(past, sizes, form)[..., None] * drift(ahead, bbar, sizes), shares)


def known_shift(past: Past, squares: Tensor, sizes: Tensor, shares: Tensor, *, form: Form = "corrected") -> Tensor:
    """The same if the squares to come were known: no forecast, but what a perfect one of them would give."""
    bbar = past.attention[0 if form == "printed" else -1]
    return _of_rows(tie(past, sizes, form)[..., None] * drift(squares - past.squares[-1], bbar, sizes), shares)


def drift(grown: Tensor, bbar: Tensor, sizes: Tensor) -> Tensor:
    """(dS - b d sum_l S_l) / 2 of Theorem 1, (..., classes); of a class of several words b is their mean."""
    return (grown - bbar / sizes * (grown * sizes).sum(-1, keepdim=True)) / 2


def tie(past: Past, sizes: Tensor, form: Form) -> Tensor:
    """a of Theorem 1, (...): by least squares over the frequent words, from what moved since step t/2."""
    recent = _recent(past.steps)
    grown = past.squares[recent].diff(dim=0)
    bbar = past.attention[:1] if form == "printed" else past.attention[recent][:-1]
    told = drift(grown, bbar, sizes).sum(0)[..., :-1]
    moved = (past.logits[-1] - past.logits[recent][0])[..., :-1]
    told, moved = (x - x.mean(-1, keepdim=True) for x in (told, moved))
    size = told.square().sum(-1)
    return (told * moved).sum(-1) / torch.where(size > 0, size, 1.0)


def _squares_ahead(past: Past, to: float, sizes: Tensor, way: Way, form: Form) -> Tensor:
    if way == "theorem":
        return log_linear(past.steps, past.squares.movedim(0, -1), to).clamp(min=0)
    strength = tie(past, sizes, form).clamp(min=1e-9)[..., None]
    return along_equation_6(past.steps, (strength * past.squares).sqrt(), to).square() / strength


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
    whole = _integrals(at, u)
    mu = ((whole.moved / clock + whole.push) / whole.pull).clamp(-FARTHEST, FARTHEST)
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


def _of_rows(shift: Tensor, shares: Tensor) -> Tensor:
    """Less what all keys have in common, which softmax does not see."""
    return shift - (shares * shift).sum(-1, keepdim=True)
