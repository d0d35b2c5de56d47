"""How sparse attention is: the mass on few keys, and which keys they are. Never a queries x keys tensor.

For each query with probabilities p_j = e^{s_j} / sum e^s over the keys it sees:

    mass_above  sum of p_j over p_j > threshold          keys_above  how many keys that are
    top_mass    sum of the `keep` largest p_j            sink_mass   sum of p_j over the first keys
    effective_keys  e^entropy

For each head `heavy_hitters` finds the keys that most attention goes to, and `stability` compares two such sets.

q (batch, heads, queries, width) and k (batch, kv_heads, keys, width) are as in `attention_stats`, and so are the
options that every function takes: scale, window, bias, softcap, sinks, sink_key, key_padding, cu_seqlens. A learned
sink takes mass and is no key, so the masses of all keys then sum to less than 1. Queries that see no key have 0. As
there, infinite numbers may give NaN, but for a bias of -inf.

`sparsity_stats` gives most of them at once, in two passes over the keys.

Numbers are float32 (float64 for float64 inputs), exact up to rounding, without gradients. Two paths give the same
numbers. On CUDA, Triton kernels pass over the keys and keep a few numbers per query; `top_mass` searches until it is
certain to 5e-7. Elsewhere, extra memory is one buffer of 1 Mi numbers (4 MiB in float32), or of 64 rows of logits
where that is more, copies of one sample's q and k in float32, and in `top_mass` what torch needs to choose the kept
keys of one block: at most 32 bytes per number of the buffer.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple, Unpack

import torch
from torch import Tensor

from joma.host.arguments import Number, at_most, shown
from joma.host.words import brief_repr
from joma.measure._attention_blocks import EMPTY
from joma.measure._gram import compute_dtype
from joma.measure._sparsity_blocks import (
    Attention,
    Block,
    Options,
    checked_keep,
    checked_queries,
    checked_threshold,
    for_each,
    part_of,
    per_query,
    seen_keys,
)
from joma.measure.attention import attention_stats

if TYPE_CHECKING:
    from joma.measure._sparsity_cuda import Passes


def mass_above(
    q: Number, k: Number, threshold: float, *, relative: bool = False, causal: bool = True, **options: Unpack[Options]
) -> Tensor:
    """Attention mass on the keys whose probability is above the threshold, (batch, heads, queries).

    The threshold is absolute, a probability in [0, 1]. With relative=True it is a share of the row's largest
    probability: 0.01 leaves out what H2O calls zero, the keys below 1 % of the maximum. Above means strictly above.

    >>> import torch
    >>> q = torch.zeros(1, 1, 4, 8)
    >>> mass_above(q, q, 0.3)
    tensor([[[1., 1., 1., 0.]]])
    >>> mass_above(q, q, 0.01, relative=True)
    tensor([[[1., 1., 1., 1.]]])
    """
    least = checked_threshold(threshold)
    attention = Attention.of(q, k, causal, **options)
    if (passes := _passes(attention)) is not None:
        return passes.masses(least, relative)[0]

    def mass(block: Block) -> Tensor:
        e, total = block.weights()
        if relative:
            return torch.threshold_(e, least, 0.0).sum(-1) / total[..., 0]
        return torch.threshold_(e.div_(total), least, 0.0).sum(-1)

    return per_query(attention, mass).clamp_(max=1.0)


def keys_above(
    q: Number, k: Number, threshold: float, *, relative: bool = False, causal: bool = True, **options: Unpack[Options]
) -> Tensor:
    """How many keys have a probability above the threshold, (batch, heads, queries) in int64; as `mass_above`.

    H2O's sparsity of a row is 1 - keys_above(q, k, 0.01, relative=True) / (number of keys that the query sees).

    >>> import torch
    >>> q = torch.zeros(1, 1, 4, 8)
    >>> keys_above(q, q, 0.3), keys_above(q, q, 0.01, relative=True)
    (tensor([[[1, 2, 3, 0]]]), tensor([[[1, 2, 3, 4]]]))
    """
    least = checked_threshold(threshold)
    attention = Attention.of(q, k, causal, **options)
    if (passes := _passes(attention)) is not None:
        return passes.masses(least, relative)[1]

    def count(block: Block) -> Tensor:
        e, total = block.weights()
        return (e if relative else e.div_(total)).gt_(least).sum(-1)

    return per_query(attention, count).long()


def top_mass(q: Number, k: Number, keep: float, *, causal: bool = True, **options: Unpack[Options]) -> Tensor:
    """Attention mass on the `keep` keys with the largest probability, (batch, heads, queries).

    keep is a whole number of keys (3), or a share of the keys that the query sees (0.1; rounded up, at least one key).
    So keep=1 is one key and keep=1.0 is all of them. A query that sees fewer keys than keep has all its mass there.
    Which of several equal keys are kept does not matter: the mass is the same.

    >>> import torch
    >>> q = torch.zeros(1, 1, 4, 8)
    >>> top_mass(q, q, 2)
    tensor([[[1.0000, 1.0000, 0.6667, 0.5000]]])
    >>> top_mass(q, q, 0.5)
    tensor([[[1.0000, 0.5000, 0.6667, 0.5000]]])
    """
    attention = Attention.of(q, k, causal, **options)
    kept = checked_keep(keep, attention.problem.keys)
    if (passes := _passes(attention)) is not None:
        return passes.top_mass(kept if isinstance(kept, int) else part_of(passes.seen, kept))

    def mass(block: Block) -> Tensor:
        if isinstance(kept, int):
            e, total = block.weights()
            return e.topk(min(kept, e.shape[-1]), sorted=False).values.sum(-1) / total[..., 0]
        count = part_of(block.seen().sum(-1, dtype=torch.int32), kept)  # before the logits are overwritten
        e, total = block.weights()
        return _largest_each(e, count) / total[..., 0]

    return per_query(attention, mass).clamp_(max=1.0)


def sink_mass(q: Number, k: Number, first: int, *, causal: bool = True, **options: Unpack[Options]) -> Tensor:
    """Attention mass on the first n keys, (batch, heads, queries): on the attention sinks of StreamingLLM.

    With `cu_seqlens` these are the first keys of the query's own document. They are counted by position: keys that
    `key_padding` or the window hides count and have mass 0. first=1 is the sink_mass of `attention_stats`.

    >>> import torch
    >>> q = torch.zeros(1, 1, 4, 8)
    >>> sink_mass(q, q, 2)
    tensor([[[1.0000, 1.0000, 0.6667, 0.5000]]])
    """
    attention = Attention.of(q, k, causal, **options)
    problem = attention.problem
    count = at_most(first, "first", problem.keys, "the number of keys")
    if (passes := _passes(attention)) is not None:
        return passes.sink_mass(count)
    end = problem.first_key + count  # (batch or 1, queries)

    def mass(block: Block) -> Tensor:
        e, total = block.weights()
        ends = end[block.sample if len(end) > 1 else 0, block.queries, None]
        few = e[..., : max(0, int(ends.max()) - block.first)]
        key = torch.arange(few.shape[-1], device=e.device) + block.first
        return (few * (key < ends)).sum(-1) / total[..., 0]

    return per_query(attention, mass).clamp_(max=1.0)


def effective_keys(q: Number, k: Number, *, causal: bool = True, **options: Unpack[Options]) -> Tensor:
    """e^entropy, (batch, heads, queries): as many keys as uniform attention of the same entropy reads.

    It is that of `attention_stats`, which is faster than the other measures and has gradients.

    >>> import torch
    >>> q = torch.zeros(1, 1, 4, 8)
    >>> effective_keys(q, q)
    tensor([[[1., 2., 3., 4.]]])
    """
    return attention_stats(q, k, causal=causal, **options).effective_keys


@brief_repr
class SparsityStats(NamedTuple):
    """One number per query, each (batch, heads, queries).

    effective_keys, mass_above, keys_above and sink_mass are what the functions of these names give. seen is the number
    of keys that the query sees: H2O's sparsity is 1 - keys_above / seen.

    >>> found = sparsity_stats([[[[0.0]] * 4]], [[[[0.0]] * 4]])
    >>> found.keys_above, found.seen
    (tensor([[[1, 2, 3, 4]]]), tensor([[[1, 2, 3, 4]]]))
    """

    effective_keys: Tensor
    mass_above: Tensor
    keys_above: Tensor
    sink_mass: Tensor
    seen: Tensor


def sparsity_stats(
    q: Number,
    k: Number,
    *,
    threshold: float = 0.01,
    relative: bool = True,
    first: int = 1,
    causal: bool = True,
    **options: Unpack[Options],
) -> SparsityStats:
    """The measures that two passes over the keys give: all but `top_mass` and the sets of keys.

    threshold and relative are those of `mass_above`: unless given, the keys above 1 % of the row's largest (H2O).
    first is that of `sink_mass`.

    >>> import torch
    >>> q = torch.zeros(1, 1, 4, 8)
    >>> sparsity_stats(q, q, first=2).sink_mass
    tensor([[[1.0000, 1.0000, 0.6667, 0.5000]]])
    """
    least = checked_threshold(threshold)
    attention = Attention.of(q, k, causal, **options)
    count = at_most(first, "first", attention.problem.keys, "the number of keys")
    if (passes := _passes(attention)) is not None:
        return SparsityStats(passes.effective_keys, *passes.masses(least, relative, count), passes.seen)
    if attention.problem.bias is None:
        seen = seen_keys(attention.problem, attention.problem.interval)[:, None].expand(attention.problem.q.shape[:-1])
    else:  # which may hide any key
        seen = per_query(attention, lambda block: block.seen().sum(-1))
    cut = {"relative": relative, "causal": causal}
    return SparsityStats(
        effective_keys(q, k, causal=causal, **options).detach(),
        mass_above(q, k, least, **cut, **options),
        keys_above(q, k, least, **cut, **options),
        sink_mass(q, k, count, causal=causal, **options),
        seen.long().clone(),
    )


@brief_repr
class HeavyHitters(NamedTuple):
    """Per head the keys that most attention goes to.

    keys (batch, heads, kept), largest score first, -1 where a head sees fewer keys; score, the same shape, what each
    of them has; seen (batch, heads, keys), which keys could have been chosen.

    >>> heavy_hitters([[[[0.0]] * 4]], [[[[0.0]] * 4]], 2)
    HeavyHitters(keys=int64[1, 1, 2], score=float64[1, 1, 2], seen=bool[1, 1, 4])
    """

    keys: Tensor
    score: Tensor
    seen: Tensor


def heavy_hitters(
    q: Number,
    k: Number,
    keep: float,
    *,
    queries: tuple[int, int] | None = None,
    among: int | None = None,
    even: bool = False,
    causal: bool = True,
    **options: Unpack[Options],
) -> HeavyHitters:
    """Per head the `keep` keys that most attention goes to: a whole number of keys, or a share of those seen.

    A key's score is the attention that it accumulates over all queries (H2O), or over queries start..stop only, with
    queries=(start, stop). With among=n only the first n keys can be chosen. Of equal keys the earlier one is taken.

    Under a causal mask the first keys are seen by more queries, and by queries with fewer keys: uniform attention
    already ranks keys by position. even=True removes that. The score is then the mean, over the queries that see the
    key, of its probability times the number of keys that the query sees: uniform attention gives 1 to every key.

    >>> import torch
    >>> q, k = torch.ones(1, 1, 4, 1), torch.tensor([0.0, 0.0, 9.0, 0.0]).view(1, 1, 4, 1)
    >>> heavy_hitters(q, k, 2).keys
    tensor([[[2, 0]]])
    >>> heavy_hitters(q, k, 2, queries=(0, 2), among=2, even=True).score
    tensor([[[1., 1.]]])
    """
    attention = Attention.of(q, k, causal, **options)
    problem = attention.problem
    kept = checked_keep(keep, problem.keys)
    limit = problem.keys if among is None else at_most(among, "among", problem.keys, "the number of keys")
    chosen = checked_queries(queries, problem.queries)
    passes = _passes(attention) if problem.bias is None else None
    score, seen = passes.received(chosen, even) if passes is not None else _scores(attention, chosen, even)
    seen[..., limit:] = False
    count = seen.sum(-1, keepdim=True)
    size = count.clamp(max=kept) if isinstance(kept, int) else torch.minimum(part_of(count, kept), count)
    ranked, order = score.masked_fill(~seen, -torch.inf).sort(descending=True, stable=True)
    width = max(1, int(size.max()))
    inside = torch.arange(width, device=score.device) < size
    keys, best = order[..., :width], ranked[..., :width]
    return HeavyHitters(keys.masked_fill(~inside, -1), best.masked_fill(~inside, 0.0), seen)


@brief_repr
class Stability(NamedTuple):
    """How much two sets of heavy hitters overlap, each (batch, heads).

    overlap is the share of the smaller set that is in the other one too. chance is the overlap expected of sets of
    these sizes drawn at random from the keys that were seen. Both are NaN where a set is empty.

    >>> found = heavy_hitters([[[[0.0]] * 4]], [[[[0.0]] * 4]], 2)
    >>> stability(found, found)
    Stability(overlap=float64[1, 1], chance=float64[1, 1])
    """

    overlap: Tensor
    chance: Tensor


def stability(sets_a: HeavyHitters, sets_b: HeavyHitters) -> Stability:
    """The overlap of two sets of heavy hitters per head, and the overlap expected by chance.

    Over positions: the sets of the first and of the second half of the queries, among the keys that both halves see.
    Over training: the sets of two checkpoints on the same text.

    >>> import torch
    >>> q, k = torch.randn(2, 1, 1, 40, 8, generator=torch.Generator().manual_seed(0))
    >>> early = heavy_hitters(q, k, 5, queries=(0, 20), among=20, even=True)
    >>> late = heavy_hitters(q, k, 5, queries=(20, 40), among=20, even=True)
    >>> found = stability(early, late)
    >>> found.overlap, found.chance
    (tensor([[0.4000]], dtype=torch.float64), tensor([[0.2500]], dtype=torch.float64))
    """
    for name, sets in (("sets_a", sets_a), ("sets_b", sets_b)):
        if not isinstance(sets, HeavyHitters):
            raise ValueError(f"{name} must be what heavy_hitters returns, got {shown(sets)}")
    if sets_a.keys.shape[:2] != sets_b.keys.shape[:2]:
        shapes = f"{tuple(sets_a.keys.shape[:2])} and {tuple(sets_b.keys.shape[:2])}"
        raise ValueError(f"sets_a and sets_b must have the same batch and heads, got {shapes}")
    keys = max(sets_a.seen.shape[-1], sets_b.seen.shape[-1])
    a, b = (_chosen(sets, keys) for sets in (sets_a, sets_b))
    seen_a, seen_b = (torch.nn.functional.pad(sets.seen, (0, keys - sets.seen.shape[-1])) for sets in (sets_a, sets_b))
    size_a, size_b, from_a, from_b, both = (x.sum(-1).double() for x in (a, b, seen_a, seen_b, seen_a & seen_b))
    smaller = torch.minimum(size_a, size_b)
    return Stability((a & b).sum(-1) / smaller, size_a / from_a * (size_b / from_b) * both / smaller)


def _passes(attention: Attention) -> Passes | None:
    """What the kernels give, where they can take this attention here."""
    if not attention.problem.q.is_cuda or find_spec("triton") is None:
        return None
    from joma.measure._attention_triton import covers
    from joma.measure._sparsity_cuda import Passes

    return Passes.of(attention) if covers(attention.problem) else None


def _chosen(sets: HeavyHitters, keys: int) -> Tensor:
    """(batch, heads, keys): which keys are in the set."""
    flags = torch.zeros(*sets.keys.shape[:2], keys + 1, dtype=torch.bool, device=sets.keys.device)
    return flags.scatter_(-1, torch.where(sets.keys < 0, keys, sets.keys), True)[..., :keys]


def _scores(attention: Attention, queries: slice, even: bool) -> tuple[Tensor, Tensor]:
    """What each key has accumulated, and which keys some query sees, each (batch, heads, keys)."""
    problem = attention.problem
    score = problem.q.new_zeros(*problem.q.shape[:2], problem.keys, dtype=compute_dtype(problem.q))
    seen_by = torch.zeros_like(score)

    def add(block: Block) -> None:
        at = (block.sample, block.heads, slice(block.first, block.first + block.logits.shape[-1]))
        each = block.seen() if even else None
        seen_by[at] += block.logits.amax(-2) > EMPTY if each is None else each.sum(-2)
        e, total = block.weights()
        share = total.reciprocal() if each is None else each.sum(-1, keepdim=True) / total
        score[at] += (share.mT @ e)[:, 0]

    for_each(attention, queries, add)
    return score / seen_by.clamp(min=1.0) if even else score, seen_by > 0


def _largest_each(e: Tensor, count: Tensor) -> Tensor:
    """The sum of the `count` largest entries of each row: as many as the neediest row wants, less the smallest."""
    most, least = int(count.max()), int(count.min())
    best = e.topk(most, sorted=False).values
    total = best.sum(-1)
    if most == least:
        return total
    surplus = best.topk(most - least, largest=False, sorted=True).values.cumsum(-1)
    over = most - count
    taken = surplus.gather(-1, (over - 1).clamp(min=0)[..., None])[..., 0]
    return total - torch.where(over > 0, taken, 0.0)
