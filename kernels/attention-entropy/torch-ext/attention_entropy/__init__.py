"""Entropy and largest logit of attention without the attention matrix, in one pass over the keys."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ._attention import covers, launch
from ._problem import Problem

__all__ = ["Statistics", "attention_entropy"]


class Statistics(NamedTuple):
    """One number per query, float32 (batch, heads, queries)."""

    entropy: Tensor
    """-sum p ln p, in nats; 0 where a query sees no key."""
    lse: Tensor
    """ln sum e^s over the keys that a query sees."""
    largest_logit: Tensor
    first_key: Tensor
    """The attention on the first key of the text."""
    own_key: Tensor
    """The attention on the query's own key."""
    effective_keys: Tensor
    """e^entropy; 0 where a query sees no key."""


def attention_entropy(
    q: Tensor,
    k: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    key_padding: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    blocks: tuple[int, ...] | None = None,
) -> Statistics:
    """Statistics of softmax(scale q k^T + bias) for every query.

    - q: (batch, heads, queries, width)
    - k: (batch, kv_heads, keys, width); heads is a multiple of kv_heads
    - causal: whether a query sees no later key; the last query and the last key belong together
    - scale: of the logits; 1 / sqrt(width) if left out
    - window: a query sees keys less than so many places away
    - softcap: c of c tanh(s / c), for each scaled logit s
    - bias: what broadcasts to (batch, heads, queries, keys); added to logits, or True where a query sees a key
    - key_padding: bool (batch, keys), False where a key is padding
    - cu_seqlens: int32 or int64 (documents + 1,) or (batch, documents + 1): where packed documents begin, then the
      length. A query sees its own document. Where they are wrong, the answer is NaN
    - blocks: queries and keys of a tile, warps and stages of loading, if not the shape that was fastest on an H200
    """
    problem = Problem.of(
        q, k, causal=causal, scale=scale, window=window, softcap=softcap, bias=bias, key_padding=key_padding,
        cu_seqlens=cu_seqlens,
    )  # fmt: skip
    if not covers(problem):
        raise ValueError(
            "q and k must have one dtype (float32, float16, bfloat16), a width of 16, 32, 64, 128 or 256 and a scale "
            f"above 0, got {q.dtype} and {k.dtype} of width {q.shape[3]} and scale {problem.scale}"
        )
    return Statistics(*launch(problem, blocks))
