"""How sparse the attention of one call is: six numbers per query, through `joma.measure.sparsity`."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from joma.host.words import brief
from joma.measure.attention import AttentionStats, logit_stats
from joma.measure.sparsity import keys_above, sink_mass, top_mass

TENTH = 0.1
FIRST = 4
"""First keys that count as sinks, as in StreamingLLM."""
LITTLE = 0.01
"""Share of the row's largest probability below which H2O calls a key zero."""
KEEP = 16
"""Keys of `top_keys` unless given."""
_MASKED = 5e3  # nats below the row's largest: no logits differ by so much, and OpenAI GPT masks by -1e4


class AttentionSparsity(NamedTuple):
    """How sparse attention is, of every query (batch, heads, queries), or as a mean (layers, heads).

    - top_tenth: mass on the 10 % of the seen keys with the largest probability, rounded up
    - top_keys: mass on a chosen number of them
    - first_key, first_keys: mass on the first key, and on the first 4
    - near_zero: share of the seen keys whose probability is at most 1 % of the row's largest (H2O's sparsity)
    - effective_share: e^entropy over the number of keys seen

    A query sees the keys that no mask hides. A learned sink takes mass and is no key.

    >>> AttentionSparsity(*[torch.zeros(2, 4)] * 6)._fields[0]
    'top_tenth'
    """

    top_tenth: Tensor
    top_keys: Tensor
    first_key: Tensor
    first_keys: Tensor
    near_zero: Tensor
    effective_share: Tensor

    def __repr__(self) -> str:
        return brief(self)


def of_products(q: Tensor, k: Tensor, stats: AttentionStats, top: int, options: dict[str, Any]) -> AttentionSparsity:
    """Of queries and keys under `options` of `attention_stats`; `stats` is what it found, `top` the chosen number."""
    masks = {name: value for name, value in options.items() if name != "sink_in_entropy"}
    first = sink_mass(q, k, min(FIRST, k.shape[2]), **masks)
    return _together(q, k, stats, top, masks, first, keys_seen(q, k, options))


def of_logits(scores: Tensor, stats: AttentionStats, top: int, first: Tensor | None = None) -> AttentionSparsity:
    """Of logits that exist already, (batch, heads, queries, keys), one sample at a time."""
    each = []
    for i, one in enumerate(scores.split(1)):
        hidden = (one < one.amax(-1, keepdim=True) - _MASKED) | (one <= torch.finfo(one.dtype).min / 2)
        logits = one.masked_fill(hidden, -torch.inf)
        q, k = (one.new_zeros(*one.shape[:2], count, 1) for count in one.shape[2:])
        masks: dict[str, Any] = {"causal": False, "bias": logits}
        if first is None:
            sinks = sink_mass(q, k, min(FIRST, k.shape[2]), **masks)
        else:
            sinks = torch.stack([logit_stats(logits, first=first + at).sink_mass for at in range(FIRST)]).sum(0)
        sample = AttentionStats(*(part[i : i + 1] for part in stats))
        each.append(_together(q, k, sample, top, masks, sinks, (~hidden).sum(-1)))
    return AttentionSparsity(*(torch.cat(parts) for parts in zip(*each, strict=True)))


def _together(
    q: Tensor, k: Tensor, stats: AttentionStats, top: int, masks: dict[str, Any], first: Tensor, seen: Tensor
) -> AttentionSparsity:
    seen = seen.clamp(min=1)
    return AttentionSparsity(
        top_mass(q, k, TENTH, **masks),
        top_mass(q, k, min(top, k.shape[2]), **masks),
        stats.sink_mass.detach(),
        first,
        1 - keys_above(q, k, LITTLE, relative=True, **masks) / seen,
        stats.effective_keys.detach() / seen,
    )


def keys_seen(q: Tensor, k: Tensor, options: dict[str, Any]) -> Tensor:
    """(batch, heads or 1, queries): how many keys each query sees, counted where all have the same logit."""
    bias, heads = options.get("bias"), 1
    if bias is not None:
        bias = torch.zeros_like(bias, dtype=torch.float32).masked_fill_(bias == -torch.inf, -torch.inf)
        heads = bias.shape[-3] if bias.ndim > 2 else 1
    masks: dict[str, Any] = {name: options.get(name) for name in ("window", "key_padding", "cu_seqlens")}
    q, k = (x.new_zeros(len(x), heads, x.shape[2], 1, dtype=torch.float32) for x in (q, k))
    return keys_above(q, k, 0.0, causal=options.get("causal", True), bias=bias, **masks)
