"""Drop and rebound of a curve over training, by a rule that is fixed before the curve is seen.

A noisy curve always has a minimum, and its end is always above it. So the size of a rebound says nothing without the
size that chance alone would give: over seeds, or from the roughness of the one series there is.
"""

from itertools import pairwise
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, as_tensor, at_least_dims, real
from joma.host.words import brief_repr
from joma.measure.intervals import mean_interval

FEWEST_POINTS = 12
FEWEST_SEEDS = 3
SHARE = 0.02
"""Of the drop: a smaller rebound is none, whatever its significance."""
SIGMAS, GROUPS = 3.5, 12  # of one series
CONFIDENCE = 0.99  # over seeds


@brief_repr
class Rebound(NamedTuple):
    """What a curve does between start and end; every field has the leading shape of the curves.

    >>> found = rebound((torch.linspace(0, 1, 41) - 0.6) ** 2, steps=torch.arange(41))
    >>> found.valley, found.drops, found.rebounds
    (tensor(24), tensor(True), tensor(True))
    """

    start: Tensor
    """Level at the first point."""
    minimum: Tensor
    """Level at the minimum."""
    end: Tensor
    """Level at the end."""
    drop: Tensor
    """start - minimum."""
    rebound: Tensor
    """end - minimum."""
    drop_margin: Tensor
    """What chance may do: the drop is real if it is larger."""
    rebound_margin: Tensor
    """The same for the rebound."""
    valley: Tensor
    """The step (or index) of the minimum."""
    drops: Tensor
    """bool: drop > drop_margin."""
    rebounds: Tensor
    """bool: it drops, rebound > rebound_margin, and rebound > 2 % of the drop."""


def rebound(curve: Number, *, steps: Number | None = None, over_seeds: bool = False) -> Rebound:
    """Does the curve drop, and does it recover? curve: (..., points), or (..., seeds, points) with `over_seeds`.

    One series. The first point stays (the untrained network is not like its successors); the others are averaged in
    neighbouring groups of equal size, at least 12 of them and less than twice as many. The minimum is the lowest
    group, the end is the last one. Chance is a random walk of the curve's own roughness: in k steps it moves by
    s sqrt(k), so

        drop_margin = 3.5 s sqrt(steps before the minimum),   rebound_margin = 3.5 s sqrt(steps after it),

    s = 1.4826 MAD(second differences) / sqrt 2, times sqrt(2 g^2 / (g^2 + 1)) for what averaging g points of a walk
    takes from its second differences. A smooth trend has no second differences and so a small margin; independent
    noise gives a larger margin than it needs.

    Seeds. Each seed is read at the minimum of the mean of the OTHER seeds, so that its own noise does not choose the
    place: drop and rebound are means over seeds, without bias where nothing happens, and the margins are half-widths
    of t intervals at 99 %. All points are used as they are.

    Curves without rebound (flat noise, random walks, noisy decay, a step in a walk) are called rebounds in fewer than
    5 % of cases, most of them far fewer: the test-suite measures it. steps: (points,) increasing; only says where
    the minimum is.

    >>> x = torch.linspace(0, 1, 41, dtype=torch.float64)
    >>> r = rebound(torch.stack([(x - 0.6) ** 2, (x - 2) ** 2]), steps=torch.arange(41))
    >>> r.drops, r.rebounds, r.valley
    (tensor([True, True]), tensor([ True, False]), tensor([24, 39]))
    """
    curve = real(curve, "curve")
    meaning = "(..., seeds, points)" if over_seeds else "(..., points)"
    if curve.ndim < 1 + bool(over_seeds):
        raise ValueError(f"curve must have shape {meaning}, got {tuple(curve.shape)}")
    points = curve.shape[-1]
    if over_seeds and (curve.shape[-2] < FEWEST_SEEDS or points < 3):
        wanted = f"at least {FEWEST_SEEDS} seeds and 3 points, {meaning}"
        raise ValueError(f"curve must have {wanted}, got {tuple(curve.shape)}")
    if not over_seeds and points < FEWEST_POINTS:
        raise ValueError(f"curve must have at least {FEWEST_POINTS} points to know its own noise, got {points}")
    at = torch.arange(points) if steps is None else as_tensor(steps, "steps")
    real(at, "steps")
    if at.shape != (points,) or not bool((at.diff() > 0).all()):
        raise ValueError(f"steps must be {points} increasing numbers, one for each point of the curve")
    curve, at = curve.double(), at.to(curve.device)
    found = _by_seeds(curve) if over_seeds else _by_roughness(curve)
    start, low, end, margins, place = found
    drop, back = start - low, end - low
    drops = drop > margins[..., 0]
    rebounds = drops & (back > margins[..., 1]) & (back > SHARE * drop)
    return Rebound(start, low, end, drop, back, margins[..., 0], margins[..., 1], at[place], drops, rebounds)


