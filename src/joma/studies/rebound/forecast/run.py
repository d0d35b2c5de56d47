"""The networks of `forecast`: what Theorem 1 foretells is measured while they train, the rest from the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Progress
from joma.recipes.language import LanguageModelConfig, Recipe, corpus, recipe
from joma.recipes.language.training import validation_sequences, with_words
from joma.runs import Run
from joma.studies.rebound._points import Measure, spread_points, train_measured
from joma.studies.rebound.forecast.probes import Words, entropy_after, look_at_words, words_of
from joma.studies.rebound.forecast.record import WORDS, keep_scores, past_of_words
from joma.studies.rebound.forecast.theory import Form, Past, logit_shift

AHEAD = 2


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

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value, earlier in (("first", self.first, "every"), ("steps", self.steps, "first")):
            if value < (least := AHEAD * getattr(self, earlier)):
                raise ValueError(f"{name} must be at least {least}, {AHEAD} times {earlier}, got {value}")
        if self.heads > 1:
            raise ValueError(f"heads must be 1: with several the theorem does not say whose logits, got {self.heads}")


def run(config: ForecastConfig, run: Run, progress: Progress) -> None:
    """Train, recording what Theorem 1 foretells while the networks are there; then make all other forecasts."""
    text = corpus(config, progress)
    names = {layers: f"{layers} layer{'s' if layers > 1 else ''}" for layers in config.layers}
    variants = {
        f"Adam, {name}": recipe(config, text, layers=layers, rates=(config.rate,)) for layers, name in names.items()
    }
    first = next(iter(variants.values())).with_(rates=(config.sgd_rate,))
    variants[f"SGD, {names[config.layers[0]]}"] = first.with_optimizer(kind="sgd", renew_every=None)
    points = spread_points(config.every, config.steps)

    def follow(variant: Recipe) -> Words:
        seen = with_words(text, variant.decoder.vocabulary)
        if config.words >= len(seen.vocabulary):
            raise ValueError(f"words must be below {len(seen.vocabulary)}, those of the vocabulary, got {config.words}")
        return words_of(seen, validation_sequences(variant, seen)[0], config.words)

    followed = {name: follow(variant) for name, variant in variants.items()}
    one = next(iter(followed.values()))
    run.keep(f"{WORDS}/sizes", lambda: one.sizes.cpu().numpy())
    run.keep(f"{WORDS}/shares", lambda: one.shares.cpu().numpy())
    measures = {name: {WORDS: _foretelling(words, name, run, points)} for name, words in followed.items()}
    train_measured(variants, text, run, progress, points, measures)
    for name in variants:
        progress(0.96, f"{name}: making forecasts")
        keep_scores(run, name, config.first)


def _foretelling(words: Words, variant: str, run: Run, points: Sequence[int]) -> Measure:
    """The words now, and the entropy of every layer at step 2t by Theorem 1. The past is read from the record."""
    sizes, shares = words.sizes.cpu(), words.shares.cpu()

    def measure(decoder: Any, members: Sequence[int]) -> dict[str, Tensor]:
        now, past = look_at_words(decoder, words), None
        if f"{variant}/{WORDS}/logits" in run:  # the present is recorded only when all is measured
            past = _with(past_of_words(run, variant, np.asarray(members)), points, now)
        found = {name: value.float() for name, value in now.items()}
        for form in get_args(Form):
            shift = torch.zeros_like(now["logits"])
            if past is not None:
                shift = logit_shift(past, AHEAD * float(past.steps[-1]), sizes, shares, form=form).to(shift)
            found[f"entropy, {form}"] = entropy_after(decoder, words, shift)
        return found

    return measure


def _with(past: Past, points: Sequence[int], now: dict[str, Tensor]) -> Past:
    """The past and the present, in the numbers that are recorded."""
    step = torch.tensor([float(points[len(past.steps)])], dtype=torch.float64)
    parts = [now[name].float().double().cpu()[None] for name in ("logits", "squares", "attention")]
    return Past(torch.cat([past.steps, step]), *(torch.cat(pair) for pair in zip(past[1:], parts, strict=True)))
