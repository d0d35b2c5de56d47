"""The networks of `rebound-onset`: one base, and levels of it that differ in one factor.

    rate        learning rate
    words       how many words the text is cut to
    flatness    frequent words split into labels of equal frequency (`flattened`)
    embedding   the initial embeddings, multiplied by a number

All texts have the same positions, and all numbers lie below the size of one table. So all levels and seeds of one depth
are one ensemble of one shape: a network with fewer words than its table has an output bias of `NEVER` for the others,
which keeps them, and their gradients, at zero. Recorded under L1, L2, ... with the members (levels x seeds) first:

    valid/entropy    (members, layers)                       attention entropy
    valid/classes    (members, layers, groupings, classes)   the same by how frequent the query's word is; the first
                                                             grouping is by frequency, the others shuffle the words
    valid/loss       (members,)

and once: L1/rates (levels,), L1/seeds, loss by frequency (levels,), factor (levels,), an index into `FACTORS`,
value (levels,), what the factor is there; base (factors,), what it is in the base; class frequency (classes,).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Above, Progress, Values
from joma.data.text import Corpus, CorpusError, streams
from joma.models.decoder import Decoder
from joma.recipes.language import LanguageModelConfig, Recipe, corpus, ensemble, recipe
from joma.recipes.language.text import remember_corpus, steps_to_read
from joma.recipes.language.training import needs_its_device, validation_sequences, with_words
from joma.runs import Run
from joma.training import Ensemble, cross_entropy, train_all


def flattened(text: Corpus, labels: int, *, seed: int = 0) -> Corpus:
    """The text with its frequent words split: `labels` in all, none of them much more frequent than the others.

    A word that occurs c times gets ceil(c / most) labels, for the smallest `most` that needs no more than `labels` in
    all; each occurrence takes one of them by chance. What the word is stays as it was, how frequent its labels are not.
    """
    counts = torch.bincount(text.tokens["train"].long(), minlength=len(text.vocabulary))
    if labels < len(counts):
        raise CorpusError(f"labels must be at least {len(counts)}, one per word, got {labels}")
    low, high = 1, max(1, int(counts.max()))  # the smallest `most` lies between; `high` needs one label per word
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if int(_shares(counts, middle).sum()) <= labels else (middle + 1, high)
    shares = _shares(counts, high)
    further = len(counts) + (shares - 1).cumsum(0) - (shares - 1)  # where the labels after a word's first begin
    generator = torch.Generator().manual_seed(seed)

    def relabelled(tokens: Tensor) -> Tensor:
        words = tokens.long()
        chosen = (torch.rand(len(words), generator=generator, dtype=torch.float64) * shares[words]).long()
        return torch.where(chosen == 0, words, further[words] + chosen - 1).int()

    names = [f"{text.vocabulary[word]}/{i}" for word in range(len(counts)) for i in range(1, int(shares[word]))]
    tokens = {split: relabelled(ids) for split, ids in text.tokens.items()}
    return replace(text, vocabulary=(*text.vocabulary, *names), tokens=tokens)


def _shares(counts: Tensor, most: int) -> Tensor:
    return (-(-counts // most)).clamp(min=1)


def effective_words(text: Corpus) -> float:
    """exp of the entropy of the words' frequencies: so many words, were all as frequent."""
    counts = torch.bincount(text.tokens["train"].long()).double()
    return exp(float(torch.special.entr(counts / counts.sum()).sum()))


def by_frequency(text: Corpus, classes: int, groupings: int) -> tuple[Tensor, Tensor]:
    """Words in classes of equal weight in the text, from frequent to rare, and the frequency of each class."""
    counts = torch.bincount(text.tokens["train"].long(), minlength=len(text.vocabulary)).double()
    known = torch.tensor([word != "<unk>" for word in text.vocabulary])
    counts = torch.where(known, counts, 0.0)
    generator = torch.Generator().manual_seed(0)
    orders = [counts.argsort(descending=True, stable=True)]
    orders += [torch.randperm(len(counts), generator=generator) for _ in range(groupings)]
    found = torch.empty(len(orders), len(counts), dtype=torch.long)
    for row, order in zip(found, orders, strict=True):  # cut where a class has its part of all occurrences, by the
        middle = counts[order].cumsum(0) - counts[order] / 2  # middle of each word's own
        row[order] = (middle / counts.sum() * classes).long().clamp(max=classes - 1)
    found[:, ~known] = -1
    share = counts / counts.sum()
    log = torch.where(share > 0, share.log(), 0.0)
    members = [(found[0] == one).double() * share for one in range(classes)]
    return found, torch.stack([(weight * log).sum() / weight.sum() for weight in members]).exp()


