"""The sums of `_spread_sums` where a bias or a soft cap is given: a few rows of logits at a time, each centred."""

import torch
from torch import Tensor

from joma.measure._attention_problem import Problem
from joma.measure._gram import compute_dtype, wide_dtype
from joma.measure._spread_sums import Found

ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 25}
"""Logits at a time: a processor's cache; on a GPU, where each block costs a few dozen launches, 128 MiB."""
_HIDDEN = -1e29  # a bias below this is a mask, as in `_attention_blocks`


def block_sums(problem: Problem, real: Tensor | None) -> Found:
    """real (batch, queries): which queries count."""
    q, wide = problem.q, wide_dtype(problem.q)
    samples, heads, queries, width = q.shape
    step = max(1, ELEMENTS.get(q.device.type, ELEMENTS["cpu"]) // (heads * problem.keys))
    blocks = [(b, slice(i, min(i + step, queries))) for b in range(samples) for i in range(0, queries, step)]
    rows, mean = q.new_zeros(heads, dtype=wide), q.new_zeros(heads, width, dtype=wide)
    for b, at in blocks:
        counts = _counts(_seen(problem, b, at), real, b, at).to(wide)
        rows += counts.sum(-1)
        mean += torch.where(counts[..., None] > 0, q[b, :, at].to(wide), 0.0).sum(1)
    mean *= problem.scale / rows.clamp(min=1)[:, None]
    kinds = ((heads, width, width), (heads, width), (heads,), (heads,), (heads,))
    total = [q.new_zeros(kind, dtype=wide) for kind in kinds]
    for b, at in blocks:
        for into, part in zip(total, _block(problem, mean, real, b, at), strict=True):
            into += part
    outer, pulled, own, added, logs = total
    return rows, mean, outer, pulled, own, added, logs


def _seen(problem: Problem, b: int, at: slice) -> Tensor:
    """(heads or 1, queries, visible keys): what the queries of a block see."""
    first, last = problem.visible(at.start, at.stop)
    hidden = problem.hidden(at.start, at.stop, first, last)
    seen = ~hidden[b if len(hidden) > 1 else 0]
    if problem.key_padding is not None:
        seen = seen & problem.key_padding[b, first:last].to(seen.device)
    if problem.bias is not None:
        same = problem.bias.stride(1) == 0  # one mask for all heads
        seen = seen & (problem.bias[b, : 1 if same else None, at, first:last] > _HIDDEN)
    return seen


def _counts(seen: Tensor, real: Tensor | None, b: int, at: slice) -> Tensor:
    counts = seen.any(-1)
    return counts if real is None else counts & real[b if len(real) > 1 else 0, at]


def _block(problem: Problem, mean: Tensor, real: Tensor | None, b: int, at: slice) -> tuple[Tensor, ...]:
    exact, seen = compute_dtype(problem.q), _seen(problem, b, at)
    first, last = problem.visible(at.start, at.stop)
    counts, n = _counts(seen, real, b, at), seen.sum(-1)
    w = torch.where(counts, 1 / n.clamp(min=1).to(exact), 0.0)  # (heads or 1, queries)
    m = mean.to(exact)
    p = problem.q[b, :, at].to(exact) * problem.scale - m[:, None]
    p = torch.where(counts[..., None], p, 0.0)  # a query that does not count may be anything
    group = len(m) // problem.k.shape[1]
    k = problem.k[b, :, first:last].to(exact)
    if problem.key_padding is not None:
        k = torch.where(problem.key_padding[b, first:last, None].to(k.device), k, 0.0)
    about = k.mean(1, keepdim=True) if last > first else k.new_zeros(len(k), 1, k.shape[2])
    k = k - about
    each, shift = k.repeat_interleave(group, 0), about.repeat_interleave(group, 0)
    mask = seen.to(exact)
    specific = p @ each.mT
    product = specific + m[:, None] @ each.mT
    s = _centred(specific, mask, n)
    rest = torch.zeros(1, 1, 1).to(product)
    if problem.softcap is not None:
        logit = product + ((p + m[:, None]) * shift).sum(-1, keepdim=True)
        rest = problem.softcap * torch.tanh(logit / problem.softcap) - logit
    if problem.bias is not None:
        rest = rest + torch.where(seen, problem.bias[b, :, at, first:last].to(exact), 0.0)
    rest = _centred(rest, mask, n)
    added = (w * (rest.square() + 2 * rest * product).sum(-1)).sum(-1)
    own = (w * s.square().sum(-1)).sum(-1)
    pulled = ((w[:, None] @ s) @ each)[:, 0]
    mine = k if len(mask) == 1 else each
    center = (mask @ mine) * w[..., None]
    outer = mine.mT @ (mine * (w[:, None] @ mask).mT) - center.mT @ center
    outer = outer.repeat_interleave(len(m) // len(outer), 0)
    logs = torch.where(counts, n, 1).to(exact).log().sum(-1).expand(len(m))
    return outer, pulled, own, added, logs


def _centred(x: Tensor, mask: Tensor, n: Tensor) -> Tensor:
    """Every row without its mean over the keys that are seen; 0 elsewhere."""
    x = x * mask
    return x.sub_(mask * (x.sum(-1) / n.clamp(min=1))[..., None])
