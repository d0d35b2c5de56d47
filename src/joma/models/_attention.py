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
