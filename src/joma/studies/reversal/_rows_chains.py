"""What the study `chain-of-thought` records of the row models: numbers per moment and seed."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np

from joma.data.facts import Chains
from joma.data.statements import Statements
from joma.studies.reversal._rows_record import bounds
from joma.studies.reversal._rows_sgd import Moment, logits_of, losses_of, moments_of, train


def trained(chains: list[Chains], *, model: str, rate: float, horizon: float, count: int, seed: int) -> dict[str, Any]:
    """Arrays (moments, seeds) of one model at one rate."""
    tokens, sequences = chains[0].vocabulary, len(chains[0].train)
    moments = moments_of(sequences, tokens, rate, horizon=horizon, count=count)
    path = train([each.train for each in chains], model=model, tokens=tokens, rate=rate, moments=moments, seed=seed)
    rows = [[_seen(moment, run, each, model, rate) for run, each in enumerate(chains)] for moment in path]
    times = rate * np.array(moments) / sequences / log(tokens)
    found = {name: np.array([[each[name] for each in row] for row in rows]) for name in rows[0][0]}
    return {"moments": np.array(moments), "times": times} | found


def _seen(moment: Moment, run: int, chains: Chains, model: str, rate: float) -> dict[str, float]:
    weights, tokens = moment.weights[run], chains.vocabulary
    first, second = (np.exp(-losses_of(weights, step, model)) for step in chains.steps)
    composed = np.exp(-losses_of(weights, chains.test, model))
    own = _first_steps_of_trained(chains)
    return {
        **_bounds(moment, run, chains, model, rate),
        "first step p": first.mean(),
        "second step p": second.mean(),
        "two steps p": (first * second).mean(),
        "composition p": composed.mean(),
        "largest composition M p": tokens * composed.max(),
        "reached by two steps": _walked(weights, chains.entities[chains.held_out, :, 0].numpy(), chains, model),
        "reached at once": _right(weights, chains.test, model),
        "fresh reached by two steps": _walked(weights, chains.fresh[:, :, 0].numpy(), chains, model),
        "trained composition p": np.exp(-losses_of(weights, chains.compositions, model)).mean(),
        "its first step p": np.exp(-losses_of(weights, own, model)).mean(),
        "least trained composition M p": tokens * np.exp(-losses_of(weights, chains.compositions, model)).min(),
        "answered of two": _right(weights, chains.compositions + own, model),
    }


def _first_steps_of_trained(chains: Chains) -> Statements:
    """`A -> B` of the chains whose `A ~> C` trains, too: their A begins two sequences."""
    steps = chains.train.tokens[: len(chains.entities)]
    return Statements(steps[~chains.held_out], chains.entity)


def _bounds(moment: Moment, run: int, chains: Chains, model: str, rate: float) -> dict[str, float]:
    """Of all steps of the held-out chains: each of their rows has one answer."""
    tested = chains.held_out.repeat(chains.length - 1).numpy()
    visits = moment.visits[run][: len(tested)][tested]
    steps = Statements(chains.train.tokens[: len(tested)][tested], chains.entity)
    loss = losses_of(moment.weights[run], steps, model)
    return bounds(loss, visits, moment.step / len(chains.train), chains.vocabulary, rate)


def _right(weights: Any, sequences: Statements, model: str) -> float:
    """The share of prompts after which the answer is the most likely token."""
    return float((logits_of(weights, sequences, model).argmax(-1) == sequences.target[:, 0].numpy()).mean())


def _walked(weights: Any, entities: Any, chains: Chains, model: str) -> float:
    """The share of chains whose end is reached by following the most likely `->` from their first entity."""
    shared = weights[chains.relations[0]] if model == "B" else 0.0
    at = entities[:, 0]
    for _ in range(entities.shape[1] - 1):
        at = (weights[at] + shared).argmax(-1)
    return float((at == entities[:, -1]).mean())
