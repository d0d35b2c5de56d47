"""The measures of sparsity on CUDA, by passes over the keys: one for maximum, lse and entropy, then one or more.

    mass and number of keys above a threshold   one more pass
    mass on the first keys                      one more pass, over those keys only
    what each key receives                      one more pass
    mass on the largest keys                    one more pass, and 3 to 6 cheaper ones that count

The last is a search for the k-th largest weight that ends, for every query, where the counts certify the mass.
"""

from dataclasses import dataclass
from functools import cached_property
from math import log2
from typing import Any, NamedTuple, Self

import torch
import triton
from torch import Tensor

from joma.measure._attention_blocks import EMPTY, LOG2E
from joma.measure._attention_problem import Problem
from joma.measure._attention_triton import _blocks as attention_blocks
from joma.measure._attention_triton import with_sums
from joma.measure._sparsity_blocks import Attention, seen_keys
from joma.measure._sparsity_triton import above_kernel, received_kernel, top_kernel

TOLERANCE = 1e-6  # how wide the certificate of a `top_mass` may be: the middle is given, so half of it is the error
ROUNDS = 24  # Most rounds of the search for a k-th largest weight; each makes the bracket at least five times smaller.


class Ends(NamedTuple):
    """The keys that each query sees: from `low` up to, not including, `high`; `first` is its document's first key.

    Each int32 (batch or 1, queries).
    """

    low: Tensor
    high: Tensor
    first: Tensor

    @classmethod
    def of(cls, problem: Problem) -> Self:
        if problem.cu_seqlens is not None:
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


