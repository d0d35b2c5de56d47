"""Matrices whose rows lie on several processes, as FSDP2 leaves them: DTensors.

The basis P is the same on all processes. If the columns are projected, each process projects its own rows, G_k P, and
nothing is sent. If the rows are projected, the processes add up P_k^T G_k, and each keeps some columns of the sum; on
the way back they exchange the compact update. Only a refresh gathers a full gradient.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, zeros

from joma.optim._matrix import Matrix, Pack, broadcast_from_first, local, shrink_and_add, unless


class ShardedPack(Pack):
    """One matrix with its rows on several processes; its compact parameter is a DTensor too."""

    sharded = True

    def __init__(self, matrices: list[Matrix]) -> None:
        """Refuses what is not split by rows, and ranks by energy."""
        (matrix,) = matrices
        parameter = matrix.parameter
        assert isinstance(parameter, DTensor)
        self.mesh, self.placements = parameter.device_mesh, tuple(parameter.placements)
        if any(one not in (Shard(0), Replicate()) for one in self.placements):
            raise ValueError(
                f"{matrix.name} is split as {self.placements}: GaLore takes matrices split by rows, as FSDP2 does"
            )
        if matrix.flexible:
            raise ValueError(f"{matrix.name} lies on several processes: its rank must be a number, not an Energy")
        super().__init__(matrices)

    @property
    def compact_placements(self) -> tuple[Placement, ...]:
        """By the axis that is not projected: rows of m x r, columns of r x n."""
        return self._placed(Shard(0 if self.side == "right" else 1))

    def zeros(self) -> Tensor:
        """Zeros of the compact shape in the memory of one number, on each process for its part."""
        full = zeros(self.shape, dtype=self.zero.dtype, device_mesh=self.mesh, placements=self.compact_placements)
        assert isinstance(full, DTensor)
        return self._compact(self.zero.expand(full.to_local().shape))

    def unfold(self, memory: Tensor) -> None:
        """Give the compact parameter memory; assigning to .data would not, and FSDP2 does it this way too."""
        self.compact._local_tensor = memory  # type: ignore[attr-defined]

    def fold(self) -> None:
        """Between steps: no memory for the compact parameter, none for its gradient."""
        self.compact._local_tensor = self.zero.expand(local(self.compact).shape)  # type: ignore[attr-defined]
        self.compact.grad = None

    def project(self, tensors: Sequence[Tensor]) -> Tensor:
        """A DTensor of the parameter's shape in the subspace."""
        part = local(tensors[0]).to(self.product_dtype)
        if self.side == "right":
            return self._compact((part @ self.bases()[0]).to(self.zero.dtype))
        addend = DTensor.from_local(self._local_rows().mT @ part, self.mesh, self._placed(Partial()))
        return addend.redistribute(self.mesh, self.compact_placements).to(self.zero.dtype)

    def apply(self, scale: float, shrink: float | Tensor, found_inf: Tensor | None = None) -> None:
        """Shrink the rows that are here, and add the update to them."""
        moved = self.compact.detach()
        assert isinstance(moved, DTensor)
        if self.side == "right":
            update = moved.to_local().to(self.product_dtype) @ self.bases()[0].mT
        else:
            everywhere = moved.redistribute(self.mesh, self._placed(Replicate())).to_local()
            update = self._local_rows() @ everywhere.to(self.product_dtype)
        shrink_and_add(
            local(self.matrices[0].parameter.detach()),
            update,
            scale,
            unless(found_inf, shrink, self.matrices[0].parameter.dtype),
        )

    def agree(self, found: Tensor) -> Tensor:
        """What the first process found, on all of them."""
        for dimension in range(self.mesh.ndim):
            found = broadcast_from_first(found, self.mesh.get_group(dimension))
        return found

    def _placed(self, instead: Placement) -> tuple[Placement, ...]:
        """The parameter's placements with another one instead of its split by rows."""
        return tuple(instead if isinstance(one, Shard) else one for one in self.placements)

    def _local_rows(self) -> Tensor:
        """The rows of the basis that belong to the rows of the matrix on this process."""
        everywhere = DTensor.from_local(self.bases()[0], self.mesh, self._placed(Replicate()))
        return everywhere.redistribute(self.mesh, self.placements).to_local()

    def _compact(self, part: Tensor) -> Tensor:
        size = torch.Size(self.shape)
        return DTensor.from_local(part, self.mesh, self.compact_placements, shape=size, stride=(size[1], 1))
