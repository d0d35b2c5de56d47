"""What both experiments share: their sizes, multi-layer perceptrons, and when these are measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Annotated

import torch
from torch import Tensor, nn

from joma.claims.config import Above, Least, Several, StudyConfig, Within
from joma.data.hypercube import Hypercube
from joma.training.ensemble import Precision


@dataclass(frozen=True)
class InductiveBiasConfig(StudyConfig):
    """Representations of the hypercube learned by contrast, and classifiers of digits with true or random labels."""

    seeds: Annotated[int, Least(2, "for an interval")] = 3
    inputs: int = 20
    """Coordinates of the hypercube."""
    informative: Annotated[int, Within(1, 16, "because all patterns are listed")] = 8
    """Coordinates that views keep and that labels are made of."""
    outputs: int = 12
    """Dimensions of a learned representation."""
    hidden: int = 48
    """Width of the representation's hidden layer; the linear one has none."""
    batch: Annotated[int, Least(2, "for a wrong choice")] = 64
    """Points per step, with two views each."""
    temperature: Annotated[float, Above(0)] = 0.5
    sgd_rate: float = 1.0
    adam_rate: float = 1e-2
    weight_decays: Annotated[tuple[float, ...], Above(0), Several()] = (1e-3,)
    """Added to the gradients of MLPs besides the one that has none; the source does not state its own."""
    contrast_steps: int = 300
    tasks: int = 4
    """Downstream labels per seed, random half-spaces of the informative coordinates."""
    samples: int = 1500
    """On which a downstream classifier is fitted; as many fresh ones are scored."""
    images: int = 500
    """Digits to fit."""
    test_images: int = 1000
    """Fresh digits that are scored."""
    side: int = 10
    """Pixels of an image in each direction."""
    noise: float = 0.25
    """Of each pixel."""
    vary: float = 0.4
    """How far digits differ in place, size and slant."""
    width: int = 64
    """Of each hidden layer of the classifiers."""
    image_batch: int = 100
    epochs: int = 30
    image_rate: float = 0.05
    image_decay: Annotated[float, Above(0), Within(0, 1)] = 1.0
    """What the classifiers' rate is multiplied with after every epoch; the source has 0.95, for training that is long
    enough."""
    image_weight_decay: float = 1e-3
    points: int = 10
    """Measuring points of each training, besides its beginning."""
    device: str = "cpu"
    precision: Precision = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        Hypercube(self.inputs, self.informative)  # refuses what it cannot have
        if self.inputs < 2 * self.informative:
            raise ValueError(
                f"inputs must be at least {2 * self.informative}, twice informative: the spurious representation needs "
                f"as many other coordinates, got {self.inputs}"
            )
        if self.image_batch > self.images:
            raise ValueError(f"image_batch must be at most {self.images}, the images, got {self.image_batch}")

    @property
    def cube(self) -> Hypercube:
        """What the representations read."""
        return Hypercube(self.inputs, self.informative)

    @property
    def steps_per_epoch(self) -> int:
        """Of the classifiers; what does not fill a batch waits for the next epoch."""
        return self.images // self.image_batch


class Perceptrons(nn.Module):
    """x -> ReLU layers of the widths `hidden` -> outputs, of all seeds at once. Without hidden layers it is linear.

    All parameters have the member first. Weights begin normal with variance 2 / inputs of their layer, biases at zero.
    """

    def __init__(self, seeds: Sequence[int], inputs: int, hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        sizes = [inputs, *hidden, outputs]
        sources = [torch.Generator().manual_seed(seed) for seed in seeds]

        def normal(rows: int, columns: int) -> nn.Parameter:
            draws = [torch.randn(rows, columns, generator=source) for source in sources]
            return nn.Parameter(torch.stack(draws) * sqrt(2 / rows))

        self.weights = nn.ParameterList([normal(rows, columns) for rows, columns in pairwise(sizes)])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(len(seeds), 1, n)) for n in sizes[1:]])
        self.register_buffer("seeds", torch.tensor([seed & 0x7FFFFFFF for seed in seeds], dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        """(members, samples, outputs) of x (members, samples, inputs)."""
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x if layer == 0 else torch.relu(x), weight)
        return x


def spaced(steps: int, points: int) -> tuple[int, ...]:
    """The beginning and `points` steps up to the end, closer together at the beginning."""
    return tuple(sorted({round(steps * (i / points) ** 2) for i in range(points + 1)}))
