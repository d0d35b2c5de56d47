"""Attention with its weights written out: what a query gives to each key it sees, in five ways.

With logits s_j of the keys j that a query sees:

    softmax       e^{s_j} / sum e^s                 sums to one: what a query has no use for must go somewhere
    off-by-one    e^{s_j} / (1 + sum e^s)           one more key of logit 0 and value 0: a query may attend to nothing
    learned-sink  e^{s_j} / (e^b + sum e^s)         the same with a logit b that each head learns, from 0 on
    sigmoid       1 / (1 + n e^{-s_j})              each of n keys for itself, 1/(n + 1) at logit 0
    relu          max(s_j, 0) / n                   the same, and exactly nothing for a logit that is not positive
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Attention = Literal["softmax", "off-by-one", "learned-sink", "sigmoid", "relu"]
See = Callable[[str, Tensor], None] | None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    kind: Attention,
    causal: bool,
    sink: Tensor | None,
    drop: Callable[[Tensor], Tensor],
    see: See,
    score: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """What the keys' values give to each query; all (members, batch, heads, length, head width).

    sink: the learned logits (members, heads). drop: dropout on the weights. see: sees what passes by. score: what
    logits become, before keys are hidden, so that no change lets a query see what follows it.
    """
    shape = query.shape
    length = shape[-2]
    query, key, value = (part.flatten(0, 2) for part in (query, key, value))  # of one head a view, of several a copy
    logits = torch.bmm(query, key.mT).view(*shape[:-1], length) / math.sqrt(shape[-1])
    if score is not None:
        logits = score(logits)
    if causal:
        future = torch.ones(length, length, dtype=torch.bool, device=logits.device).triu(1)
        logits = logits.masked_fill(future, -math.inf)
    attention = weights(logits, kind, causal, sink)
    if see is not None:
        for name, tensor in (("query", query), ("key", key)):
            see(name, tensor.view(shape))
        see("logits", logits)
        see("attention", attention)
    mixed = torch.bmm(drop(attention).flatten(0, 2), value).view(shape)
    if see is not None:
        see("mixed", mixed)
    return mixed


SHORT = 64  # keys up to which small products beat torch's fused kernel on a CPU: 16 keys take two thirds of its time


def attend_on_processor(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Tensor:
    """Softmax attention that nobody looks into, as `attend` gives it."""
    if query.shape[-2] > SHORT:
        flat = [part.flatten(0, 1) for part in (query, key, value)]
        return F.scaled_dot_product_attention(flat[0], flat[1], flat[2], is_causal=causal).view(query.shape)
    flat = [part.flatten(0, 2) for part in (query, key, value)]
    return _Short.apply(*flat, causal).view(query.shape)  # type: ignore[no-any-return, no-untyped-call]


class _Short(torch.autograd.Function):
    """query, key, value (count, length, head width)."""

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:  # type: ignore[no-untyped-def]
        logits = torch.bmm(query, key.mT).mul_(query.shape[-1] ** -0.5)
        if causal:
            logits += logits.new_full(logits.shape[1:], -math.inf).triu_(1)
        attention = logits.softmax(-1)
        ctx.save_for_backward(query, key, value, attention)
        return torch.bmm(attention, value)

    @staticmethod
    @once_differentiable
    def backward(ctx, by_mixed: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        query, key, value, attention = ctx.saved_tensors
        by_attention = torch.bmm(by_mixed, value.mT)
        by_logits = torch._softmax_backward_data(by_attention, attention, -1, attention.dtype)
        by_logits.mul_(query.shape[-1] ** -0.5)
        return torch.bmm(by_logits, key), torch.bmm(by_logits.mT, query), torch.bmm(attention.mT, by_mixed), None


def weights(logits: Tensor, kind: Attention, causal: bool, sink: Tensor | None) -> Tensor:
    """Attention of logits (members, batch, heads, queries, keys), -inf where a key is not seen."""
    if kind == "softmax":
        return logits.softmax(-1)
    if kind in ("sigmoid", "relu"):
        length = logits.shape[-1]
        place = torch.arange(1, length + 1, device=logits.device).to(logits)
        seen = place if causal else torch.full_like(place, length)
        return logits.relu() / seen[:, None] if kind == "relu" else (logits - seen.log()[:, None]).sigmoid()
    if sink is None:  # off-by-one
        return F.pad(logits, (1, 0)).softmax(-1)[..., 1:]
    one_more = sink[:, None, :, None, None].expand(*logits.shape[:-1], 1)
    return torch.cat((one_more, logits), -1).softmax(-1)[..., 1:]
