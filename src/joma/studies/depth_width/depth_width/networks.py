"""Who is trained: every shape of one size, on every kind of data, with every rate and seed, one ensemble per shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated, Protocol

import numpy as np
import torch
from torch import Tensor

from joma.claims.config import Above, Least, OneOf, Several, StudyConfig, Within
from joma.models.decoder import Decoder, DecoderConfig
from joma.recipes.language import PYTHON, TEXTS
from joma.studies.depth_width.depth_width.shapes import embeddings_of, find_shape, operations_of, parameters_of
from joma.training import Ensemble, Optimizer, class_loss, next_token_loss
from joma.training.ensemble import Precision

FEWEST_SEEDS = 3
"""The rate of one seed is chosen on the others: at least two."""
STAGES = 20
"""In so many equal stages the rate falls."""
AT_ONCE = 2**17
"""Tokens of all members that are read at once while they are measured."""


@dataclass(frozen=True)
class DepthWidthConfig(StudyConfig):
    """Decoders of one parameter count and several depths, on text and on latent trees. Every rate meets every seed."""

    texts: Annotated[tuple[str, ...], OneOf(*TEXTS), Several()] = (PYTHON,)
    """sympy, wikitext-2, wikitext-103: those that are on this machine are read. The first is also read shuffled."""
    data: str = ""
    """The folder that holds the folder of WikiText; empty: JOMA_DATA."""
    tokens: int = 200_000
    """Tokens of Python source to read at most; of other texts, tokens to train on."""
    vocabulary: int = 100
    """Words of every text."""
    layers: Annotated[tuple[int, ...], Several(2, rising=True)] = (1, 2, 4)
    parameters: int = 12_000
    """Of every language model, embeddings included."""
    length: int = 24
    batch: int = 2
    """Sequences of a step."""
    rates: Annotated[tuple[float, ...], Several(2, rising=True)] = (5e-3, 1.5e-2, 5e-2)
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
    tree_layers: Annotated[tuple[int, ...], Several(2, rising=True)] = (1, 3)
    tree_parameters: int = 6_000
    tree_batch: int = 8
    tree_rates: Annotated[tuple[float, ...], Several(2, rising=True)] = (3e-3, 1e-2, 3e-2)
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
        """The decoder of so many layers that has the count of its family."""
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
        """One per shape, by the name that its record has."""
        return {record_name(self.name, layers): self._ensemble(self.shape(layers)) for layers in self.layers}

    def _ensemble(self, shape: DecoderConfig) -> Ensemble:
        config = self.config
        falls = config.last_rate < 1  # in stages, by the same factor each
        optimizer = Optimizer(
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
    """The time in seconds, the same for every member."""

    def now(decoder: Decoder, members: Sequence[int]) -> Tensor:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        return torch.full((len(members),), perf_counter(), dtype=torch.float64)

    return now
