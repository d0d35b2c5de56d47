"""Which keys a query sees under each policy, per layer and key-value head.

Every policy is one function of a `Call`: some queries in a row, the keys that were kept and the queries' own keys after
them, in the order of the text. It says which keys each query sees and which are kept afterwards. A sequence read at
once is one call with nothing kept; read token by token, it is as many calls, and gives the same.

A key that was evicted never comes back. Scores are attention weights, summed over the query heads that share a
key-value head. A query sees its own key always, and never one that comes after it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from joma.cache.rules import Rule
from joma.host.words import brief_repr

TIE = 1e-4  # scores closer than this share of them are equal: machines differ by less in float32
POOL = 5  # neighbouring keys whose scores `snapkv` averages, so that it keeps short stretches of text
_STEP, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15  # splitmix64's, as signed


@brief_repr
@dataclass(frozen=True)
class Call:
    """What a policy is asked: some queries in a row.

    - rule: the policy and its numbers
    - query: (batch, heads, q_len, width)
    - key: (batch, key-value heads, k_len, width), those that were kept and after them the queries' own
    - scale: of the logits
    - scores: (batch, key-value heads, n_kept), what the policy remembers of the keys that were kept
    - seen: tokens read before
    - layer: of the model; it varies the draws of `random`, as does the row
    - row: the first sequence among all that are evaluated
    - weights: (batch, key-value heads, q_len), what `h2o-oracle` knows of the keys that just came, where a sequence is
      read in blocks and the queries to come are not here; None where they are
    """

    rule: Rule
    query: Tensor
    key: Tensor
    scale: float
    scores: Tensor
    seen: int = 0
    layer: int = 0
    row: int = 0
    weights: Tensor | None = None

    @property
    def q_len(self) -> int:
        return self.query.shape[2]

    @property
    def k_len(self) -> int:
        return self.key.shape[2]

    @property
    def n_kept(self) -> int:
        return self.k_len - self.q_len

    @cached_property
    def place(self) -> Tensor:
        """(k_len,) in the order of the text."""
        return torch.arange(self.k_len, device=self.key.device)

    @cached_property
    def own(self) -> Tensor:
        """(q_len, 1): the place of each query's own key."""
        return self.place[self.n_kept :, None]

    @cached_property
    def causal(self) -> Tensor:
        """(q_len, k_len): which keys are not after the query."""
        return self.place <= self.own

    @cached_property
    def logits(self) -> Tensor:
        """(batch, key-value heads, query heads of each, q_len, k_len), in float32 at least, -inf after the query."""
        wide = torch.promote_types(self.query.dtype, torch.float32)
        query = self.query.to(wide).unflatten(1, (self.key.shape[1], -1))
        found: Tensor = (query @ self.key.to(wide)[:, :, None].mT).mul_(self.scale)
        return found.masked_fill_(~self.causal, -torch.inf)

    def part(self, first: int, last: int) -> "Call":
        """The same of the queries from `first` to before `last`, which see no key after their own."""
        end = self.n_kept + last
        return replace(self, query=self.query[:, :, first:last], key=self.key[:, :, :end])

    def remembered(self, new: Tensor | float = 0.0) -> Tensor:
        """Scores of all keys, `new` for those that just came."""
        scores = self.scores.new_empty(*self.key.shape[:2], self.k_len)
        scores[..., : self.n_kept] = self.scores
        scores[..., self.n_kept :] = new
        return scores


@brief_repr
@dataclass(frozen=True)
class Choice:
    """What a policy answers.

    - seen: (batch, key-value heads, q_len, k_len) or what broadcasts to it; None where every key before is seen
    - kept: (batch, key-value heads, k_len), the keys kept afterwards; None for all
    - scores: (batch, key-value heads, k_len), what to remember of them
    """

    seen: Tensor | None = None
    kept: Tensor | None = None
    scores: Tensor | None = None


def full(call: Call) -> Choice:
    """Everything."""
    return Choice()


