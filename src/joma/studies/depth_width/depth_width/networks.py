"""Who is trained: every shape of one size, on every kind of data, with every rate and seed, one ensemble per shape."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from time import perf_counter
from typing import Annotated, Protocol

import numpy as np
import torch
from torch import Tensor

from joma.claims.config import Above, Least, OneOf, StudyConfig, Values, Within
from joma.host.words import counted
from joma.models.decoder import Decoder, DecoderConfig
from joma.recipes.language import PYTHON, TEXTS
from joma.recipes.optimizers import make_optimizer
from joma.training import Ensemble, class_loss, next_token_loss
from joma.training.ensemble import Precision

NEAR = 0.01  # Shapes count as equally large if they are within this share of the number that was asked for
TIMES_WIDTH = 4
"""The MLP's hidden width should be this many times the width; what is left over of the count is put there."""


def parameters_of(shape: DecoderConfig) -> int:
    """All trained numbers of a pre-norm decoder with LayerNorm: embeddings, blocks, last norm, output matrix."""
    return embeddings_of(shape) + (shape.outputs or shape.vocabulary) + 2 * shape.width + shape.layers * _block(shape)


def embeddings_of(shape: DecoderConfig) -> int:
    """The weights that grow with the vocabulary: word vectors and the output matrix, which are not tied."""
    return (shape.vocabulary + (shape.outputs or shape.vocabulary)) * shape.width


def _block(shape: DecoderConfig) -> int:
    """Four matrices of attention and two of the MLP, with their biases, and two norms."""
    width, mlp = shape.width, shape.mlp
    return 4 * width * (width + 1) + 2 * width * mlp + mlp + width + 4 * width


def operations_of(shape: DecoderConfig) -> float:
    """Floating-point operations per token of a training step, forward and back: three times those forward."""
    matrices = shape.layers * (4 * shape.width**2 + 2 * shape.width * shape.mlp)
    matrices += (shape.outputs or shape.vocabulary) * shape.width
    return 3.0 * (2 * matrices + 4 * shape.layers * shape.context * shape.width)


def find_shape(
    parameters: int,
    layers: int,
    *,
    vocabulary: int,
    context: int,
    outputs: int | None = None,
    head_width: int = 32,
    multiple: int = 2,
) -> DecoderConfig:
    """The pre-norm decoder of so many layers whose count is within 1 % of `parameters`.

    Its width is the multiple of `multiple` for which the MLP comes nearest to four times the width. The MLP's hidden
    width takes up what is left. It is a multiple too where that is fine enough. Heads are about `head_width` wide.
    """
    if multiple % 2:
        raise ValueError(f"multiple must be even, as sinusoidal positions need even widths, got {multiple}")
    found: list[DecoderConfig] = []
    for width in range(multiple, int(parameters**0.5) + multiple, multiple):
        shape = DecoderConfig(
            vocabulary, outputs=outputs, layers=layers, width=width, heads=heads_of(width, head_width),
            mlp=TIMES_WIDTH * width, context=context, norm="pre-layer", activation="gelu",
        )  # fmt: skip
        found += _filled(shape, parameters, multiple)
    if not found:
        raise ValueError(
            f"parameters must leave room for {counted(layers, 'layer')} beside the embeddings of {vocabulary} words, "
            f"got {parameters}"
        )
    return min(found, key=lambda shape: abs(log(shape.mlp / (TIMES_WIDTH * shape.width))))


def _filled(shape: DecoderConfig, parameters: int, multiple: int) -> list[DecoderConfig]:
    """The shape with the MLP that makes its count right; none if no MLP between 2 and 8 times the width does."""
    mlp = shape.mlp + (parameters - parameters_of(shape)) / (shape.layers * (2 * shape.width + 1))
    wanted = [multiple * round(mlp / multiple), round(mlp)]
    fitting = [each for each in wanted if 2 * shape.width <= each <= 8 * shape.width]
    shapes = [shape.with_(mlp=each) for each in fitting]
    return [each for each in shapes if abs(parameters_of(each) / parameters - 1) <= NEAR][:1]


def heads_of(width: int, head_width: int) -> int:
    """The number of heads that divides the width and comes nearest to heads of `head_width`."""
    possible = [heads for heads in range(1, width + 1) if width % heads == 0]
    return min(possible, key=lambda heads: abs(log(width / heads / head_width)))


