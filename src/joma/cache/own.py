"""Policies of your own: functions from a `Call` to a `Choice`, and what helps to write them.

What a function of somebody else answers is looked at before it is believed: a mask that lets a query see a later key,
or more keys than the budget, would give a low loss and no error.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

import torch
from torch import Tensor

from joma.cache.policies import FUNCTIONS, Call, Choice, by_rank, fits
from joma.cache.rules import CacheError

Policy = Callable[[Call], Choice]
"""What `policy` may be, beside the names in `joma.cache.POLICIES`."""


def choose(call: Call) -> Choice:
    """What the policy of the call's rule answers."""
    function = call.rule.function
    return FUNCTIONS[call.rule.policy](call) if function is None else must_be_choice(call, function(call))


def keep_best(call: Call, scores: Tensor) -> Choice:
    """Keep sinks, recent keys and, of those between, the keys with the highest scores.

    A key's score must be known when the key comes and stay the same: it is a function of the key, or remembered
    (`call.remembered`). Then a text that is read at once and one that is read token by token give the same.

    - call: what the policy was asked
    - scores: (batch, key-value heads, k_len) of all keys, also of those that just came; of equal ones, the later stays

    >>> from joma.cache import rule
    >>> def small_keys(call):
    ...     return keep_best(call, -call.key.norm(dim=-1))
    >>> key = torch.tensor([3.0, 1.0, 2.0, 9.0]).view(1, 1, 4, 1)
    >>> settled = rule(small_keys, 3, 4, recent=0.34)
    >>> small_keys(Call(settled, key, key, 1.0, torch.zeros(1, 1, 0))).kept.tolist()
    [[[False, True, True, True]]]
    """
    _must_have_shape(call.rule.policy, "scores", scores, (*call.key.shape[:2], call.k_len), call)
    return fits(call, scores) or by_rank(call, scores)


def query_by_query(policy: Policy) -> Policy:
    """A policy of many queries out of one that is only ever asked about one: `call.q_len` is 1.

    For policies that look at what a query attends to before the next one comes. It asks once per token, so it is slow.

    - policy: answers a `Call` with one query. Its `Choice` needs only `kept`; what is kept is what the query sees

    >>> from joma.cache import rule
    >>> @query_by_query
    ... def least_attended(call):  # as TOVA: the key with the smallest weight goes
    ...     weights = call.logits.softmax(-1).sum((2, 3))
    ...     weights[..., -1] = torch.inf  # the query's own key stays
    ...     count = min(call.k_len, call.rule.budget)
    ...     return Choice(kept=torch.zeros_like(weights).scatter(-1, weights.topk(count).indices, 1) > 0)
    >>> key = torch.tensor([3.0, 1.0, 2.0, 9.0]).view(1, 1, 4, 1)
    >>> settled = rule(least_attended, 2, 4)
    >>> least_attended(Call(settled, key, key, 1.0, torch.zeros(1, 1, 0))).seen[0, 0].int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]]
    """

    @wraps(policy)
    def many(call: Call) -> Choice:
        batch, heads, width = len(call.key), call.key.shape[1], call.key.shape[3]
        seen = call.causal.new_zeros(batch, heads, call.q_len, call.k_len)
        held, scores = call.place[: call.n_kept].expand(batch, heads, -1), call.scores
        for query in range(call.q_len):
            held = torch.cat([held, call.own[query].expand(batch, heads, 1)], -1)
            key = call.key.gather(2, held[..., None].expand(-1, -1, -1, width))
            one = replace(
                call, query=call.query[:, :, query : query + 1], key=key, scores=scores, seen=call.seen + query
            )
            choice = must_be_choice(one, _sees_what_it_keeps(policy(one)))
            kept = torch.ones_like(held, dtype=torch.bool) if choice.kept is None else choice.kept.expand_as(held)
            visible = kept if choice.seen is None else choice.seen.expand(batch, heads, 1, -1)[:, :, 0]
            seen[:, :, query].scatter_(-1, held, visible)
            scores = (one.remembered() if choice.scores is None else choice.scores)[kept].view(batch, heads, -1)
            held = held[kept].view(batch, heads, -1)
        stays = torch.zeros_like(seen[:, :, 0]).scatter_(-1, held, True)
        return Choice(seen, stays, call.scores.new_zeros(batch, heads, call.k_len).scatter_(-1, held, scores))

    return many


