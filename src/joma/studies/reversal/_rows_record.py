"""What the study `reversal` records of the row models: numbers per moment and seed, small enough to keep."""

from __future__ import annotations

from functools import cache
from math import log
from typing import Any

import numpy as np

from joma.data.facts import Reversals
from joma.studies.reversal._rows_sgd import Moment, gaps_of, losses_of, moments_of, train
from joma.theory.reversal import bound_power, row_gap, sgd_gap, train_bound


def begins(tokens: int) -> float:
    """Rate times visits from which Theorem 3 speaks: ln M."""
    return log(tokens)


@cache
def power_of(tokens: int) -> float:
    """The constant c of the corrected bound: the largest that the row law allows where the theorem begins."""
    return float(bound_power(begins(tokens), tokens=tokens, rate=1.0))


def trained(
    facts: list[Reversals], *, model: str, rate: float, horizon: float, count: int, seed: int
) -> dict[str, Any]:
    """Arrays (moments, seeds) of one model at one rate. A twin of each run also trains the reverses, as a control."""
    tokens, sequences = facts[0].vocabulary, len(facts[0].train)
    cured = [each.with_reverses(1) for each in facts]
    moments = moments_of(sequences, tokens, rate, horizon=horizon, count=count)
    rows: list[dict[str, Any]] = []
    for moment in train(
        [each.train for each in (*facts, *cured)], model=model, tokens=tokens, rate=rate, moments=moments, seed=seed
    ):
        found = [_seen(moment, run, facts[run], cured[run], len(facts), model, rate) for run in range(len(facts))]
        rows.append({name: [each[name] for each in found] for name in found[0]})
    times = rate * np.array(moments) / sequences / begins(tokens)
    return {"moments": np.array(moments), "times": times} | {
        name: np.array([row[name] for row in rows]) for name in rows[0]
    }


def _seen(
    moment: Moment, run: int, facts: Reversals, cured: Reversals, seeds: int, model: str, rate: float
) -> dict[str, Any]:
    """Numbers of one run, and of its twin that also trains the reverses."""
    weights, twin, tokens = moment.weights[run], moment.weights[seeds + run], facts.vocabulary
    visits, loss = moment.visits[run], losses_of(weights, facts.train, model)
    reverse = np.exp(-losses_of(weights, facts.test, model))
    twin_loss = losses_of(twin, facts.test, model)
    one_way = facts.one_way.tokens
    return {
        **bounds(loss, visits, moment.step / len(facts.train), tokens, rate),
        "train p": np.exp(-loss).mean(),
        "least train p": np.exp(-loss).min(),
        "reverse p": reverse.mean(),
        "largest reverse M p": tokens * reverse.max(),
        "least reverse M p": tokens * reverse.min(),
        "unseen M p": tokens * np.exp(-losses_of(weights, facts.unseen, model)).mean(),
        "shuffled M p": tokens * np.exp(-losses_of(weights, facts.shuffled(), model)).mean(),
        "cured p": np.exp(-twin_loss).mean(),
        "least cured M p": tokens * np.exp(-twin_loss).min(),
        "rows of B": np.abs(weights[one_way[:, 2].numpy()]).max(),
        "rows of A": np.abs(weights[one_way[:, 0].numpy()]).max(-1).min(),
        **(_laws(moment, run, facts, cured, seeds, rate) if model == "A" else {}),
    }


def bounds(loss: Any, visits: Any, shared: float, tokens: int, rate: float) -> dict[str, float]:
    """What bounds say of sequences with ln M / rate visits or more: NaN without any of them.

    "missing, ..." is the largest 1 - p over what a bound allows. "largest c" is the largest power with which the bound
    holds for all of them.
    """
    late = rate * visits >= begins(tokens)
    missing, seen = -np.expm1(-loss[late]), visits[late]
    untrained = (1 - 1 / tokens) / _allowed(begins(tokens) / rate, tokens, rate, power_of(tokens))
    found = {"missing untrained": float(untrained)}  # a bound that allowed this would say nothing
    for name, counted, power in (
        ("c = 1", seen, 1.0),
        ("c of the law", seen, power_of(tokens)),
        ("c = 1, by steps", np.full(len(seen), shared), 1.0),
    ):
        found[f"missing, {name}"] = _most(missing / _allowed(counted, tokens, rate, power))
    found["largest c"] = -_most(-np.log((tokens - 1) / (2 * missing)) / np.log(tokens * rate * seen))
    return found


def _most(values: Any) -> float:
    return float(values.max()) if len(values) else float("nan")


def _allowed(visits: Any, tokens: int, rate: float, power: float) -> Any:
    """1 - p that the bound allows."""
    return 1 - train_bound(visits, tokens=tokens, rate=rate, power=power).numpy()


def _off(gaps: Any, law: Any) -> float:
    return float(np.abs(gaps - law).max())


def _laws(moment: Moment, run: int, facts: Reversals, cured: Reversals, seeds: int, rate: float) -> dict[str, float]:
    """How far the gaps of model A lie from the row laws."""
    tokens = facts.vocabulary
    gap, visits = gaps_of(moment.weights[run], facts.train, "A"), moment.visits[run]
    twin, again = gaps_of(moment.weights[seeds + run], cured.train, "A"), moment.visits[seeds + run]
    same = (facts.test.tokens[:, None] == cured.train.tokens).all(-1).int().argmax(-1).numpy()
    law = sgd_gap(np.concatenate([visits, again]), tokens=tokens, rate=rate).numpy()
    own, others = law[: len(visits)], law[len(visits) :]
    return {
        "off the flow": _off(gap, row_gap(visits, tokens=tokens, rate=rate).numpy()),
        "off the law": _off(gap, own),
        "off a straight line": _off(gap, rate * visits),
        "cured off the law": _off(twin, others),
        "not cured off the law": _off(gaps_of(moment.weights[run], facts.test, "A"), others[same]),
    }


def dots(facts: Reversals, *, rate: float, horizon: float, count: int, seed: int) -> dict[str, Any]:
    """Visits and gaps of every training sequence of one run of model A, (moments, sequences)."""
    moments = moments_of(len(facts.train), facts.vocabulary, rate, horizon=horizon, count=count)
    path = train([facts.train], model="A", tokens=facts.vocabulary, rate=rate, moments=moments, seed=seed)
    seen = [(moment.visits[0], gaps_of(moment.weights[0], facts.train, "A")) for moment in path]
    return {"visits": np.stack([visits for visits, _ in seen]), "gap": np.stack([gap for _, gap in seen])}


def picture(facts: Reversals, *, model: str, rate: float, horizon: float, seed: int) -> Any:
    """Y at the end, with tokens sorted: A and B of the pairs with both directions, then start and end of the others."""
    steps = moments_of(len(facts.train), facts.vocabulary, rate, horizon=horizon, count=4)[-1:]
    (end,) = train([facts.train], model=model, tokens=facts.vocabulary, rate=rate, moments=steps, seed=seed)
    one_way = facts.one_way.tokens
    order = np.concatenate(
        [facts.first[facts.both].flatten(), facts.second[facts.both].flatten(), one_way[:, 0], one_way[:, 2]]
    )
    return end.weights[0][np.ix_(order, order)].astype(np.float32)
