"""Calling the kernels of sparsity: what they are given, and in blocks of which shape."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from joma.measure._attention_blocks import LOG2E
from joma.measure._attention_problem import Problem
from joma.measure._sparsity_triton import above_kernel, received_kernel, top_kernel

ROUNDS = 24  # Most rounds of the search for a k-th largest weight; each makes the bracket at least five times smaller.


class Ends(NamedTuple):
    """The keys that each query sees: from `low` up to, not including, `high`; `first` is its document's first key.

    Each int32 (batch or 1, queries).
    """

    low: Tensor
    high: Tensor
    first: Tensor

    @classmethod
    def of(cls, problem: Problem) -> Ends:
        if problem.document is not None:
            ends = torch.broadcast_tensors(*problem.interval, problem.first_key)
            return cls(*(end.int().contiguous() for end in ends))
        # The same as `Problem.interval` in fewer steps: each would cost a GPU a hundredth of the pass that follows.
        keys, reach = problem.keys, problem.window
        own = torch.arange(problem.offset, keys, dtype=torch.int32, device=problem.q.device)[None]
        first = torch.zeros_like(own)
        low = first if reach is None else (own - (reach - 1)).clamp_(min=0)
        if problem.causal:
            return cls(low, own + 1, first)
        high = torch.full_like(own, keys) if reach is None else (own + reach).clamp_(max=keys)
        return cls(low, torch.maximum(low, high), first)

    @property
    def strides(self) -> tuple[int, int]:
        return (self.low.stride(0) if len(self.low) > 1 else 0, self.low.stride(1))


class Blocks(NamedTuple):
    """Queries and keys at a time, warps, stages of loading, and parts of a sum over keys."""

    rows: int
    columns: int
    warps: int
    stages: int
    parts: int = 8


def above(
    problem: Problem,
    ends: Ends,
    sums: tuple[Tensor, Tensor],
    threshold2: float,
    *,
    relative: bool,
    sinks: int = 0,
    at_a_time: Blocks | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Mass above a threshold (its logarithm), how many keys that are, and mass on the first keys, if any is asked for.

    sums: m and l of every query, (batch, heads, queries).
    """
    shift, total = sums
    mass, sink = torch.empty(2, *shift.shape, dtype=torch.float32, device=shift.device).unbind(0)
    count = torch.empty(shift.shape, dtype=torch.int64, device=shift.device)
    rows, numbers = (shift, total, mass, count, sink), (threshold2, int(relative), sinks)
    # The fastest of the shapes tried on an H200; the search of `top` needs its parts, or registers run out.
    long = problem.q.dtype != torch.float32 and problem.q.shape[3] == 128 and problem.queries >= 4096
    _launch(above_kernel, problem, ends, rows, numbers, at_a_time or (Blocks(128, 64, 4, 3, 1) if long else None))
    return mass, count, sink


def top(
    problem: Problem, ends: Ends, rows: tuple[Tensor, ...], tolerance: float, at_a_time: Blocks | None = None
) -> tuple[Tensor, Tensor]:
    """Mass on the largest keys, and how far it may be off. `rows`: m, l, guess, its spread, how many, and seen."""
    found, gap = torch.empty(2, *rows[0].shape, dtype=torch.float32, device=rows[0].device).unbind(0)
    floor = -24.0 - problem.keys.bit_length()
    given = (*(each.contiguous() for each in rows), found, gap)
    _launch(top_kernel, problem, ends, given, (floor, tolerance, ROUNDS), at_a_time)
    return found, gap


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
    received_kernel[(start.shape[1], batch * heads)](
        *(q, k, pads, ends.low, ends.high, shift.contiguous(), first, last, score),
        *(*q.stride(), *k.stride(), *pads.stride(), *ends.strides, start.shape[1] if len(start) > 1 else 0),
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


def _launch(
    kernel: object,
    problem: Problem,
    ends: Ends,
    rows: tuple[Tensor, ...],
    numbers: tuple[float, ...],
    at_a_time: Blocks | None,
) -> None:
    q, k = problem.q, problem.k
    batch, heads, queries, width = q.shape
    # What is absent gets a stand-in that the kernel, compiled without it, never reads.
    bias = problem.bias if problem.bias is not None else rows[0][..., None]
    pads = padding(problem, rows[0][:, 0])
    shape = at_a_time or blocks(problem)
    kernel[(triton.cdiv(queries, shape.rows), batch * heads)](  # type: ignore[index]
        *(q, k, bias, pads, *ends, *rows),
        *(*q.stride(), *k.stride(), *bias.stride(), *pads.stride(), *ends.strides),
        *(heads, heads // k.shape[1], queries, problem.keys, *scales(problem), *numbers),
        SOFTCAP=problem.softcap is not None,
        BIAS=problem.bias is not None,
        PAD=problem.key_padding is not None,
        WIDTH=width,
        BM=shape.rows,
        BN=shape.columns,
        PRECISION=precision(problem),
        ASM=problem.q.is_cuda and torch.version.cuda is not None,
        PARTS=shape.parts,
        num_warps=shape.warps,
        num_stages=shape.stages,
    )


def padding(problem: Problem, absent: Tensor) -> Tensor:
    """Which keys are real, or a stand-in."""
    return absent if problem.key_padding is None else problem.key_padding.to(problem.q.device, torch.int8)


def scales(problem: Problem) -> tuple[float, float]:
    """Scale and soft cap in base 2."""
    return problem.scale * LOG2E, (problem.softcap or 1.0) * LOG2E


def precision(problem: Problem) -> str:
    """Of products of float32: TF32 would cost three digits."""
    return "ieee" if problem.q.dtype == torch.float32 else "tf32"


def blocks(problem: Problem) -> Blocks:
    """The fastest of the shapes tried on an H200 at head widths 64 and 128; float32 has no tensor cores to feed."""
    width = problem.q.shape[3]
    if problem.q.dtype == torch.float32:
        return Blocks(64, 32, 4, 2) if width <= 64 else Blocks(32, 32, 4, 2)
    if width > 128:
        return Blocks(64, 32, 4, 2)
    return Blocks(128, 64, 4, 2) if width == 128 and problem.queries >= 4096 else Blocks(64, 64, 4, 3)
