"""How far a query's logits spread over its keys, and how much of that is one taste for keys that all queries share.

The entropy of attention follows the variance s2 of a query's logits over the n keys that it sees: for Gaussian logits

    H = ln n - s2 / 2   to second order in their size.

A query is the mean query of its head plus the rest, q = m + (q - m), so every row's variance has three parts:

    shared    the variance of m.k over the keys: a fixed preference (sinks, frequent words)
    specific  that of (q - m).k: what this query asks for beyond it
    cross     twice their covariance

and s2 = shared + specific + cross. Why s2 is what it is, `factors` says: s2 = growth x alignment x context.

Cost. T queries and T keys of width d need T d (d + B) multiplications in place of T T d / 2, and never T x T memory
(`_spread_sums` has the way). The floor is reading q and k once. With a bias or a soft cap every logit is formed, a few
rows at a time. Without gradients.
"""

from __future__ import annotations

from importlib.util import find_spec
from math import sqrt
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from joma.host.arguments import Number, as_numbers, as_tensor, dense, floating, number
from joma.host.words import brief_repr
from joma.measure._attention_problem import Masks, Problem
from joma.measure._gram import compute_dtype, full_precision
from joma.measure._spread_blocks import block_sums
from joma.measure._spread_sums import interval_sums


@brief_repr
class Spread(NamedTuple):
    """The mean variance of a query's logits over its keys and its parts, each (heads,); logits are in nats.

    - variance: of the logits as softmax gets them; shared + specific + cross + added
    - shared, specific, cross: of the products q.k; shared and specific are never negative, cross can be
    - added: what a bias and a soft cap add to the variance, and 0 without them. It can be negative
    - uniform: the mean of ln n over queries, which is the entropy if all logits of a query are equal

    >>> import torch
    >>> q = torch.ones(1, 1, 2, 1)
    >>> spread(q, torch.tensor([[[[0.0], [2.0]]]]), causal=False)
    Spread(variance=[1], shared=[1], specific=[0], cross=[0], added=[0], uniform=[0.6931])
    """

    variance: Tensor
    shared: Tensor
    specific: Tensor
    cross: Tensor
    added: Tensor
    uniform: Tensor

    @property
    def second_order_entropy(self) -> Tensor:
        """uniform - variance / 2: the entropy of attention as long as logits are small, whatever their shape."""
        return self.uniform - self.variance / 2


def spread(
    q: Number, k: Number, *, causal: bool = True, query_padding: Number | None = None, **masks: Unpack[Masks]
) -> Spread:
    """The variance of a query's logits over the keys that it sees, averaged over queries and batch, and its parts.

    - q: (batch, heads, queries, width)
    - k: (batch, kv_heads, keys, width); heads are a multiple of kv_heads
    - causal, scale, window, key_padding, cu_seqlens: as in `attention_stats`
    - bias, softcap: as there. The parts are those of the products q.k; what bias and cap do to the variance is `added`.
      A bias of -inf hides keys, so any mask can be given. Every logit is then formed, a few rows at a time
    - query_padding: (batch, queries), True for real queries; None: all are

    The mean query is that of all queries that count, over batch and positions. A query counts if it is real and sees a
    key. If none does, everything is NaN. A learned sink is no key: it changes nothing here. Adding one vector to all
    keys changes nothing, nor does a constant that is added to all logits of a query. Numbers are float32 (float64 for
    float64 inputs). Where squares leave the range of numbers, that is refused on a CPU, and gives NaN on a GPU, which
    would have to wait for a look at them.

    >>> import torch
    >>> q, k = torch.randn(2, 2, 4, 64, 16, generator=torch.Generator().manual_seed(0))
    >>> found = spread(q + 1, k)
    >>> bool((found.shared > found.specific / 4).all())
    True
    >>> spread(q[:, :, :1].expand_as(q)[:1], k[:1]).specific.abs().max() < 1e-9
    tensor(True)
    """
    problem, real = _checked(q, k, query_padding, causal=causal, **masks)
    with torch.no_grad():
        found = _by_kernel(problem, real) or _must_be_finite(_sums(problem, real)).spread
    return Spread(*(part.to(compute_dtype(problem.q)) for part in found))