FEWEST_SEEDS = 3  # the rate of one seed is chosen on the others: at least two
STAGES = 20  # in so many equal stages the rate falls
AT_ONCE = 2**17  # tokens of all members that are read at once while they are measured


@dataclass(frozen=True)
class DepthWidthConfig(StudyConfig):
    """Decoders of one parameter count and several depths, on text and on latent trees. Every rate meets every seed."""

    texts: Annotated[tuple[str, ...], OneOf(*TEXTS), Values()] = (PYTHON,)
    """sympy, wikitext-2, wikitext-103: those that are on this machine are read. The first is also read shuffled."""
    data: str = ""
    """The folder that holds the folder of WikiText; empty: JOMA_DATA."""
    tokens: int = 200_000
    """Tokens of Python source to read at most; of other texts, tokens to train on."""
    vocabulary: int = 100
    """Words of every text."""
    layers: Annotated[tuple[int, ...], Values(2, rising=True)] = (1, 2, 4)
    parameters: int = 12_000
    """Of every language model, embeddings included."""
    length: int = 24
    batch: int = 2
    """Sequences of a step."""
    rates: Annotated[tuple[float, ...], Values(2, rising=True)] = (5e-3, 1.5e-2, 5e-2)
    steps: Annotated[int, Least(STAGES)] = 50
    valid_sequences: int = 25
    """To choose the rate on; as many others are judged on."""
    classes: int = 4
    branching: Annotated[tuple[int, ...], Least(2, "children of a latent")] = (2, 2)
    """Children of a latent, level by level below the latent of a class: the deep tree."""
    rho: Annotated[float, Within(0, 1, "so that tokens tell something", open=True)] = 0.9
    """The uncertainty of every edge of the deep tree."""
    ideal_samples: int = 3_000
    """On which the loss of the best possible reader is worked out, and that of one that adds up tokens."""
    tree_layers: Annotated[tuple[int, ...], Values(2, rising=True)] = (1, 3)
    tree_parameters: int = 6_000
    tree_batch: int = 8
    tree_rates: Annotated[tuple[float, ...], Values(2, rising=True)] = (3e-3, 1e-2, 3e-2)
    tree_steps: Annotated[int, Least(STAGES)] = 50
    valid_samples: int = 120
    """Sequences of a tree to choose the rate on; as many others are judged on."""
    seeds: Annotated[int, Least(FEWEST_SEEDS, "since the rate of one is chosen on others")] = 3
    seed: int = 0
    """The first of the seeds."""
    points: int = 3
    """Measuring points after the start."""
    head_width: int = 16
    """About how wide a head is."""
    multiple: int = 2
    """Widths are multiples of it."""
    clip: float = 1.0
    last_rate: Annotated[float, Above(0), Within(0, 1)] = 0.1
    """Of the rate, what is left in the last stage: it falls by the same factor from stage to stage."""
    timed: bool = True
    """Whether the time of a step is recorded."""
    device: str = "cpu"
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.branching) < 2:
            raise ValueError(f"branching must have two levels or more, got {self.branching}")
        for layers in self.layers:  # a size that cannot be is said now, not after the first shape was trained
            self.shape("text", layers, vocabulary=self.vocabulary, outputs=None, context=self.length)
        tokens = self.classes * int(np.prod(self.branching))
        for layers in self.tree_layers:
            self.shape("tree", layers, vocabulary=tokens + 1, outputs=self.classes, context=tokens)

    def shape(self, family: str, layers: int, *, vocabulary: int, outputs: int | None, context: int) -> DecoderConfig:
        return find_shape(
            self.parameters if family == "text" else self.tree_parameters,
            layers,
            vocabulary=vocabulary,
            outputs=outputs,
            context=context,
            head_width=self.head_width,
            multiple=self.multiple,
        )


class Reader(Protocol):
    """What networks read: for every (kind of data, seed), kinds first."""

    vocabulary: int

    @property
    def outputs(self) -> int | None: ...
    @property
    def context(self) -> int: ...
    def batch(self, step: int, /) -> tuple[Tensor, Tensor]: ...
    def halves(self) -> list[tuple[Tensor, Tensor]]: ...
    def known_without(self) -> np.ndarray: ...


