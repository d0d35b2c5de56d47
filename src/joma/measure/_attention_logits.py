"""Statistics of logits that exist already: a few rows at a time, so that no second tensor of their size is made."""

from __future__ import annotations

import torch
from torch import Tensor

_ELEMENTS = 1 << 20  # logits at a time


def of_logits(s: Tensor, first: Tensor, own: Tensor) -> tuple[Tensor, ...]:
    """The six statistics of s (batch, heads, queries, keys); `first` and `own` (queries,) are columns, or none."""
    queries, keys = s.shape[2:]
    rows = s.reshape(-1, keys)
    exact = torch.promote_types(s.dtype, torch.float32)
    size = max(1, _ELEMENTS // keys)
    at = torch.arange(len(rows), device=s.device) % queries
    parts = [
        _rows(rows[i : i + size].to(exact), s.dtype, first[at[i : i + size]], own[at[i : i + size]])
        for i in range(0, len(rows), size)
    ]
    return tuple(torch.cat(part).view(s.shape[:3]) for part in zip(*parts, strict=True))


def _rows(s: Tensor, dtype: torch.dtype, first: Tensor, own: Tensor) -> tuple[Tensor, ...]:
    top = s.amax(-1)
    empty = top <= torch.finfo(dtype).min / 2  # the lowest numbers of a type stand for a mask
    m = torch.where(empty, 0.0, top)
    t = (s - m[:, None]).clamp_(min=torch.finfo(s.dtype).min / 2)  # 0 times -inf would be NaN
    e = t.exp()
    total = torch.where(empty, 1.0, e.sum(-1))
    entropy = torch.where(empty, 0.0, (total.log() - t.mul_(e).sum(-1) / total).clamp_(min=0.0))
    masses = (torch.where(empty, 0.0, _at(e, column) / total) for column in (first, own))
    low = torch.full_like(top, -torch.inf)
    lse, top = torch.where(empty, low, m + total.log()), torch.where(empty, low, top)
    return entropy, lse, top, *masses, torch.where(empty, 0.0, entropy.exp())


def _at(e: Tensor, column: Tensor) -> Tensor:
    inside = (column >= 0) & (column < e.shape[1])
    return torch.where(inside, e.gather(1, column.clamp(0, e.shape[1] - 1)[:, None])[:, 0], 0.0)
