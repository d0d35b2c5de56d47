"""The spread on CUDA where every query sees one interval of keys: one pass over the keys, without an exp.

Half-precision products are exact on tensor cores, so that no running sums are needed to keep digits, and at a few
thousand keys this is faster: T T d / 2 multiplications there cost less than T d d outside. Of the logits s of a query,
t those of the mean query, and x = s - t, the pass sums

    x      x^2      x t      t      t^2

with keys about a center near them: the mean of the keys that are the tile's own. Adding one vector to all keys changes
no variance, and the sums keep their digits where keys lie far from zero or documents far from each other.
Tiles add up their queries, so nothing of the size of queries leaves the kernel. Beyond `LONGEST` keys in a row,
`_spread_sums` does less.

A bias by key (ALiBi) adds var(b) + 2 cov(b, s) to the variance; one of -inf hides its key.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from joma.measure._attention_problem import Problem
from joma.measure._attention_triton import _blocks as attention_blocks
from joma.measure._attention_triton import covers as attention_covers
from joma.measure._attention_triton import tuned
from joma.measure._tiles_triton import documents, span, tile

LONGEST = 32_768
_ROWS = 256  # queries or keys at a time of the two small kernels
_HIDDEN = tl.constexpr(-1.0e29)  # a bias below this is a mask

# fmt: off


@triton.jit
def _query_sums(
    Q, Real, Sum, stride_qb, stride_qh, stride_qm, stride_qd, stride_rb, stride_rh, heads, queries,
    REAL: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr,
):
    """Sum (batch, heads, blocks, width) of the queries of every block, where they count."""
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    rows, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, WIDTH)
    counts = rows < queries
    if REAL:
        base = Real + batch.to(tl.int64) * stride_rb + head.to(tl.int64) * stride_rh
        counts = counts & (tl.load(base + rows, mask=counts, other=0) != 0)
    base = Q + batch.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh
    q = tl.load(base + rows[:, None] * stride_qm + d[None, :] * stride_qd, mask=counts[:, None], other=0.0)
    out = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    tl.store(Sum + out * WIDTH + d, tl.sum(q.to(tl.float32), 0))


@triton.jit
def _taste(
    K, Mean, T, stride_kb, stride_kh, stride_kn, stride_kd, heads, group, keys,
    WIDTH: tl.constexpr, BN: tl.constexpr,
):
    """T (batch, heads, keys): the product of the mean query (heads, width) and every key."""
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    n, d = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, WIDTH)
    base = K + batch.to(tl.int64) * stride_kb + (head // group).to(tl.int64) * stride_kh
    k = tl.load(base + n[:, None] * stride_kn + d[None, :] * stride_kd, mask=n[:, None] < keys, other=0.0)
    t = tl.sum(k.to(tl.float32) * tl.load(Mean + head * WIDTH + d)[None, :], 1)
    tl.store(T + tl.program_id(1).to(tl.int64) * keys + n, t, mask=n < keys)


@triton.jit
def _full(
    x1, x2, xt, q, shift, t_shift, k_base, t_base, start, stop, stride_kn, stride_kd, scale,
    WIDTH: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):
    d = tl.arange(0, WIDTH)
    for at in tl.range(start, stop, BN):
        n = at + tl.arange(0, BN)
        k = tl.load(k_base + n[None, :] * stride_kn + d[:, None] * stride_kd)
        t = tl.load(t_base + n)
        x = tl.dot(q, k, input_precision=PRECISION) * scale - shift[:, None] - t[None, :]
        x1 += tl.sum(x, 1)
        x2 += tl.sum(x * x, 1)
        xt += tl.sum(x * (t - t_shift)[None, :], 1)
    return x1, x2, xt


@triton.jit
def _masked(
    x1, x2, xt, bs, q, shift, t_shift, b_shift, k_base, t_base, bias_base, low, high, start, stop, keys,
    stride_kn, stride_kd, stride_bn, scale,
    BIAS: tl.constexpr, WIDTH: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):
    """Take in the keys start..stop, each where it is seen."""
    d = tl.arange(0, WIDTH)
    for at in tl.range(start, stop, BN):
        n = at + tl.arange(0, BN)
        k = tl.load(k_base + n[None, :] * stride_kn + d[:, None] * stride_kd, mask=n[None, :] < keys, other=0.0)
        t = tl.load(t_base + n, mask=n < keys, other=0.0)
        keep = (n[None, :] >= low[:, None]) & (n[None, :] < high[:, None])
        if BIAS:
            b = tl.load(bias_base + n * stride_bn, mask=n < keys, other=0.0).to(tl.float32)
            keep = keep & (b > _HIDDEN)[None, :]
        x = tl.where(keep, tl.dot(q, k, input_precision=PRECISION) * scale - shift[:, None] - t[None, :], 0.0)
        t = t[None, :] - t_shift[:, None]
        x1 += tl.sum(x, 1)
        x2 += tl.sum(x * x, 1)
        xt += tl.sum(x * t, 1)
        if BIAS:
            bs += tl.sum(tl.where(keep, b[None, :] - b_shift, 0.0) * (x + t), 1)
    return x1, x2, xt, bs


@triton.jit
def _full_taste(t_base, t_shift, start, stop, MANY: tl.constexpr):
    t1 = tl.zeros([MANY], tl.float32)
    t2 = tl.zeros([MANY], tl.float32)
    for at in tl.range(start, stop, MANY):
        n = at + tl.arange(0, MANY)
        t = tl.where(n < stop, tl.load(t_base + n, mask=n < stop, other=0.0) - t_shift, 0.0)
        t1 += t
        t2 += t * t
    return tl.sum(t1, 0), tl.sum(t2, 0)


@triton.jit
def _masked_taste(
    t1, t2, b1, b2, count, t_base, bias_base, t_shift, b_shift, low, high, start, stop, keys, stride_bn,
    BIAS: tl.constexpr, SOME: tl.constexpr,
):
    """The same of each query, over those of the keys start..stop that it sees, and of a bias.

    In a loop of its own: the one with the products needs the registers.
    """
    for at in tl.range(start, stop, SOME):
        n = at + tl.arange(0, SOME)
        keep = (n[None, :] >= low[:, None]) & (n[None, :] < tl.minimum(high, stop)[:, None])
        if BIAS:
            b = tl.load(bias_base + n * stride_bn, mask=n < keys, other=0.0).to(tl.float32)
            keep = keep & (b > _HIDDEN)[None, :]
            count += tl.sum(keep.to(tl.float32), 1)
            b = tl.where(keep, b[None, :] - b_shift, 0.0)
            b1 += tl.sum(b, 1)
            b2 += tl.sum(b * b, 1)
        t = tl.where(keep, tl.load(t_base + n, mask=n < keys, other=0.0)[None, :] - t_shift[:, None], 0.0)
        t1 += tl.sum(t, 1)
        t2 += tl.sum(t * t, 1)
    return t1, t2, b1, b2, count


@triton.jit
def _spread(
    Q, K, T, Mean, Real, Bias, Begin, End, Out,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd, stride_rb, stride_rh,
    stride_bb, stride_bh, stride_bn, stride_db, heads, group, queries, keys, offset, window, scale,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, PACKED: tl.constexpr, BIAS: tl.constexpr, REAL: tl.constexpr,
    WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):
    """Out (5, batch, heads, blocks): shared, specific, cross, added and ln n, summed over a tile's queries."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # under a causal mask the longest rows start first
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    rows, begin, low, high, start, full_start, full_stop, stop = tile(
        block, batch, queries, keys, offset, window, Begin, End, stride_db, CAUSAL, WINDOW, PACKED, BM, BN,
    )
    counts, d = rows < queries, tl.arange(0, WIDTH)
    if REAL:
        real_base = Real + batch.to(tl.int64) * stride_rb + head.to(tl.int64) * stride_rh
        counts = counts & (tl.load(real_base + rows, mask=counts, other=0) != 0)
    q_base = Q + batch.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh
    k_base = K + batch.to(tl.int64) * stride_kb + (head // group).to(tl.int64) * stride_kh
    t_base = T + tl.program_id(1).to(tl.int64) * keys
    bias_base = Bias + batch.to(tl.int64) * stride_bb + head.to(tl.int64) * stride_bh
    q = tl.load(q_base + rows[:, None] * stride_qm + d[None, :] * stride_qd, mask=counts[:, None], other=0.0)

    # A center for the keys: rows beyond the last query take the last key, and those before the first key the first.
    own = tl.minimum(tl.maximum(rows + offset, 0), keys - 1)
    near = tl.load(k_base + own[:, None] * stride_kn + d[None, :] * stride_kd)
    center = tl.sum(near.to(tl.float32), 0) / BM
    t_center = tl.sum(center * tl.load(Mean + head * WIDTH + d), 0)
    shift = tl.sum(q.to(tl.float32) * center[None, :], 1) * scale - t_center
    t_shift = tl.zeros([BM], tl.float32) + t_center
    if PACKED:  # t may lie elsewhere in every document: where several share the tile, each query takes its own key's
        last_begin = tl.load(Begin + batch.to(tl.int64) * stride_db + tl.minimum(block * BM + BM, queries) - 1)
        t_shift = tl.where(last_begin > block * BM, tl.load(t_base + own), t_shift)

    x1 = tl.zeros([BM], tl.float32)
    x2 = tl.zeros([BM], tl.float32)
    xt = tl.zeros([BM], tl.float32)
    bs = tl.zeros([BM], tl.float32)
    b_shift = 0.0
    if BIAS:  # which may hide any key, so that no tile is full
        near_bias = tl.minimum(tl.maximum(block * BM + offset, 0), keys - 1) * stride_bn
        b_shift = tl.maximum(tl.load(bias_base + near_bias).to(tl.float32), _HIDDEN)
        b_shift = tl.where(b_shift > _HIDDEN, b_shift, 0.0)
        full_start, full_stop = start, start
    left = tl.minimum(full_start, stop)
    if WINDOW:
        x1, x2, xt, bs = _masked(
            x1, x2, xt, bs, q, shift, t_shift, b_shift, k_base, t_base, bias_base, low, high, start, left, keys,
            stride_kn, stride_kd, stride_bn, scale, BIAS, WIDTH, BN, PRECISION,
        )
    if not BIAS:
        x1, x2, xt = _full(
            x1, x2, xt, q, shift, t_center, k_base, t_base, full_start, full_stop, stride_kn, stride_kd, scale,
            WIDTH, BN, PRECISION,
        )
    x1, x2, xt, bs = _masked(
        x1, x2, xt, bs, q, shift, t_shift, b_shift, k_base, t_base, bias_base, low, high, full_stop, stop, keys,
        stride_kn, stride_kd, stride_bn, scale, BIAS, WIDTH, BN, PRECISION,
    )
    t1 = tl.zeros([BM], tl.float32)
    t2 = tl.zeros([BM], tl.float32)
    b1 = tl.zeros([BM], tl.float32)
    b2 = tl.zeros([BM], tl.float32)
    count = tl.zeros([BM], tl.float32)
    if not BIAS:
        full_t1, full_t2 = _full_taste(t_base, t_center, full_start, full_stop, 1024)
        t1 += full_t1
        t2 += full_t2
    if WINDOW:
        t1, t2, b1, b2, count = _masked_taste(
            t1, t2, b1, b2, count, t_base, bias_base, t_shift, b_shift, low, high, start, left, keys, stride_bn,
            BIAS, 32,
        )
    t1, t2, b1, b2, count = _masked_taste(
        t1, t2, b1, b2, count, t_base, bias_base, t_shift, b_shift, low, high, full_stop, stop, keys, stride_bn,
        BIAS, 32,
    )

    n = (count if BIAS else high - low).to(tl.float64)
    counts = counts & (n > 0)
    n = tl.maximum(n, 1.0)
    if PACKED:  # a document that begins behind its query: `cu_seqlens` is wrong
        counts = counts | (begin > rows)
        n = tl.where(begin > rows, float("nan"), n)
    x1, t1, b1 = x1 / n, t1 / n, b1 / n
    blocks = tl.num_programs(0)
    out = Out + tl.program_id(1).to(tl.int64) * blocks + block
    step = tl.num_programs(1).to(tl.int64) * blocks
    tl.store(out, tl.sum(tl.where(counts, t2 / n - t1 * t1, 0.0), 0))
    tl.store(out + step, tl.sum(tl.where(counts, x2 / n - x1 * x1, 0.0), 0))
    tl.store(out + 2 * step, tl.sum(tl.where(counts, 2 * (xt / n - x1 * t1), 0.0), 0))
    tl.store(out + 3 * step, tl.sum(tl.where(counts, b2 / n - b1 * b1 + 2 * (bs / n - b1 * (x1 + t1)), 0.0), 0))
    tl.store(out + 4 * step, tl.sum(tl.where(counts, tl.log(n), 0.0), 0))

# fmt: on


def covers(problem: Problem) -> bool:
    """Whether the kernel can take this problem and is the faster way."""
    by_key = problem.bias is None or problem.bias.stride(2) == 0
    # Of more queries than keys under a window, some may see no key. So may any with a padded key.
    all_see = problem.window is None or problem.queries <= problem.keys
    plain = by_key and all_see and problem.key_padding is None and problem.softcap is None
    fast = span(problem) <= LONGEST and problem.q.dtype in (torch.bfloat16, torch.float16)
    return plain and fast and attention_covers(problem)


def launch(problem: Problem, real: Tensor | None, blocks: tuple[int, ...] | None = None) -> tuple[Tensor, ...]:
    """shared, specific, cross, added and the mean of ln n, each (heads,), float64.

    real (batch, queries): which queries count. `blocks`: as in `_attention_triton`.
    """
    q, k, bias, ends = problem.q, problem.k, problem.bias, documents(problem)
    (batch, heads, queries, width), keys = q.shape, problem.keys
    counts = _counting(problem, real)
    chosen = q if counts is None else counts.to(torch.int8).contiguous()
    real_strides = (0, 0) if counts is None else chosen.expand(batch, heads, queries).stride()[:2]
    number = q.new_full((heads,), batch * queries, dtype=torch.float64)
    if counts is not None:
        number = counts.expand(batch, heads, queries).sum((0, 2))
    parts = q.new_empty(batch, heads, triton.cdiv(queries, _ROWS), width, dtype=torch.float32)
    _query_sums[(parts.shape[2], batch * heads)](
        q, chosen, parts, *q.stride(), *real_strides, heads, queries, REAL=counts is not None, WIDTH=width, BM=_ROWS
    )
    total = parts.sum((0, 2), dtype=torch.float64)
    mean = (total * problem.scale / number.clamp(min=1)[:, None]).float()
    t = q.new_empty(batch, heads, keys, dtype=torch.float32)
    group = heads // k.shape[1]
    _taste[(triton.cdiv(keys, _ROWS), batch * heads)](
        k, mean, t, *k.stride(), heads, group, keys, WIDTH=width, BN=_ROWS
    )
    rows, columns, *tuning = blocks or attention_blocks(problem)
    tiles = triton.cdiv(queries, rows)
    made = q.new_empty(5, batch, heads, tiles, dtype=torch.float64)
    bias_strides = (0, 0, 0) if bias is None else (*bias.stride()[:2], bias.stride(3))
    _spread[(tiles, batch * heads)](
        *(q, k, t, mean, chosen, q if bias is None else bias, *ends[:2], made),
        *(*q.stride(), *k.stride(), *real_strides, *bias_strides, ends[2]),
        *(heads, group, queries, keys, problem.offset, problem.window or 0, problem.scale),
        CAUSAL=problem.causal, WINDOW=problem.window is not None, PACKED=problem.cu_seqlens is not None,
        BIAS=bias is not None, REAL=counts is not None, WIDTH=width, BM=rows, BN=columns,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32", **tuned(*tuning),
    )  # fmt: skip
    shared, specific, *others = (made.sum((1, 3)) / torch.where(number > 0, number, torch.nan)).unbind(0)
    return shared.clamp(min=0), specific.clamp(min=0), *others


def _counting(problem: Problem, real: Tensor | None) -> Tensor | None:
    """(batch or 1, heads or 1, queries): the queries that are real and see a key; None: all."""
    counts = None if real is None else real[:, None]
    if problem.bias is None:
        return counts
    seen = problem.bias[:, :, 0] > _HIDDEN.value
    seen = seen[: 1 if problem.bias.stride(0) == 0 else None, : 1 if problem.bias.stride(1) == 0 else None]
    before = torch.nn.functional.pad(seen.long().cumsum(2), (1, 0))
    low, high = (end[:, None].expand(-1, seen.shape[1], -1) for end in problem.interval)
    at = max(len(low), len(before))
    before = before.expand(at, -1, -1)
    see = before.gather(2, high.expand(at, -1, -1)) > before.gather(2, low.expand(at, -1, -1))
    return see if counts is None else see & counts
