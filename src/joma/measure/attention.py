"""What attention does to every query, without ever forming the queries x keys matrix.

For each query with logits s_j (scaled, soft-capped, biased, masked) and p = softmax(s):

    entropy = -sum_j p_j ln p_j     lse = ln sum_j e^{s_j}     max_logit = max_j s_j
    sink_mass = p of the first key  self_mass = p of the query's own key  effective_keys = e^entropy

Entropy is computed as ln l - a/l with l = sum e^{s-m}, a = sum (s-m) e^{s-m}, m the running maximum: both terms are
never negative, so neither is their sum, and no digits cancel on sharp rows.

Three paths give the same numbers: a Triton kernel (CUDA), chunks of queries (anywhere, differentiable in q, k, bias
and sinks), and a float64 oracle that forms the matrix (`attention_stats_reference`, for tests).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

from torch import Tensor

from joma.host.words import brief
from joma.measure._attention_chunks import chunked, recomputed
from joma.measure._attention_problem import Problem
from joma.theory.arguments import Number, as_numbers


class AttentionStats(NamedTuple):
    """One number per query, each (batch, heads, queries), float32 (float64 for float64 inputs).

    entropy in nats; lse, the logarithm of the sum of e^logit; max_logit; sink_mass and self_mass, the attention on the
    first key and on the query's own; effective_keys = e^entropy.

    A row whose keys are all masked has entropy 0, masses 0, effective_keys 0, lse and max_logit -inf.

    >>> import torch
    >>> q = torch.zeros(1, 1, 4, 8)
    >>> attention_stats(q, q).sink_mass
    tensor([[[1.0000, 0.5000, 0.3333, 0.2500]]])
    """

    entropy: Tensor
    lse: Tensor
    max_logit: Tensor
    sink_mass: Tensor
    self_mass: Tensor
    effective_keys: Tensor

    def __repr__(self) -> str:
        return brief(self)


def attention_stats(
    q: Number,
    k: Number,
    *,
    causal: bool = True,
    scale: float | None = None,
    window: int | None = None,
    bias: Number | None = None,
    softcap: float | None = None,
    sinks: Number | None = None,
    key_padding: Number | None = None,
) -> AttentionStats:
    """Entropy, log-sum-exp, largest logit and masses of every query's attention. Never a queries x keys tensor.

    q (batch, heads, queries, width), k (batch, kv_heads, keys, width), heads a multiple of kv_heads. `causal` aligns
    the last query with the last key, so that queries may be fewer than keys (decoding). `scale` is 1/sqrt(width).
    `window=n` keeps the n keys up to and including the query's own (with causal=False: n-1 to either side of it).
    `softcap=c` replaces logits by c tanh(s/c), before the bias. `bias` broadcasts to (batch, heads, queries, keys);
    ALiBi is (1, heads, 1, keys). `sinks` (heads,) are learned logits that join the denominator and nothing else:
    masses and entropy then count the real keys only, and the masses sum to less than 1. `key_padding` (batch, keys)
    is True for real keys.

    >>> import torch
    >>> q = torch.zeros(1, 1, 3, 4)
    >>> attention_stats(q, q).effective_keys
    tensor([[[1., 2., 3.]]])
    """
    problem = Problem.of(q, k, None, causal, scale, window, bias, softcap, sinks, key_padding)
    return AttentionStats(*_solve(problem)[:6])


def attention_with_stats(
    q: Number,
    k: Number,
    v: Number,
    *,
    causal: bool = True,
    scale: float | None = None,
    window: int | None = None,
    bias: Number | None = None,
    softcap: float | None = None,
    sinks: Number | None = None,
    key_padding: Number | None = None,
) -> tuple[Tensor, AttentionStats]:
    """The attention output (batch, heads, queries, value width, dtype of v) and its statistics, from one pass.

    v (batch, kv_heads, keys, value width); everything else as in `attention_stats`. Fully masked rows output 0.

    >>> import torch
    >>> q, v = torch.zeros(1, 1, 3, 4), torch.tensor([0.0, 2.0, 4.0]).view(1, 1, 3, 1)
    >>> output, stats = attention_with_stats(q, q, v)
    >>> output.flatten(), stats.effective_keys.flatten()
    (tensor([0., 1., 2.]), tensor([1., 2., 3.]))
    """
    problem = Problem.of(q, k, v, causal, scale, window, bias, softcap, sinks, key_padding)
    *stats, output = _solve(problem)
    return output, AttentionStats(*stats)


def attention_stats_reference(
    q: Number,
    k: Number,
    *,
    causal: bool = True,
    scale: float | None = None,
    window: int | None = None,
    bias: Number | None = None,
    softcap: float | None = None,
    sinks: Number | None = None,
    key_padding: Number | None = None,
) -> AttentionStats:
    """The same in float64 with the whole matrix: slow, large, and what the other paths are measured against.

    >>> import torch
    >>> q = torch.randn(1, 2, 5, 8, generator=torch.Generator().manual_seed(0))
    >>> bool((attention_stats(q, q).entropy - attention_stats_reference(q, q).entropy).abs().max() < 1e-5)
    True
    """
    doubled = None if bias is None else as_numbers(bias, "bias").double()
    q, k = as_numbers(q, "q").double(), as_numbers(k, "k").double()
    problem = Problem.of(q, k, None, causal, scale, window, doubled, softcap, sinks, key_padding)
    return AttentionStats(*problem.rows(0, problem.queries)[:6])


def _solve(problem: Problem) -> tuple[Tensor, ...]:
    if problem.q.is_cuda and find_spec("triton") is not None:
        from joma.measure._attention_triton import covers, launch

        if covers(problem):
            return recomputed(launch, problem) if problem.differentiable else launch(problem)
    return chunked(problem)