@dataclass(frozen=True)
class Passes:
    """What the first pass gives, each (batch, heads, queries).

    Of the keys alone: entropy, and in base 2 the largest logit m and the sum l of all e = 2^(s - m). grown: how much a
    learned sink adds to that sum, as a factor; None without one.
    """

    problem: Problem
    blocks: Blocks | None
    ends: Ends
    entropy: Tensor
    m: Tensor
    l: Tensor
    grown: Tensor | None
    effective_keys: Tensor

    @classmethod
    def of(cls, attention: Attention, blocks: Blocks | None = None) -> Self:
        problem, sink = attention
        with torch.no_grad(), torch.autocast(problem.q.device.type, enabled=False):
            found, m, l = with_sums(problem, None if blocks is None else blocks[:4])
            if sink is None:
                return cls(problem, blocks, Ends.of(problem), found[0], m, l, None, found[5])
            joined = sink.applied(found)
            grown = torch.where(found[2] == -torch.inf, 1.0, (joined[1] - found[1]).exp())
            return cls(problem, blocks, Ends.of(problem), found[0], m, l, grown, joined[5])

    @cached_property
    def seen(self) -> Tensor:
        if self.problem.bias is not None:  # which may hide any key
            return self._above(EMPTY, relative=True)[1]
        found = seen_keys(self.problem, (self.ends.low.long(), self.ends.high.long()))
        return found[:, None].expand(self.m.shape)

    def masses(self, threshold: float, relative: bool, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Mass on the keys above the threshold, how many they are, and mass on the first keys, if any is asked for."""
        cut = log2(threshold) if threshold > 0 else EMPTY
        # Nothing is above 1, also where rounding puts the largest there.
        return self._above(cut if threshold < 1 else -EMPTY, relative=relative, first=first)

    def sink_mass(self, first: int) -> Tensor:
        """Mass on the first keys of every query's document: one pass over these keys alone."""
        low, high, begin = self.ends
        few = Ends(low, torch.maximum(torch.minimum(high, begin + first), low).contiguous(), begin)
        return self._above(EMPTY, relative=True, ends=few)[0]

    def top_mass(self, kept: Tensor | int) -> Tensor:
        seen = self.seen.to(self.m)
        everything = seen <= kept
        few = torch.where(everything, 0.0, torch.as_tensor(kept, device=seen.device).to(seen))
        found, _ = top(self.problem, self.ends, self.search(few, seen), TOLERANCE, self.blocks)
        mass = torch.where(everything, torch.where(seen > 0, 1.0, 0.0), found)
        return mass if self.grown is None else mass / self.grown

    def search(self, kept: Tensor, seen: Tensor) -> tuple[Tensor, ...]:
        # log2 of the k-th largest weight of Gaussian logits with this entropy, and their standard deviation in base 2
        many = seen.clamp(min=1.0)
        variance = (2 * (many.log() - self.entropy)).clamp_(min=1e-10)
        deviation = variance.sqrt()
        tail = ((kept - 0.5) / many).clamp_(1e-6, 1 - 1e-6)
        largest = -many.log() - variance / 2 - deviation * torch.special.ndtri(tail)
        return self.m, self.l, largest * LOG2E, deviation * LOG2E, kept, seen

    def received(self, queries: slice, even: bool) -> tuple[Tensor, Tensor]:
        """What each key accumulates over these queries, and which keys some of them sees, each (batch, heads, keys)."""
        shift = self.m + self.l.log2()
        if self.grown is not None:
            shift = shift + self.grown.log2()
        if even:
            shift = shift - self.seen.clamp(min=1).log2()
        score = self._received(shift, queries)
        seen_by = self._seen_by(queries)[:, None].to(score)
        return score / seen_by.clamp(min=1.0) if even else score, (seen_by > 0).expand(score.shape).clone()

    def _above(
        self, threshold2: float, *, relative: bool, first: int = 0, ends: Ends | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mass above a threshold (its logarithm), how many keys that are, and mass on the first keys, if asked for."""
        q, shift = self.problem.q, self.m
        total = self.l if self.grown is None else self.l * self.grown
        mass, sink = torch.empty(2, *shift.shape, dtype=torch.float32, device=shift.device).unbind(0)
        count = torch.empty(shift.shape, dtype=torch.int64, device=shift.device)
        # The fastest of the shapes tried on an H200; the search of `top` needs its parts, or registers run out.
        long = q.dtype != torch.float32 and q.shape[3] == 128 and self.problem.queries >= 4096
        shape = self.blocks or (Blocks(128, 64, 4, 3, 1) if long else None)
        rows, numbers = (shift, total, mass, count, sink), (threshold2, int(relative), first)
        _launch(above_kernel, self.problem, ends or self.ends, rows, numbers, shape)
        return mass, count, sink

    def _received(self, shift: Tensor, queries: slice) -> Tensor:
        """Per key the sum of 2^t over these queries, (batch, heads, keys); a problem with a bias is not covered."""
        problem, ends = self.problem, self.ends
        q, k = problem.q, problem.k
        batch, heads, count, width = q.shape
        half = q.dtype != torch.float32 and width <= 128 and count >= 4096
        shape = self.blocks or (Blocks(64, 128, 4, 2) if half else blocks(problem))
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
            **_compiled(problem, shape),
        )
        return score

    def _seen_by(self, queries: slice) -> Tensor:
        """How many of these queries see each key, (batch or 1, keys)."""
        low, high = (end[:, queries].long() for end in self.ends[:2])
        change = torch.zeros(len(low), self.problem.keys + 1, dtype=torch.int64, device=low.device)
        one = torch.ones_like(low)
        change.scatter_add_(1, low, one).scatter_add_(1, high, -one)
        count = change.cumsum(1)[:, :-1]
        padding = self.problem.key_padding
        return count if padding is None else count * padding.to(count.device)


def top(
    problem: Problem, ends: Ends, rows: tuple[Tensor, ...], tolerance: float, at_a_time: Blocks | None = None
) -> tuple[Tensor, Tensor]:
    """Mass on the largest keys, and how far it may be off. `rows`: m, l, guess, its spread, how many, and seen."""
    found, gap = torch.empty(2, *rows[0].shape, dtype=torch.float32, device=rows[0].device).unbind(0)
    floor = -24.0 - problem.keys.bit_length()
    given = (*(each.contiguous() for each in rows), found, gap)
    _launch(top_kernel, problem, ends, given, (floor, tolerance, ROUNDS), at_a_time)
    return found, gap


def _launch(
    kernel: object,
    problem: Problem,
    ends: Ends,
    rows: tuple[Tensor, ...],
    numbers: tuple[float, ...],
    at_a_time: Blocks | None,
) -> None:
    q, k = problem.q, problem.k
    batch, heads, queries, _ = q.shape
    # What is absent gets a stand-in that the kernel, compiled without it, never reads.
    bias = problem.bias if problem.bias is not None else rows[0][..., None]
    pads = padding(problem, rows[0][:, 0])
    shape = at_a_time or blocks(problem)
    kernel[(triton.cdiv(queries, shape.rows), batch * heads)](  # type: ignore[index]
        *(q, k, bias, pads, *ends, *rows),
        *(*q.stride(), *k.stride(), *bias.stride(), *pads.stride(), *ends.strides),
        *(heads, heads // k.shape[1], queries, problem.keys, *scales(problem), *numbers),
        BIAS=problem.bias is not None,
        ASM=problem.q.is_cuda and torch.version.cuda is not None,
        PARTS=shape.parts,
        **_compiled(problem, shape),
    )


def _compiled(problem: Problem, shape: Blocks) -> dict[str, Any]:
    """What every kernel is compiled for."""
    return {
        "SOFTCAP": problem.softcap is not None,
        "PAD": problem.key_padding is not None,
        "WIDTH": problem.q.shape[3],
        "BM": shape.rows,
        "BN": shape.columns,
        "PRECISION": "ieee" if problem.q.dtype == torch.float32 else "tf32",  # TF32 would cost float32 three digits
        "num_warps": shape.warps,
        "num_stages": shape.stages,
    }


def padding(problem: Problem, absent: Tensor) -> Tensor:
    """Which keys are real, or a stand-in."""
    return absent if problem.key_padding is None else problem.key_padding.to(problem.q.device, torch.int8)


def scales(problem: Problem) -> tuple[float, float]:
    """Scale and soft cap in base 2."""
    return problem.scale * LOG2E, (problem.softcap or 1.0) * LOG2E


def blocks(problem: Problem) -> Blocks:
    """The fastest of the shapes tried on an H200 at head widths 64 and 128."""
    long = problem.q.dtype != torch.float32 and problem.q.shape[3] == 128 and problem.queries >= 4096
    return Blocks(128, 64, 4, 2) if long else Blocks(*attention_blocks(problem))
