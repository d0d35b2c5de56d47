"""A rank per matrix, from the energy of its gradient."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Energy:
    """The smallest rank whose subspace holds a share of the gradient's squared norm.

    Each matrix gets its rank when its first gradient comes, and keeps it: the memory is then known, and the state of
    the inner optimizer keeps its shape.

    - share: of the squared norm, above 0 and at most 1
    - most: the largest rank
    - least: the smallest rank

    >>> import torch
    >>> Energy(0.9, most=3).choose(torch.tensor([0.6, 0.35, 0.05]))
    2
    """

    share: float
    most: int
    least: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {self.share}")
        if not 1 <= self.least <= self.most:
            raise ValueError(f"least and most must be ranks with 1 <= least <= most, got {self.least} and {self.most}")

    def choose(self, energies: Tensor) -> int:
        """The rank, from the shares of the energy along the leading directions, largest first."""
        short = int((energies.double().cumsum(0) < self.share - 1e-6).sum())
        return min(max(self.least, min(short + 1, self.most)), len(energies))


Rank = int | Energy


def checked_rank(rank: object, *, within: int | None = None, name: str = "") -> Rank:
    """A rank as it stands in a group: a whole number of at least 1, or an Energy; `within` is the shorter side."""
    if isinstance(rank, Energy):
        if within is not None and rank.least > within:
            raise ValueError(f"least must be at most the shorter side of {name}, which is {within}, got {rank}")
        return rank
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ValueError(f"rank must be a whole number of at least 1, or an Energy, got {rank!r}")
    if within is not None and rank > within:
        raise ValueError(f"rank must be at most the shorter side of {name}, which is {within}, got {rank}")
    return rank


def largest(rank: Rank) -> int:
    """The rank, or the most it can become."""
    return rank.most if isinstance(rank, Energy) else rank