class Family:
    """All networks of one family of data, text or trees: shapes x (kinds x rates x seeds)."""

    def __init__(self, name: str, config: DepthWidthConfig, reader: Reader, kinds: int) -> None:
        self.name, self.config, self.reader, self.kinds = name, config, reader, kinds
        text = name == "text"
        self.layers = config.layers if text else config.tree_layers
        self.rates = config.rates if text else config.tree_rates
        self.steps = config.steps if text else config.tree_steps
        self.loss = next_token_loss if text else class_loss
        seeds = config.seeds
        self.members = [
            (kind * seeds + seed, rate, seed) for kind in range(kinds) for rate in self.rates for seed in range(seeds)
        ]
        """Of every member what it reads, its rate and its seed."""
        self._read_by = torch.tensor([reads for reads, _, _ in self.members], device=config.device)

    def shape(self, layers: int) -> DecoderConfig:
        reader = self.reader
        return self.config.shape(
            self.name, layers, vocabulary=reader.vocabulary, outputs=reader.outputs, context=reader.context
        )

    def facts(self) -> dict[str, np.ndarray]:
        """Width, heads, MLP, parameters, those that grow with the vocabulary, operations per token of every shape."""
        shapes = {record_name(self.name, layers): self.shape(layers) for layers in self.layers}
        return {
            name: np.array([s.width, s.heads, s.mlp, parameters_of(s), embeddings_of(s), operations_of(s)], dtype=float)
            for name, s in shapes.items()
        }

    def ensembles(self) -> dict[str, Ensemble]:
        return {record_name(self.name, layers): self._ensemble(self.shape(layers)) for layers in self.layers}

    def _ensemble(self, shape: DecoderConfig) -> Ensemble:
        config = self.config
        falls = config.last_rate < 1  # in stages, by the same factor each
        optimizer = make_optimizer(
            "adam",
            rate=tuple(rate for _, rate, _ in self.members),
            clip=config.clip,
            decay=config.last_rate ** (1 / (STAGES - 1)) if falls else 1.0,
            decay_every=-(-self.steps // STAGES) if falls else None,
        )
        return Ensemble(
            members=len(self.members),
            networks=lambda members: Decoder(shape, [config.seed + self.members[member][2] for member in members]),
            batch=self._batch,
            loss=self.loss,
            optimizer=optimizer,
            steps=self.steps,
            measures=self._measures(),
            measure_at=[round(i * self.steps / config.points) for i in range(config.points)],
            device=config.device,
            precision=config.precision,
            together=len(self.members),
        )

    def _reads(self, members: Sequence[int]) -> Tensor:
        every = len(members) == len(self.members)
        return self._read_by if every else self._read_by[torch.as_tensor(list(members), device=self.config.device)]

    def _batch(self, step: int, members: Sequence[int]) -> tuple[Tensor, ...]:
        reads = self._reads(members)
        return tuple(part.index_select(0, reads) for part in self.reader.batch(step))

    def _measures(self) -> dict[str, Callable[[Decoder, Sequence[int]], Tensor | Mapping[str, Tensor]]]:
        halves = self.reader.halves()

        def valid(decoder: Decoder, members: Sequence[int]) -> dict[str, Tensor]:
            reads = self._reads(members)
            return {
                name: self._mean_loss(decoder, *(part.index_select(0, reads) for part in half))
                for name, half in zip(("choosing", "judging"), halves, strict=True)
            }

        clock = _clock(self.config.device)
        return {"begins": clock, "valid": valid, "ends": clock} if self.config.timed else {"valid": valid}

    def _mean_loss(self, decoder: Decoder, tokens: Tensor, targets: Tensor) -> Tensor:
        """(members,), some sequences at a time."""
        some = max(1, AT_ONCE // (tokens.shape[0] * tokens.shape[2]))
        parts = zip(tokens.split(some, 1), targets.split(some, 1), strict=True)
        sums = [self.loss(decoder, part).double() * part[0].shape[1] for part in parts]
        return torch.stack(sums).sum(0) / tokens.shape[1]


def record_name(family: str, layers: int) -> str:
    """What the record calls the networks of one shape."""
    return f"{family}, {layers} layers"


def _clock(device: str) -> Callable[[Decoder, Sequence[int]], Tensor]:
    def now(decoder: Decoder, members: Sequence[int]) -> Tensor:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        return torch.full((len(members),), perf_counter(), dtype=torch.float64)

    return now
