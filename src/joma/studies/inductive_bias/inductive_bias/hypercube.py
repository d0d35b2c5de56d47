"""Representations of the hypercube: three that are built, three that are learned by contrast, and how they are scored.

First what both experiments share: their sizes, multi-layer perceptrons, and when these are measured.

A score is the accuracy of a logistic classifier on top of the frozen representation, fitted on some points and scored
on fresh ones. Labels are half-spaces of the informative coordinates.

At the end: the contrastive loss in closed form, which is what can be known of a printed loss without training. A view
must pick the other view of its point among the other 2 batch - 1 views. Its n = 2 batch - 2 wrong choices are pairs of
views of other points.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, lgamma, log, sqrt
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joma.claims.config import Above, Least, StudyConfig, Values, Within
from joma.data.hypercube import Hypercube
from joma.data.samples import streams
from joma.recipes.grid import ensemble
from joma.recipes.optimizers import make_optimizer
from joma.training import Ensemble, Optimizer
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
    weight_decays: Annotated[tuple[float, ...], Above(0), Values()] = (1e-3,)
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
        return Hypercube(self.inputs, self.informative)

    @property
    def steps_per_epoch(self) -> int:
        """Of the classifiers; what does not fill a batch waits for the next epoch."""
        return self.images // self.image_batch


class Perceptrons(nn.Module):
    """x -> ReLU layers of the widths `hidden` -> outputs, of all seeds at once. Without hidden layers it is linear."""

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
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x if layer == 0 else torch.relu(x), weight)
        return x


def spaced(steps: int, points: int) -> tuple[int, ...]:
    """The beginning and `points` steps up to the end, closer together at the beginning."""
    return tuple(sorted({round(steps * (i / points) ** 2) for i in range(points + 1)}))


LINEAR, MLP = "linear + SGD", "MLP + Adam"
BUILT = ("perfect", "spurious", "scrambled", "raw input")
"""What is built, without training. The raw input is a control: its views differ."""
FRESH_BATCHES = 6  # over which a loss is averaged
RIDGE, NEWTON_STEPS = 1e-3, 12  # of the downstream classifier
NETWORK, POINTS, SCORED, TASKS, FRESH, SCRAMBLE = -1, -2, -3, -4, -5, -100  # steps that name streams of random numbers

Representation = Callable[[Tensor], Tensor]  # (members, points, inputs) -> (members, points, outputs)


def contrastive_loss(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """SimCLR's loss, (members,). first, second: (members, points, outputs), two views of each point."""
    code = F.normalize(torch.cat([first, second], dim=1), dim=-1)
    views, points = code.shape[1], first.shape[1]
    similarity = code @ code.mT / temperature
    right = similarity.diagonal(points, 1, 2)
    right = torch.cat([right, right], dim=1)  # the other view of view i is i + points, and the other way round
    itself = torch.eye(views, dtype=torch.bool, device=code.device)
    return (similarity.masked_fill(itself, -torch.inf).logsumexp(-1) - right).mean(-1)


