"""Matrices whose rows lie on several processes, as FSDP2 leaves them: DTensors.

The basis P is the same on all processes. If the columns are projected, each process projects its own rows, G_k P, and
nothing is sent. If the rows are projected, the processes add up P_k^T G_k, and each keeps some columns of the sum; on
the way back they exchange the compact update. Only a refresh gathers a full gradient.
"""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, zeros

from joma.optim._matrix import Matrix, broadcast_from_first, local
from joma.optim.projector import Energy, Rank


class ShardedMatrix(Matrix):
    """A matrix with its rows on several processes; its compact parameter is a DTensor too."""

    sharded = True

    def __init__(self, name: str, parameter: nn.Parameter, group: int, index: int, rank: Rank) -> None:
        """Refuses what is not split by rows, and ranks by energy."""
        assert isinstance(parameter, DTensor)
        self.mesh, self.placements = parameter.device_mesh, tuple(parameter.placements)
        if any(one not in (Shard(0), Replicate()) for one in self.placements):
            raise ValueError(
                f"{name} is split as {self.placements}: GaLore takes matrices split by rows, as FSDP2 does"
            )
        if isinstance(rank, Energy):
            raise ValueError(f"{name} lies on several processes: its rank must be a number, got {rank}")
        super().__init__(name, parameter, group, index, rank)

    @property
    def compact_placements(self) -> tuple[Placement, ...]:
        """By the axis that is not projected: rows of m x r, columns of r x n."""
        return self._placed(Shard(0 if self.side == "right" else 1))

    def zeros(self) -> Tensor:
        """Zeros of the compact shape in the memory of one number, on each process for its part."""
        full = zeros(self.shape, dtype=self.dtype, device_mesh=self.mesh, placements=self.compact_placements)
        assert isinstance(full, DTensor)
        return self._compact(self.zero.expand(full.to_local().shape))

    def free(self) -> None:
        self.set_data(self.zero.expand(local(self.compact).shape))
        self.compact.grad = None

    def set_data(self, part: Tensor) -> None:
        """Let the compact parameter have this memory; assigning to .data would not, and FSDP2 does it this way too."""
        self.compact._local_tensor = part  # type: ignore[attr-defined]

    def project(self, full: Tensor) -> Tensor:
        """A DTensor of the parameter's shape in the subspace."""
        part = local(full).to(self.dtype)
        if self.side == "right":
            assert self.basis is not None
            return self._compact(part @ self.basis)
        addend = DTensor.from_local(self._local_rows().mT @ part, self.mesh, self._placed(Partial()))
        return addend.redistribute(self.mesh, self.compact_placements)

    def apply_update(self, scale: float) -> None:
        """Add the compact parameter, which the inner optimizer has moved, to the rows that are here."""
        moved = self.compact.detach()
        assert isinstance(moved, DTensor)
        assert self.basis is not None
        if self.side == "right":
            update = moved.to_local() @ self.basis.mT
        else:
            update = self._local_rows() @ moved.redistribute(self.mesh, self._placed(Replicate())).to_local()
        local(self.parameter.detach()).add_(update.to(self.parameter.dtype), alpha=scale)

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
        assert self.basis is not None
        everywhere = DTensor.from_local(self.basis, self.mesh, self._placed(Replicate()))
        return everywhere.redistribute(self.mesh, self.placements).to_local()

    def _compact(self, part: Tensor) -> Tensor:
        size = torch.Size(self.shape)
        return DTensor.from_local(part, self.mesh, self.compact_placements, shape=size, stride=(size[1], 1))
