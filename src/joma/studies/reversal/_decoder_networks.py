"""Decoders that learn facts: who is in an ensemble, what each one reads, and how it is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from joma.data.samples import streams
from joma.models.decoder import Decoder, DecoderConfig, Embeddings
from joma.studies.reversal._decoder_examples import Examples, Tables, order
from joma.training import Ensemble, Optimizer, answer_loss
from joma.training.ensemble import Precision

EXTRA = 2
"""Tokens after those of the facts: `is`, of identity statements, and the mask. Where they are not used, they wait."""


@dataclass(frozen=True)
class Training:
    """How decoders are trained on facts: GPT-2's block with AdamW, the loss on the last entity alone."""

    seeds: int = 4
    """Networks per condition, each with facts of its own."""
    width: int = 40
    heads: int = 1
    steps: int = 80
    look_at: tuple[int, ...] = (20, 40)
    """Measure after so many steps, besides the beginning and the end."""
    weight_decay: float = 0.01
    batch: int = 32
    """Statements per step; each member goes through its own, epoch after epoch."""
    device: str = "cpu"
    precision: Precision = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise ValueError(f"seeds must be at least 2 for an interval, got {self.seeds}")
        if any(not 0 < step < self.steps for step in self.look_at):
            raise ValueError(f"look_at must lie between 0 and {self.steps}, the end, got {self.look_at}")
        gpt2(self, layers=1, vocabulary=8, context=2)  # refuses an impossible width


def check_depths(depths: tuple[int, ...], rates: tuple[float, ...], studied: tuple[int, ...], name: str) -> None:
    """Every depth has its rate, and what is studied in detail is among them."""
    if len(set(depths)) < len(depths):
        raise ValueError(f"depths must differ, got {depths}")
    if len(rates) != len(depths):
        raise ValueError(f"rates must be one per depth, {len(depths)}, got {rates}")
    if not set(studied) <= set(depths):
        raise ValueError(f"{name} must be among the depths {depths}, got {studied}")


def gpt2(
    config: Training,
    *,
    layers: int,
    vocabulary: int,
    context: int,
    embeddings: Embeddings = "learned",
    causal: bool = True,
    tied: bool = True,
) -> DecoderConfig:
    """GPT-2's shape: norms before the branches, GELU, an MLP four times as wide, learned positions, tied embeddings."""
    return DecoderConfig(
        vocabulary=vocabulary,
        layers=layers,
        width=config.width,
        heads=config.heads,
        mlp=4 * config.width,
        context=context,
        causal=causal,
        norm="pre-layer",
        activation="gelu",
        embeddings=embeddings,
        positions="learned",
        tied=tied,
    )


class Grouped(Protocol):
    """A condition: what a network learns, and its shape."""

    @property
    def name(self) -> str: ...
    @property
    def layers(self) -> int: ...
    @property
    def group(self) -> str: ...


G = TypeVar("G", bound=Grouped)


def grouped(some: Iterable[G]) -> dict[str, list[G]]:
    """By ensemble, each in the order of its members: condition after condition, each with its seeds."""
    groups: dict[str, list[G]] = {}
    for one in some:
        groups.setdefault(one.group, []).append(one)
    return groups


@dataclass(frozen=True)
class Lesson:
    """What one network learns and is asked: its training examples, and other examples by kind."""

    seed: int
    """Networks of one seed begin alike, whatever they learn."""
    training: Examples
    questions: Mapping[str, Examples]


Measure = Callable[[Decoder, Sequence[int]], Tensor | Mapping[str, Tensor]]


class Members:
    """Networks of one shape, each with its lesson."""

    def __init__(self, config: Training, shape: DecoderConfig, lessons: Sequence[Lesson], steps: int = 0) -> None:
        self.config, self.shape, self.lessons = config, shape, lessons
        self.steps = steps or config.steps
        self.numbers = [lesson.seed for lesson in lessons]
        self.training = self._tables([lesson.training for lesson in lessons])
        self.questions = {
            kind: self._tables([lesson.questions[kind] for lesson in lessons]) for kind in lessons[0].questions
        }
        counts = [len(lesson.training) for lesson in lessons]
        options: Any = {"seed": config.seed, "steps": self.steps, "batch": config.batch, "device": config.device}
        self.order = order(counts, self.numbers, **options)

    def _tables(self, examples: Sequence[Examples]) -> Tables:
        return Tables.of(examples, self.shape.context, self.config.device)

    def networks(self, members: Sequence[int]) -> Decoder:
        """Each from the seed of its number alone."""
        own = streams(self.config.seed, [self.numbers[m] for m in members], step=-1)
        return Decoder(self.shape, [source.initial_seed() for source in own])

    def batch(self, step: int, members: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Tokens and targets, (members, batch, length) each."""
        if len(members) < len(self.lessons):
            who = torch.tensor(list(members), device=self.order.device)
        else:
            who = torch.arange(len(self.lessons), device=self.order.device)
        rows = self.order[who, step]
        return self.training.tokens[who[:, None], rows], self.training.targets[who[:, None], rows]

    def ensemble(self, rates: Sequence[float], measures: Mapping[str, Measure]) -> Ensemble:
        """Trained by AdamW, each at its rate, and measured before, on the way and after."""
        config = self.config
        return Ensemble(
            members=len(self.lessons),
            networks=self.networks,
            batch=self.batch,
            loss=answer_loss,
            optimizer=Optimizer("adamw", rate=tuple(rates), weight_decay=config.weight_decay),
            steps=self.steps,
            measures=measures,
            measure_at=(0, *config.look_at, config.steps),
            device=config.device,
            precision=config.precision,
        )
