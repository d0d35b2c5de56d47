"""Sums over queries that the spread of logits follows from, and that add up over batches of text.

With S_i the covariance of the keys that query i sees, and p_i = q_i - m its distance from a mean query m:

    sum of p_i' S_i p_i      sum of S_i p_i      sum of S_i

give the variance of all logits, split by any other mean query. So texts are read piece by piece, and the answer does
not depend on how they were cut.

Where every query sees one interval of keys (causal, window, packed, padded), no queries x keys product is formed. Keys
go in blocks of B. Of whole blocks the number, the sum and the sum of outer products are added up once: an interval is
the difference of two such states, and the keys of the blocks that it cuts, which are multiplied directly. That is
about T d (d + B) multiplications for T d T / 2, and T d d / B numbers of states.

Digits: keys are centred first. A block's products are taken about the mean of the block, and states whose difference is
needed are float64. Rows are centred before their squares are summed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from joma.measure._attention_blocks import slices
from joma.measure._attention_problem import Problem, interval_of
from joma.measure._gram import compute_dtype, wide_dtype

NUMBERS = {"cpu": 1 << 21, "cuda": 1 << 28}
"""Numbers that the largest temporary tensors have together: a processor's cache, or 1 GiB on a GPU."""


BLOCKS = (16, 128)
"""Keys in a block, at least and at most."""
Found = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""The fields of `joma.measure.spread.SpreadSums`."""


class Plan(NamedTuple):
    """Runs of neighbouring queries that see the same whole blocks of keys, at most a block of queries each."""

    queries: Tensor
    """(runs, B), clipped at the last query."""
    inside: Tensor
    """(runs, B): which of them belong to the run."""
    first: Tensor
    """(runs,): the first whole block, and `last` is the one after the last. Keys before and after are cut blocks."""
    last: Tensor
    cut_left: bool
    """Whether any query sees a part of the block before `first`."""
    from_start: bool
    """Whether whole blocks begin with the first key in every run, so that no difference is needed."""
    any_whole: bool
    """Whether any run sees a whole block: short sequences do not, and need no states."""

    def to(self, device: torch.device) -> Self:
        there = {name: getattr(self, name).to(device) for name in ("queries", "inside", "first", "last")}
        return self._replace(**there)


Plans = dict[object, Plan]
_KEPT: list[Plans] = []


@contextmanager
def plans_kept(plans: Plans) -> Iterator[None]:
    """Make each plan that follows from lengths alone once, and keep it in `plans`.

    For a recording as a CUDA graph: it cannot take plans from the host, and reads those that it was made with.
    """
    _KEPT.append(plans)
    try:
        yield
    finally:
        _KEPT.pop()


def plan(low: Tensor, high: Tensor, size: int) -> Plan:
    """low, high: (queries,) on the CPU, the interval of keys of each."""
    first = (low + size - 1) // size
    # The block of the last key counts as cut even where all of it is seen: causal queries then change their last block
    # together with their own block, and with the first one under a window of whole blocks.
    last = torch.maximum((high - 1) // size, first)
    new = F.pad((first.diff() != 0) | (last.diff() != 0), (1, 0), value=True)
    at = torch.arange(len(low))
    begun = torch.where(new, at, 0).cummax(0).values
    start = (new | ((at - begun) % size == 0)).nonzero()[:, 0]
    stop = F.pad(start[1:], (0, 1), value=len(low))
    queries = start[:, None] + torch.arange(size)
    inside = queries < stop[:, None]
    first, last, cut_left = first[start], last[start], bool(((high > low) & (low < first * size)).any())
    whole = last > first
    from_start = not cut_left and bool((first[whole] == 0).all())
    return Plan(queries.clamp(max=len(low) - 1), inside, first, last, cut_left, from_start, bool(whole.any()))


def _plans(problem: Problem, size: int) -> list[Plan]:
    """One for all samples or, where they have documents of their own, one for each."""
    at = problem.q.device
    if problem.cu_seqlens is not None:
        low, high = (end.cpu() for end in problem.interval)
        return [plan(*ends, size).to(at) for ends in zip(low, high, strict=True)]
    lengths = (problem.queries, problem.keys, problem.causal, problem.window)
    kept = _KEPT[-1] if _KEPT else {}
    if (key := (*lengths, size, at)) not in kept:
        ((low, high),) = zip(*interval_of(*lengths), strict=True)
        kept[key] = plan(low, high, size).to(at)
    return [kept[key]]


def interval_sums(problem: Problem, real: Tensor | None) -> Found:
    """Where neither a bias nor a soft cap is given; real (batch, queries): which queries count."""
    q, exact, seen = problem.q, compute_dtype(problem.q), _seen(problem)
    counts = (seen > 0) if real is None else (seen > 0) & real  # (batch or 1, queries)
    alike = q.shape[0] // len(counts)  # samples that one row of counts stands for
    rows = counts.sum() * alike
    mean = _mean_query(q, counts, rows) * problem.scale
    weight = torch.where(counts, 1 / seen.clamp(min=1).to(exact), 0.0)
    outer, pulled, own = _by_parts(problem, mean.to(exact), counts, weight)
    logs = torch.where(counts, seen, 1).to(exact).log().sum(dtype=mean.dtype) * alike
    each = mean.new_ones(q.shape[1])
    everywhere = outer.repeat_interleave(len(each) // len(outer), 0)
    return rows * each, mean, everywhere, pulled.flatten(0, 1), own.flatten(), 0 * each, logs * each


def _by_parts(problem: Problem, mean: Tensor, counts: Tensor, weight: Tensor) -> list[Tensor]:
    """Sums of S, S p and p' S p by key head, over as many samples and heads at a time as `NUMBERS` allow."""
    q, k, group = problem.q, problem.k, problem.q.shape[1] // problem.k.shape[1]
    wanted = min(q.shape[3], problem.keys)  # of the width, states cost as much as cut blocks
    size = min(BLOCKS[1], max(BLOCKS[0], 1 << (wanted - 1).bit_length()))
    low, high = problem.interval
    plans = _plans(problem, size)
    apart = len(plans) > 1  # samples with documents of their own
    most = _at_a_time(problem, size, cut_left=any(one.cut_left for one in plans))
    found = []
    for heads in slices(0, k.shape[1], most):
        each = []
        for at in slices(0, q.shape[0], 1 if apart else max(1, most // (heads.stop - heads.start))):
            mine, i = at if len(weight) > 1 else slice(None), at.start if apart else 0
            asking = slice(heads.start * group, heads.stop * group)
            p = q[at, asking].to(mean) * problem.scale - mean[asking, None]
            p = torch.where(counts[mine, None, :, None], p, 0.0)  # a query that does not count may be anything
            padding = None if problem.key_padding is None else problem.key_padding[at].to(q.device)
            part = _Part(plans[i], size, k[at, heads].to(mean), padding)
            each.append(part.sums(p.unflatten(1, (-1, group)), weight[mine], low[i], high[i]))
        found.append([torch.stack(parts).sum(0) for parts in zip(*each, strict=True)])
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


def _at_a_time(problem: Problem, size: int, *, cut_left: bool) -> int:
    width, group, cut = problem.q.shape[3], problem.q.shape[1] // problem.k.shape[1], size * (1 + cut_left)
    pair = problem.keys * (width + cut + width * width // size) + group * problem.queries * (2 * width + cut)
    return max(1, NUMBERS.get(problem.q.device.type, NUMBERS["cpu"]) // pair)


def _seen(problem: Problem) -> Tensor:
    """(batch or 1, queries): how many keys each query sees."""
    low, high = problem.interval
    if problem.key_padding is None:
        return high - low
    before = F.pad(problem.key_padding.to(low.device).long().cumsum(1), (1, 0))
    ends = (end.expand(len(before), -1) for end in (low, high))
    first, last = (before.gather(1, end) for end in ends)
    return last - first


def _mean_query(q: Tensor, counts: Tensor, rows: Tensor) -> Tensor:
    """(heads, width), counts (batch or 1, queries)."""
    wide = wide_dtype(q)
    weighed = torch.where(counts[:, None, :, None], q, 0.0)
    return weighed.sum((0, 2), dtype=wide) / rows.clamp(min=1)


class _Part:
    """Some samples and key heads under one plan: keys in blocks, and the states before every block."""

    def __init__(self, plan: Plan, size: int, k: Tensor, padding: Tensor | None) -> None:
        self.size, self.keys = size, k.shape[2]
        self.plan = plan
        blocks = -(-self.keys // size)
        real = k.new_ones(1, 1, self.keys, 1)
        if padding is not None:
            real = padding.to(k)[:, None, :, None]
            k = torch.where(real > 0, k, 0.0)
        k = (k - k.sum(2, keepdim=True) / real.sum(2, keepdim=True).clamp(min=1)).mul_(real)
        short = blocks * size - self.keys
        self.k = (F.pad(k, (0, 0, 0, short)) if short else k).unflatten(2, (blocks, size))
        self.real = (F.pad(real, (0, 0, 0, short)) if short else real).unflatten(2, (blocks, size))
        count = self.real.sum(3)  # (samples or 1, 1, blocks, 1)
        self.mean = self.k.sum(3) / count.clamp(min=1)
        self.any_whole, self.wide = plan.any_whole, k.dtype if plan.from_start else wide_dtype(k)
        if not self.any_whole:
            return
        local = (self.k - self.mean[..., None, :]) * self.real
        outer, mean, count = (local.mT @ local).to(self.wide), self.mean.to(self.wide), count.to(self.wide)
        outer += (count * mean)[..., None] * mean[..., None, :]
        self.count, self.sum = _states(count, 2), _states(count * mean, 2)
        self.outer = _states(outer, 2)

    def sums(self, p: Tensor, weight: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sum of S (kv heads, width, width), of S p (kv heads, group, width), of p' S p (kv heads, group).

        p (samples, kv heads, group, queries, width), weight (samples or 1, queries): 1 / keys seen, 0: does not count.
        """
        plan = self.plan
        about = self.mean.index_select(2, plan.last.clamp(max=self.mean.shape[2] - 1))
        if self.any_whole:
            n_whole, about, inner = self._whole(about)
        seen, k = self._cut_mask(low, high), self._cut_keys(about)  # the mask: (samples or 1, 1, runs, 1, B, cut keys)
        p = p[:, :, :, plan.queries].transpose(2, 3)  # (samples, kv heads, runs, group, B, width)
        w = (weight[:, plan.queries] * plan.inside)[:, None, :, None]  # (samples or 1, 1, runs, 1, B)
        n_cut = seen.sum(-1)
        s = (p.flatten(3, 4) @ k.mT).view(*p.shape[:-1], -1).mul_(seen)
        mean = s.sum(-1) / n_cut.clamp(min=1)
        s.addcmul_(mean[..., None], seen, value=-1)
        row, g = s.square().sum(-1), w[..., None, :] @ s
        outer = self._cut_outer(k, seen[:, :, :, 0], w[:, :, :, 0])
        pulled = torch.zeros_like(outer[:, :1])
        if self.any_whole:  # their logits have mean 0, as `about` is the mean of these keys
            through = (p.flatten(3, 4) @ inner).view_as(p)
            row += (through * p).sum(-1) + n_whole * n_cut * w * mean.square()
            g = g + (w.square() * n_whole * mean)[..., None, :] @ seen
            pulled = (w[..., None, :] @ through)[..., 0, :].sum((0, 2)).to(outer)
            outer += (inner * w.sum((3, 4))[..., None, None]).sum((0, 2))
        pulled = pulled + (g[..., 0, :] @ k).sum((0, 2))
        return outer, pulled, (w * row).sum((0, 2, 4)).to(outer)

    def _cut_outer(self, k: Tensor, seen: Tensor, w: Tensor) -> Tensor:
        """What cut keys k (samples, kv heads, runs, cut keys, width) add to the sum of S, (kv heads, width, width).

        seen (samples or 1, 1, runs, B, cut keys), w (samples or 1, 1, runs, B).
        """
        k, seen, w = (x.to(self.wide) for x in (k, seen, w))
        each = (w[..., None, :] @ seen).mT.expand(*k.shape[:-1], 1)  # how much every key weighs
        center = (seen @ k) * w[..., None]
        k, each, center = (x.transpose(0, 1).flatten(1, 3) for x in (k, each, center))
        return (k.mT @ (k * each) - center.mT @ center).to(wide_dtype(k))

    def _whole(self, nearest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of every run's whole blocks: number of keys, mean, or `nearest` where there are none, and outer products."""
        first, last = self.plan.first, self.plan.last
        if self.plan.from_start:
            # An empty range may begin anywhere: it ends where it begins, and its state must be nothing.
            last = torch.where(last > first, last, 0)
            count, total, outer = (x.index_select(2, last) for x in (self.count, self.sum, self.outer))
        else:
            count, total, outer = (
                x.index_select(2, last) - x.index_select(2, first) for x in (self.count, self.sum, self.outer)
            )
        mean = total / count.clamp(min=1)
        outer -= total[..., None] * mean[..., None, :]
        about = torch.where(count > 0, mean.to(nearest), nearest)
        return count[..., None].to(nearest), about, outer.to(nearest)

    def _cut_blocks(self) -> list[Tensor]:
        return [self.plan.first - 1, self.plan.last] if self.plan.cut_left else [self.plan.last]

    def _cut_keys(self, about: Tensor) -> Tensor:
        """(samples, kv heads, runs, cut keys, width): keys of the blocks that a run's queries see in part."""
        last = self.k.shape[2] - 1
        parts = [self.k.index_select(2, block.clamp(0, last)) for block in self._cut_blocks()]
        return (torch.cat(parts, 3) if len(parts) > 1 else parts[0]) - about[..., None, :]

    def _cut_mask(self, low: Tensor, high: Tensor) -> Tensor:
        size, last = self.size, self.k.shape[2] - 1
        within = torch.arange(size, device=low.device)
        key = torch.cat([block[:, None] * size + within for block in self._cut_blocks()], 1)[:, None]
        a, b = (end[self.plan.queries][..., None] for end in (low, high))
        seen = (key >= a) & (key < b)  # (runs, B, cut keys)
        real = torch.cat([self.real.index_select(2, block.clamp(0, last)) for block in self._cut_blocks()], 3)
        return seen[:, None].to(self.k) * real.mT[..., None, :, :]


def _states(x: Tensor, dim: int) -> Tensor:
    """Sums over the blocks before each block, and over all."""
    return torch.cat([torch.zeros_like(x.narrow(dim, 0, 1)), x.cumsum(dim)], dim)
