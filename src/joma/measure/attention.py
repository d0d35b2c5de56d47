"""What attention does to every query, without ever forming the queries x keys matrix.

For each query with logits s_j (scaled, soft-capped, biased, masked) and p = softmax(s):

    entropy = -sum_j p_j ln p_j     lse = ln sum_j e^{s_j}     max_logit = max_j s_j
    sink_mass = p of the first key  self_mass = p of the query's own key  effective_keys = e^entropy

Entropy is computed as ln l - a/l with l = sum e^{s-m}, a = sum (s-m) e^{s-m}, m the running maximum: both terms are
never negative, so neither is their sum, and no digits cancel on sharp rows.

Three paths give the same numbers: a Triton kernel (CUDA), blocks of queries (anywhere), and a float64 oracle that forms
the matrix (`attention_stats_reference`, for tests). Gradients flow through q, k, v, the bias and the sinks.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from joma.host.arguments import Number, as_numbers, as_tensor, floating
from joma.host.words import brief_repr
from joma.measure import _attention_blocks
from joma.measure._attention_problem import Masks, Problem, Sink

_ELEMENTS = 1 << 20  # logits at a time, where they exist already
_RECOMPUTED = 1 << 22  # logits at a time in a backward pass: 16 MiB in float32
_TENSORS = ("q", "k", "v", "bias")

Path = Callable[[Problem], tuple[Tensor, ...]]


@brief_repr
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
    sink_key: Number | None = None,
    sink_in_entropy: bool = False,
    key_padding: Number | None = None,
    cu_seqlens: Number | None = None,
) -> AttentionStats:
    """Entropy, log-sum-exp, largest logit and masses of every query's attention. Never a queries x keys tensor.

    - q: (batch, heads, queries, width)
    - k: (batch, kv_heads, keys, width); heads are a multiple of kv_heads
    - causal: the last query is aligned with the last key, so that queries may be fewer than keys (decoding)
    - scale: of the logits; None: 1/sqrt(width)
    - window: n keeps the n keys up to and including the query's own (with causal=False: n-1 to either side of it)
    - bias: broadcasts to (batch, heads, queries, keys); ALiBi is (1, heads, 1, keys). True and False say which keys a
      query sees, as in torch's scaled_dot_product_attention
    - softcap: c replaces logits by c tanh(s/c), before the bias
    - sinks: one logit or one per head (heads,), which takes mass and has no value (gpt-oss; 0.0: "softmax plus one")
    - sink_key: (kv_heads, width), a learned key that every query sees
    - sink_in_entropy: adds the sink's own -p ln p to `entropy`, which is -sum p ln p over the real keys
    - key_padding: (batch, keys), True for real keys
    - cu_seqlens: each row holds several documents, none of which sees another: where they begin, and at the end the
      number of keys, (documents + 1,) or (batch, documents + 1). Every number is then that of the document alone, and
      sink_mass is the attention on the first key of the query's own document

    Values are not looked at, which would keep a GPU waiting: infinite ones may give NaN, but for a bias of -inf, which
    hides keys. cu_seqlens that do not rise from 0 to the number of keys are refused, but may give NaN where they are on
    a GPU. A sink joins the denominator of every query. The masses on the real keys then sum to less than 1, and the
    sink has e^(its logit - lse). max_logit is always that of the real keys.

    >>> import torch
    >>> q = torch.zeros(1, 1, 3, 4)
    >>> attention_stats(q, q).effective_keys
    tensor([[[1., 2., 3.]]])
    >>> attention_stats(q, q, cu_seqlens=[0, 2, 3]).effective_keys
    tensor([[[1., 2., 1.]]])
    """
    problem = Problem.of(
        q, k, None, causal=causal, scale=scale, window=window, bias=bias, softcap=softcap, key_padding=key_padding,
        cu_seqlens=cu_seqlens, mask_stays=True,
    )  # fmt: skip
    return AttentionStats(*_solve(problem, Sink.of(problem, sinks, sink_key, None, sink_in_entropy)))


def attention_with_stats(
    q: Number,
    k: Number,
    v: Number,
    *,
    causal: bool = True,
    sinks: Number | None = None,
    sink_key: Number | None = None,
    sink_value: Number | None = None,
    sink_in_entropy: bool = False,
    **masks: Unpack[Masks],
) -> tuple[Tensor, AttentionStats]:
    """The attention output (batch, heads, queries, value width, dtype of v) and its statistics, from one pass.

    v (batch, kv_heads, keys, value width); `sink_value` (kv_heads, value width) is what the sink key adds to the
    output, nothing unless given; everything else as in `attention_stats`. Rows that see no key output 0.

    >>> import torch
    >>> q, v = torch.zeros(1, 1, 3, 4), torch.tensor([0.0, 2.0, 4.0]).view(1, 1, 3, 1)
    >>> output, stats = attention_with_stats(q, q, v)
    >>> output.flatten(), stats.effective_keys.flatten()
    (tensor([0., 1., 2.]), tensor([1., 2., 3.]))
    """
    problem = Problem.of(q, k, as_numbers(v, "v"), causal=causal, mask_stays=True, **masks)
    *stats, output = _solve(problem, Sink.of(problem, sinks, sink_key, sink_value, sink_in_entropy))
    return output, AttentionStats(*stats)


def logit_stats(logits: Number, *, first: Number | None = None, own: Number | None = None) -> AttentionStats:
    """The same of logits that exist already, (batch, heads, queries, keys): scaled, biased and masked.

    Masked is -inf, or the lowest number of the logits' type, as models add it. `first` and `own` (queries,) say which
    columns hold the first key and the query's own: unless given, column 0, and the columns that align the last query
    with the last key. A column that is not there (-1) has mass 0. A logit of +inf gives NaN. A few rows are worked at a
    time.

    >>> import torch
    >>> logit_stats(torch.zeros(1, 1, 2, 4)).effective_keys
    tensor([[[4., 4.]]])
    """
    s = floating(as_numbers(logits, "logits"), "logits").detach()
    if s.ndim != 4 or min(s.shape) < 1:
        raise ValueError(f"logits must be (batch, heads, queries, keys), none of them 0, got {tuple(s.shape)}")
    queries, keys = s.shape[2:]
    column = torch.arange(queries, device=s.device)
    start = torch.zeros_like(column) if first is None else as_tensor(first, "first").to(s.device)
    mine = column + keys - queries if own is None else as_tensor(own, "own").to(s.device)
    for name, given in (("first", start), ("own", mine)):
        if given.shape != (queries,) or given.is_floating_point():
            wanted = f"whole numbers of shape ({queries},), one per query"
            raise ValueError(f"{name} must be {wanted}, got {given.dtype} {tuple(given.shape)}")
    return AttentionStats(*_of_logits(s, start.long(), mine.long()))


def attention_stats_reference(
    q: Number,
    k: Number,
    *,
    causal: bool = True,
    sinks: Number | None = None,
    sink_key: Number | None = None,
    sink_in_entropy: bool = False,
    **masks: Unpack[Masks],
) -> AttentionStats:
    """The same in float64 with all of the matrix: slow, large, and what the other paths are measured against.

    >>> import torch
    >>> q = torch.randn(1, 2, 5, 8, generator=torch.Generator().manual_seed(0))
    >>> bool((attention_stats(q, q).entropy - attention_stats_reference(q, q).entropy).abs().max() < 1e-5)
    True
    """
    if (bias := masks.get("bias")) is not None:
        given = as_tensor(bias, "bias")
        masks["bias"] = given if given.dtype == torch.bool else given.double()
    problem = Problem.of(as_numbers(q, "q").double(), as_numbers(k, "k").double(), None, causal=causal, **masks)
    sink = Sink.of(problem, sinks, sink_key, None, sink_in_entropy)
    found = problem.rows(0, problem.queries)
    return AttentionStats(*(found if sink is None else sink.applied(found)))


def _of_logits(s: Tensor, first: Tensor, own: Tensor) -> tuple[Tensor, ...]:
    """The six statistics of s (batch, heads, queries, keys); `first` and `own` (queries,) are columns, or none."""
    queries, keys = s.shape[2:]
    rows = s.reshape(-1, keys)
    exact = torch.promote_types(s.dtype, torch.float32)
    size = max(1, _ELEMENTS // keys)
    at = torch.arange(len(rows), device=s.device) % queries
    parts = [
        _of_rows(rows[i : i + size].to(exact), s.dtype, first[at[i : i + size]], own[at[i : i + size]])
        for i in range(0, len(rows), size)
    ]
    return tuple(torch.cat(part).view(s.shape[:3]) for part in zip(*parts, strict=True))


def _of_rows(s: Tensor, dtype: torch.dtype, first: Tensor, own: Tensor) -> tuple[Tensor, ...]:
    top = s.amax(-1)
    empty = top <= torch.finfo(dtype).min / 2  # the lowest numbers of a type stand for a mask
    m = torch.where(empty, 0.0, top)
    t = (s - m[:, None]).clamp_(min=torch.finfo(s.dtype).min / 2)  # 0 times -inf would be NaN
    e = t.exp()
    total = torch.where(empty, 1.0, e.sum(-1))
    entropy = torch.where(empty, 0.0, (total.log() - t.mul_(e).sum(-1) / total).clamp_(min=0.0))
    keys = e.shape[1]
    inside = ((column, (column >= 0) & (column < keys)) for column in (first, own))
    taken = (torch.where(there, e.gather(1, at.clamp(0, keys - 1)[:, None])[:, 0], 0.0) for at, there in inside)
    masses = (torch.where(empty, 0.0, mass / total) for mass in taken)
    low = torch.full_like(top, -torch.inf)
    lse, top = torch.where(empty, low, m + total.log()), torch.where(empty, low, top)
    return entropy, lse, top, *masses, torch.where(empty, 0.0, entropy.exp())


def _solve(problem: Problem, sink: Sink | None) -> tuple[Tensor, ...]:
    tensors = [getattr(problem, name) for name in _TENSORS]
    wanted = torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in tensors)
    forward = _fastest(problem)
    if wanted or forward is _attention_blocks.forward:
        problem = problem.with_added_bias()
    kind = problem.q.device.type
    rounding = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)  # of logits to bfloat16
    with torch.autocast(kind, enabled=False) if rounding else nullcontext():
        again: Any = _Recomputed.apply
        found = again(forward, problem, *(getattr(problem, name) for name in _TENSORS)) if wanted else forward(problem)
        return found if sink is None else sink.applied(found)


def _fastest(problem: Problem) -> Path:
    if problem.q.is_cuda and _has_triton():
        from joma.measure._attention_triton import covers, launch

        return launch if covers(problem) else _attention_blocks.forward
    return _attention_blocks.forward


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


class _Recomputed(torch.autograd.Function):
    """`forward`'s numbers with a backward pass that goes through the chunks again: memory stays linear in keys."""

    @staticmethod
    def forward(ctx: Any, forward: Path, problem: Problem, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        ctx.problem = problem
        plain: dict[str, Any] = {n: t if t is None else t.detach() for n, t in zip(_TENSORS, tensors, strict=True)}
        return forward(replace(problem, **plain))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        problem: Problem = ctx.problem
        wanted = [n for n in _TENSORS if (t := getattr(problem, n)) is not None and t.requires_grad]
        leaves: dict[str, Any] = {n: getattr(problem, n).detach().requires_grad_() for n in wanted}
        total = {n: torch.zeros_like(leaf) for n, leaf in leaves.items()}
        tracked = replace(problem, **leaves)
        size = max(1, _RECOMPUTED // (problem.q.shape[0] * problem.q.shape[1] * max(problem.keys, 1)))
        with torch.enable_grad():
            for start in range(0, problem.queries, size):
                stop = min(start + size, problem.queries)
                rows = tracked.rows(start, stop)
                # Some numbers of some chunks are constants: the first key's mass where the window hides it.
                pairs = [(r, g[:, :, start:stop]) for r, g in zip(rows, upstream, strict=True) if r.requires_grad]
                outputs, weights = zip(*pairs, strict=True)
                grads = torch.autograd.grad(outputs, list(leaves.values()), weights, allow_unused=True)
                for name, grad in zip(wanted, grads, strict=True):
                    if grad is not None:
                        total[name] += grad
        return None, None, *(total.get(name) for name in _TENSORS)
