"""The path that runs anywhere, without gradients: blocks of queries that fit a processor's cache, worked in place.

Per block, in base 2 (torch's exp2 takes two thirds of the time of its exp on Arm and as much elsewhere):

    s = q k^T,   m = max s,   t = s - m,   e = 2^t,   l = sum e,   a = sum t e,   output = e v / l

Two buffers hold s and e of one block, and nothing else of the size queries x keys is made. Keys that no query of a
block sees are not multiplied; masks touch only the columns that some query of the block does not see.
"""

from itertools import product
from math import log

import torch
from torch import Tensor

from joma.measure._attention_problem import Problem
from joma.measure._gram import compute_dtype

ELEMENTS = 1 << 21  # logits in each of two buffers: 8 MiB in float32. Fewer cost more calls, more leave the cache.
LEAST = 64  # rows of a product: fewer make it slow, and more make a causal block multiply keys that nobody sees
LOG2E = 1 / log(2)
_MASKED = -1e30  # finite, so that 2^t t is 0 and not NaN
EMPTY = -1e29  # a row maximum below this has met no key


def forward(problem: Problem) -> tuple[Tensor, ...]:
    """The six statistics and, if v was given, the output."""
    samples, kv_heads = problem.k.shape[:2]
    count, pairs = at_a_time(problem, problem.queries, ELEMENTS, LEAST)
    rows = slices(0, problem.queries, count)
    # Several samples only with all their heads.
    batch, heads = slices(0, samples, max(1, pairs // kv_heads)), slices(0, kv_heads, pairs)
    largest = batch[0].stop * heads[0].stop * (problem.q.shape[1] // kv_heads) * widest(problem, rows)
    work = _Work(problem, largest)
    for block in product(batch, heads, rows):
        work.block(*block)
    return work.finish()


def at_a_time(problem: Problem, queries: int, elements: int, least: int) -> tuple[int, int]:
    """How many of so many queries, and of pairs of a sample and a key head, make blocks of about `elements` logits."""
    group = problem.q.shape[1] // problem.k.shape[1]
    rows = min(elements // (group * problem.keys), queries // 8)  # an eighth wastes a sixteenth under a causal mask
    rows = min(queries, max(rows, least // group, 1))
    return rows, max(1, elements // (rows * group * problem.keys))


def widest(problem: Problem, blocks: list[slice]) -> int:
    """Logits per head of the largest of these blocks of queries."""
    seen = [problem.visible(rows.start, rows.stop) for rows in blocks]
    return max((last - first) * int(rows.stop - rows.start) for rows, (first, last) in zip(blocks, seen, strict=True))


def slices(start: int, stop: int, size: int) -> list[slice]:
    """start..stop in pieces of this size."""
    return [slice(i, min(i + size, stop)) for i in range(start, stop, size)]


def mask(problem: Problem, s: Tensor, batch: slice, heads: slice, rows: slice, first: int) -> None:
    """Soft cap, bias and masks of a block of logits (batch, kv heads, group, queries, keys from `first`), in place."""
    last = first + s.shape[-1]
    if problem.softcap is not None:
        s.div_(problem.softcap * LOG2E).tanh_().mul_(problem.softcap * LOG2E)
    if problem.bias is not None:
        bias = problem.bias.unflatten(1, (-1, s.shape[2]))
        s.add_(bias[batch, heads, :, rows, first:last].to(s), alpha=LOG2E).clamp_(min=_MASKED)
    low = min(max(problem.ends[1][rows]), last)
    high = max(min(problem.ends[2][rows]), low)
    samples = slice(None) if problem.interval[0].shape[0] == 1 else batch
    for left, right in ((first, low), (high, last)):
        if left < right:
            hidden = problem.hidden(rows.start, rows.stop, left, right)[samples, :, None]
            s[..., left - first : right - first].masked_fill_(hidden, _MASKED)
    if problem.key_padding is not None:
        s.masked_fill_(~problem.key_padding[batch, None, None, None, first:last].to(s.device), _MASKED)


class _Work:
    """Inputs in the shapes the products want, and what has been found: m, l, a by (batch, kv head, group, query)."""

    def __init__(self, problem: Problem, size: int) -> None:
        exact = compute_dtype(problem.q)
        q = problem.q.to(exact).unflatten(1, (problem.k.shape[1], -1)) * (problem.scale * LOG2E)
        self.problem, self.q = problem, q
        self.keys = problem.k.to(exact).mT.contiguous()  # transposed once: some CPU builds multiply views slowly
        self.v = None if problem.v is None else problem.v.to(exact).contiguous()
        self.m, self.l, self.a = q.new_empty(3, *q.shape[:-1]).unbind(0)
        self.output = None if self.v is None else q.new_empty(*q.shape[:-1], self.v.shape[3])
        self.buffers = q.new_empty(size), q.new_empty(size)

    def block(self, batch: slice, heads: slice, rows: slice) -> None:
        problem = self.problem
        first, last = problem.visible(rows.start, rows.stop)
        at = (batch, heads, slice(None), rows)
        if last == first:
            self.m[at], self.l[at], self.a[at] = _MASKED, 0.0, 0.0  # `finish` writes zeros where no key was met
            return
        q = self.q[at]
        shape = (*q.shape[:-1], last - first)
        q, keys = q.flatten(0, 1).flatten(1, 2), self.keys[batch, heads, :, first:last].flatten(0, 1)
        s, e = (buffer[: q.shape[0] * q.shape[1] * shape[-1]].view(*q.shape[:2], -1) for buffer in self.buffers)
        torch.bmm(q, keys, out=s)
        mask(problem, s.view(shape), batch, heads, rows, first)
        top = s.amax(-1, keepdim=True)
        s.sub_(top)
        torch.exp2(s, out=e)
        total = e.sum(-1)
        self.m[at], self.l[at] = top.view(shape[:-1]), total.view(shape[:-1])
        self.a[at] = s.mul_(e).sum(-1).view(shape[:-1])
        if self.output is not None and self.v is not None:
            v = self.v[batch, heads, first:last].flatten(0, 1)
            self.output[at] = (torch.bmm(e, v) / total[..., None]).view(*shape[:-1], -1)

    def finish(self) -> tuple[Tensor, ...]:
        problem = self.problem
        empty = (self.m <= EMPTY).flatten(1, 2)
        m, a = (torch.where(empty, 0.0, each.flatten(1, 2)) for each in (self.m, self.a))
        l = torch.where(empty, 1.0, self.l.flatten(1, 2))
        log_l = l.log2()
        lse2 = m + log_l
        entropy = ((log_l - a / l) / LOG2E).clamp_(min=0.0)
        stats = (
            entropy,
            torch.where(empty, -torch.inf, lse2 / LOG2E),
            torch.where(empty, -torch.inf, m / LOG2E),
            self._mass(problem.first_key, lse2, empty),
            self._mass(problem.own.expand_as(problem.first_key), lse2, empty),
            torch.where(empty, 0.0, entropy.exp()),
        )
        if self.output is None or problem.v is None:
            return stats
        output = torch.where(empty[..., None], 0.0, self.output.flatten(1, 2))
        return *stats, output.to(problem.v.dtype)

    def _mass(self, key: Tensor, lse2: Tensor, empty: Tensor) -> Tensor:
        """The attention of every query on one key, `key` (batch or 1, queries); 0 where it does not see that key."""
        problem = self.problem
        low, high = problem.interval
        seen = (key >= low) & (key < high)
        at = key.clamp(0, problem.keys - 1)
        if problem.document is None and key is problem.first_key:  # one key for all queries
            s = torch.matmul(self.q.flatten(2, 3), self.keys[..., :1]).view(self.q.shape[:-1])
        else:
            index = at[:, None, None].expand(*self.keys.shape[:3], -1)
            s = (self.q * self.keys.gather(3, index).mT[:, :, None]).sum(-1)
        s = s.flatten(1, 2)
        if problem.softcap is not None:
            s = torch.tanh(s / (problem.softcap * LOG2E)) * (problem.softcap * LOG2E)
        if problem.bias is not None:
            s = s + problem.bias.gather(3, at[:, None, :, None].expand(*s.shape, 1))[..., 0].to(s) * LOG2E
        if problem.key_padding is not None:
            seen = seen & problem.key_padding.gather(1, at.expand(s.shape[0], -1))
        mass = torch.exp2(s - lse2).clamp_(max=1.0)
        return torch.where(seen[:, None] & ~empty, mass, 0.0)
