"""The spread on CUDA where every query sees all keys up to its own, or all: one pass over the keys, without an exp.

Half-precision products are exact on tensor cores, so that no running sums are needed to keep digits, and at a few
thousand keys this is faster: T T d / 2 multiplications there cost less than T d d outside. Of the logits s of a query,
t those of the mean query, both about the mean key, and x = s - t, the pass sums

    x      x^2      x t

and what concerns t alone is a running sum of one number per key. Beyond `LONGEST` keys, `_spread_sums` does less.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from joma.measure._attention_problem import Problem
from joma.measure._attention_triton import _blocks as attention_blocks
from joma.measure._attention_triton import covers as attention_covers

LONGEST = 32_768

# fmt: off


@triton.jit
def _taste(
    K, Mean, Center, T, stride_kb, stride_kh, stride_kn, stride_kd, heads, group, keys, scale,
    WIDTH: tl.constexpr, BN: tl.constexpr,
):
    """T (batch, heads, keys): scale times the product of the mean query (heads, width) and every centred key."""
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    n, d = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, WIDTH)
    base = K + batch.to(tl.int64) * stride_kb + (head // group).to(tl.int64) * stride_kh
    k = tl.load(base + n[:, None] * stride_kn + d[None, :] * stride_kd, mask=n[:, None] < keys, other=0.0)
    mean = tl.load(Mean + head * WIDTH + d)
    center = tl.load(Center + (batch * (heads // group) + head // group) * WIDTH + d)
    t = tl.sum((k.to(tl.float32) - center[None, :]) * mean[None, :], 1) * scale
    tl.store(T + (batch * heads + head).to(tl.int64) * keys + n, t, mask=n < keys)


@triton.jit
def _walk(
    x1, x2, xt, q, shift, k_base, t_base, own, low, high, keys, stride_kn, stride_kd, scale,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, WIDTH: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):
    """Take in the keys low..high; MASK says whether some query may not see some of them."""
    d = tl.arange(0, WIDTH)
    for start in tl.range(low, high, BN):
        n = start + tl.arange(0, BN)
        k_ptr = k_base + n[None, :] * stride_kn + d[:, None] * stride_kd
        k = tl.load(k_ptr, mask=n[None, :] < keys, other=0.0) if MASK else tl.load(k_ptr)
        t = tl.load(t_base + n, mask=n < keys, other=0.0) if MASK else tl.load(t_base + n)
        x = tl.dot(q, k, input_precision=PRECISION) * scale - shift[:, None] - t[None, :]
        if MASK:
            keep = n[None, :] < keys
            if CAUSAL:
                keep = keep & (n[None, :] <= own[:, None])
            x = tl.where(keep, x, 0.0)
        x1 += tl.sum(x, 1)
        x2 += tl.sum(x * x, 1)
        xt += tl.sum(x * t[None, :], 1)
    return x1, x2, xt


@triton.jit
def _spread(
    Q, K, T, Center, X1, X2, XT,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    heads, group, queries, keys, offset, scale,
    CAUSAL: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # under a causal mask the longest rows start first
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    rows, d = block * BM + tl.arange(0, BM), tl.arange(0, WIDTH)
    own, alive = rows + offset, rows < queries
    q_base = Q + batch.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh
    k_base = K + batch.to(tl.int64) * stride_kb + (head // group).to(tl.int64) * stride_kh
    t_base = T + (batch * heads + head).to(tl.int64) * keys
    q = tl.load(q_base + rows[:, None] * stride_qm + d[None, :] * stride_qd, mask=alive[:, None], other=0.0)
    center = tl.load(Center + (batch * (heads // group) + head // group) * WIDTH + d)
    shift = tl.sum(q.to(tl.float32) * center[None, :], 1) * scale
    high, full = keys, keys // BN * BN
    if CAUSAL:
        high = tl.minimum(high, tl.minimum(block * BM + BM, queries) + offset)
        full = tl.minimum(full, (block * BM + offset + 1) // BN * BN)
    x1 = tl.zeros([BM], tl.float32)
    x2 = tl.zeros([BM], tl.float32)
    xt = tl.zeros([BM], tl.float32)
    x1, x2, xt = _walk(
        x1, x2, xt, q, shift, k_base, t_base, own, 0, full, keys, stride_kn, stride_kd, scale,
        False, CAUSAL, WIDTH, BN, PRECISION,
    )
    x1, x2, xt = _walk(
        x1, x2, xt, q, shift, k_base, t_base, own, full, high, keys, stride_kn, stride_kd, scale,
        True, CAUSAL, WIDTH, BN, PRECISION,
    )
    out = (batch * heads + head).to(tl.int64) * queries + rows
    tl.store(X1 + out, x1, mask=alive)
    tl.store(X2 + out, x2, mask=alive)
    tl.store(XT + out, xt, mask=alive)

# fmt: on


def covers(problem: Problem) -> bool:
    """Whether the kernel can take this problem and is the faster way."""
    plain = problem.window is None and problem.document is None and problem.key_padding is None
    plain = plain and problem.bias is None and problem.softcap is None and problem.keys <= LONGEST
    return plain and problem.q.dtype in (torch.bfloat16, torch.float16) and attention_covers(problem)


def launch(
    problem: Problem, real: Tensor | None, blocks: tuple[int, int, int, int] | None = None
) -> tuple[Tensor, ...]:
    """shared, specific, cross and the mean of ln n, each (heads,), float64. `blocks`: queries, keys, warps, stages."""
    q, k, scale = problem.q, problem.k, problem.scale
    (batch, heads, queries, width), keys, group = q.shape, problem.keys, q.shape[1] // k.shape[1]
    if real is None:
        mean = q.mean((0, 2), dtype=torch.float32)
    else:
        mean = torch.where(real[:, None, :, None], q, 0.0).sum((0, 2), dtype=torch.float32) / real.sum().clamp(min=1)
    center = k.mean(2, dtype=torch.float32)
    t = q.new_empty(batch, heads, keys, dtype=torch.float32)
    rows, columns, warps, stages = blocks or attention_blocks(problem)
    strides = (heads, group)
    _taste[(triton.cdiv(keys, columns), batch * heads)](
        k, mean, center, t, *k.stride(), *strides, keys, scale, WIDTH=width, BN=columns
    )
    made = q.new_empty(3, batch, heads, queries, dtype=torch.float32)
    _spread[(triton.cdiv(queries, rows), batch * heads)](
        q, k, t, center, *made.unbind(0), *q.stride(), *k.stride(), *strides, queries, keys, problem.offset, scale,
        CAUSAL=problem.causal, WIDTH=width, BM=rows, BN=columns,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32", num_warps=warps, num_stages=stages,
    )  # fmt: skip
    wide = t.double()
    first, second = wide.cumsum(2), wide.square().cumsum(2)
    seen = torch.full((queries,), keys, dtype=torch.float64, device=q.device)
    if problem.causal:
        seen = torch.arange(keys - queries + 1, keys + 1, dtype=torch.float64, device=q.device)
        first, second = (x[:, :, keys - queries :] for x in (first, second))
    else:
        first, second = (x[:, :, -1:] for x in (first, second))
    x1, x2, xt = (x.double() / seen for x in made)
    t1, t2 = first / seen, second / seen
    each = torch.stack(
        [(t2 - t1.square()).expand_as(x1), x2 - x1.square(), 2 * (xt - x1 * t1), seen.log().expand_as(x1)]
    )
    if real is None:
        return each.mean((1, 3)).unbind(0)
    number = torch.where(real.any(), real.sum(), torch.nan)
    return (torch.where(real[:, None], each, 0.0).sum((1, 3)) / number).unbind(0)