def _sees_what_it_keeps(choice: Choice) -> Choice:
    """The choice of one query, with what it sees if it does not say."""
    plain = isinstance(choice, Choice) and choice.seen is None and isinstance(choice.kept, Tensor)
    return replace(choice, seen=choice.kept[..., None, :]) if plain else choice  # type: ignore[index]


def must_be_choice(call: Call, choice: Choice) -> Choice:
    """The choice with scores of the right type; CacheError with one sentence where it is none that can be carried out.

    Before its prompt ends (`call.rule.prompt`) a policy may see and keep more than the budget, as `snapkv` does.
    """
    name, (batch, heads) = call.rule.policy, call.key.shape[:2]
    if not isinstance(choice, Choice):
        raise CacheError(f"policy {name} must return a joma.cache.Choice, got {type(choice).__name__}")
    if choice.kept is not None:
        _must_be_mask(name, "kept", choice.kept, (batch, heads, call.k_len), call)
        _must_keep_few(call, choice.kept.expand(batch, heads, -1).sum(-1))
    if choice.seen is not None:
        _must_be_mask(name, "seen", choice.seen, (batch, heads, call.q_len, call.k_len), call)
    _must_see_few(call, choice.seen)
    if choice.scores is None:
        return choice
    _must_have_shape(name, "scores", choice.scores, (batch, heads, call.k_len), call)
    _must_be_numbers(name, choice.scores)
    return replace(choice, scores=choice.scores.to(call.scores.dtype))


def _must_keep_few(call: Call, counts: Tensor) -> None:
    name, fewest, most = call.rule.policy, int(counts.min()), int(counts.max())
    if fewest < most:
        what = f"must keep as many keys in every head and sequence, and keeps from {fewest} to {most}"
        raise CacheError(f"policy {name} {what}")
    if most > call.rule.budget and call.seen + call.q_len >= call.rule.prompt:
        raise CacheError(f"policy {name} keeps {most} keys in a head, and the budget is {call.rule.budget}")


def _must_see_few(call: Call, mask: Tensor | None) -> None:
    name, seen = call.rule.policy, call.causal if mask is None else mask
    if (seen & ~call.causal).any():
        raise CacheError(f"policy {name} lets a query see a key that comes after it")
    seen = seen.expand(*call.key.shape[:2], call.q_len, call.k_len)
    if not seen.diagonal(call.n_kept, -2, -1).all():
        raise CacheError(f"policy {name} hides a query's own key from it")
    later = seen[:, :, max(call.rule.prompt - call.seen, 0) :]  # queries after the prompt
    most = int(later.sum(-1).amax()) if later.numel() else 0
    if most > call.rule.budget:
        raise CacheError(f"policy {name} lets a query see {most} keys, and the budget is {call.rule.budget}")


def _must_be_mask(name: str, what: str, mask: object, shape: tuple[int, ...], call: Call) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise CacheError(f"policy {name}: {what} must be a tensor of True and False, one for each key, got {kind}")
    _must_have_shape(name, what, mask, shape, call, broadcast=True)


def _must_have_shape(
    name: str, what: str, found: object, shape: tuple[int, ...], call: Call, *, broadcast: bool = False
) -> None:
    if not isinstance(found, Tensor):
        raise CacheError(f"policy {name}: {what} must be a tensor, got {type(found).__name__}")
    if found.device != call.key.device:
        raise CacheError(f"policy {name}: {what} must be on {call.key.device}, where the keys are, got {found.device}")
    ndim = found.ndim if broadcast else len(shape)
    sizes = zip(found.shape[:-1], shape[len(shape) - ndim : -1], strict=False)
    fits_axes = 0 < found.ndim == ndim <= len(shape) and all(a == b or (broadcast and a == 1) for a, b in sizes)
    if not fits_axes or found.shape[-1] != shape[-1]:
        axes = (
            ("batch", "key-value heads", "queries", "keys") if len(shape) == 4 else ("batch", "key-value heads", "keys")
        )
        raise CacheError(f"policy {name}: {what} must be ({', '.join(axes)}) = {shape}, got {tuple(found.shape)}")


def _must_be_numbers(name: str, scores: Tensor) -> None:
    if not scores.is_floating_point():
        raise CacheError(f"policy {name}: scores must be floating-point numbers, got {scores.dtype}")
    if scores.isnan().any():
        raise CacheError(f"policy {name}: scores must be numbers, got NaN")
