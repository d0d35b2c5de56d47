"""Sums by groups of what the entries of a parameter contribute: one product per parameter, not one per group.

A decoder of ten layers has forty groups in a dozen tensors. Sums taken group by group would be most of the time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from joma.measure._allocation_groups import Share


class GroupSums:
    """Which groups each parameter belongs to, as a matrix to multiply with."""

    def __init__(self, shares: dict[str, Share]) -> None:
        self.owners: dict[str, list[int]] = {}
        self.masks: dict[str, list[Tensor | None]] = {}
        for group, share in enumerate(shares.values()):
            for key, mask in share.items():
                self.owners.setdefault(key, []).append(group)
                self.masks.setdefault(key, []).append(mask)
        self.matrices: dict[tuple[str, int], Tensor] = {}

    def add(self, total: Tensor, key: str, products: Tensor) -> None:
        """Add to total (groups, members) the products of one parameter, summed over the entries of each group."""
        owners = self.owners.get(key, [])
        if not owners:
            return
        members = total.shape[1]
        rows = products.reshape(members, -1)  # (members, entries)
        if self.masks[key] == [None]:
            total[owners[0]] += rows.sum(1).to(total)
            return
        matrix = self._matrix(key, members, products)
        sums = rows @ matrix if matrix.ndim == 2 else torch.einsum("me,emg->mg", rows, matrix)
        total[owners] += sums.mT.to(total)

    def _matrix(self, key: str, members: int, like: Tensor) -> Tensor:
        """(entries, groups) of 0 and 1; (entries, members, groups) where members differ in what a group holds."""
        if (key, members) not in self.matrices:
            masks = [torch.ones_like(like) if mask is None else mask.to(like) for mask in self.masks[key]]
            whole = torch.stack(masks, dim=-1).reshape(members, -1, len(masks)).movedim(0, 1)
            alike = bool((whole == whole[:, :1]).all())
            self.matrices[key, members] = (whole[:, 0] if alike else whole).contiguous()
        return self.matrices[key, members]
