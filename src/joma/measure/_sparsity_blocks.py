"""Attention weights of a few queries at a time, for measures that need every weight and not only sums of them.

One buffer holds a block: logits in base 2 (as in `_attention_blocks`), then, in place, weights e = 2^(s - max s). It
has 1 Mi numbers (4 MiB in float32), or 64 rows of logits where that is more. No tensor of queries x keys is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log
from typing import NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor

from joma.measure._attention_problem import Problem
from joma.measure._attention_sinks import Sink
from joma.theory.arguments import Number

ELEMENTS = 1 << 20
"""Logits at a time."""
LEAST = 64
"""Rows of a product, at least: fewer make it slow."""
_LOG2E = 1 / log(2)
_HIDDEN = -1e29  # in base 2: a logit below this is a mask, as in `attention_stats`


class Masks(TypedDict, total=False):
    """What decides a key's logit beside q, k and causal, as in `attention_stats`."""

    scale: float | None
    window: int | None
    bias: Number | None
    softcap: float | None
    key_padding: Number | None
    cu_seqlens: Number | None


class Options(Masks, total=False):
    """What `attention_stats` takes beside q, k and causal, with the same meaning."""

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
    ) -> Attention:
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

    @property
    def at(self) -> tuple[int, slice, slice]:
        """Where the block lies in (batch, heads, queries)."""
        return self.sample, self.heads, self.queries

    @property
    def keys(self) -> slice:
        return slice(self.first, self.first + self.logits.shape[-1])

    def seen(self) -> Tensor:
        """Which keys each query sees. Only before `weights`."""
        return self.logits > _HIDDEN

    def seen_by_any(self) -> Tensor:
        """(heads, keys): which keys some query sees. Only before `weights`."""
        return self.logits.amax(-2) > _HIDDEN

    def weights(self) -> tuple[Tensor, Tensor]:
        """e with largest entry 1 in every row (0 where nothing is seen), and the denominator (heads, queries, 1).

        The logits are overwritten. A learned sink is in the denominator only.
        """
        top = self.logits.amax(-1, keepdim=True).clamp_(min=_HIDDEN)
        e = self.logits.sub_(top).exp2_()
        total = e.sum(-1, keepdim=True)
        if self.sink is not None:
            total += torch.exp2(self.sink[..., None] - top)
        return e, total.masked_fill_(top <= _HIDDEN, 1.0)


def per_query(attention: Attention, reduce: Callable[[Block], Tensor]) -> Tensor:
    """What `reduce` makes of each block, (heads, queries), put together; 0 for queries that see no key."""
    q = attention.problem.q
    found = q.new_zeros(q.shape[:-1], dtype=_exact(q))
    for_each(attention, slice(0, q.shape[2]), lambda block: found[block.at].copy_(reduce(block)))
    return found


def for_each(attention: Attention, queries: slice, work: Callable[[Block], object]) -> None:
    """Call `work` on the blocks of these queries, one after another; blocks that see no key are left out."""
    with torch.no_grad(), torch.autocast(attention.problem.q.device.type, enabled=False):
        for block in _blocks(attention, queries):
            work(block)


def _exact(q: Tensor) -> torch.dtype:
    return torch.promote_types(q.dtype, torch.float32)


def _blocks(attention: Attention, queries: slice) -> Iterator[Block]:
    problem, sink = attention
    batch, heads, _, _ = problem.q.shape
    kv_heads, exact = problem.k.shape[1], _exact(problem.q)
    group = heads // kv_heads
    row_slices, head_slices = _plan(problem, queries)
    widest = max((last - first) * (r.stop - r.start) for r in row_slices for first, last in [_visible(problem, r)])
    buffer = torch.empty(head_slices[0].stop * group * widest, dtype=exact, device=problem.q.device)
    z = None if sink is None else (sink.logit.to(exact) * _LOG2E).expand(problem.q.shape[:-1])
    for sample in range(batch):
        q = problem.q[sample].to(exact).unflatten(0, (kv_heads, group)) * (problem.scale * _LOG2E)
        k = problem.k[sample].to(exact).mT.contiguous()  # transposed once: some CPU builds multiply views slowly
        for kv in head_slices:
            for rows in row_slices:
                first, last = _visible(problem, rows)
                if last == first:
                    continue
                few = q[kv, :, rows].flatten(1, 2)
                s = buffer[: few.shape[0] * few.shape[1] * (last - first)].view(*few.shape[:2], -1)
                torch.bmm(few, k[kv, :, first:last], out=s)
                own = slice(kv.start * group, kv.stop * group)
                s = s.view(own.stop - own.start, -1, last - first)
                block = Block(sample, own, rows, first, s, None if z is None else z[sample, own, rows])
                _mask(problem, block)
                yield block


def _visible(problem: Problem, rows: slice) -> tuple[int, int]:
    return problem.visible(rows.start, rows.stop)


def _plan(problem: Problem, queries: slice) -> tuple[list[slice], list[slice]]:
    """Slices of the queries and of the key heads."""
    kv_heads, keys, count = problem.k.shape[1], problem.keys, queries.stop - queries.start
    group = problem.q.shape[1] // kv_heads
    rows = min(ELEMENTS // (group * keys), count // 8)  # an eighth wastes a sixteenth under a causal mask
    rows = min(count, max(rows, LEAST // group, 1))
    pairs = min(max(1, ELEMENTS // (rows * group * keys)), kv_heads)
    return _slices(queries.start, queries.stop, rows), _slices(0, kv_heads, pairs)


def _slices(start: int, stop: int, size: int) -> list[slice]:
    return [slice(i, min(i + size, stop)) for i in range(start, stop, size)]


def _mask(problem: Problem, block: Block) -> None:
    """Soft cap, bias and masks of one block, in place; masks touch only columns that some query does not see."""
    s, rows, keys = block.logits, block.queries, block.keys
    if problem.softcap is not None:
        s.div_(problem.softcap * _LOG2E).tanh_().mul_(problem.softcap * _LOG2E)
    if problem.bias is not None:
        s.add_(problem.bias[block.sample, block.heads, rows, keys].to(s), alpha=_LOG2E)
    low = min(max(problem.ends[1][rows]), keys.stop)
    high = max(min(problem.ends[2][rows]), low)
    row = block.sample if problem.interval[0].shape[0] > 1 else 0
    for left, right in ((keys.start, low), (high, keys.stop)):
        if left < right:
            hidden = problem.hidden(rows.start, rows.stop, left, right)[row]
            s[..., left - keys.start : right - keys.start].masked_fill_(hidden, -torch.inf)
    if problem.key_padding is not None:
        s.masked_fill_(~problem.key_padding[block.sample, keys].to(s.device), -torch.inf)
