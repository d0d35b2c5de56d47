"""What attention does with words, in every layer of many networks at once, and its entropy if their logits moved.

A word is taken as the token of the theory, in every layer. Rarer words than those that are followed count as one class,
the last.

    logits      of the keys that are this word, less the mean of their row, which softmax does not see; mean over rows
    squares     sum_k v_k^2 where the word stands, v = x W_v W_o diag(scale) W_up: how the MLP's nodes see what is
                attended to; mean over places
    attention   the mass on the word, mean over rows: b of Theorem 1

The networks of `forecast`: what Theorem 1 foretells is measured while they train, the rest from the record.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Progress
from joma.data.text import Corpus
from joma.measure.rebound import FEWEST_SEEDS
from joma.models.decoder import Decoder
from joma.probes.decoder import ensemble_spread
from joma.recipes.language import LanguageModelConfig, Recipe, corpus, recipe
from joma.recipes.language.training import needs_its_device, validation_sequences, with_words
from joma.runs import Run
from joma.studies.rebound._points import Measure, spread_points, train_measured
from joma.studies.rebound.forecast.by_theory import Form, Past, logit_shift
from joma.studies.rebound.forecast.entries import AHEAD
from joma.studies.rebound.forecast.history import SPREAD
from joma.studies.rebound.forecast.record import WORDS, keep_scores, past_of_words


@dataclass(frozen=True)
class Words:
    """Sequences to read, and the words that are followed in them."""

    tokens: Tensor  # (sequences, length)
    classes: Tensor
    """(sequences, length): which word stands there, from 0 on by frequency; all others are the last class."""
    sizes: Tensor  # how many words of the vocabulary are in each class, (classes,)

    @property
    def shares(self) -> Tensor:
        """The part of all keys of all rows that each class is, (classes,). With it the mean of `logits` is 0."""
        rows = self.rows()
        return rows / rows.sum()

    def rows(self) -> Tensor:
        """How often rows see each class, (classes,); the first row has no choice and does not count."""
        seen = torch.arange(self.classes.shape[1], 0, -1, device=self.classes.device)  # how many rows see each key
        seen[0] -= 1
        return self.by_class(seen.expand(1, *self.classes.shape))[0]

    def by_class(self, values: Tensor) -> Tensor:
        """Sums of (members, sequences, length) over the places of each class, (members, classes)."""
        total = torch.zeros(len(values), len(self.sizes), dtype=torch.float64, device=values.device)
        return total.index_add_(1, self.classes.flatten(), values.flatten(1).double())


def words_of(text: Corpus, tokens: Tensor, count: int) -> Words:
    """The `count` most frequent words of the training text in these sequences."""
    frequency = torch.bincount(text.tokens["train"].long(), minlength=len(text.vocabulary))
    often = frequency.topk(count).indices
    classes = torch.full((len(frequency),), count, dtype=torch.long)
    classes[often] = torch.arange(count)
    sizes = torch.ones(count + 1, dtype=torch.float64)
    sizes[-1] = max(len(frequency) - count, 1)
    return Words(tokens, classes.to(tokens.device)[tokens], sizes.to(tokens.device))


def look_at_words(decoder: Decoder, words: Words) -> dict[str, Tensor]:
    """logits, squares and attention of the words, (members, layers, classes) each."""
    found: dict[str, list[Tensor]] = {"logits": [], "squares": [], "attention": []}
    width, length = decoder.config.width, words.tokens.shape[1]
    streams = [decoder.embedding[:, words.tokens] * math.sqrt(width) + decoder.sinusoids[:length]]  # read by layer 1

    def look(layer: int, name: str, value: Tensor) -> None:
        if name == "logits":
            logits = value.mean(2)  # (members, sequences, queries, keys), -inf where a query does not see
            seen = logits.isfinite()
            logits = logits.masked_fill(~seen, 0.0)
            centred = (logits - logits.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)) * seen
            found["logits"].append(words.by_class(centred[:, :, 1:].sum(2)) / words.rows().clamp(min=1))
        elif name == "attention":  # (members, sequences, heads, queries, keys)
            mass = words.by_class(value[..., 1:, :].mean(2).sum(-2))
            found["attention"].append(mass / (words.classes.numel() - len(words.classes)))
        elif name == "stream":
            streams.append(value)

    decoder.features(words.tokens, look=look)
    places = words.by_class(torch.ones(1, *words.classes.shape, device=words.classes.device))
    for layer, x in enumerate(streams[:-1]):
        found["squares"].append(words.by_class(_squares(decoder, layer, x)) / places.clamp(min=1))
    return {name: torch.stack(layers, 1) for name, layers in found.items()}


def entropy_after(decoder: Decoder, words: Words, shift: Tensor) -> Tensor:
    """Attention entropy of every layer if the logits of the words moved by shift (members, layers, classes)."""
    total = torch.zeros(shift.shape[:2], dtype=torch.float64, device=shift.device)

    def look(layer: int, name: str, value: Tensor) -> None:
        if name == "logits":
            moved = shift[:, layer].to(value)[:, words.classes][:, :, None, None]  # of the keys
            total[:, layer] = torch.special.entr((value + moved).softmax(-1)).sum(-1).mean((1, 2, 3))

    decoder.features(words.tokens, look=look)
    return total


def _squares(decoder: Decoder, layer: int, x: Tensor) -> Tensor:
    weight: dict[str, Tensor] = {name: part[:, layer] for name, part in decoder.named_parameters() if part.ndim > 2}
    value = weight["qkv"].split(decoder.config.width, dim=-1)[2]
    through = value @ weight["projection"] * weight["attention_scale"][:, None] @ weight["up"]
    return torch.einsum("mslw,mwk->mslk", x, through).square().sum(-1)


@dataclass(frozen=True)
class ForecastConfig(LanguageModelConfig):
    """Small models of Python source, trained with Adam and, as the theory has it, with SGD."""

    vocabulary: int = 200
    width: int = 24
    mlp: int = 24
    streams: int = 4
    length: int = 24
    sequence: int = 5
    valid_sequences: int = 4
    steps: int = 91
    every: int = 8
    """The first measuring point after the start. Each later one is √2 times as late."""
    layers: tuple[int, ...] = (1, 2)
    rate: float = 3e-3
    """Of Adam."""
    sgd_rate: float = 1.0
    """Of SGD, which trains networks of the first of these depths."""
    words: int = 40
    """The most frequent words, whose logits are foretold."""
    first: int = 16
    """The first step from which something is foretold."""
    seeds: int = 5
    open_seeds: int = 2
    """So many of the seeds, the first ones, are open: constants are fitted on them. The others judge."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value, earlier in (("first", self.first, "every"), ("steps", self.steps, "first")):
            if value < (least := AHEAD * getattr(self, earlier)):
                raise ValueError(f"{name} must be at least {least}, {AHEAD} times {earlier}, got {value}")
        if not 1 <= self.open_seeds <= (most := self.seeds - FEWEST_SEEDS):
            least = f"so that {FEWEST_SEEDS} of {self.seeds} seeds are left to judge"
            raise ValueError(f"open_seeds must be 1 to {most}, {least}, got {self.open_seeds}")
        if self.heads > 1:
            raise ValueError(f"heads must be 1: with several the theorem does not say whose logits, got {self.heads}")


