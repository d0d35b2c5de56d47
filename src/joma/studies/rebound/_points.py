"""Language models measured at points that lie evenly in the logarithm of the step, with measures of a study's own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from joma.claims.contract import Progress
from joma.data.text import Corpus
from joma.recipes.language import Recipe, train_variants
from joma.runs import Run
from joma.training import Ensemble

Measure = Callable[[Any, Sequence[int]], Tensor | Mapping[str, Tensor]]


def spread_points(first: int, last: int, per_doubling: int = 2) -> list[int]:
    """0, `first`, and on, each a fixed factor later, to `last`."""
    count = int(per_doubling * np.log2(last / first)) + 1
    later = [round(first * 2 ** (i / per_doubling)) for i in range(count)]
    return sorted({0, *later, last})


def lowest_between(x: np.ndarray, y: np.ndarray) -> float:
    """Where the parabola through three points is lowest, at most as far as the outer two; if it has no lowest point,
    the middle one.
    """
    second, slope, _ = np.polyfit(x - x[1], y, 2)
    moved = -slope / (2 * second) if second > 0 else 0.0
    return float(x[1] + np.clip(moved, x[0] - x[1], x[2] - x[1]))


def train_measured(
    variants: Mapping[str, Recipe],
    text: Corpus,
    run: Run,
    progress: Progress,
    points: Sequence[int],
    measures: Mapping[str, Mapping[str, Measure]],
) -> None:
    """Train every variant and record at these points its loss and entropy (valid/...) and what its `measures` give."""

    def measured(name: str, plain: Ensemble) -> Ensemble:
        return replace(plain, measures={"valid": plain.measures["valid"], **measures[name]}, measure_at=tuple(points))

    train_variants(variants, text, run, progress, share=0.95, adapt=measured)
