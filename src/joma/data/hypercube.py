"""Points of the Boolean hypercube and their views, for contrastive learning (Saunshi et al. 2022).

The first coordinates are informative: labels depend on them alone, and a view keeps them. Every other coordinate of a
view is scaled by a factor of its own between 0 and 1. Its sign survives, so a view tells all of the point.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from joma.data.samples import Generators, uniform
from joma.host.words import brief_repr


@brief_repr
@dataclass(frozen=True)
class Hypercube:
    """The cube {-1, 1}^inputs, of which the first `informative` coordinates matter.

    - inputs: number of coordinates
    - informative: number of coordinates that views keep and that labels are made of

    >>> Hypercube(inputs=50, informative=10)
    Hypercube(inputs=50, informative=10)
    """

    inputs: int
    informative: int

    def __post_init__(self) -> None:
        if not 1 <= self.informative < self.inputs:
            raise ValueError(f"informative must lie between 1 and {self.inputs - 1}, got {self.informative}")

    def points(self, shape: tuple[int, ...], generator: Generators, *, device: torch.device | str = "cpu") -> Tensor:
        """Uniform points, (*shape, inputs) of -1 and 1 in float32. A list of generators has one per first entry.

        >>> points = Hypercube(4, 2).points((3,), torch.Generator().manual_seed(0))
        >>> points.shape, points.abs().min().item()
        (torch.Size([3, 4]), 1.0)
        """
        drawn = uniform((*shape, self.inputs), generator, torch.device(device))
        return torch.where(drawn < 0.5, -1.0, 1.0).to(torch.float32)

    def view(self, points: Tensor, generator: Generators) -> Tensor:
        """A view of every point: informative coordinates as they are, the others times factors in (0, 1].

        >>> cube, source = Hypercube(4, 2), torch.Generator().manual_seed(0)
        >>> points = cube.points((3,), source)
        >>> view = cube.view(points, source)
        >>> torch.equal(view[:, :2], points[:, :2]), torch.equal(view.sign(), points)
        (True, True)
        """
        if points.shape[-1] != self.inputs:
            raise ValueError(f"points must have {self.inputs} coordinates, got shape {tuple(points.shape)}")
        others = points[..., self.informative :]
        factors = 1 - uniform(tuple(others.shape), generator, points.device)
        return torch.cat([points[..., : self.informative], others * factors.to(points.dtype)], dim=-1)
