"""One look at the stable ranks of some matrices, recorded as a CUDA graph: the host starts it with one call.

A look launches some two hundred small kernels, for which the host takes longer than the device. What stays from one
look to the next lies outside the graph's memory, so that several graphs can share that.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from joma.measure._following import Followed, follow, random_vectors
from joma.monitor.graphs import Memory, aside, recording

TOGETHER = 6 << 20
"""Entries of matrices that are copied at a time, 24 MiB: the graph holds memory for them."""


class RecordedLook:
    """`follow` of the same matrices, at the same places in memory, again and again."""

    def __init__(self, matrices: Sequence[Tensor], vectors: Tensor, memory: Memory) -> None:
        """Record it; what goes wrong is raised, and leaves things as they were."""
        self._matrices, self._where = list(matrices), _places(matrices)
        generator = torch.Generator(vectors.device).manual_seed(0)
        self._vectors, self._new = vectors.clone(), random_vectors(vectors, 1, generator)
        self._numbers = vectors.new_zeros(2, len(vectors))  # stable ranks and residuals
        self._blocks = _places(self._vectors)
        self._graph = torch.cuda.CUDAGraph()
        with aside():
            self._look()  # kernels are chosen here
            with recording(self._graph, memory.pool):
                self._look()

    def is_of(self, matrices: Sequence[Tensor]) -> bool:
        return self._where == _places(matrices)

    def again(self, blocks: Sequence[Tensor], generator: torch.Generator) -> Followed:
        if self._blocks != _places(blocks):
            self._vectors.copy_(torch.stack(list(blocks)))  # some of them may lie in it
        self._new.copy_(random_vectors(self._new, 1, generator))
        self._graph.replay()
        stable_rank, residual = self._numbers.clone()  # the next look writes over them
        return Followed(stable_rank, residual, self._vectors)

    def _look(self) -> None:
        looked = follow(self._matrices, self._vectors, self._new, together=TOGETHER)
        self._vectors.copy_(looked.vectors)
        torch.stack([looked.stable_rank, looked.residual], out=self._numbers)


def _places(tensors: Iterable[Tensor]) -> list[int]:
    return [each.data_ptr() for each in tensors]
