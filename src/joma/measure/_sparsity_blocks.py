"""Attention weights of a few queries at a time, for measures that need every weight and not only sums of them.

One buffer holds a block: logits in base 2 (as in `_attention_blocks`), then, in place, weights e = 2^(s - max s). It
has 1 Mi numbers (4 MiB in float32), or 64 rows of logits where that is more. No tensor of queries x keys is made.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from numbers import Integral, Real
from typing import NamedTuple, Self, Unpack

import torch
from torch import Tensor

from joma.host.arguments import Number, integer, number, shown
from joma.measure._attention_blocks import EMPTY, LOG2E, at_a_time, mask, slices, widest
from joma.measure._attention_problem import Masks, Problem, Sink
from joma.measure._gram import compute_dtype

ELEMENTS = 1 << 20  # Logits at a time.
LEAST = 64  # Rows of a product, at least: fewer make it slow.


class Options(Masks, total=False):
    """What `attention_stats` takes besides q, k and causal, with the same meaning."""

    sinks: Number | None
    sink_key: Number | None


class Attention(NamedTuple):
    """A checked problem and its learned sink, if it has one."""

    problem: Problem
    sink: Sink | None

    @classmethod
    def of(
        cls,
        q: Number,
        k: Number,
        causal: bool,
        *,
        sinks: Number | None = None,
        sink_key: Number | None = None,
        **masks: Unpack[Masks],
    ) -> Self:
        problem = Problem.of(q, k, None, causal=causal, **masks)
        return cls(problem, Sink.of(problem, sinks, sink_key, None, False))


@dataclass
class Block:
    """Logits of some queries of one sample, (heads, queries, keys), those of the keys from `first` on."""

    sample: int
    heads: slice
    queries: slice
    first: int
    logits: Tensor
    sink: Tensor | None

    def seen(self) -> Tensor:
        """Which keys each query sees. Only before `weights`."""
        return self.logits > EMPTY

    def weights(self) -> tuple[Tensor, Tensor]:
        """e with largest entry 1 in every row (0 where nothing is seen), and the denominator (heads, queries, 1)."""
        # The logits are overwritten. A learned sink is in the denominator only.
        top = self.logits.amax(-1, keepdim=True).clamp_(min=EMPTY)
        e = self.logits.sub_(top).exp2_()
        total = e.sum(-1, keepdim=True)
        if self.sink is not None:
            total += torch.exp2(self.sink[..., None] - top)
        return e, total.masked_fill_(top <= EMPTY, 1.0)


def per_query(attention: Attention, reduce: Callable[[Block], Tensor]) -> Tensor:
    """What `reduce` makes of each block, (heads, queries), put together; 0 for queries that see no key."""
    q = attention.problem.q
    found = q.new_zeros(q.shape[:-1], dtype=compute_dtype(q))

    def put(block: Block) -> None:
        found[block.sample, block.heads, block.queries] = reduce(block)

    for_each(attention, slice(0, q.shape[2]), put)
    return found


def for_each(attention: Attention, queries: slice, work: Callable[[Block], object]) -> None:
    """Call `work` on the blocks of these queries, one after another; blocks that see no key are left out."""
    problem, sink = attention
    batch, heads, _, _ = problem.q.shape
    kv_heads, exact = problem.k.shape[1], compute_dtype(problem.q)
    group = heads // kv_heads
    size, pairs = at_a_time(problem, queries.stop - queries.start, ELEMENTS, LEAST)
    row_slices, head_slices = slices(queries.start, queries.stop, size), slices(0, kv_heads, pairs)
    largest = head_slices[0].stop * group * widest(problem, row_slices)
    with torch.no_grad(), torch.autocast(problem.q.device.type, enabled=False):
        buffer = torch.empty(largest, dtype=exact, device=problem.q.device)
        z = None if sink is None else (sink.logit.to(exact) * LOG2E).expand(problem.q.shape[:-1])
        for sample in range(batch):
            q = problem.q[sample].to(exact).unflatten(0, (kv_heads, group)) * (problem.scale * LOG2E)
            k = problem.k[sample].to(exact).mT.contiguous()  # transposed once: some CPU builds multiply views slowly
            for kv, rows in product(head_slices, row_slices):
                first, last = problem.visible(rows.start, rows.stop)
                if last == first:
                    continue
                few = q[kv, :, rows].flatten(1, 2)
                s = buffer[: few.shape[0] * few.shape[1] * (last - first)].view(*few.shape[:2], -1)
                torch.bmm(few, k[kv, :, first:last], out=s)
                logits = s.unflatten(1, (group, -1))
                mask(problem, logits[None], slice(sample, sample + 1), kv, rows, first)
                own = slice(kv.start * group, kv.stop * group)
                sinks = None if z is None else z[sample, own, rows]
                work(Block(sample, own, rows, first, logits.flatten(0, 1), sinks))


def seen_keys(problem: Problem, interval: tuple[Tensor, Tensor]) -> Tensor:
    """(batch or 1, queries): how many keys of its interval each query sees, where no bias hides any."""
    low, high = interval
    if problem.key_padding is None:
        return high - low
    real = torch.nn.functional.pad(problem.key_padding.to(low.device).long().cumsum(1), (1, 0))
    upto_high, upto_low = (real.gather(1, end.expand(len(real), -1)) for end in (high, low))
    return upto_high - upto_low


def part_of(count: Tensor, share: float) -> Tensor:
    """A share of some keys as a number of keys: rounded up, though not because 0.28 * 25 is above 7 in binary."""
    return (count.double() * share - 1e-9).ceil().long().clamp(min=1)


def checked_threshold(threshold: float) -> float:
    least = number(threshold, "threshold")
    if not 0 <= least <= 1:
        raise ValueError(f"threshold must lie in [0, 1], got {least:g}")
    return least


def checked_keep(keep: object, keys: int) -> int | float:
    """A number of keys, or a share of them."""
    if not isinstance(keep, bool) and isinstance(keep, Integral) and 1 <= int(keep) <= keys:
        return int(keep)
    if isinstance(keep, Real) and not isinstance(keep, Integral) and 0 < float(keep) <= 1:
        return float(keep)
    wanted = f"a whole number from 1 to the number of keys, {keys}, or a share above 0.0 and at most 1.0"
    raise ValueError(f"keep must be {wanted}, got {shown(keep)}")


def checked_queries(queries: tuple[int, int] | None, count: int) -> slice:
    """Which of the queries: all, unless given."""
    if queries is None:
        return slice(0, count)
    try:
        start, stop = (integer(each, "queries", 0) for each in queries)
        good = start < stop <= count
    except (TypeError, ValueError):
        good = False
    if not good:
        wanted = f"(start, stop) with 0 <= start < stop <= {count}, the number of queries"
        raise ValueError(f"queries must be {wanted}, got {shown(queries)}")
    return slice(start, stop)
