"""Learned sinks: one more entry in the denominator of every query's softmax.

Two conventions. A logit per head that takes mass and has no value (gpt-oss; logit 0 is "softmax plus one"). Or a
learned key that every query sees, with a value of its own. Either gives one logit z per query, and with d = z - lse of
the real keys, whose share becomes r = 1 / (1 + e^d), everything follows from the statistics without the sink:

    lse' = lse + ln(1 + e^d)    entropy' = r (entropy + ln(1 + e^d))  [+ (1 - r) ln(1 + e^-d) where the sink counts]

No term is negative, so no digits cancel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from joma.host.arguments import Number, as_numbers
from joma.measure._attention_problem import Problem


@dataclass(frozen=True)
class Sink:
    """z (batch, heads, queries) or what broadcasts to it; `value` (heads, width) or None; whether entropy counts it."""

    logit: Tensor
    value: Tensor | None
    counted: bool

    @classmethod
    def of(
        cls, problem: Problem, sinks: Number | None, key: Number | None, value: Number | None, counted: bool
    ) -> Sink | None:
        """The sink of a problem, if it has one; a wrong argument gets one sentence."""
        if sinks is not None and key is not None:
            raise ValueError("sinks and sink_key are two kinds of learned sink: give one of them")
        if value is not None and key is None:
            raise ValueError("sink_value belongs to a sink_key, and none is given")
        if sinks is not None:
            heads, logits = problem.q.shape[1], as_numbers(sinks, "sinks")
            if logits.shape not in ((), (heads,)):
                wanted = f"one number or have shape ({heads},), one per head"
                raise ValueError(f"sinks must be {wanted}, got {tuple(logits.shape)}")
            return cls(logits.to(problem.q.device).expand(heads)[None, :, None], None, counted)
        if key is None:
            return None
        width = None if problem.v is None else problem.v.shape[3]
        logit = _key_logits(problem, _per_head(problem, key, "sink_key", problem.q.shape[3]))
        return cls(logit, None if value is None else _per_head(problem, value, "sink_value", width), counted)

    def applied(self, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The statistics (and the output, if there is one) with the sink."""
        entropy, lse, top, first, own, _, *output = found
        empty = top == -torch.inf
        z = self.logit.to(lse).expand(lse.shape)
        d = torch.where(empty, 0.0, z - torch.where(empty, 0.0, lse))
        grown, share = F.softplus(d), torch.where(empty, 0.0, torch.sigmoid(-d))
        new = share * (entropy + grown)
        if self.counted:
            new = new + torch.where(empty, 0.0, torch.sigmoid(d) * F.softplus(-d))
        # A row that sees no key at all has its sink alone: its lse, but nothing that a mean should count.
        stats = (new, torch.where(empty, z, lse + grown), top, first * share, own * share)
        effective = torch.where(empty, 0.0, new.exp())
        return *stats, effective, *(self._output(each, share) for each in output)

    def _output(self, output: Tensor, share: Tensor) -> Tensor:
        mixed = output.to(share) * share[..., None]
        if self.value is not None:
            mixed = mixed + (1 - share)[..., None] * self.value.to(share)[:, None]
        return mixed.to(output.dtype)


def _per_head(problem: Problem, given: Number, name: str, width: int | None) -> Tensor:
    """(kv_heads, width) for every head."""
    kv_heads = problem.k.shape[1]
    each = as_numbers(given, name)
    if each.shape != (kv_heads, width):
        raise ValueError(f"{name} must have shape ({kv_heads}, {width}), one per kv head, got {tuple(each.shape)}")
    return each.to(problem.q.device).repeat_interleave(problem.q.shape[1] // kv_heads, 0)


def _key_logits(problem: Problem, key: Tensor) -> Tensor:
    """(batch, heads, queries): the product of every query with its head's sink key, scaled and capped as all are."""
    exact = torch.promote_types(problem.q.dtype, torch.float32)
    s = torch.einsum("bhqd,hd->bhq", problem.q.to(exact), key.to(exact)) * problem.scale
    return s if problem.softcap is None else problem.softcap * torch.tanh(s / problem.softcap)
