"""The networks of `rebound-onset`: one base, and levels of it that differ in one factor.

    rate        learning rate
    words       how many words the text is cut to
    flatness    frequent words split into labels of equal frequency (`texts.flattened`)
    embedding   the initial embeddings, multiplied by a number

All levels and seeds of one depth are one ensemble of one shape: a network with fewer words than its table has an output
bias of `NEVER` for the others, which keeps them, and their gradients, at zero. Recorded under L1, L2, ... with the
members (levels x seeds) first:

    valid/entropy    (members, layers)                       attention entropy
    valid/classes    (members, layers, groupings, classes)   the same by how frequent the query's word is; the first
                                                             grouping is by frequency, the others shuffle the words
    valid/loss       (members,)

and once: L1/rates (levels,), L1/seeds, loss by frequency (levels,), factor (levels,), an index into `FACTORS`,
value (levels,), what the factor is there; base (factors,), what it is in the base; class frequency (classes,).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.claims.config import Above, Several
from joma.claims.contract import Progress
from joma.data.text import Corpus, CorpusError, streams
from joma.models.decoder import Decoder
from joma.recipes.language import LanguageModelConfig, Recipe, corpus, ensemble, recipe
from joma.recipes.language.text import remember_corpus, steps_to_read
from joma.recipes.language.training import needs_its_device, validation_sequences, with_words
from joma.runs import Run
from joma.studies.rebound.rebound_onset.texts import by_frequency, effective_words, flattened
from joma.training import Ensemble, cross_entropy, train_all

FACTORS = ("rate", "words", "flatness", "embedding")
NEVER = -1e4
"""Output bias of a word that the text does not have: far below all others, and within float16."""
CLASSES = 4
GROUPINGS = 8
AT_ONCE = 100  # validation sequences


@dataclass(frozen=True)
class ReboundOnsetConfig(LanguageModelConfig):
    """Shallow networks, one base, and levels that differ in one factor."""

    vocabulary: int = 200
    """Words, or labels, that there is room for; `labels` must fit."""
    words: int = 50
    """Words of the base."""
    width: int = 16
    mlp: int = 16
    streams: int = 8
    length: int = 16
    sequence: int = 2
    valid_sequences: int = 3
    steps: int = 100
    every: int = 8
    """The first measuring point; the others follow, each further by the same ratio."""
    points: int = 14
    """Measuring points after the untrained network."""
    depths: tuple[int, ...] = (1,)
    rate: float = 1e-2
    """Of the base."""
    rates: Annotated[tuple[float, ...], Several(2), Above(0)] = (5e-3, 2e-2)
    fewer_or_more: Annotated[tuple[int, ...], Several(2)] = (20, 200)
    """Numbers of words that are tried instead."""
    labels: Annotated[tuple[int, ...], Several(2)] = (60, 90)
    """Labels that the words are split into, to flatten their frequencies."""
    scales: Annotated[tuple[float, ...], Several(2), Above(0)] = (0.5, 2.0)
    """What the initial embeddings are multiplied by."""

    def __post_init__(self) -> None:
        super().__post_init__()
        most = max(self.words, *self.fewer_or_more, *self.labels)
        if most > (room := self.vocabulary):
            raise ValueError(f"vocabulary must be at least {most}, the most words or labels asked for, got {room}")
        if min(self.labels) < self.words:
            raise ValueError(f"labels must be at least {self.words}, one per word, got {min(self.labels)}")
        bases = {"rates": self.rate, "fewer_or_more": self.words, "labels": self.words, "scales": 1.0}
        for name, base in bases.items():
            if base in (tried := getattr(self, name)):
                raise ValueError(f"{name} must be other values than the base's {base:g}, got {tried}")


class Level(NamedTuple):
    """One way to train: the base, or the base with one factor changed."""

    factor: str
    """Empty for the base."""
    value: float
    rate: float
    text: int
    """Which of the texts it reads."""
    scale: float


class Levels(NamedTuple):
    """All levels, the base first, the texts that they read, and the value of every factor in the base."""

    levels: list[Level]
    texts: list[Corpus]
    base: dict[str, float]


def levels_of(config: ReboundOnsetConfig, text: Corpus) -> Levels:
    """What a config asks for; `text` has as many words as the table."""
    plain = with_words(text, config.words)
    texts = [plain, *(with_words(text, words) for words in config.fewer_or_more)]
    texts += [flattened(plain, labels) for labels in config.labels]
    if (most := max(len(one.vocabulary) for one in texts)) > len(text.vocabulary):
        raise CorpusError(f"labels must fit into the {len(text.vocabulary)} words of the text, got {most}")
    base = {"rate": config.rate, "words": float(config.words), "flatness": effective_words(plain), "embedding": 1.0}
    start = Level("", 0.0, config.rate, 0, 1.0)
    found = [start, *(start._replace(factor="rate", value=rate, rate=rate) for rate in config.rates)]
    for number, words in enumerate(config.fewer_or_more, start=1):
        found.append(start._replace(factor="words", value=float(words), text=number))
    for number in range(1 + len(config.fewer_or_more), len(texts)):
        found.append(start._replace(factor="flatness", value=effective_words(texts[number]), text=number))
    found += [start._replace(factor="embedding", value=scale, scale=scale) for scale in config.scales]
    return Levels(found, texts, base)


def run(config: ReboundOnsetConfig, run: Run, progress: Progress) -> None:
    """Train all levels and seeds, one ensemble per depth. Resumes by itself."""
    text = corpus(config, progress)
    recipes = {f"L{layers}": recipe(config, text, layers=layers, rates=(config.rate,)) for layers in config.depths}
    base = next(iter(recipes.values()))
    needs_its_device(base, run)
    remember_corpus(text, run)
    found = levels_of(config, text)
    classes, frequency = by_frequency(found.texts[0], CLASSES, GROUPINGS)

    def frequency_loss(text: Corpus) -> float:
        """Loss of the words' frequencies in the training text, each counted once more, on the validation text."""
        counts = torch.bincount(text.tokens["train"].long(), minlength=len(text.vocabulary)).double() + 1
        return float(-(counts / counts.sum()).log()[validation_sequences(base, text)[1].cpu()].mean())

    run.keep("factor", lambda: np.array([-1 if not one.factor else FACTORS.index(one.factor) for one in found.levels]))
    run.keep("value", lambda: np.array([one.value for one in found.levels]))
    run.keep("base", lambda: np.array([found.base[factor] for factor in FACTORS]))
    run.keep("class frequency", lambda: frequency.numpy())
    run.keep("loss by frequency", lambda: np.array([frequency_loss(found.texts[one.text]) for one in found.levels]))
    for name in recipes:
        run.keep(f"{name}/rates", lambda: np.array([one.rate for one in found.levels]))
        run.keep(f"{name}/seeds", lambda: np.array(base.seeds))
    points = measuring_points(config.every, config.steps, config.points)
    ensembles = {
        name: replace(onset_ensemble(one, found, text, classes), measure_at=points) for name, one in recipes.items()
    }
    train_all(ensembles, run, progress=lambda done, doing: progress(0.98 * done, doing))