FACTORS = ("rate", "words", "flatness", "embedding")
NEVER = -1e4  # output bias of a word that the text does not have: far below all others, and within float16
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
    rates: Annotated[tuple[float, ...], Values(2), Above(0)] = (5e-3, 2e-2)
    fewer_or_more: Annotated[tuple[int, ...], Values(2)] = (20, 200)
    """Numbers of words that are tried instead."""
    labels: Annotated[tuple[int, ...], Values(2)] = (60, 90)
    """Labels that the words are split into, to flatten their frequencies."""
    scales: Annotated[tuple[float, ...], Values(2), Above(0)] = (0.5, 2.0)
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

    factor: str  # empty for the base
    value: float
    rate: float
    text: int  # which of the texts it reads
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
    needs_its_device(base)
    remember_corpus(text, run)
    found = levels_of(config, text)
    classes, frequency = by_frequency(found.texts[0], CLASSES, GROUPINGS)

    def frequency_loss(text: Corpus) -> float:
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
    built = {name: onset_ensemble(one, found, text, classes) for name, one in recipes.items()}
    ensembles = {name: replace(one, measure_at=points) for name, one in built.items()}
    train_all(ensembles, run, progress=lambda done, doing: progress(0.98 * done, doing))


def measuring_points(first: int, last: int, count: int) -> tuple[int, ...]:
    """0, and about `count` steps from the first to the last, each further by about the same ratio."""
    return (0, *sorted({round(step) for step in np.geomspace(first, last, count).tolist()}))


def onset_ensemble(base: Recipe, found: Levels, text: Corpus, classes: Tensor) -> Ensemble:
    """The recipe's ensemble with levels x seeds as members."""
    members = [(level, seed) for level in found.levels for seed in base.seeds]
    text_of = torch.tensor([level.text for level, _ in members], device=base.device)
    length = base.decoder.context
    read = torch.stack([streams(text.tokens["train"], base.streams).long() for text in found.texts]).to(base.device)
    epoch, last = steps_to_read(read[0], length), read.shape[2] - 1 - length

    def batch(step: int, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(members, streams, length) each, every member from its own text."""
        first = min(step % epoch * length, last)
        texts = text_of[numbers[0] : numbers[-1] + 1]  # members of a group follow one another
        return read[:, :, first : first + length][texts], read[:, :, first + 1 : first + 1 + length][texts]

    def networks(numbers: Sequence[int]) -> Decoder:
        chosen = [members[number] for number in numbers]
        decoder = Decoder(base.decoder, [seed for _, seed in chosen])
        with torch.no_grad():
            for place, (level, _) in enumerate(chosen):
                decoder.embedding[place] *= level.scale
                decoder.out_bias[place, len(found.texts[level.text].vocabulary) :] = NEVER
        return decoder

    return replace(
        ensemble(base, text), members=len(members), networks=networks, batch=batch,
        optimizer=replace(base.optimizer, rate=tuple(level.rate for level, _ in members)),
        measures={"valid": _validation(base, found, text_of, classes)},
    )  # fmt: skip


def _validation(
    base: Recipe, found: Levels, text_of: Tensor, classes: Tensor
) -> Callable[[Decoder, Sequence[int]], dict[str, Tensor]]:
    """Loss and entropy of every member on its own text; entropy also by the class of the query's word in the base."""
    pairs = zip(*(validation_sequences(base, text) for text in found.texts), strict=True)
    inputs, targets = (torch.stack(texts) for texts in pairs)  # (texts, sequences, length)
    of_query = classes[:, inputs[0].cpu()]  # (groupings, sequences, length)
    weights = (of_query[..., None] == torch.arange(CLASSES)).double().to(base.device)

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
