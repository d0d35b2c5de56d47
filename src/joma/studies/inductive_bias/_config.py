"""The sizes of both experiments."""

from __future__ import annotations

from dataclasses import dataclass

from joma.data.hypercube import Hypercube
from joma.training.ensemble import Precision


@dataclass(frozen=True)
class Config:
    """Representations of the hypercube learned by contrast, and classifiers of digits with true or random labels."""

    seeds: int = 3
    inputs: int = 20
    """Coordinates of the hypercube."""
    informative: int = 8
    """Coordinates that views keep and that labels are made of."""
    outputs: int = 12
    """Dimensions of a learned representation."""
    hidden: int = 48
    """Width of the representation's hidden layer; the linear one has none."""
    batch: int = 64
    """Points per step, with two views each."""
    temperature: float = 0.5
    sgd_rate: float = 1.0
    adam_rate: float = 1e-2
    weight_decays: tuple[float, ...] = (1e-3,)
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
    image_decay: float = 1.0
    """What the classifiers' rate is multiplied with after every epoch; the source has 0.95, for training that is long
    enough."""
    image_weight_decay: float = 1e-3
    points: int = 10
    """Measuring points of each training, besides its beginning."""
    device: str = "cpu"
    precision: Precision = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        Hypercube(self.inputs, self.informative)  # refuses what it cannot have
        if self.inputs < 2 * self.informative:
            raise ValueError(
                f"inputs must be at least {2 * self.informative}, twice informative: the spurious representation needs "
                f"as many other coordinates, got {self.inputs}"
            )
        if self.informative > MOST_BITS:
            raise ValueError(
                f"informative must be at most {MOST_BITS}: all patterns are listed, got {self.informative}"
            )
        if len(set(self.weight_decays)) < len(self.weight_decays) or 0.0 in self.weight_decays:
            raise ValueError(f"weight_decays must differ and be positive, got {self.weight_decays}")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        if self.batch < 2:
            raise ValueError(f"batch must be at least 2 for a wrong choice, got {self.batch}")
        if self.seeds < 2:
            raise ValueError(f"seeds must be at least 2 for an interval, got {self.seeds}")
        if not 0 < self.image_decay <= 1:
            raise ValueError(f"image_decay must lie above 0 and be at most 1, got {self.image_decay}")
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


MOST_BITS = 16