def measuring_points(first: int, last: int, count: int) -> tuple[int, ...]:
    """0, and about `count` steps from the first to the last, each further by about the same ratio.

    >>> measuring_points(10, 80, 4)
    (0, 10, 20, 40, 80)
    """
    return (0, *sorted({round(step) for step in np.geomspace(first, last, count).tolist()}))


def onset_ensemble(base: Recipe, found: Levels, text: Corpus, classes: Tensor) -> Ensemble:
    """The recipe's ensemble with levels x seeds as members."""
    members = [(level, seed) for level in found.levels for seed in base.seeds]
    which = [level.text for level, _ in members]

    def networks(numbers: Sequence[int]) -> Decoder:
        chosen = [members[number] for number in numbers]
        decoder = Decoder(base.decoder, [seed for _, seed in chosen])
        with torch.no_grad():
            for place, (level, _) in enumerate(chosen):
                decoder.embedding[place] *= level.scale
                decoder.out_bias[place, len(found.texts[level.text].vocabulary) :] = NEVER
        return decoder

    return replace(
        ensemble(base, text),
        members=len(members),
        networks=networks,
        batch=_reading(base, found, which),
        optimizer=replace(base.optimizer, rate=tuple(level.rate for level, _ in members)),
        measures={"valid": _validation(base, found, which, classes)},
    )


def _reading(
    base: Recipe, found: Levels, which: Sequence[int]
) -> Callable[[int, Sequence[int]], tuple[Tensor, Tensor]]:
    """batch(step, members): (members, streams, length) each, every member from its own text."""
    length = base.decoder.context
    read = torch.stack([streams(text.tokens["train"], base.streams).long() for text in found.texts]).to(base.device)
    epoch, last = steps_to_read(read[0], length), read.shape[2] - 1 - length
    text_of = torch.tensor(which, device=base.device)

    def batch(step: int, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        first = min(step % epoch * length, last)
        texts = text_of[numbers[0] : numbers[-1] + 1]  # members of a group follow one another
        return read[:, :, first : first + length][texts], read[:, :, first + 1 : first + 1 + length][texts]

    return batch


def _validation(
    base: Recipe, found: Levels, which: Sequence[int], classes: Tensor
) -> Callable[[Decoder, Sequence[int]], dict[str, Tensor]]:
    """Loss and entropy of every member on its own text; entropy also by the class of the query's word in the base."""
    pairs = zip(*(validation_sequences(base, text) for text in found.texts), strict=True)
    inputs, targets = (torch.stack(texts) for texts in pairs)  # (texts, sequences, length)
    of_query = classes[:, inputs[0].cpu()]  # (groupings, sequences, length)
    weights = (of_query[..., None] == torch.arange(CLASSES)).double().to(base.device)
    text_of = torch.tensor(which, device=base.device)

    def measure(decoder: Decoder, numbers: Sequence[int]) -> dict[str, Tensor]:
        texts = text_of[numbers[0] : numbers[-1] + 1]
        shape = decoder.members, decoder.config.layers
        entropy = torch.zeros(*shape, device=base.device, dtype=torch.float64)
        parts = torch.zeros(*shape, *weights.shape[::3], device=base.device, dtype=torch.float64)
        loss = torch.zeros(decoder.members, device=base.device, dtype=torch.float64)
        for some in torch.arange(inputs.shape[1], device=base.device).split(AT_ONCE):

            def look(layer: int, name: str, value: Tensor, some: Tensor = some) -> None:
                if name == "attention":  # (members, batch, heads, queries, keys)
                    each = torch.special.entr(value).sum(-1, dtype=torch.float64).mean(2)
                    entropy[:, layer] += each.sum((1, 2))
                    parts[:, layer] += torch.einsum("mbq,gbqc->mgc", each, weights[:, some])

            tokens, following = inputs[texts][:, some], targets[texts][:, some].flatten(1)
            features = decoder.features(tokens, look=look).flatten(1, 2)
            for member in range(decoder.members):  # so that the logits of one member exist at a time
                one = slice(member, member + 1)
                losses = cross_entropy(features[one], decoder.out[one], decoder.out_bias[one], following[one])
                loss[one] += losses.double() * following.shape[1]
        count = inputs[0].numel()
        return {"entropy": entropy / count, "classes": parts / weights.sum((1, 2)), "loss": loss / count}

    return measure
