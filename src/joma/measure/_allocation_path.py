"""The integral of the slopes over one interval: Gauss-Legendre nodes, more of them until it closes, then halves.

A smooth function closes within 2, 4 or 8 nodes. One with a kink does not, however many there are: its interval is
halved where it is worst, and halved again, so that the kink is closed in.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

ORDERS = (2, 4, 8)  # Nodes on all of the interval, one rule after the other.
HALF = 4  # Nodes on each half of what is halved.
ROUNDING = 16  # In units of eps: a function of many numbers is not known better.

Slopes = Callable[[float], Tensor]
Value = Callable[[float], Tensor]


class Rule(NamedTuple):
    """When an interval closes."""

    tolerance: float
    absolute: float
    most: int
    each: bool
    eps: float


@dataclass(frozen=True)
class Piece:
    """A stretch of the interval, in float64 on the CPU; `moved` is how far the last added nodes moved the parts."""

    start: float
    end: float
    before: Tensor
    after: Tensor
    parts: Tensor
    moved: Tensor

    @cached_property
    def miss(self) -> Tensor:
        """(*measures) what the parts have too much of the change."""
        return self.parts.sum(0) - (self.after - self.before)


class Integral(NamedTuple):
    """An interval, done; all but the last two as in `joma.measure.allocation.Allocation`."""

    parts: Tensor
    gap: Tensor
    allowed: Tensor
    closed: Tensor
    moved: Tensor
    nodes: int
    first_gap: Tensor  # before it was halved: what halves do not lessen is no matter of nodes
    pieces: int


@cache
def _gauss(count: int) -> tuple[tuple[float, float], ...]:
    """Nodes and weights on [0, 1]."""
    x, w = np.polynomial.legendre.leggauss(count)
    return tuple(zip(((x + 1) / 2).tolist(), (w / 2).tolist(), strict=True))


def integrate(slopes: Slopes, start: float, end: float, count: int) -> Tensor:
    """The integral of `slopes` from start to end by `count` nodes, (groups, *measures) in float64 on the CPU."""
    # Exact for polynomials up to degree 2 count - 1, so for functions up to degree 2 count.
    width = end - start
    values = [slopes(start + width * x) for x, _ in _gauss(count)]
    weights = torch.tensor([width * w for _, w in _gauss(count)], dtype=torch.float64)
    total: Tensor = torch.tensordot(weights, torch.stack(values).cpu().double(), dims=1)
    return total


def follow(slopes: Slopes, value: Value, before: Tensor, after: Tensor, rule: Rule) -> Integral:
    """Nodes added until the interval closes or they run out."""
    parts, nodes = integrate(slopes, 0.0, 1.0, ORDERS[0]), ORDERS[0]
    piece = Piece(0.0, 1.0, before, after, parts, torch.full_like(parts, torch.inf))
    for count in ORDERS[1:]:
        if _is_closed([piece], rule) or nodes + count > rule.most:
            break
        parts, nodes = integrate(slopes, 0.0, 1.0, count), nodes + count
        piece = replace(piece, parts=parts, moved=(parts - piece.parts).abs())
    pieces, first_gap = [piece], piece.miss.abs()
    while not _is_closed(pieces, rule) and nodes + 2 * HALF <= rule.most:
        limits = _limits(pieces, rule)
        worst = max(range(len(pieces)), key=lambda n: float(_excess([pieces[n]], limits).max()))
        pieces[worst : worst + 1] = _halves(pieces[worst], slopes, value)
        nodes += 2 * HALF
    limits = _limits(pieces, rule)
    gap, closed = _sum(pieces, "miss").abs(), _excess(pieces, limits) <= 1
    return Integral(_sum(pieces, "parts"), gap, limits[0], closed, _sum(pieces, "moved"), nodes, first_gap, len(pieces))


def _halves(piece: Piece, slopes: Slopes, value: Value) -> list[Piece]:
    middle = (piece.start + piece.end) / 2
    level = value(middle).cpu().double()
    left, right = integrate(slopes, piece.start, middle, HALF), integrate(slopes, middle, piece.end, HALF)
    moved = (left + right - piece.parts).abs() / 2
    return [
        Piece(piece.start, middle, piece.before, level, left, moved),
        Piece(middle, piece.end, level, piece.after, right, moved),
    ]


def _sum(pieces: list[Piece], name: str) -> Tensor:
    return torch.stack([getattr(piece, name) for piece in pieces]).sum(0)


def _limits(pieces: list[Piece], rule: Rule) -> tuple[Tensor, Tensor]:
    """(*measures) how large the gap may be, and how far a part may have moved: see `joma.measure.allocation.allocate`.

    Pieces stand in their order: the first begins, and the last ends, where the interval does.
    """
    parts, before, after = _sum(pieces, "parts"), pieces[0].before, pieces[-1].after
    scale = torch.stack([before.abs(), after.abs(), parts.abs().sum(0)]).amax(0)
    least = (ROUNDING * rule.eps * scale).clamp(min=rule.absolute)
    gap = torch.maximum(rule.tolerance * (after - before).abs(), least)
    if not rule.each:
        return gap, torch.full_like(gap, torch.inf)
    return gap, torch.maximum(rule.tolerance * parts.abs().amax(0), least)


def _is_closed(pieces: list[Piece], rule: Rule) -> bool:
    return bool((_excess(pieces, _limits(pieces, rule)) <= 1).all())


def _excess(pieces: list[Piece], limits: tuple[Tensor, Tensor]) -> Tensor:
    """(*measures) gaps and moves of some pieces, in units of what they may be in all."""
    pairs = zip((_sum(pieces, "miss").abs(), _sum(pieces, "moved").amax(0)), limits, strict=True)
    return torch.maximum(*(torch.where((one > 0) & limit.isfinite(), one / limit, 0.0) for one, limit in pairs))