def run(config: ForecastConfig, run: Run, progress: Progress) -> None:
    """Train, recording what Theorem 1 foretells while the networks are there; then make all other forecasts."""
    text = corpus(config, progress)
    names = {n: f"{n} layer{'s' if n > 1 else ''}" for n in config.layers}
    variants = {f"Adam, {name}": recipe(config, text, layers=n, rates=(config.rate,)) for n, name in names.items()}
    first = next(iter(variants.values())).with_(rates=(config.sgd_rate,))
    variants[f"SGD, {names[config.layers[0]]}"] = first.with_optimizer(kind="sgd", renew_every=None)
    points = spread_points(config.every, config.steps)
    needs_its_device(first)

    def follow(variant: Recipe) -> Words:
        seen = with_words(text, variant.decoder.vocabulary)
        if config.words >= len(seen.vocabulary):
            raise ValueError(f"words must be below {len(seen.vocabulary)}, those of the vocabulary, got {config.words}")
        return words_of(seen, validation_sequences(variant, seen)[0], config.words)

    followed = {name: follow(variant) for name, variant in variants.items()}
    one = next(iter(followed.values()))
    run.keep(f"{WORDS}/sizes", lambda: one.sizes.cpu().numpy())
    run.keep(f"{WORDS}/shares", lambda: one.shares.cpu().numpy())
    measures: dict[str, dict[str, Measure]] = {
        name: {WORDS: _foretelling(words, name, run, points), SPREAD: partial(_spread, words.tokens)}
        for name, words in followed.items()
    }
    train_measured(variants, text, run, progress, points, measures)
    progress(0.96, "making forecasts")
    keep_scores(run, list(variants), config.first)


def _spread(tokens: Tensor, decoder: Any, members: Sequence[int]) -> dict[str, Tensor]:
    """How far logits spread and why: the fields of a `History`, (members, layers[, heads])."""
    spread, why = ensemble_spread(decoder, tokens)
    found = {name: getattr(spread, name) for name in ("variance", "shared", "specific", "cross")}
    return found | {name: getattr(why, name) for name in ("growth", "alignment", "mean_share", "rank")}


def _foretelling(words: Words, variant: str, run: Run, points: Sequence[int]) -> Measure:
    sizes, shares = words.sizes.cpu(), words.shares.cpu()

    def measure(decoder: Any, members: Sequence[int]) -> dict[str, Tensor]:
        now, past = look_at_words(decoder, words), None
        if f"{variant}/{WORDS}/logits" in run:  # the present is recorded only when all is measured
            past = past_of_words(run, variant, np.asarray(members))
            step = torch.tensor([float(points[len(past.steps)])], dtype=torch.float64)
            parts = [now[name].float().double().cpu()[None] for name in Past._fields[1:]]  # in the recorded numbers
            past = Past(*(torch.cat(pair) for pair in zip(past, (step, *parts), strict=True)))
        found = {name: value.float() for name, value in now.items()}
        for form in get_args(Form):
            shift = torch.zeros_like(now["logits"])
            if past is not None:
                shift = logit_shift(past, AHEAD * float(past.steps[-1]), sizes, shares, form=form).to(shift)
            found[f"entropy, {form}"] = entropy_after(decoder, words, shift)
        return found

    return measure
