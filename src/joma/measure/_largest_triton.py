"""The largest product of a query and a key of every head, on CUDA: one pass over the keys, and one number per head."""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from joma.host.kernels import repeated, start
from joma.measure._attention_problem import Problem
from joma.measure._attention_triton import _bytes, _within_reach, tuned
from joma.measure._tiles_triton import documents, tile

# fmt: off


@triton.jit
def _largest(
    Q, K, Seen, Pad, Real, Begin, End, Out,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_sb, stride_sh, stride_sm, stride_sn, stride_pb, stride_pn, stride_rb, stride_rm, stride_db,
    heads, group, queries, keys, width, offset, window, scale,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SEEN: tl.constexpr, PAD: tl.constexpr, REAL: tl.constexpr,
    PACKED: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # under a causal mask the longest rows start first
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    rows, _, low, high, first, _, _, stop = tile(
        block, batch, queries, keys, offset, window, Begin, End, stride_db, CAUSAL, WINDOW, PACKED, BM, BN,
    )
    alive = rows < queries
    if REAL:
        alive = alive & (tl.load(Real + batch * stride_rb + rows * stride_rm, mask=alive, other=0) != 0)
    d = tl.arange(0, WIDTH)
    q_base = Q + batch.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh
    k_base = K + batch.to(tl.int64) * stride_kb + (head // group).to(tl.int64) * stride_kh
    seen_base = Seen + batch.to(tl.int64) * stride_sb + head.to(tl.int64) * stride_sh
    there = (rows < queries)[:, None] & (d < width)[None, :]
    q = tl.load(q_base + rows[:, None] * stride_qm + d[None, :] * stride_qd, mask=there, other=0.0)
    most = tl.full([BM, BN], float("-inf"), tl.float32)
    for at in tl.range(first, stop, BN):
        n = at + tl.arange(0, BN)
        known = (n < keys)[None, :] & (d < width)[:, None]
        k = tl.load(k_base + n[None, :] * stride_kn + d[:, None] * stride_kd, mask=known, other=0.0)
        s = tl.dot(q, k, input_precision=PRECISION)
        keep = alive[:, None] & (n[None, :] < high[:, None]) & (n[None, :] >= low[:, None])
        if SEEN:
            at_mask = seen_base + rows[:, None] * stride_sm + n[None, :] * stride_sn
            keep = keep & (tl.load(at_mask, mask=alive[:, None] & (n < keys)[None, :], other=0) != 0)
        if PAD:
            keep = keep & (tl.load(Pad + batch * stride_pb + n * stride_pn, mask=n < keys, other=0) != 0)[None, :]
        most = tl.maximum(most, tl.where(keep, s, float("-inf")))
    tl.atomic_max(Out + head, tl.max(tl.max(most, 1), 0) * scale)

# fmt: on


def covers(problem: Problem) -> bool:
    """Whether the kernel can take this problem."""
    q, k = problem.q, problem.k
    exact = q.dtype == k.dtype and q.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return exact and problem.scale > 0 and problem.keys > 0 and q.shape[3] <= 256 and _within_reach(problem)


def launch(
    problem: Problem, real: Tensor | None = None, into: Tensor | None = None, blocks: tuple[int, ...] | None = None
) -> Tensor:
    """(heads,), float32."""
    q = problem.q
    out = q.new_full((q.shape[1],), -torch.inf, dtype=torch.float32) if into is None else into
    tensors, grid, numbers, constants, options = _plan(problem, real, blocks)
    start(_largest, grid, (*tensors, out), numbers, constants, options)
    return out


def again(
    problem: Problem, real: Tensor | None, blocks: tuple[int, ...] | None = None
) -> Callable[[Tensor, Tensor, Tensor | None, Tensor], None]:
    """`launch` for further queries and keys that lie in memory as these do, with few steps on the host.

    It is called with queries, keys, a mask and what was found before. The mask is what `problem.bias` and `real` are
    views of, from its first number on, of True and False, or None.
    """
    _, grid, numbers, constants, options = _plan(problem, real, blocks)
    run = repeated(_largest, grid, numbers, constants, options)

    def call(q: Tensor, k: Tensor, mask: Tensor | None, out: Tensor) -> None:
        seen = q if mask is None else _bytes(mask)
        run(q, k, seen, q, seen, q, q, out)

    return call


def _plan(
    problem: Problem, real: Tensor | None, blocks: tuple[int, ...] | None
) -> tuple[tuple[Tensor, ...], tuple[int, int], tuple[int | float, ...], dict[str, Any], dict[str, int]]:
    """Tensors without the last, grid, numbers, constants and options of a start."""
    q, k = problem.q, problem.k
    batch, heads, queries, width = q.shape
    # What is absent gets a stand-in that the kernel, compiled without it, never reads.
    seen = _bytes(problem.bias) if problem.bias is not None else q
    padding = _bytes(problem.key_padding) if problem.key_padding is not None else q[:, 0, :, 0]
    counts = _bytes(real) if real is not None else q[:, 0, :, 0]
    begin, end, stride = documents(problem)
    rows, columns, *tuning = blocks or _blocks(q)
    numbers = (
        *(*q.stride(), *k.stride(), *seen.stride(), *padding.stride(), *counts.stride(), stride),
        *(heads, heads // k.shape[1], queries, problem.keys, width, problem.offset, problem.window or 0),
        problem.scale,
    )
    constants = {
        "CAUSAL": problem.causal,
        "WINDOW": problem.window is not None,
        "SEEN": problem.bias is not None,
        "PAD": problem.key_padding is not None,
        "REAL": real is not None,
        "PACKED": problem.cu_seqlens is not None,
        "WIDTH": max(16, triton.next_power_of_2(width)),  # MLA has heads of width 192
        "BM": rows,
        "BN": columns,
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
    }
    grid = (triton.cdiv(queries, rows), batch * heads)
    return (q, k, seen, padding, counts, begin, end), grid, numbers, constants, tuned(*tuning)


def _blocks(q: Tensor) -> tuple[int, ...]:
    if q.dtype == torch.float32 or q.shape[3] > 128:
        return (64, 32, 4, 2)
    return (128, 64, 4, 3)