@brief_repr
class SpreadSums(NamedTuple):
    """Sums over queries that a spread follows from, so that a text can be read in pieces. float64, by head.

    With S the covariance of the keys that a query sees, m the mean query and p = q - m, both times the logits' scale:

    - rows: (heads,) the number of queries
    - mean: (heads, width) m
    - outer, pulled, own: sums of S (heads, width, width), of S p (heads, width) and of p' S p (heads,)
    - added: (heads,) sum of what bias and soft cap add to the variance
    - logs: (heads,) sum of ln n

    >>> import torch
    >>> q, k = torch.randn(2, 4, 1, 32, 8, generator=torch.Generator().manual_seed(0))
    >>> pieces = spread_sums(q[:3], k[:3]).joined(spread_sums(q[3:], k[3:])).spread
    >>> torch.allclose(pieces.shared.float(), spread(q, k).shared)
    True
    """

    rows: Tensor
    mean: Tensor
    outer: Tensor
    pulled: Tensor
    own: Tensor
    added: Tensor
    logs: Tensor

    @property
    def spread(self) -> Spread:
        """What all the queries give."""
        rows = torch.where(self.rows > 0, self.rows, torch.nan)
        shared = torch.einsum("hd,hde,he->h", self.mean, self.outer, self.mean).clamp(min=0) / rows
        specific, added = self.own.clamp(min=0) / rows, self.added / rows
        cross = 2 * (self.mean * self.pulled).sum(-1) / rows
        return Spread(shared + specific + cross + added, shared, specific, cross, added, self.logs / rows)

    def joined(self, other: SpreadSums) -> SpreadSums:
        """Of the queries of both: the mean query becomes that of all."""
        rows = self.rows + other.rows
        other = SpreadSums(*(part.to(rows) for part in other))
        mean = self.mean + (other.rows / rows.clamp(min=1))[:, None] * (other.mean - self.mean)
        pairs = zip(self.about(mean)[2:], other.about(mean)[2:], strict=True)
        return SpreadSums(rows, mean, *(a + b for a, b in pairs))

    def about(self, mean: Tensor) -> SpreadSums:
        """The same queries, with another vector in place of their mean."""
        step = mean - self.mean
        dragged = torch.einsum("hde,he->hd", self.outer, step)
        own = self.own - 2 * (step * self.pulled).sum(-1) + (step * dragged).sum(-1)
        return self._replace(mean=mean, pulled=self.pulled - dragged, own=own)


def spread_sums(
    q: Number,
    k: Number,
    *,
    causal: bool = True,
    query_padding: Number | None = None,
    finite: bool = True,
    **masks: Unpack[Masks],
) -> SpreadSums:
    """What `spread` is computed from, with its arguments: `joined` adds up the sums of several batches.

    finite: whether sums that are not finite are refused, on a CPU; if not, a head that diverged gives NaN.

    >>> import torch
    >>> q = torch.zeros(1, 2, 5, 8)
    >>> spread_sums(q, q).rows
    tensor([5., 5.], dtype=torch.float64)
    """
    sums = _sums(*_checked(q, k, query_padding, causal=causal, **masks))
    return _must_be_finite(sums) if finite else sums


def _checked(
    q: Number, k: Number, query_padding: Number | None, *, causal: bool, **masks: Unpack[Masks]
) -> tuple[Problem, Tensor | None]:
    problem = Problem.of(floating(q, "q").detach(), floating(k, "k").detach(), None, causal=causal, **masks)
    real = None if query_padding is None else as_tensor(query_padding, "query_padding").to(problem.q.device)
    wanted = (problem.q.shape[0], problem.queries)
    if real is not None and (real.shape != wanted or real.dtype != torch.bool):
        raise ValueError(f"query_padding must be bool {wanted}, got {real.dtype} {tuple(real.shape)}")
    return problem, real


def _must_be_finite(sums: SpreadSums) -> SpreadSums:
    """To ask a GPU would make it wait."""
    if sums.rows.device.type != "cpu":
        return sums
    parts = (*sums, *(part[sums.rows > 0] for part in sums.spread))
    if not all(bool(part.isfinite().all()) for part in parts):
        raise ValueError("q, k and bias must be finite, and so small that the squares of their sums are finite too")
    return sums


def _by_kernel(problem: Problem, real: Tensor | None) -> Spread | None:
    if not problem.q.is_cuda or find_spec("triton") is None:
        return None
    from joma.measure._spread_triton import covers, launch

    if not covers(problem):
        return None
    shared, specific, cross, added, uniform = launch(problem, real)
    return Spread(shared + specific + cross + added, shared, specific, cross, added, uniform)


def _sums(problem: Problem, real: Tensor | None) -> SpreadSums:
    way = interval_sums if problem.bias is None and problem.softcap is None else block_sums
    with torch.no_grad(), full_precision(problem.q.device):
        return SpreadSums(*way(problem, real))


@brief_repr
class Factors(NamedTuple):
    """Why logits spread as they do: variance = growth x alignment x context, each (heads,).

    - growth: |A|^2, A = W_Q' W_K times the scale: how large the weights are
    - alignment: tr(M C) / |A|^2: how well their directions meet those of the inputs x. C is the covariance of x, and M
      the second moment of A' x + scale W_K' b_Q, which is what a query multiplies its keys' inputs by
    - context: the variance over tr(M C): what the keys that a query sees differ in, compared with keys drawn from all
      of the text
    - shared: the part of tr(M C) that the mean query has
    - mean_share: |mean x|^2 / mean |x|^2, one number
    - rank: the participation rank of the inputs, (tr C)^2 / tr(C C), one number: along how many directions they vary

    >>> import torch
    >>> x = torch.randn(3, 50, 8, generator=torch.Generator().manual_seed(0))
    >>> w = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1))
    >>> found = factors(w, w, x, variance=torch.tensor([2.0, 3.0]))
    >>> found.growth * found.alignment * found.context
    tensor([2., 3.])
    """

    growth: Tensor
    alignment: Tensor
    context: Tensor
    shared: Tensor
    mean_share: Tensor
    rank: Tensor