def window(call: Call) -> Choice:
    """The last keys."""
    return fits(call) or _as_seen(call.causal & (call.place > call.own - call.rule.budget))


def sinks(call: Call) -> Choice:
    """The first keys and the last. Where positions are rotations, they are counted inside the cache."""
    recent = call.place > call.own - (call.rule.budget - call.rule.sinks)
    return fits(call) or _as_seen(call.causal & (recent | (call.place < call.rule.sinks)))


def random(call: Call) -> Choice:
    """Keys drawn at random, besides the protected ones: at any time each set of that size is equally likely."""
    scores = call.remembered(uniform_draws(call))
    return fits(call, scores) or by_rank(call, scores)


def h2o_oracle(call: Call) -> Choice:
    """The keys with the most attention from all queries, also from those yet to come, and the last ones."""
    weights = call.logits.softmax(-1).sum((2, 3)) if call.weights is None else call.remembered(call.weights)
    return fits(call, weights) or by_rank(call, weights)


def h2o(call: Call) -> Choice:
    """The keys with the most attention from all queries so far, and the last ones.

    Each query first evicts the key with the lowest score that is not protected, then attends to what is left, and all
    that is left gains by its weights: scores are never frozen, and never see what comes later.
    """
    rule, n_kept = call.rule, call.n_kept
    scores = call.remembered()
    free = min(max(rule.budget - call.seen, 0), call.q_len)  # queries that need not evict
    if free:
        scores[..., : n_kept + free] += call.logits[..., :free, : n_kept + free].softmax(-1).sum((2, 3))
    gone = torch.full_like(scores, call.q_len, dtype=torch.int32)  # the query from which on a key is gone
    bias = torch.zeros_like(scores)
    for query in range(free, call.q_len):
        own = n_kept + query
        left = (scores - bias)[..., rule.sinks : own - rule.recent + 1]
        out = left.argmin(-1, keepdim=True) + rule.sinks
        bias.scatter_(-1, out, -torch.inf)
        gone.scatter_(-1, out, query)
        row = call.logits[..., query, : own + 1] + bias[:, :, None, : own + 1]
        scores[..., : own + 1] += row.softmax(-1).sum(2)
    if free == call.q_len:
        return Choice(scores=scores)
    return _as_seen(call.causal & (call.own - n_kept < gone[:, :, None]), scores)


def snapkv(call: Call) -> Choice:
    """The prompt is read at full attention. At its end, its last queries choose which of its keys stay for good.

    Afterwards a query sees those and the last keys, which slide along. The scores are smoothed over `POOL` neighbours.
    """
    rule, end = call.rule, call.rule.prompt
    scores = call.remembered()
    first, last = max(end - rule.recent - call.seen, 0), min(end - call.seen, call.q_len)
    if first < last:
        scores[..., : call.n_kept + last] += call.part(first, last).logits.softmax(-1).sum((2, 3))
    if call.seen + call.q_len < end:
        return Choice(scores=scores)
    before = end - rule.recent  # keys of the prompt to choose from
    count = min(rule.budget - rule.recent, before)
    if call.seen < end and before:  # inf marks the keys that stay for good
        smooth = F.avg_pool1d(scores[..., :before], POOL, stride=1, padding=POOL // 2)
        smooth[..., : rule.sinks] = torch.inf
        scores = torch.zeros_like(scores)
        scores[..., :before].masked_fill_(best(smooth, count), torch.inf)
    stays, recent = scores.isinf(), rule.budget - count
    later = call.seen + call.own - call.n_kept >= end
    seen = call.causal & (~later | stays[:, :, None] | (call.place > call.own - recent))
    return Choice(seen, stays | (call.place >= call.k_len - recent), scores)


def best(scores: Tensor, count: int) -> Tensor:
    """Which `count` of (..., keys) have the largest scores. Of those that are equal but for rounding, the earlier.

    A heavy key gives its neighbours nearly its own smoothed score, so that rounding would choose among them, and
    another machine others. All that is within `TIE` of the smallest score that gets in is taken for equal to it.
    """
    if count == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    least = scores.topk(count).values[..., -1:]
    above = scores > least * (1 + TIE)
    equal = (scores >= least * (1 - TIE)) & ~above
    return above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))


