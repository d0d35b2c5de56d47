"""What one checkpoint is asked: how sparse its attention is, and what its loss becomes where its cache is cut."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import torch
from torch import Tensor

from joma.cache import losses

ZERO = 0.01
"""H2O's zero: a weight below this share of the largest of its query."""
HEAVY = 0.1
"""The share of the keys that count as heavy hitters."""


def answers(
    model: Any, tokens: Tensor, policies: Sequence[str], keeps: Sequence[float], sinks: int, *, seed: int
) -> dict[str, Tensor]:
    """All that is recorded of a checkpoint on tokens (sequences, length). Losses are those of the last quarter.

    loss (sequences,): with the full cache. permuted (sequences,): the same with the first half of the tokens in random
    order. cut (policies, keeps, sequences): with a cut cache.
    zero, effective, top, random zero (layers, heads), sink, overlap, chance: see `sparsity`.
    zero by sequence, effective by sequence (sequences,): means over layers and heads.
    """
    late = slice(3 * tokens.shape[1] // 4, None)

    def mean(ids: Tensor, policy: str = "full", keep: float = 1.0) -> Tensor:
        protected = None if policy in ("full", "window", "top-k") else sinks
        return losses(model, ids, policy, keep, sinks=protected, seed=seed)[:, late].double().mean(-1)

    return {
        "loss": mean(tokens),
        "permuted": mean(shuffled(tokens, seed)),
        "cut": torch.stack([torch.stack([mean(tokens, policy, keep) for keep in keeps]) for policy in policies]),
        **sparsity(model, tokens, seed),
    }


def shuffled(tokens: Tensor, seed: int) -> Tensor:
    """The first half of every sequence in random order: distant keys say the same words, in another order."""
    half = tokens.shape[1] // 2
    source = torch.Generator().manual_seed(seed)
    order = torch.rand(len(tokens), half, generator=source).argsort(-1).to(tokens.device)
    return torch.cat((tokens[:, :half].gather(1, order), tokens[:, half:]), 1)


def sparsity(model: Any, tokens: Tensor, seed: int) -> dict[str, Tensor]:
    """Of late queries, which see half of the keys or more, as means over them and over sequences.

    zero: the share of keys that H2O counts as zero. random zero: the same where a query's logits are replaced by
    Gaussian ones of the same spread. effective: e^entropy as a share of the keys. top: the mass on the heaviest tenth.
    sink: the mass on the first key. overlap, chance: of the heavy hitters of the third and of the last quarter of the
    queries, among the keys of the first half, and what chance gives.
    """
    found: dict[str, list[Tensor]] = {}
    source = torch.Generator(device=tokens.device).manual_seed(seed)
    for ids in tokens.split(4):  # the weights of a few sequences at a time
        with torch.inference_mode():
            weights = model(ids, output_attentions=True, use_cache=False).attentions
        for name, value in _of_weights(torch.stack(weights, 1).float(), source).items():
            found.setdefault(name, []).append(value.double().cpu())
    each = {name: torch.cat(parts) for name, parts in found.items()}  # (sequences, layers, heads)
    by_sequence = {f"{name} by sequence": each[name].mean((1, 2)) for name in ("zero", "effective")}
    return {name: value.mean(0) for name, value in each.items()} | by_sequence


def _of_weights(weights: Tensor, source: torch.Generator) -> dict[str, Tensor]:
    """(sequences, layers, heads) each, of weights (sequences, layers, heads, queries, keys)."""
    length = weights.shape[-1]
    half = length // 2
    seen = torch.arange(1, length + 1, device=weights.device)[half:]  # keys that each late query sees
    future = torch.ones(length, length, dtype=torch.bool, device=weights.device).triu(1)[half:]
    late = weights[..., half:, :]
    entropy = torch.special.entr(late).sum(-1)
    heaviest = late.sort(-1, descending=True).values.cumsum(-1)
    tenth = (HEAVY * seen).ceil().long() - 1
    logits = late.clamp(min=1e-30).log().masked_fill(future, 0.0)
    mean = logits.sum(-1, keepdim=True) / seen[:, None]
    spread = (((logits - mean) ** 2).masked_fill(future, 0.0).sum(-1, keepdim=True) / seen[:, None]).sqrt()
    noise = torch.randn(logits.shape, generator=source, device=logits.device) * spread
    overlap, chance = _overlap(weights)
    return {
        "zero": _zeros(late, future, seen).mean(-1),
        "random zero": _zeros(noise.masked_fill(future, -torch.inf).softmax(-1), future, seen).mean(-1),
        "effective": (entropy.exp() / seen).mean(-1),
        "top": heaviest.gather(-1, tenth[:, None].expand(*late.shape[:-1], 1))[..., 0].mean(-1),
        "sink": late[..., 0].mean(-1),
        "overlap": overlap,
        "chance": torch.full_like(overlap, chance),
    }


def _zeros(weights: Tensor, future: Tensor, seen: Tensor) -> Tensor:
    """The share of the keys seen whose weight is below `ZERO` of the largest."""
    return ((weights <= ZERO * weights.amax(-1, keepdim=True)) & ~future).sum(-1) / seen


def _overlap(weights: Tensor) -> tuple[Tensor, float]:
    """Of the heavy hitters of two quarters of the queries, and what chance gives.

    Every key of the first half is seen by all of these queries, so a key's score is the mean of its weight times the
    number of keys that the query sees: `joma.measure.heavy_hitters` with even=True.
    """
    length = weights.shape[-1]
    half, kept = length // 2, ceil(HEAVY * (length // 2) - 1e-9)
    seen = torch.arange(1, length + 1, device=weights.device)[:, None]
    chosen = []
    for start, stop in ((half, half + (length - half) // 2), (half + (length - half) // 2, length)):
        score = (weights[..., start:stop, :half] * seen[start:stop]).mean(-2)
        chosen.append(torch.zeros_like(score).scatter_(-1, score.topk(kept).indices, 1.0))
    return (chosen[0] * chosen[1]).sum(-1) / kept, kept / half
