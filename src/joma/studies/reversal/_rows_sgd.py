"""The row models of Theorems 3 and 4: SGD with one sequence per step on a matrix Y of logits, from zero.

Of a sequence (x1, x2, x3) model A reads the row Y[x1], model B reads (Y[x1] + Y[x2]) / sqrt 2. Only rows that are read
change. Many runs, each with its own sequences, take their steps together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log, sqrt
from typing import Any, NamedTuple

import numpy as np

from joma.data.statements import Statements

MODELS = ("A", "B")
"""A reads the first token, B the first and the relation."""
SCALE = {"A": 1.0, "B": 1 / sqrt(2)}


class Moment(NamedTuple):
    """Where training stands: the step, Y (runs, tokens, tokens), and how often each sequence was seen, one per run."""

    step: int
    weights: Any
    visits: list[Any]


def train(
    sequences: Sequence[Statements], *, model: str, tokens: int, rate: float, moments: Sequence[int], seed: int
) -> Iterator[Moment]:
    """Y at the given steps. One run per set of sequences; run number r draws its own order from seed + r."""
    runs, scale = np.arange(len(sequences)), SCALE[model]
    order = [each.draw(moments[-1], seed=seed + run).numpy() for run, each in enumerate(sequences)]
    steps = np.stack([each.tokens.numpy()[way] for each, way in zip(sequences, order, strict=True)], 1)
    first, second, third = (np.ascontiguousarray(steps[..., place]) for place in range(3))  # (steps, runs)
    weights, done = np.zeros((len(runs), tokens, tokens)), 0
    for moment in moments:
        for step in range(done, moment):
            _visit(weights, runs, first[step], second[step], third[step], model, rate, scale)
        done = moment
        counts = [np.bincount(way[:moment], minlength=len(each)) for each, way in zip(sequences, order, strict=True)]
        yield Moment(moment, weights, counts)


def _visit(weights: Any, runs: Any, x1: Any, x2: Any, x3: Any, model: str, rate: float, scale: float) -> None:
    logits = weights[runs, x1]
    if model == "B":
        logits = (logits + weights[runs, x2]) * scale
    push = np.exp(logits)  # gaps stay far from where this would overflow
    push *= -rate * scale / push.sum(-1, keepdims=True)
    push[runs, x3] += rate * scale
    weights[runs, x1] += push
    if model == "B":
        weights[runs, x2] += push


def logits_of(weights: Any, sequences: Statements, model: str) -> Any:
    """(n, tokens): what one run says after the prompts of the sequences."""
    first, second = sequences.tokens[:, 0].numpy(), sequences.tokens[:, 1].numpy()
    return weights[first] if model == "A" else (weights[first] + weights[second]) * SCALE["B"]


def losses_of(weights: Any, sequences: Statements, model: str) -> Any:
    """(n,): -ln p of the answers."""
    logits = logits_of(weights, sequences, model)
    top = logits.max(-1)
    total = top + np.log(np.exp(logits - top[:, None]).sum(-1))
    return total - logits[np.arange(len(logits)), sequences.target[:, 0].numpy()]


def gaps_of(weights: Any, sequences: Statements, model: str) -> Any:
    """(n,): the logit of the answer minus the mean of the others."""
    logits = logits_of(weights, sequences, model)
    answer = logits[np.arange(len(logits)), sequences.target[:, 0].numpy()]
    return answer - (logits.sum(-1) - answer) / (logits.shape[-1] - 1)


def moments_of(sequences: int, tokens: int, rate: float, *, horizon: float, count: int) -> list[int]:
    """Steps t at which rate t / N runs from ln M / 10 to `horizon` ln M, evenly in its logarithm and through ln M."""
    early = max(2, round(count * log(10) / log(10 * horizon)))
    late = np.logspace(0, np.log10(horizon), max(2, count - early + 1))
    times = np.concatenate([np.logspace(-1, 0, early)[:-1], late]) * log(tokens)
    return sorted({max(1, int(np.ceil(time * sequences / rate))) for time in times})
