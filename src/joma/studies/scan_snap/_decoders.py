"""Decoders trained with SGD on a text and on the same words in random order, and what is looked at on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import NotRun, Progress
from joma.data.text import Corpus, streams, windows
from joma.host.devices import lacking
from joma.host.words import counted
from joma.models.decoder import Decoder
from joma.recipes.language import LanguageModelConfig, Recipe, ensemble, frequency_loss, recipe
from joma.recipes.language.text import remember_corpus
from joma.runs import Run
from joma.training import Ensemble, Optimizer, train_all

TEXT, SHUFFLED = 0, 1
"""Where the two stand in what is recorded."""


@dataclass(frozen=True)
class Config(LanguageModelConfig):
    """Decoders of several depths trained with SGD at one rate, and twins that read the words in random order."""

    depths: tuple[int, ...] = (1, 3)
    rate: float = 5.0
    maps_at: tuple[int, ...] = (500, 1000, 1500)
    """Steps at which the slide shows attention, besides 0; the last one is where sparseness is judged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.depths or min(self.depths) < 1:
            raise ValueError(f"depths must be whole numbers of at least 1, got {self.depths}")
        steps = self.maps_at
        if not steps or sorted({0, *steps}) != [0, *steps]:
            raise ValueError(f"maps_at must be steps that increase from 1 on, got {steps}")
        if self.steps < 2 * steps[-1]:
            raise ValueError(
                f"steps must be at least {2 * steps[-1]}, twice the last of maps_at, to tell whether attention "
                f"freezes, got {self.steps}"
            )


def layers_of(depth: int) -> str:
    """A depth in words, and the name under which its networks are recorded."""
    return counted(depth, "layer")


def train(config: Config, text: Corpus, run: Run, progress: Progress) -> None:
    """Train all depths on both texts, recording what `joma.recipes.language_curves` reads, and attention maps.

    The networks of one depth are one ensemble: those that read the text, then those that read it shuffled. They take
    the place of two rates in what is recorded.
    """
    if gap := lacking(config.device):
        raise NotRun(str(gap), f"the same command on a machine that has one, or joma run {run.study} with --device cpu")
    remember_corpus(text, run)
    ensembles = {}
    for depth in config.depths:
        made, name = _recipe(config, text, depth), layers_of(depth)
        _remember(run, name, made, text)
        ensembles[name] = _ensemble(config, made, text)
    train_all(ensembles, run, progress=lambda done, doing: progress(0.98 * done, doing))


def shuffled(text: Corpus, seed: int) -> Corpus:
    """The same corpus with the words of its training text in random order: frequencies stay, all else is lost."""
    train = text.tokens["train"]
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    return replace(text, tokens=text.tokens | {"train": train[order]})


def _recipe(config: Config, text: Corpus, layers: int) -> Recipe:
    base = recipe(config, text, layers=layers, rates=(config.rate, config.rate))
    return base.with_(optimizer=Optimizer("sgd", rate=config.rate, clip=config.clip))


def _remember(run: Run, name: str, made: Recipe, text: Corpus) -> None:
    run.keep(f"{name}/rates", lambda: np.array(made.rates))
    run.keep(f"{name}/seeds", lambda: np.array(made.seeds))
    run.keep(f"{name}/loss by frequency", lambda: frequency_loss(made, text))


def _ensemble(config: Config, made: Recipe, text: Corpus) -> Ensemble:
    own, twin = ensemble(made, text), ensemble(made, shuffled(text, config.seed))

    def batch(step: int, members: Sequence[int]) -> tuple[Tensor, ...]:
        parts = zip(own.batch(step, members), twin.batch(step, members), strict=True)
        which = [member // len(made.seeds) for member in members]
        return tuple(torch.stack(pair)[which] for pair in parts)  # (members, streams, length)

    spoken = streams(text.tokens["valid"], made.valid_streams).long().to(config.device)
    inputs, _ = windows(spoken, config.length)
    single = inputs[made.sequence, :1].contiguous()
    measures = {"valid": own.measures["valid"], "map": lambda decoder, members: lowest_attention(decoder, single)}
    points = {*range(0, config.steps + 1, config.every), *config.maps_at, config.steps - config.maps_at[-1]}
    return replace(own, batch=batch, measures=measures, measure_at=tuple(sorted(points)))


def lowest_attention(decoder: Decoder, tokens: Tensor) -> Tensor:
    """Attention of the lowest layer on one sequence, (members, queries, keys), averaged over heads."""
    seen: list[Tensor] = []

    def look(layer: int, name: str, value: Tensor) -> None:
        if layer == 0 and name == "attention":  # (members, batch, heads, queries, keys)
            seen.append(value[:, 0].float().mean(1))

    decoder.features(tokens, look=look)
    return seen[0]


def maps(run: Run, depth: int, step: int) -> np.ndarray:
    """The recorded attention maps of one step, (texts, seeds, queries, keys)."""
    found, name = np.asarray(run.at(f"{layers_of(depth)}/map", step)), layers_of(depth)
    return found.reshape(len(run.value(f"{name}/rates")), -1, *found.shape[1:])


def moved(run: Run, depth: int, start: int, end: int) -> np.ndarray:
    """Which share of attention lies elsewhere at `end` than at `start`, mean over queries: (texts, seeds), 0 to 1."""
    change = np.abs(maps(run, depth, end) - maps(run, depth, start)).sum(-1) / 2
    return np.asarray(change[..., 1:].mean(-1))  # the first query has nowhere else to look


def depths(config: Mapping[str, object]) -> Sequence[int]:
    """The depths of a recorded config."""
    found = config["depths"]
    assert isinstance(found, list | tuple)
    return [int(depth) for depth in found]