def factors(
    w_q: Number,
    w_k: Number,
    x: Number,
    *,
    variance: Number,
    b_q: Number | None = None,
    scale: float | None = None,
    finite: bool = True,
) -> Factors:
    """Growth, alignment and context of an attention layer whose logits are scale (W_Q x + b_Q).(W_K y + b_K).

    - w_q: (heads, width, inputs), one matrix per head, as nn.Linear holds them: queries are x @ w_q.T
    - w_k: (kv_heads, width, inputs); a bias of the keys adds one number to all logits of a query, and is not asked for
    - x: (..., inputs), what the layer reads, after its norm: all tokens of a text
    - variance: (heads,), of `spread`, on the same text
    - b_q: (heads, width), or None
    - scale: of the logits; None: 1/sqrt(width)
    - finite: whether factors that are not finite are refused, on a CPU; if not, a layer that diverged gives NaN

    This needs weights that a logit is a product of. Rotary positions turn queries and keys by their distance, so that
    there is one A per distance and none of these factors: use `spread` alone, which needs no A. The same goes for
    norms between the weights and the product (QK norm). A itself, inputs x inputs, is never formed: everything is a
    product of matrices width x width. The rank takes one Gram matrix of the inputs. A ratio to zero is 0. float32
    (float64 for float64).

    >>> import torch
    >>> x = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    >>> found = factors([[[2.0, 0.0]]], [[[0.0, 3.0]]], x, variance=[36.0], scale=1.0)
    >>> found.growth, found.alignment, found.context, found.mean_share, found.rank
    (tensor([36.]), tensor([1.]), tensor([1.]), tensor(0.5000), tensor(1.))
    """
    tokens, query, key = (floating(dense(as_numbers(w, n), n), n) for w, n in ((x, "x"), (w_q, "w_q"), (w_k, "w_k")))
    matched = query.ndim == key.ndim == 3 and query.shape[1:] == key.shape[1:] and 0 not in (*query.shape, len(key))
    if not matched or len(query) % len(key):
        wanted = "(heads, width, inputs) and (kv_heads, width, inputs), heads a multiple of kv_heads"
        raise ValueError(f"w_q and w_k must be {wanted}, got {tuple(query.shape)} and {tuple(key.shape)}")
    heads, width, inputs = query.shape
    if tokens.ndim < 2 or tokens.shape[-1] != inputs or tokens.numel() < 2 * inputs:
        raise ValueError(f"x must be two or more tokens (..., {inputs}), got {tuple(tokens.shape)}")
    bias = None if b_q is None else floating(dense(as_numbers(b_q, "b_q"), "b_q"), "b_q")
    s2 = as_numbers(variance, "variance")
    for name, given, shape in (("b_q", bias, (heads, width)), ("variance", s2, (heads,))):
        if given is not None and given.shape != shape:
            raise ValueError(f"{name} must be {shape}, got {tuple(given.shape)}")
    factor = 1 / sqrt(width) if scale is None else number(scale, "scale")
    exact, at = compute_dtype(tokens), tokens.device
    with torch.no_grad(), full_precision(at):
        rows = tokens.detach().reshape(-1, inputs).to(exact)
        mean = rows.mean(0)
        centred = rows - mean
        a, b = (w.detach().to(at, exact) for w in (query, key))
        group = heads // len(b)
        growth = factor**2 * ((a @ a.mT) * (b @ b.mT).repeat_interleave(group, 0)).sum((1, 2))
        q = mean @ a.mT if bias is None else mean @ a.mT + bias.detach().to(at, exact)  # (heads, width)
        keys, asked = (torch.stack([_covariance(centred @ w.mT) for w in each]) for each in (b, a))
        keys = keys.repeat_interleave(group, 0)
        shared = factor**2 * torch.einsum("hd,hde,he->h", q, keys, q)
        product = shared + factor**2 * (asked * keys).sum((1, 2))
        size, around = mean.square().sum(), centred.square().sum(1).mean()
        few = centred if len(centred) <= inputs else centred.mT
        rank = _ratio(around**2, ((few @ few.mT) / len(centred)).square().sum())
        s2 = s2.to(at, exact)
        found = Factors(growth, _ratio(product, growth), _ratio(s2, product), shared, _ratio(size, size + around), rank)
    if finite and at.type == "cpu" and not all(bool(part.isfinite().all()) for part in found):
        raise ValueError("w_q, w_k, b_q, x and variance must be finite, and so small that their squares are finite too")
    return found


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b == 0, 0.0, a / torch.where(b == 0, 1.0, b))


def _covariance(x: Tensor) -> Tensor:
    return x.mT @ x / len(x)
