# Copied from joma, src/joma/measure/_tiles_triton.py (Apache-2.0). Change it there.
"""Which keys a tile of queries has to visit, for kernels on CUDA: packed text costs what its documents cost.

Every mask by position (causal, window, documents) leaves each query one interval of keys, low up to high. A tile of
queries visits the keys from its first query's low to its last query's high, and counts tiles of keys from there: a
document that begins inside a tile of keys needs no mask on its left. Tiles of keys that all its queries see are not
masked. A tile of queries that two documents share has none of those.

Documents are looked up on the GPU, which nobody waits for. So `cu_seqlens` that are wrong cannot be refused there. They
give every query a `begin` behind its own key, and the kernels give NaN for such a query.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._problem import Problem

# fmt: off


@triton.jit
def _document_kernel(
    Ends, Begin, End, documents, keys, steps, stride_er, stride_ed, TOKENS: tl.constexpr, CHUNK: tl.constexpr,
):
    """Begin, End (rows, keys): of every token, where its document begins and ends."""
    row = tl.program_id(1)
    ends = Ends + row.to(tl.int64) * stride_er
    falls = tl.zeros([CHUNK], tl.int32)
    for start in tl.range(0, documents, CHUNK):
        at = start + tl.arange(0, CHUNK)
        there = at < documents
        before = tl.load(ends + at * stride_ed, mask=there, other=0)
        after = tl.load(ends + (at + 1) * stride_ed, mask=there, other=0)
        falls += (after < before).to(tl.int32)
    first, last = tl.load(ends), tl.load(ends + documents * stride_ed)
    wrong = (tl.max(falls, 0) > 0) | (first != 0) | (last != keys)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    alive = token < keys
    low, high = token * 0 + 1, token * 0 + documents  # the least i in 1..documents whose end is behind the token
    for _ in tl.range(0, steps):
        middle = (low + high) // 2
        behind = tl.load(ends + middle * stride_ed, mask=alive, other=0) > token
        high = tl.where(behind, middle, high)
        low = tl.where(behind, low, tl.minimum(middle + 1, documents))
    begin = tl.load(ends + (low - 1) * stride_ed, mask=alive, other=0).to(tl.int32)
    end = tl.load(ends + low * stride_ed, mask=alive, other=0).to(tl.int32)
    out = row.to(tl.int64) * keys + token
    tl.store(Begin + out, tl.where(wrong, keys, begin), mask=alive)
    tl.store(End + out, tl.where(wrong, keys, end), mask=alive)


@triton.jit
def tile(
    block, batch, queries, keys, offset, window, Begin, End, stride_db,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, PACKED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):
    """rows, begin, low, high of every query of the tile; then where its keys and those without a mask begin and end.

    The four bounds are start <= full_start <= full_stop, and stop, which may lie before: keys start..full_start and
    full_stop..stop need a mask. Without a window start is full_start.
    """
    rows = block * BM + tl.arange(0, BM)
    first, last = block * BM, tl.minimum(block * BM + BM, queries) - 1
    begin, low = rows * 0, rows * 0
    high = low + keys
    start, full_start, full_stop, stop = 0, 0, keys, keys
    if CAUSAL:
        high = tl.minimum(high, rows + offset + 1)
        stop, full_stop = tl.minimum(stop, last + offset + 1), tl.minimum(full_stop, first + offset + 1)
    if WINDOW:
        low = tl.maximum(low, rows + offset - window + 1)
        high = tl.minimum(high, rows + offset + window)
        start = tl.maximum(start, first + offset - window + 1)
        full_start = tl.maximum(full_start, last + offset - window + 1)
        stop, full_stop = tl.minimum(stop, last + offset + window), tl.minimum(full_stop, first + offset + window)
    if PACKED:  # as many queries as keys, so that a row is its own key
        alive, base = rows < queries, batch.to(tl.int64) * stride_db
        first_begin, last_begin = tl.load(Begin + base + first), tl.load(Begin + base + last)
        begin = tl.load(Begin + base + rows, mask=alive, other=0)
        low = tl.maximum(low, begin)
        start, full_start = tl.maximum(start, first_begin), tl.maximum(full_start, first_begin)
        if not CAUSAL:  # a causal query's own key ends before its document
            high = tl.minimum(high, tl.load(End + base + rows, mask=alive, other=0))
            stop = tl.minimum(stop, tl.load(End + base + last))
            full_stop = tl.minimum(full_stop, tl.load(End + base + first))
        shared = first_begin != last_begin  # by two documents, whose queries see no key together
        full_start = tl.where(shared, start, full_start)
        full_stop = tl.where(shared, start, full_stop)
    if WINDOW:
        full_start = start + (full_start - start + BN - 1) // BN * BN
    full_stop = full_start + tl.maximum(full_stop - full_start, 0) // BN * BN
    return rows, begin, low, high, start, full_start, full_stop, stop

# fmt: on


def documents(problem: Problem) -> tuple[Tensor, Tensor, int]:
    """Where every token's document begins and ends, int32 (rows, keys), and the stride from sample to sample.

    Without documents: a stand-in that a kernel compiled without them never reads.
    """
    ends, keys = problem.cu_seqlens, problem.keys
    if ends is None:
        return problem.q, problem.q, 0
    begin, end = ends.new_empty(2, len(ends), keys, dtype=torch.int32).unbind(0)
    count = ends.shape[1] - 1
    _document_kernel[(triton.cdiv(keys, 256), len(ends))](
        ends, begin, end, count, keys, count.bit_length(), *ends.stride(), TOKENS=256, CHUNK=256, num_warps=4
    )
    return begin, end, keys if len(ends) > 1 else 0


def span(problem: Problem) -> int:
    """About how many keys the longest rows see: it says which tiles are fast."""
    length = problem.keys if problem.cu_seqlens is None else problem.keys // (problem.cu_seqlens.shape[1] - 1)
    return length if problem.window is None else min(length, problem.window)
