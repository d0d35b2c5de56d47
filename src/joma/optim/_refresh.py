"""The subspaces of alike matrices, found together, with seeds that do not depend on which matrices they are."""

from __future__ import annotations

import torch
from torch import Tensor

from joma.optim._matrix import Matrix
from joma.optim.projector import Kind, Projector, find_projector

_APART = 1_000_003
"""Keeps seeds of different matrices and updates apart."""


def subspaces(batch: list[Matrix], whole: Tensor, kind: Kind, *, seed: int, tolerance: float) -> list[Projector]:
    """One per matrix, from their gradients (count, rows, columns); the last subspaces are where the search begins."""
    if not batch:
        return []
    rank, count = batch[0].rank, batch[0].count
    if kind == "random":  # another subspace for each matrix
        seeds = [(seed * _APART + matrix.index) * _APART + matrix.count for matrix in batch]
        return [find_projector(one, rank, kind, seed=each) for one, each in zip(whole, seeds, strict=True)]
    known = [matrix.basis for matrix in batch if matrix.basis is not None]
    start = torch.stack(known) if len(known) == len(batch) else None
    found = find_projector(whole, rank, kind, start=start, seed=seed * _APART + count, tolerance=tolerance)
    parts = zip(found.basis.unbind(), found.energies.unbind(), strict=True)
    return [Projector(basis.clone(), energies.clone(), found.exact) for basis, energies in parts]


def seeing(batch: list[Matrix], whole: Tensor) -> tuple[list[Matrix], Tensor]:
    """Those matrices whose gradient is not zero, and their gradients; the others see nothing."""
    sees: list[bool] = whole.flatten(1).any(1).tolist()
    if all(sees):
        return batch, whole
    for matrix in (matrix for matrix, one in zip(batch, sees, strict=True) if not one):
        matrix.see_nothing()
    return [matrix for matrix, one in zip(batch, sees, strict=True) if one], whole[torch.tensor(sees)]
