"""Sums by groups of what the entries of a parameter contribute: one product per parameter, not one per group.

A decoder of ten layers has forty groups in a dozen tensors. Sums taken group by group would be most of the time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from joma.measure._allocation_groups import Share

FEW, LARGE = 3, 1 << 20
"""So few groups in a parameter of so many numbers are summed one by one: a matrix would be larger than the parameter,
and those of a model of 1B parameters that holds queries, keys and values in one take 1.6 GB."""


class GroupSums:
    """Which groups each parameter belongs to, as a matrix to multiply with."""

    def __init__(self, shares: dict[str, Share]) -> None:
        self.owners: dict[str, list[int]] = {}
        self.masks: dict[str, list[Tensor | None]] = {}
        for group, share in enumerate(shares.values()):
            for key, mask in share.items():
                self.owners.setdefault(key, []).append(group)
                self.masks.setdefault(key, []).append(mask)
        self.matrices: dict[str, Tensor] = {}

    def add(self, total: Tensor, key: str, products: Tensor) -> None:
        """Add to total (groups, members) the products of one parameter, summed over the entries of each group."""
        owners = self.owners.get(key, [])
        if not owners:
            return
        members = total.shape[1]
        rows = products.reshape(members, -1)  # (members, entries)
        if (len(owners) <= FEW and products.numel() > LARGE) or self.masks[key] == [None]:
            self._add_each(total, key, products)
            return
        matrix = self._matrix(key, members, products)
        sums = rows @ matrix if matrix.ndim == 2 else torch.einsum("me,emg->mg", rows, matrix)
        total[owners] += sums.mT.to(total)

    def _add_each(self, total: Tensor, key: str, products: Tensor) -> None:
        """The same group by group, without a matrix."""
        for group, mask in zip(self.owners[key], self.masks[key], strict=True):
            mine = products if mask is None else products * mask.to(products.device)
            total[group] += mine.reshape(total.shape[1], -1).sum(1).to(total)

    def _matrix(self, key: str, members: int, like: Tensor) -> Tensor:
        """(entries, groups) of 0 and 1; (entries, members, groups) where members differ in what a group holds."""
        if key not in self.matrices:
            masks = torch.stack([_flags(mask, like) for mask in self.masks[key]], dim=-1)
            whole = masks.reshape(members, -1, masks.shape[-1]).movedim(0, 1)
            alike = bool((whole == whole[:, :1]).all())
            self.matrices[key] = (whole[:, 0] if alike else whole).to(like.dtype).contiguous()
        return self.matrices[key]


def _flags(mask: Tensor | None, like: Tensor) -> Tensor:
    return torch.ones_like(like, dtype=torch.bool) if mask is None else mask.to(like.device)