def _by_roughness(curve: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    # The first point, and means of groups of equal size, counted from the end: uneven ones would make a straight line
    # look rough. What is left over joins the first group.
    points = curve.shape[-1]
    size = max(1, (points - 1) // GROUPS)
    edges = [1, *range(points - ((points - 1) // size - 1) * size, points + 1, size)]
    pieces = [(0, 1), *pairwise(edges)]
    level = torch.stack([curve[..., a:b].mean(-1) for a, b in pieces], dim=-1)
    middle = torch.tensor([(a + b - 1) // 2 for a, b in pieces], device=curve.device)
    low, place = level.min(-1)
    second = level.diff(n=2)
    deviation = (second - second.median(-1, keepdim=True).values).abs().median(-1).values
    walk = 1.4826 * deviation / sqrt(2) * sqrt(2 * size**2 / (size**2 + 1))
    distance = torch.stack([place, level.shape[-1] - 1 - place], dim=-1)
    margins = SIGMAS * walk[..., None] * distance.to(level).sqrt()
    return level[..., 0], low, level[..., -1], margins, middle[place]


def drop_and_rebound(curve: Number, groups: Number | None = None) -> tuple[Tensor, Tensor]:
    """Drop and rebound of every seed, each read at the minimum of the mean of the others: its noise chooses no place.

    - curve: (..., seeds, points) -> (..., seeds) each. A single seed has no others, and is read at its first point.
    - groups: (seeds,) a number for each: branches of one run, say, are no others of each other. None: no such

    >>> drop_and_rebound(torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.5, 2.0], [3.0, 1.0, 2.5]]))
    (tensor([2.0000, 1.5000, 2.0000]), tensor([1.0000, 0.5000, 1.5000]))
    """
    curve = at_least_dims(real(curve, "curve"), "curve", 2, "(..., seeds, points)")
    if not curve.shape[-1]:
        raise ValueError(f"curve must have at least one point, (..., seeds, points), got {tuple(curve.shape)}")
    own = curve if groups is None else _same(groups, curve.shape[-2]).to(curve) @ curve
    others = curve.sum(-2, keepdim=True) - own
    low = curve.gather(-1, others.argmin(-1, keepdim=True))[..., 0]
    return curve[..., 0] - low, curve[..., -1] - low


def _same(groups: Number, seeds: int) -> Tensor:
    """(seeds, seeds) bool."""
    of = real(groups, "groups")
    if of.shape != (seeds,):
        raise ValueError(f"groups must have one number for each of the {seeds} seeds, got shape {tuple(of.shape)}")
    return of[:, None] == of


def _by_seeds(curve: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    start, end = curve[..., 0], curve[..., -1]
    drop, back = drop_and_rebound(curve)
    margins = mean_interval(torch.stack([drop, back], dim=-1), dim=-2, level=CONFIDENCE).half_width
    return start.mean(-1), (start - drop).mean(-1), end.mean(-1), margins, curve.mean(-2).argmin(-1)
