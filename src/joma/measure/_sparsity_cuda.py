"""The measures of sparsity on CUDA, by passes over the keys: one for maximum, lse and entropy, then one or more.

    mass and number of keys above a threshold   one more pass
    mass on the first keys                      one more pass, over those keys only
    what each key receives                      one more pass
    mass on the largest keys                    one more pass, and 3 to 6 cheaper ones that count

The last is a search for the k-th largest weight that ends, for every query, where the counts certify the mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from math import log2
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from joma.measure._attention_blocks import EMPTY, LOG2E
from joma.measure._attention_problem import Problem
from joma.measure._sparsity_blocks import Attention

if TYPE_CHECKING:
    from joma.measure._sparsity_launch import Blocks, Ends

TOLERANCE = 1e-6  # how wide the certificate of a `top_mass` may be: the middle is given, so half of it is the error


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
    def of(cls, attention: Attention, blocks: Blocks | None = None) -> Passes:
        from joma.measure._attention_triton import with_sums
        from joma.measure._sparsity_launch import Ends

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
        """How many keys each query sees."""
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
        few = type(self.ends)(low, torch.maximum(torch.minimum(high, begin + first), low).contiguous(), begin)
        return self._above(EMPTY, relative=True, ends=few)[0]

    def top_mass(self, kept: Tensor | int) -> Tensor:
        """Mass on the largest keys, so many of each query's."""
        from joma.measure._sparsity_launch import top

        seen = self.seen.to(self.m)
        everything = seen <= kept
        few = torch.where(everything, 0.0, torch.as_tensor(kept, device=seen.device).to(seen))
        found, _ = top(self.problem, self.ends, self.search(few, seen), TOLERANCE, self.blocks)
        mass = torch.where(everything, torch.where(seen > 0, 1.0, 0.0), found)
        return mass if self.grown is None else mass / self.grown

    def search(self, kept: Tensor, seen: Tensor) -> tuple[Tensor, ...]:
        """What a search for so many of the largest keys begins with."""
        # log2 of the k-th largest weight of Gaussian logits with this entropy, and their standard deviation in base 2
        many = seen.clamp(min=1.0)
        variance = (2 * (many.log() - self.entropy)).clamp_(min=1e-10)
        deviation = variance.sqrt()
        tail = ((kept - 0.5) / many).clamp_(1e-6, 1 - 1e-6)
        largest = -many.log() - variance / 2 - deviation * torch.special.ndtri(tail)
        return self.m, self.l, largest * LOG2E, deviation * LOG2E, kept, seen

    def received(self, queries: slice, even: bool) -> tuple[Tensor, Tensor]:
        """What each key accumulates over these queries, and which keys some of them sees, each (batch, heads, keys)."""
        from joma.measure._sparsity_launch import received

        shift = self.m + self.l.log2()
        if self.grown is not None:
            shift = shift + self.grown.log2()
        if even:
            shift = shift - self.seen.clamp(min=1).log2()
        score = received(self.problem, self.ends, shift, queries, self.blocks)
        seen_by = self._seen_by(queries)[:, None].to(score)
        return score / seen_by.clamp(min=1.0) if even else score, (seen_by > 0).expand(score.shape).clone()

    def _above(
        self, threshold2: float, *, relative: bool, first: int = 0, ends: Ends | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        from joma.measure._sparsity_launch import above

        sums = (self.m, self.l if self.grown is None else self.l * self.grown)
        places = self.ends if ends is None else ends
        return above(self.problem, places, sums, threshold2, relative=relative, sinks=first, at_a_time=self.blocks)

    def _seen_by(self, queries: slice) -> Tensor:
        """How many of these queries see each key, (batch or 1, keys)."""
        low, high = (end[:, queries].long() for end in self.ends[:2])
        change = torch.zeros(len(low), self.problem.keys + 1, dtype=torch.int64, device=low.device)
        one = torch.ones_like(low)
        change.scatter_add_(1, low, one).scatter_add_(1, high, -one)
        count = change.cumsum(1)[:, :-1]
        padding = self.problem.key_padding
        return count if padding is None else count * padding.to(count.device)


def seen_keys(problem: Problem, interval: tuple[Tensor, Tensor]) -> Tensor:
    """(batch or 1, queries): how many keys of its interval each query sees, where no bias hides any."""
    low, high = interval
    if problem.key_padding is None:
        return high - low
    real = torch.nn.functional.pad(problem.key_padding.to(low.device).long().cumsum(1), (1, 0))
    upto_high, upto_low = (real.gather(1, end.expand(len(real), -1)) for end in (high, low))
    return upto_high - upto_low


def covers(attention: Attention) -> bool:
    """Whether the kernels can take this attention here."""
    if not attention.problem.q.is_cuda or find_spec("triton") is None:
        return False
    from joma.measure._attention_triton import covers

    return covers(attention.problem)
