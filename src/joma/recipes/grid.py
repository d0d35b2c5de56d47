"""A grid of networks: cells (columns, kinds, levels) times seeds, trained as one ensemble into a run.

`Grid` says which member is which, `ensemble` fills in what every config has. Training goes through
`joma.training.train` or `train_all`, which take up a run where it stopped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from joma.training import Ensemble

C = TypeVar("C")


@dataclass(frozen=True)
class Grid(Generic[C]):
    """Members of an ensemble: cell after cell, each with its seeds.

    >>> grid = Grid(("text", "shuffled"), seeds=3, seed=10)
    >>> grid.cell[2], grid.cell[3], grid.seed_of[3], len(grid)
    ('text', 'shuffled', 10, 6)
    """

    cells: Sequence[C]
    seeds: int
    seed: int = 0

    def __len__(self) -> int:
        return len(self.cells) * self.seeds

    @property
    def cell(self) -> list[C]:
        """The cell of every member."""
        return [cell for cell in self.cells for _ in range(self.seeds)]

    @property
    def seed_of(self) -> list[int]:
        """The seed of every member: the same ones in every cell, so that cells are paired."""
        return [self.seed + seed for _ in self.cells for seed in range(self.seeds)]

    def fold(self, values: Any, axis: int = 0) -> Any:
        """Members as cells and seeds: (..., cells * seeds, ...) as (..., cells, seeds, ...).

        >>> Grid(("a", "b"), seeds=3).fold(np.zeros((5, 6)), axis=1).shape
        (5, 2, 3)
        """
        values = np.asarray(values)
        axis %= values.ndim
        return values.reshape(*values.shape[:axis], len(self.cells), self.seeds, *values.shape[axis + 1 :])


def ensemble(config: Any, members: int, **parts: Any) -> Ensemble:
    """An ensemble with the steps, device and precision of a study's config, unless `parts` says otherwise.

    parts: what else `Ensemble` takes: networks, batch, loss, optimizer, measures, measure_at.
    """
    given = {name: getattr(config, name) for name in ("steps", "device", "precision") if hasattr(config, name)}
    return Ensemble(members=members, **({"device": "cpu", "precision": "float32"} | given | parts))
