"""Which parameters made a measure move: its change between checkpoints, split by groups of parameters.

Between two states the parameters go the straight way x(s) = x0 + s (x1 - x0). The change of a function f is the
integral of its gradient along that way, and a gradient is a sum over parameters, so that

    f(x1) - f(x0) = sum over groups g of  P_g,     P_g = integral from 0 to 1 of  grad_g f(x(s)) . (x1_g - x0_g)  ds.

That is exact. The integral is taken at Gauss-Legendre nodes, and what the parts lack of the change is measured, not
estimated: it is part of the answer. Lan et al., "LCA: Loss Change Allocation for Neural Network Training" (2019), do
this for the loss.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import integer, must_be_callable, number
from joma.host.words import brief_repr
from joma.measure._allocation_path import ORDERS, Integral, Rule, follow
from joma.measure._allocation_slopes import Line, Share, State, read_groups, read_states
from joma.measure._gram import full_precision

NODES = 128  #: Nodes per interval, at most, unless told otherwise: a kink is closed in to 1e-3 with about 80.


@brief_repr
class Allocation(NamedTuple):
    """Which group made each measure move, in float64 on the CPU. `*measures` is the shape that the function returns.

    >>> square = lambda p: torch.stack([p["a"] ** 2 + p["b"], p["b"]])
    >>> found = allocate(square, [{"a": 1.0, "b": 0.0}, {"a": 3.0, "b": 5.0}], {"first": ["a"], "second": ["b"]})
    >>> found.groups, found.parts[0]
    (('first', 'second'), tensor([[8., 0.],
            [5., 5.]], dtype=torch.float64))
    """

    groups: tuple[str, ...]
    """Names, in the order of `parts`; "rest" is last where something is in no group."""
    parts: Tensor
    """(intervals, groups, *measures) how much of the change came through each group."""
    change: Tensor
    """(intervals, *measures) of the function, from state to state."""
    error: Tensor
    """(*measures) the closing error of the whole path: |sum of all parts - (f(last state) - f(first state))|."""
    gaps: Tensor
    """(intervals, *measures) the closing error of each interval: |sum over groups of parts - change|."""
    allowed: Tensor
    """(intervals, *measures) what the gap may be: the tolerance, or the rounding of the type if that is more."""
    closed: Tensor
    """(intervals, *measures) bool: gaps <= allowed, and with each=True no part moves any more."""
    moved: Tensor
    """(intervals, groups, *measures) how far the last added nodes moved each part; infinity if the first sufficed."""
    nodes: Tensor
    """(intervals,) nodes at which the gradient was taken, all rules together; 0 where nothing moves."""
    reasons: tuple[str, ...]
    """One sentence per interval that is not closed; empty if all are."""

    @property
    def total(self) -> Tensor:
        """(groups, *measures) over all intervals."""
        return self.parts.sum(0)


def allocate(
    function: Callable[[State], Tensor],
    states: Iterable[Mapping[str, Any]],
    groups: Mapping[str, Iterable[Any]],
    *,
    tolerance: float = 1e-3,
    absolute: float = 0.0,
    most: int = NODES,
    members: bool = False,
    each: bool = False,
) -> Allocation:
    """The change of every measure between neighbouring states, split by the groups of parameters it came through.

    function: takes a dict of parameters by name, gives a floating tensor of measures of any shape. It must give the
    same numbers when called again: no dropout. TF32 and autocast are off around it. states: dicts of parameters, two or
    more, in the order of training, float32 or float64; an iterator that reads checkpoints one by one holds two of them
    at a time. groups: {name: [parameter names]}; ("qkv", (slice(None), 0)) instead of "qkv" is the part `qkv[:, 0]` of
    that parameter. No entry may be in two groups. What is in none is collected in a last group "rest", so that the sum
    closes.

    Each interval gets 2, 4 and 8 nodes, then it is halved where it is worst, until its closing error is at most

        max(tolerance |change of the interval|, absolute, 16 eps max(|f(start)|, |f(end)|, sum over groups |part|))

    for every measure, or `most` nodes are spent. The last term is what rounding leaves of a function in its own type
    (eps is 1.2e-7 in float32). What did not close is said: `closed` is False there, and `reasons` has a sentence. An
    interval in which the parts cancel is hard to close to a share of what is left: `absolute` is in the unit of the
    measure, so give there the error that does not matter.

    The closing error is that of the sum: groups whose errors cancel each other would not show. each=True also wants
    that no part moved by more than the tolerance, relative to the largest part, when nodes were last added: at least
    6 nodes per interval.

    members=True: the first dimension of every parameter and of the result is the member of an ensemble, and members do
    not see each other. One call does them all, at the cost of one.

    A node costs 1 forward pass, and 1 backward pass per measure.

    >>> found = allocate(lambda p: (p["w"] @ p["x"]).relu().sum(), [
    ...     {"w": [[1.0, -1.0]], "x": [1.0, 2.0]}, {"w": [[1.0, 1.0]], "x": [1.0, 3.0]}], {"w": ["w"], "x": ["x"]})
    >>> found.change, bool(found.closed.all()), bool(found.error < 4e-3)
    (tensor([4.], dtype=torch.float64), True, True)
    >>> found.parts.sum(1).round(decimals=2)
    tensor([4.], dtype=torch.float64)
    """
    must_be_callable(function, "function")
    tolerance, absolute = number(tolerance, "tolerance", above=0.0), number(absolute, "absolute", least=0.0)
    integer(most, "most", ORDERS[0])
    rule = Rule(tolerance, absolute, most, each, eps=0.0)
    shares: dict[str, Share] = {}
    levels: list[Tensor] = []  # of the function, state by state
    found: list[Integral] = []
    reasons: list[str] = []
    for start, end in pairwise(read_states(states)):
        shares = shares or read_groups(groups, start)
        # With factors rounded to ten bits, as TF32 does, or to eight, as autocast does, nothing would close.
        with full_precision(next(iter(start.values())).device):
            line = Line(function, start, end, shares, members=members, name=f"interval {len(found)}")
            levels = levels or [line.value(0).cpu().double()]
            before, after = levels[-1], line.value(1)
            if before.shape != after.shape:
                raise ValueError(f"function must return the same shape for every state, got {tuple(before.shape)} and "
                                 f"then {tuple(after.shape)}")  # fmt: skip
            types = {after.dtype} | {one.dtype for one in start.values() if one.is_floating_point()}
            rule = rule._replace(eps=max(torch.finfo(one).eps for one in types))  # of the coarser one
            levels.append(after.cpu().double())
            done = _followed(line, before, levels[-1], rule)
            found.append(done)
            if not bool(done.closed.all()):
                reasons.append(_reason(line, before, done))
    parts, *others = (torch.stack(part) for part in list(zip(*found, strict=True))[:5])
    gaps, allowed, closed, moved = others
    error = (parts.sum((0, 1)) - (levels[-1] - levels[0])).abs()
    nodes = torch.tensor([one.nodes for one in found])
    change = torch.stack(levels).diff(dim=0)
    return Allocation(tuple(shares), parts, change, error, gaps, allowed, closed, moved, nodes, tuple(reasons))


def _followed(line: Line, before: Tensor, after: Tensor, rule: Rule) -> Integral:
    if line.moves:
        return follow(line.slopes, line.value, before, after, rule)
    gap = (after - before).abs()  # nothing moves, so nothing should change
    zero = torch.zeros(len(line.shares), *gap.shape, dtype=gap.dtype)
    return Integral(zero, gap, torch.zeros_like(gap), gap == 0, zero, 0, gap, 1)


def _reason(line: Line, before: Tensor, done: Integral) -> str:
    worst = int(torch.where(done.closed, -torch.inf, done.gap - done.allowed).argmax())
    gap, first, most = (float(one.flatten()[worst]) for one in (done.gap, done.first_gap, done.allowed))
    parts, moved = (one.reshape(len(one), -1)[:, worst] for one in (done.parts, done.moved))
    if not torch.equal(line.value(0).cpu().double(), before):
        why = "the function gives other numbers when it is called again"
    elif gap <= most:
        why = f"their sum is closed, but a part moved by {moved.max():.2g} when nodes were last added: raise most"
    elif not bool(parts.any()):
        why = "the measure has no gradient by any parameter"
    elif gap > 0.5 * first and done.pieces > 1:
        why = "more nodes hardly help: many kinks, jumps, rounding, or a step without gradient"
    else:
        why = "more nodes would help: raise most, or give absolute"
    return f"{line.name}, measure {worst}: the parts miss the change by {gap:.2g} after {done.nodes} nodes; {why}"