def top_k(call: Call) -> Choice:
    """The keys with the largest weights, chosen anew by every query: nothing is evicted.

    It is usually the best for its number of keys, but no bound: the largest weights need not lie on the keys that
    matter most to the output.
    """
    if call.seen + call.q_len <= call.rule.budget:
        return Choice()
    weights = call.logits.softmax(-1).sum(2) if call.logits.shape[2] > 1 else call.logits[:, :, 0]
    best = weights.topk(min(call.rule.budget, call.k_len), sorted=False).indices
    return Choice(call.causal & torch.zeros_like(weights, dtype=torch.bool).scatter_(-1, best, True))


FUNCTIONS: dict[str, Callable[[Call], Choice]] = {
    "full": full, "window": window, "sinks": sinks, "h2o": h2o, "h2o-oracle": h2o_oracle, "snapkv": snapkv,
    "random": random, "top-k": top_k,
}  # fmt: skip


def fits(call: Call, scores: Tensor | None = None) -> Choice | None:
    """Everything, where that is within the budget."""
    return Choice(scores=scores) if call.seen + call.q_len <= call.rule.budget else None


def _as_seen(seen: Tensor, scores: Tensor | None = None) -> Choice:
    return Choice(seen, seen[..., -1, :], scores)  # what the last query sees is what stays


def by_rank(call: Call, scores: Tensor) -> Choice:
    """Sinks, recent keys and, of those between, the ones with the highest scores so far."""
    ranks = scores.argsort(dim=-1, stable=True).argsort(dim=-1)  # no two are equal, as scores may be
    ranks[..., : call.rule.sinks] = call.k_len
    oldest = call.own[:, 0] - call.rule.recent  # the youngest key that is not recent, for each query
    before = _better_before(ranks, (oldest + 1).clamp(min=0))
    stays = (before < call.rule.budget - call.rule.recent) | (call.place > oldest[:, None])
    return _as_seen(call.causal & stays, scores)


def _better_before(ranks: Tensor, ends: Tensor) -> Tensor:
    """(..., queries, keys): how many of the first keys, up to a query's end, have a higher rank than a key."""
    first, last = int(ends[0]), int(ends[-1])
    sure = first - torch.searchsorted(ranks[..., :first].sort(-1).values, ranks, right=True)
    later = (ranks[..., first:last, None] > ranks[..., None, :]).cumsum(-2, dtype=torch.int32)
    counts = torch.cat([torch.zeros_like(sure, dtype=torch.int32)[..., None, :], later], -2)
    return sure[..., None, :] + counts.index_select(-2, ends - first)


def uniform_draws(call: Call) -> Tensor:
    """(batch, key-value heads, q_len) from 0 to 1, for the keys that just came.

    The draws depend only on what they are drawn for, not on the device nor on how a text is cut: torch's generators
    would. splitmix64 hashes seed, layer, row, head and position, one after the other.
    """
    rows, heads, at = *call.key.shape[:2], call.key.device
    number = torch.tensor(call.rule.seed, device=at)
    row = torch.arange(call.row, call.row + rows, device=at)[:, None, None]
    head = torch.arange(heads, device=at)[:, None]
    position = torch.arange(call.seen, call.seen + call.q_len, device=at)
    for part in (torch.tensor(call.layer, device=at), row, head, position):
        number = number + part + _STEP
        # torch has no unsigned integers, and its shift keeps the sign: the masks clear what came in from the left.
        number = (number ^ (number >> 30 & (1 << 34) - 1)) * _FIRST
        number = (number ^ (number >> 27 & (1 << 37) - 1)) * _SECOND
        number = number ^ (number >> 31 & (1 << 33) - 1)
    return (number >> 11 & (1 << 53) - 1).to(torch.float64).mul(2.0**-53).to(call.scores.dtype)
