"""Language models measured at points that lie evenly in the logarithm of the step, with measures of a study's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import NotRun, Progress
from joma.data.text import Corpus, cut_vocabulary, streams, windows
from joma.host.devices import lacking
from joma.recipes.language import Recipe, ensemble, frequency_loss
from joma.recipes.language.text import remember_corpus
from joma.runs import Run
from joma.training import Ensemble, train_all

Measure = Callable[[Any, Sequence[int]], Tensor | Mapping[str, Tensor]]


def spread_points(first: int, last: int, per_doubling: int = 2) -> list[int]:
    """0, `first`, and on, each a fixed factor later, to `last`.

    >>> spread_points(8, 40)
    [0, 8, 11, 16, 23, 32, 40]
    """
    count = int(per_doubling * np.log2(last / first)) + 1
    later = [round(first * 2 ** (i / per_doubling)) for i in range(count)]
    return sorted({0, *later, last})


def train_measured(
    variants: Mapping[str, Recipe],
    text: Corpus,
    run: Run,
    progress: Progress,
    points: Sequence[int],
    measures: Mapping[str, Mapping[str, Measure]],
) -> None:
    """Train every variant and record at these points its loss and entropy (valid/...) and what its `measures` give."""
    for variant in variants.values():
        if gap := lacking(variant.device):
            raise NotRun(str(gap), f"joma run {run.study} --device cpu --precision float32, or on a machine with a GPU")
    remember_corpus(text, run)
    for name, variant in variants.items():
        run.keep(f"{name}/rates", lambda variant=variant: np.array(variant.rates))  # type: ignore[misc]
        run.keep(f"{name}/seeds", lambda variant=variant: np.array(variant.seeds))  # type: ignore[misc]
        run.keep(f"{name}/loss by frequency", lambda variant=variant: frequency_loss(variant, text))  # type: ignore[misc]
    trained = {name: _measured(variant, text, points, measures[name]) for name, variant in variants.items()}
    train_all(trained, run, progress=lambda done, doing: progress(0.95 * done, doing))


def _measured(variant: Recipe, text: Corpus, points: Sequence[int], measures: Mapping[str, Measure]) -> Ensemble:
    whole = ensemble(variant, text)
    return replace(whole, measures={"valid": whole.measures["valid"], **measures}, measure_at=tuple(points))


def read_at_points(variant: Recipe, text: Corpus) -> tuple[Corpus, Tensor]:
    """The text as the variant's networks see it, and the sequences that valid/entropy is measured on."""
    words = variant.decoder.vocabulary
    text = cut_vocabulary(text, words) if words < len(text.vocabulary) else text
    spoken = streams(text.tokens["valid"], variant.valid_streams).long().to(torch.device(variant.device))
    inputs, _ = windows(spoken, variant.decoder.context)
    return text, inputs[: variant.valid_sequences].flatten(0, 1).contiguous()
