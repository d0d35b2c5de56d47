"""Classifiers of digits whose labels or pixels are replaced by chance: what they are, read and are measured on."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from joma.data.samples import streams
from joma.data.stroke_digits import CLASSES, stroke_digits
from joma.recipes.grid import Grid, ensemble
from joma.recipes.optimizers import make_optimizer
from joma.studies.inductive_bias.inductive_bias.networks import InductiveBiasConfig, Perceptrons, spaced
from joma.training import Ensemble

TRUE, RANDOM = "true labels", "random labels"
KINDS = (TRUE, RANDOM, "shuffled pixels", "random pixels", "gaussian")
"""As in the talk's figure. Shuffled: all images by one permutation; random: each image by its own."""
CHUNK = 5000  # images that are read at once when accuracy is measured
TRAIN, TEST, NETWORK, RELABEL, ORDER = -11, -12, -13, -14, -1000  # steps that name streams of random numbers


class Shape(NamedTuple):
    """A classifier: its hidden layers, what of KINDS it is trained on, and whether its weights decay."""

    layers: int
    kinds: tuple[str, ...]
    decays: bool = False


SHAPES = {
    "3 hidden layers": Shape(3, KINDS),
    "3 hidden layers, weight decay": Shape(3, (TRUE, RANDOM), decays=True),
    "1 hidden layer": Shape(1, (TRUE, RANDOM)),
    "linear": Shape(0, (TRUE, RANDOM)),
}
DEEP, DECAY, SHALLOW, LINEAR = SHAPES


class Digits:
    """The images of every seed, of all kinds. Images of one seed differ between kinds in what chance replaced only."""

    def __init__(self, config: InductiveBiasConfig) -> None:
        self.config = config
        self.read = cache(self._read)  # by what, kind and seed
        self.order = cache(self._order)

    def _stream(self, seed: int, step: int) -> torch.Generator:
        return streams(self.config.seed, [seed], step, device=self.config.device)[0]

    def _read(self, what: int, kind: str, seed: int) -> tuple[Tensor, Tensor]:
        """(images, pixels) with mean 0 and variance 1, and labels. what: TRAIN or TEST."""
        if kind != TRUE:
            return self._by_chance(kind, what, seed, *self.read(what, TRUE, seed))
        config, own = self.config, self._stream(seed, what)
        count = config.images if what == TRAIN else config.test_images
        images = stroke_digits(count, side=config.side, generator=own, noise=config.noise, vary=config.vary)
        pixels = images.pixels.flatten(1)
        return (pixels - pixels.mean()) / pixels.std(), images.labels

    def _by_chance(self, kind: str, what: int, seed: int, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Test images keep their true labels: there is no other truth to tell."""
        own, device = self._stream(seed, RELABEL + what), pixels.device
        if kind == RANDOM:
            drawn = torch.randint(CLASSES, labels.shape, generator=own, device=device)
            return pixels, drawn if what == TRAIN else labels
        if kind == "shuffled pixels":  # the same permutation in training and test
            order = torch.randperm(pixels.shape[1], generator=self._stream(seed, RELABEL), device=device)
            return pixels[:, order], labels
        if kind == "random pixels":
            parts = pixels.split(CHUNK)
            orders = [torch.rand(part.shape, generator=own, device=device).argsort(1) for part in parts]
            return torch.cat([part.gather(1, order) for part, order in zip(parts, orders, strict=True)]), labels
        return torch.randn(pixels.shape, generator=own, device=device), labels

    def _order(self, seed: int, epoch: int) -> Tensor:
        return torch.randperm(
            self.config.images, generator=self._stream(seed, ORDER - epoch), device=self.config.device
        )

    def batch(self, step: int, who: Sequence[tuple[str, int]]) -> tuple[Tensor, Tensor]:
        """Images (members, batch, pixels) and labels of a step. who: kind and seed of each member."""
        size = self.config.image_batch
        epoch, place = divmod(step, self.config.steps_per_epoch)
        chosen = slice(place * size, (place + 1) * size)
        orders = [self.order(seed, epoch)[chosen] for _, seed in who]
        read = [self.read(TRAIN, kind, seed) for kind, seed in who]
        pixels, labels = (torch.stack([one[i][order] for one, order in zip(read, orders, strict=True)]) for i in (0, 1))
        return pixels, labels

    def accuracy(self, networks: Perceptrons, what: int, who: Sequence[tuple[str, int]]) -> tuple[Tensor, Tensor]:
        """Accuracy and mean cross-entropy, (members,) each."""
        read = [self.read(what, kind, seed) for kind, seed in who]
        right, lost = [], []
        for start in range(0, len(read[0][1]), CHUNK):
            part = slice(start, start + CHUNK)
            labels = torch.stack([of[part] for _, of in read])
            logits = networks(torch.stack([pixels[part] for pixels, _ in read]))
            right.append((logits.argmax(-1) == labels).float().sum(-1))
            lost.append(_cross_entropy(logits, labels).sum(-1))
        count = len(read[0][1])
        return torch.stack(right).sum(0) / count, torch.stack(lost).sum(0) / count


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """(members, images)."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)


def loss(networks: Perceptrons, batch: tuple[Tensor, ...], noise: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of the labels, (members,)."""
    return _cross_entropy(networks(batch[0]), batch[1]).mean(-1)


def ensembles(config: InductiveBiasConfig) -> dict[str, Ensemble]:
    """What is trained, by the names of SHAPES; members are the kinds, each with its seeds."""
    digits = Digits(config)
    return {name: _ensemble(config, digits, shape) for name, shape in SHAPES.items()}


def _ensemble(config: InductiveBiasConfig, digits: Digits, shape: Shape) -> Ensemble:
    grid = Grid(shape.kinds, config.seeds)
    who = list(zip(grid.cell, grid.seed_of, strict=True))

    def networks(members: Sequence[int]) -> Perceptrons:
        own = [streams(config.seed, [who[m][1]], NETWORK)[0].initial_seed() for m in members]
        return Perceptrons(own, config.side**2, (config.width,) * shape.layers, CLASSES)

    def scores(networks: Perceptrons, members: Sequence[int]) -> dict[str, Tensor]:
        some = [who[m] for m in members]
        train, test = (digits.accuracy(networks, what, some) for what in (TRAIN, TEST))
        return {"train": train[0], "train loss": train[1], "test": test[0]}

    steps = config.epochs * config.steps_per_epoch
    optimizer = make_optimizer(
        "sgd",
        rate=config.image_rate,
        momentum=0.9,
        weight_decay=config.image_weight_decay if shape.decays else 0.0,
        decay=config.image_decay,
        decay_every=config.steps_per_epoch if config.image_decay < 1 else None,
    )
    return ensemble(
        config,
        len(grid),
        networks=networks,
        batch=lambda step, members: digits.batch(step, [who[m] for m in members]),
        loss=loss,
        optimizer=optimizer,
        steps=steps,
        measures={"scores": scores},
        measure_at=spaced(steps, config.points),
    )
