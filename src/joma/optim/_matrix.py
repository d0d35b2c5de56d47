"""One projected matrix: its compact parameter, its subspace, and how a gradient comes in and an update goes out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from joma.optim.projector import Side, side_of
from joma.optim.ranks import Rank, largest


class Matrix:
    """A parameter that is trained in a subspace, and the compact parameter that the inner optimizer sees instead."""

    sharded = False
    """Whether its rows lie on several processes."""

    def __init__(self, name: str, parameter: nn.Parameter, group: int, index: int, rank: Rank) -> None:
        """Name and index say which parameter it is, group which parameter group it is in."""
        self.name = name
        self.parameter = parameter
        self.group = group
        self.index = index
        self.side: Side = side_of(*parameter.shape)
        self.shorter, self.longer = min(parameter.shape), max(parameter.shape)
        self.dtype = torch.promote_types(parameter.dtype, torch.float32)
        self.rank = self.most = min(largest(rank), self.shorter)
        self.count = 0
        self.refreshed = -1
        self.basis: Tensor | None = None
        self.energies: Tensor | None = None
        self.zero = torch.zeros(1, 1, dtype=self.dtype, device=parameter.device)
        self.compact = nn.Parameter(self.empty())
        self.hook: RemovableHandle | None = None
        self._resting: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Of the compact parameter."""
        return (self.rank, self.longer) if self.side == "left" else (self.longer, self.rank)

    @property
    def part_shape(self) -> tuple[int, ...]:
        """Of what this process has of the compact parameter."""
        return self.shape

    @property
    def projected_axis(self) -> int:
        """Of the compact parameter: the axis whose entries are directions of the subspace."""
        return 0 if self.side == "left" else 1

    def empty(self) -> Tensor:
        """Zeros of the compact shape in the memory of one number."""
        return self.zero.expand(self.shape)

    def rest(self) -> None:
        """Between steps: no memory for the compact parameter, none for its gradient."""
        if self._resting is None or self._resting.shape != self.shape:
            self._resting = self.empty()
        self.hold(self._resting)
        self.compact.grad = None

    def hold(self, part: Tensor) -> None:
        """Let the compact parameter have this memory."""
        self.compact.data = part

    def due(self, refresh: int) -> bool:
        """Whether the subspace is to be found anew before the coming update."""
        return self.refreshed < 0 or (self.count % refresh == 0 and self.refreshed != self.count)

    @property
    def blind(self) -> bool:
        """Whether the subspace has not come from a gradient yet."""
        return self.energies is None or not bool(self.energies.any())

    def see_nothing(self) -> None:
        """A gradient of zeros has no directions: the subspace stays, or is any, and is to be found from the next."""
        self.refreshed = -1
        if self.basis is None:
            device = self.parameter.device
            self.basis = torch.eye(self.shorter, self.rank, dtype=self.dtype, device=device)
            self.energies = torch.zeros(self.rank, dtype=self.dtype, device=device)

    def projected(self, whole: Tensor) -> Tensor:
        """A tensor of the parameter's shape in the subspace."""
        return into([self], whole[None].to(self.dtype))[0]

    def lifted(self, compact: Tensor) -> Tensor:
        """What lies in the subspace in the parameter's shape."""
        return out_of([self], compact[None].to(self.dtype))[0]

    def add(self, scale: float) -> None:
        """Add the compact parameter, which the inner optimizer has moved, to the matrix; no memory in full shape."""
        assert self.basis is not None
        moved = self.compact.data
        factors = (self.basis, moved) if self.side == "left" else (moved, self.basis.mT)
        self.parameter.data.addmm_(*factors, alpha=scale)

    def agree(self, found: Tensor) -> Tensor:
        """What was found, the same on all processes that hold a part of the matrix."""
        return found

    @property
    def alike(self) -> tuple[object, ...]:
        """Matrices with the same key are projected together."""
        p = self.parameter
        return (self.group, tuple(p.shape), self.rank, p.dtype, p.device)


def together(matrices: list[Matrix], most: int) -> list[list[Matrix]]:
    """Matrices that are alike, in batches with at most so many entries in all (or one matrix)."""
    found: dict[tuple[object, ...], list[list[Matrix]]] = {}
    for matrix in matrices:
        batches = found.setdefault(matrix.alike, [[]])
        if (len(batches[-1]) + 1) * matrix.parameter.numel() > most and batches[-1]:
            batches.append([])
        batches[-1].append(matrix)
    return [batch for batches in found.values() for batch in batches]


def stacked(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """(count, rows, columns) in dtype; a single tensor is not copied."""
    whole = tensors[0][None] if len(tensors) == 1 else torch.stack(list(tensors))
    return whole.to(dtype)


def bases(batch: list[Matrix]) -> Tensor:
    """(count, shorter side, rank)."""
    return stacked([matrix.basis for matrix in batch if matrix.basis is not None], batch[0].dtype)


def into(batch: list[Matrix], whole: Tensor) -> Tensor:
    """Matrices of full shape (count, rows, columns) in the subspaces: P^T G, or G P where the right side is shorter."""
    return bases(batch).mT @ whole if batch[0].side == "left" else whole @ bases(batch)


def out_of(batch: list[Matrix], compact: Tensor) -> Tensor:
    """What lies in the subspaces in full shape: P C, or C P^T where the right side is shorter."""
    return bases(batch) @ compact if batch[0].side == "left" else compact @ bases(batch).mT
