"""A kernel for CUDA: what each key receives from many queries. Keys and queries change places: keys are the rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from joma.measure._attention_problem import Problem
from joma.measure._attention_triton import _MASKED, _capped
from joma.measure._sparsity_launch import Blocks, Ends, blocks, padding, precision, scales

# fmt: off


@triton.jit
def _received_kernel(
    Q, K, Pad, Low, High, Shift, First, Last, Score,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_pb, stride_pn, stride_ib, stride_im, stride_fb,
    heads, group, queries, keys, scale2, softcap2,
    SOFTCAP: tl.constexpr, PAD: tl.constexpr, WIDTH: tl.constexpr,
    BN: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr,
):
    """Sum of 2^t over the queries first..last of each block of keys; one program per block, so nothing is atomic."""
    block = tl.program_id(0)
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    n = block * BN + tl.arange(0, BN)
    inside = n < keys
    d = tl.arange(0, WIDTH)
    q_base = Q + batch.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh
    k_base = K + batch.to(tl.int64) * stride_kb + (head // group).to(tl.int64) * stride_kh
    k = tl.load(k_base + n[:, None] * stride_kn + d[None, :] * stride_kd, mask=inside[:, None], other=0.0)
    row_base = (batch * heads + head).to(tl.int64) * queries
    score = tl.zeros([BN], tl.float32)
    first = tl.load(First + batch * stride_fb + block)
    last = tl.load(Last + batch * stride_fb + block)
    for start in tl.range(first, last, BM):
        rows = start + tl.arange(0, BM)
        alive = rows < last
        q = tl.load(q_base + rows[None, :] * stride_qm + d[:, None] * stride_qd, mask=alive[None, :], other=0.0)
        t = _capped(tl.dot(k, q, input_precision=PRECISION), scale2, softcap2, SOFTCAP)
        low = tl.load(Low + batch * stride_ib + rows * stride_im, mask=alive, other=0)
        high = tl.load(High + batch * stride_ib + rows * stride_im, mask=alive, other=0)
        t -= tl.load(Shift + row_base + rows, mask=alive, other=0.0)[None, :]
        seen = (n[:, None] >= low[None, :]) & (n[:, None] < high[None, :])
        score += tl.sum(tl.exp2(tl.where(seen, t, _MASKED)), 1)
    if PAD:
        real = tl.load(Pad + batch.to(tl.int64) * stride_pb + n * stride_pn, mask=inside, other=0)
        score = tl.where(real != 0, score, 0.0)
    tl.store(Score + (batch * heads + head).to(tl.int64) * keys + n, score, mask=inside)

# fmt: on


def received(problem: Problem, ends: Ends, shift: Tensor, queries: slice, at_a_time: Blocks | None = None) -> Tensor:
    """Per key the sum of 2^t over these queries, (batch, heads, keys); a problem with a bias is not covered."""
    q, k = problem.q, problem.k
    batch, heads, count, width = q.shape
    half = q.dtype != torch.float32 and width <= 128 and count >= 4096
    shape = at_a_time or (Blocks(64, 128, 4, 2) if half else blocks(problem))
    score = torch.empty(batch, heads, problem.keys, dtype=torch.float32, device=q.device)
    start = torch.arange(0, problem.keys, shape.columns, device=q.device, dtype=torch.int32)
    start = start.expand(len(ends.low), -1).contiguous()
    # Both ends rise from query to query: those that see some key of a block follow one another.
    first = torch.searchsorted(ends.high, start, right=True).clamp(min=queries.start).int()
    last = torch.searchsorted(ends.low, start + shape.columns).clamp(max=queries.stop).int()
    pads = padding(problem, score[:, 0])
    _received_kernel[(start.shape[1], batch * heads)](
        *(q, k, pads, ends.low, ends.high, shift.contiguous(), first, last, score),
        *q.stride(),
        *k.stride(),
        *pads.stride(),
        *ends.strides,
        start.shape[1] if len(start) > 1 else 0,
        *(heads, heads // k.shape[1], count, problem.keys, *scales(problem)),
        SOFTCAP=problem.softcap is not None,
        PAD=problem.key_padding is not None,
        WIDTH=width,
        BN=shape.columns,
        BM=shape.rows,
        PRECISION=precision(problem),
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
    return score
