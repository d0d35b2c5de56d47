"""Scores the built representations, learns others by contrast, and trains classifiers of digits.

The classifiers learn digits whose labels or pixels are replaced by chance. Of the built representations some things
can be known without sampling, and of the printed losses without training.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from joma.claims.contract import Progress
from joma.claims.guards import at_paper_scale, needs_device
from joma.data.samples import streams
from joma.data.stroke_digits import CLASSES, stroke_digits
from joma.recipes.grid import Grid, ensemble
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.studies.inductive_bias.inductive_bias import hypercube
from joma.studies.inductive_bias.inductive_bias.hypercube import (
    BUILT,
    Cubes,
    InductiveBiasConfig,
    Perceptrons,
    all_codes,
    contrastive_loss,
    spaced,
)
from joma.training import Ensemble, train_all

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
        if kind != TRUE:
            return self._by_chance(kind, what, seed, *self.read(what, TRUE, seed))
        config, own = self.config, self._stream(seed, what)
        count = config.images if what == TRAIN else config.test_images
        images = stroke_digits(count, side=config.side, generator=own, noise=config.noise, vary=config.vary)
        pixels = images.pixels.flatten(1)
        return (pixels - pixels.mean()) / pixels.std(), images.labels

    def _by_chance(self, kind: str, what: int, seed: int, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
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


LISTED_BITS = 5  # informative coordinates of the cube whose points are all listed: 2^10 points
PRINTED_BITS, PRINTED_BATCH, PRINTED_TEMPERATURE = 10, 512, 0.5
"""Not stated on the slide. With these the code x / sqrt(10) has the loss that is printed for linear, 5.134."""


def run(config: InductiveBiasConfig, run: Run, progress: Progress) -> None:
    """Score the built representations, learn others by contrast, and train classifiers of digits."""
    needs_device(config.device, at_paper_scale("inductive-bias"))
    progress(0.0, "built representations")
    run.keep("printed settings", _printed_settings)
    run.keep("built/exact loss", lambda: _exact_losses(config))
    run.keep("built/swap residual", lambda: _swap_residual(config))
    run.keep("built/view residual", lambda: _view_residual(config))
    names = ("loss", "accuracy", "shuffled", "informative", "others", "same bits", "own plane")
    if not all(f"built/{name}" in run for name in names):
        cubes, members = Cubes(config), range(config.seeds)
        codes = [cubes.built(name) for name in BUILT]
        scores = [{**cubes.scores(code, members), "own plane": cubes.own_plane(code, members)} for code in codes]
        run.record(0, {f"built/{name}": torch.stack([score[name] for score in scores]).cpu() for name in names})
    train_all({**hypercube.ensembles(config), **ensembles(config)}, run, progress=progress)


def _exact_losses(config: InductiveBiasConfig) -> np.ndarray:
    bits = min(config.informative, LISTED_BITS)
    cubes = Cubes(replace(config, informative=bits, inputs=2 * bits, device="cpu", precision="float32"))
    points = all_codes(2 * bits).to(torch.float64)
    codes = [torch.nn.functional.normalize(cubes.built(name)(points).double(), dim=-1).numpy() for name in BUILT[:3]]
    settings: dict[str, Any] = {"batch": config.batch, "temperature": config.temperature}
    return np.array([hypercube.expected_loss(hypercube.law_of_codes(code), **settings) for code in codes])


def _swap_residual(config: InductiveBiasConfig) -> float:
    """How far the spurious loss of a batch is from the perfect loss of the batch with both blocks of bits exchanged.

    The exchange maps the cube onto itself and keeps its uniform law, so a residual of zero for every batch says that
    the losses of both have the same law, and not only the same mean.
    """
    cubes = Cubes(replace(config, device="cpu", precision="float32"))
    views = [view.double() for view in cubes.views(-7, range(config.seeds))]
    perfect, spurious = (cubes.built(name) for name in BUILT[:2])
    bits, temperature = config.informative, config.temperature
    # The signs of the next bits in place of the informative ones, which then stand in their place.
    swapped = [
        torch.cat([view[..., bits : 2 * bits].sign(), view[..., :bits], view[..., 2 * bits :]], dim=-1)
        for view in views
    ]
    one, other = (
        contrastive_loss(code(first), code(second), temperature)
        for code, (first, second) in ((spurious, views), (perfect, swapped))
    )
    return float((one - other).abs().max())


def _view_residual(config: InductiveBiasConfig) -> np.ndarray:
    cubes = Cubes(replace(config, device="cpu", precision="float32"))
    first, second = cubes.views(-8, range(config.seeds))
    codes = [cubes.built(name) for name in BUILT]
    return np.array([float((code(first) - code(second)).abs().max()) for code in codes])


def _printed_settings() -> np.ndarray:
    """At the settings above: loss of x / sqrt(10), least loss of a code of ten bits, least loss of any code."""
    settings: dict[str, Any] = {"batch": PRINTED_BATCH, "temperature": PRINTED_TEMPERATURE}
    linear = hypercube.expected_loss(hypercube.code_law(PRINTED_BITS), **settings)
    return np.array([linear, hypercube.least_loss_of_bits(PRINTED_BITS, **settings), hypercube.least_loss(**settings)])