class Cubes:
    """Points, views, downstream tasks and scores of the members, each from random numbers of its own."""

    def __init__(self, config: InductiveBiasConfig) -> None:
        self.config, self.cube = config, config.cube

    def _streams(self, step: int, members: Sequence[int]) -> list[torch.Generator]:
        return streams(self.config.seed, members, step, device=self.config.device)

    def views(self, step: int, members: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Two views of the points of a step; those of negative steps are never trained on."""
        source = self._streams(step, members)
        points = self.cube.points((len(members), self.config.batch), source, device=self.config.device)
        return self.cube.view(points, source), self.cube.view(points, source)

    def loss(self, representation: Representation, members: Sequence[int]) -> Tensor:
        batches = [self.views(FRESH - i, members) for i in range(FRESH_BATCHES)]
        losses = [contrastive_loss(representation(a), representation(b), self.config.temperature) for a, b in batches]
        return torch.stack(losses).mean(0)

    def points(self, step: int, members: Sequence[int]) -> Tensor:
        """Points without augmentation, on which representations are read."""
        shape = len(members), self.config.samples
        return self.cube.points(shape, self._streams(step, members), device=self.config.device)

    def labels(self, bits: Tensor, members: Sequence[int]) -> Tensor:
        """(members, tasks, points) of -1 and 1: on which side of each plane the first coordinates of `bits` lie."""
        shape, source = (self.config.tasks, self.cube.informative), self._streams(TASKS, members)
        planes = torch.stack([torch.randn(shape, generator=s, device=self.config.device) for s in source])
        return torch.where(torch.einsum("mti,mpi->mtp", planes, bits[..., : self.cube.informative]) > 0, 1.0, -1.0)

    def own_plane(self, representation: Representation, members: Sequence[int]) -> Tensor:
        """Accuracy of the plane that made the labels, applied to a code of as many coordinates, (members,)."""
        fresh = self.points(SCORED, members)
        found, wanted = self.labels(representation(fresh), members), self.labels(fresh, members)
        return (found == wanted).float().mean((1, 2))

    def scores(self, representation: Representation, members: Sequence[int]) -> dict[str, Tensor]:
        """The loss, the downstream accuracy with true and with shuffled labels, and what can be read linearly.

        Same bits: the mean similarity of codes of two points that agree in the informative coordinates alone. It is 1
        for a code of these coordinates, whatever the code, and 0 for a code of the others.
        """
        k, seen, fresh = self.cube.informative, self.points(POINTS, members), self.points(SCORED, members)
        known, wanted = self.labels(seen, members), self.labels(fresh, members)
        mixed = torch.cat([seen[..., :k], fresh[..., k:]], dim=-1)
        code, new, twin = (F.normalize(representation(points), dim=-1) for points in (seen, fresh, mixed))
        readable = linear_readout(code, seen, new, fresh)  # (members, inputs)
        return {
            "loss": self.loss(representation, members),
            "accuracy": probe_accuracy(code, known, new, wanted).mean(-1),
            "shuffled": probe_accuracy(code, known.roll(1, -1), new, wanted).mean(-1),
            "informative": readable[:, :k].mean(-1),
            "others": readable[:, k:].mean(-1),
            "same bits": (code * twin).sum(-1).mean(-1),
        }

    def built(self, name: str) -> Representation:
        k = self.cube.informative
        if name == "perfect":
            return lambda x: x[..., :k]
        if name == "spurious":
            return lambda x: x[..., k : 2 * k].sign()
        if name == "scrambled":
            table = scrambled_codes(k, streams(self.config.seed, [0], SCRAMBLE)[0]).to(self.config.device)
            return lambda x: table[pattern_of(x[..., :k])]
        return lambda x: x


def pattern_of(bits: Tensor) -> Tensor:
    """The number whose binary digits are the signs of these coordinates, int64."""
    return ((bits > 0).long() << torch.arange(bits.shape[-1], device=bits.device)).sum(-1)


def all_codes(bits: int) -> Tensor:
    """(2^bits, bits) of -1 and 1: row i has the digits of i."""
    return torch.where((torch.arange(2**bits)[:, None] >> torch.arange(bits)) & 1 > 0, 1.0, -1.0)


def scrambled_codes(bits: int, generator: torch.Generator) -> Tensor:
    """The same codes, given to other patterns: as many bits of information, in an order without meaning."""
    return all_codes(bits)[torch.randperm(2**bits, generator=generator)]


def probe_accuracy(seen: Tensor, known: Tensor, fresh: Tensor, wanted: Tensor) -> Tensor:
    """Accuracy on fresh points of logistic classifiers, (members, tasks). Labels are -1 and 1."""
    scale = seen.shape[-1] ** 0.5  # coordinates of unit vectors are small
    x, new = (F.pad(part * scale, (0, 1), value=1.0) for part in (seen, fresh))
    eye = RIDGE * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    weight = x.new_zeros(*known.shape[:2], x.shape[-1])
    for _ in range(NEWTON_STEPS):
        right = torch.sigmoid(known * torch.einsum("mpd,mtd->mtp", x, weight))
        gradient = torch.einsum("mtp,mpd->mtd", -known * (1 - right), x) / x.shape[1] + RIDGE * weight
        curvature = torch.einsum("mtp,mpd,mpe->mtde", right * (1 - right), x, x) / x.shape[1] + eye
        weight = weight - torch.linalg.solve(curvature, gradient)
    return ((torch.einsum("mpd,mtd->mtp", new, weight) > 0) == (wanted > 0)).float().mean(-1)


def linear_readout(seen: Tensor, known: Tensor, fresh: Tensor, wanted: Tensor) -> Tensor:
    """Share of every target's variance that a linear map of the code explains on fresh points, (members, targets)."""
    x, new = (F.pad(part * part.shape[-1] ** 0.5, (0, 1), value=1.0) for part in (seen, fresh))
    eye = RIDGE * x.shape[1] * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    weight: Tensor = torch.linalg.solve(x.mT @ x + eye, x.mT @ known)
    return 1 - (new @ weight - wanted).square().mean(1) / wanted.square().mean(1)


def decayed(weight_decay: float) -> str:
    """The name of the MLP with this weight decay."""
    return f"{MLP} + weight decay {weight_decay:g}"


def ensembles(config: InductiveBiasConfig) -> dict[str, Ensemble]:
    """What is trained, by method, in the order of the printed accuracies. All methods see the same points."""
    cubes = Cubes(config)

    # Not a compiled part: a step is short, and compiling it took longer than all steps would save.
    def loss(networks: Perceptrons, batch: tuple[Tensor, ...], noise: Tensor | None = None) -> Tensor:
        return contrastive_loss(networks(batch[0]), networks(batch[1]), config.temperature)

    def learned(hidden: tuple[int, ...], optimizer: Optimizer) -> Ensemble:
        def networks(members: Sequence[int]) -> Perceptrons:
            own = [source.initial_seed() for source in streams(config.seed, members, NETWORK)]
            return Perceptrons(own, config.inputs, hidden, config.outputs)

        return ensemble(
            config,
            config.seeds,
            networks=networks,
            batch=cubes.views,
            loss=loss,
            optimizer=optimizer,
            steps=config.contrast_steps,
            measures={"scores": cubes.scores},
            measure_at=spaced(config.contrast_steps, config.points),
        )

    mlps = {decayed(decay): decay for decay in config.weight_decays} | {MLP: 0.0}
    return {LINEAR: learned((), make_optimizer("sgd", rate=config.sgd_rate, momentum=0.9))} | {
        name: learned((config.hidden,), make_optimizer("adam", rate=config.adam_rate, weight_decay=decay))
        for name, decay in mlps.items()
    }


def code_law(bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Similarities of two independent uniform points under the code x_1..x_bits / sqrt(bits), and probabilities."""
    different = np.arange(bits + 1)
    ways = np.array([lgamma(bits + 1) - lgamma(m + 1) - lgamma(bits - m + 1) for m in different])
    return 1 - 2 * different / bits, np.exp(ways - bits * log(2))


def law_of_codes(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same law, counted over all pairs of the unit vectors `codes` (points, outputs), one per point of the cube."""
    similarity, counts = np.unique((codes @ codes.T).round(12), return_counts=True)
    return similarity, counts / counts.sum()


def expected_loss(law: tuple[np.ndarray, np.ndarray], *, batch: int, temperature: float) -> float:
    """The loss of a representation that views do not change, with this law of similarities of different points.

    It is -1/T + E log S with S = exp(1/T) + 2 sum_j exp(s_j/T) over batch - 1 independent s_j. With
    log S = int (exp(-u) - exp(-u S)) du / u, only the Laplace transform of one term is needed: no sampling.
    """
    similarity, probability = law
    own, others = exp(1 / temperature), 2 * np.exp(similarity / temperature)
    logs, step = np.linspace(-45.0, 6.0, 20_001, retstep=True)  # of u: outside the integrand is below rounding
    u = np.exp(logs)
    one = np.exp(-u[:, None] * others) @ probability
    integrand = np.exp(-u) - np.exp(-u * own) * one ** (batch - 1)
    return float(-1 / temperature + integrand.sum() * step)


def least_loss_of_bits(bits: int, *, batch: int, temperature: float) -> float:
    """No representation that knows only `bits` coordinates, views of which agree, has a smaller loss.

    Points that agree in these bits are one point to it. The mean similarity of the 2^bits others is at least
    -1 / (2^bits - 1), and log-sum-exp is convex and increasing. A simplex of 2^bits corners reaches the bound.
    """
    patterns, others = 2**bits, batch - 1
    same = np.arange(others + 1)
    weight = np.array([lgamma(others + 1) - lgamma(m + 1) - lgamma(others - m + 1) for m in same])
    chance = np.exp(weight - same * log(patterns) + (others - same) * np.log1p(-1 / patterns))
    total = exp(1 / temperature) * (1 + 2 * same) + 2 * (others - same) * exp(-1 / (patterns - 1) / temperature)
    return float(-1 / temperature + (chance * np.log(total)).sum())


def least_loss(*, batch: int, temperature: float) -> float:
    """No representation at all has a smaller loss, in the limit of many points: all others are orthogonal to it."""
    return -1 / temperature + log(exp(1 / temperature) + 2 * (batch - 1))
