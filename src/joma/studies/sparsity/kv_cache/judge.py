"""What the study `kv-cache` claims, and how it judges: sparsity, and what eviction costs, over seeds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from joma.claims.claim import Claim
from joma.claims.evidence import at_least, at_most
from joma.claims.finding import Finding
from joma.claims.guards import hardest
from joma.claims.verdicts import by_effect, not_run
from joma.measure.correlation import pearson
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.sparsity.kv_cache.record import FIFTH, Series
from joma.studies.sparsity.kv_cache.run import COMMAND

NATS = 0.02  # of a loss: smaller costs count as none, as in Figures 6 and 8
KEYS = 0.1  # of all keys: a tenth of a cache more or less
PARTIAL = 0.1  # of a partial correlation: one per cent of what the loss leaves unexplained
SPARSE = 0.95  # of the keys are zero, as H2O says
ABSENT = "stories260K was not found through JOMA_DATA when the run was made"
UNLEARNED = "no network learned to predict the next token"
OF_KEYS: Any = {"matters": KEYS, "unit": "%", "ceiling": 1.0}
OF_LOSS: Any = {"matters": NATS, "unit": "nats"}

ZEROS = Claim(
    "attention-is-sparse",
    "H2O Sec. 3",
    "In a trained network, over 95 % of the keys get less than 1 % of the largest weight of their query.",
    **OF_KEYS,
)
ARISES = Claim(
    "sparsity-arises-in-training",
    "JoMA talk slide takeaways",
    "Attention becomes sparse over training.",
    **OF_KEYS,
    uses=("scan-snap-decoder/attention-becomes-sparse",),
)
HITTERS = Claim(
    "heavy-hitters-stay",
    "H2O Sec. 3",
    "A small set of keys draws attention from early and late queries alike.",
    **OF_KEYS,
)
FIFTH_SUFFICES = Claim(
    "a-fifth-of-the-cache-suffices",
    "H2O Sec. 3",
    "A network that keeps the fifth of its keys with the most attention loses almost nothing.",
    **OF_LOSS,
    uses=("kv-cache/attention-is-sparse", "kv-cache/heavy-hitters-stay"),
)
SINKS_HELP = Claim(
    "first-tokens-rescue-the-window",
    "StreamingLLM Sec. 3",
    "A window over the last tokens loses much; with the first few tokens kept beside it, the loss is restored.",
    **OF_LOSS,
    uses=("sinks/first-token-draws-attention",),
)
EXPLAINS = Claim(
    "sparsity-explains-what-eviction-costs",
    "JoMA talk slide sparse",
    "Sparse attention is why caches can be cut: the sparser attention is, the less eviction costs.",
    matters=PARTIAL,
    ceiling=1.0,
    uses=("kv-cache/sparsity-arises-in-training",),
)
STORIES = Claim(
    "a-fifth-suffices-others-network",
    "H2O Sec. 3",
    "In a network that others trained, the fifth of the keys with the most attention does almost as well as all.",
    **OF_LOSS,
)


def _judge(claim: Claim, expected: str, evidence: Callable[[Series], dict[str, Any]], run: Run) -> Finding:
    """Of networks that learned. evidence: what `by_effect` takes."""
    series = Series(run)
    if not series.kept:
        return not_run(claim, expected, UNLEARNED, COMMAND)
    found = evidence(series)
    return by_effect(claim, expected=expected, **found | {"details": found["details"] | series.left_out})


def _zeros(series: Series) -> dict[str, Any]:
    zero, untrained, noise = series.mean("zero"), series.mean("zero", 0), series.mean("random zero")
    controls = {"untrained": untrained, "random logits of the same spread": noise}
    return {
        "found": hardest(ZEROS, {name: compare(zero, control) for name, control in controls.items()}),
        "what": "share of keys below 1 % of their query's largest weight",
        "size": [at_least("share of such keys", float(zero.mean()), SPARSE, "%")],
        "details": {
            "shares": {
                **{name: float(control.mean()) for name, control in controls.items()},
                "mass on the heaviest tenth": float(series.mean("top").mean()),
            }
        },
    }


def _arises(series: Series) -> dict[str, Any]:
    over = 1 - series.of("effective").mean((0, 2, 3))
    return {
        "found": compare(1 - series.mean("effective"), 1 - series.mean("effective", 0)),
        "what": "share of keys that attention leaves out, 1 - e^entropy / keys (control: untrained)",
        "details": {"over training": {f"step {step}": float(x) for step, x in zip(series.steps, over, strict=True)}},
    }


def _hitters(series: Series) -> dict[str, Any]:
    overlap, chance = series.mean("overlap"), series.mean("chance")
    controls = {"chance": compare(overlap, chance), "untrained": compare(overlap, series.mean("overlap", 0))}
    return {
        "found": hardest(HITTERS, controls),
        "what": "overlap of the heaviest tenth of the keys between two quarters of the queries",
        "details": {"overlap": {"chance": float(chance.mean())}},
    }


def _fifth(series: Series) -> dict[str, Any]:
    cost = {policy: series.cost(policy) for policy in series.policies}
    worth = float((series.mean("permuted") - series.mean("loss")).mean())
    return {
        **_against_h2o(FIFTH_SUFFICES, cost),
        "what": "cost of the other policy at a fifth of the cache (control: H2O's choice)",
        "details": {
            "cost at a fifth of the cache, in nats": {name: float(each.mean()) for name, each in cost.items()},
            "distant words in random order": {"cost, in nats": worth},
        },
    }


def _against_h2o(claim: Claim, cost: dict[str, Any]) -> dict[str, Any]:
    """What other policies cost beside H2O's choice, and what that costs by itself."""
    own = cost["h2o"]
    return {
        "found": hardest(claim, {f"{name} minus H2O": compare(cost[name], own) for name in ("random", "window")}),
        "size": [at_most("cost of H2O's choice", float(own.mean()), NATS, "nats")],
    }


def _window(series: Series) -> dict[str, Any]:
    window, sinks = series.cost("window"), series.cost("sinks")
    return {
        "found": compare(window, sinks),
        "what": "cost of the window at a fifth of the cache (control: first tokens and window)",
        "size": [at_most("cost with the first tokens", float(sinks.mean()), NATS, "nats")],
        "details": {"attention on the first key": {"share": float(series.mean("sink").mean())}},
    }


def _explains(series: Series) -> dict[str, Any]:
    """Over sequences and trained checkpoints, seed by seed."""
    cost, random, window = (series.costs(policy)[:, 1:] for policy in ("h2o", "random", "window"))
    sparse, loss = 1 - series.of("effective by sequence")[:, 1:], series.of("loss")[:, 1:]

    def each(relation: Callable[..., float], *rows: Any) -> list[float]:
        return [relation(*values) for values in zip(*rows, strict=True)]

    # Each checkpoint without its mean: what is left differs between sequences.
    centred = [values - values.mean(-1, keepdims=True) for values in (cost, sparse, loss)]
    correlations = {
        "with sparsity, loss held fixed, within checkpoints": each(_partial, *centred),
        "with sparsity alone": each(_correlation, cost, sparse),
        "with the loss alone": each(_correlation, cost, loss),
        "with sparsity, loss held fixed, random": each(_partial, random, sparse, loss),
        "with sparsity, loss held fixed, window": each(_partial, window, sparse, loss),
    }
    return {
        "found": compare([-value for value in each(_partial, cost, sparse, loss)], 0.0),
        "what": "minus the partial correlation of cost and sparsity, the loss held fixed",
        "details": {"correlation of the cost": {name: float(np.mean(values)) for name, values in correlations.items()}},
    }


def _correlation(one: Any, other: Any) -> float:
    return float(pearson(one.ravel(), other.ravel()))


def _partial(cost: Any, sparse: Any, loss: Any) -> float:
    """The correlation of cost and sparsity that is left when both are freed from what the loss says of them."""
    fixed = np.stack([np.ones(loss.size), loss.ravel()], 1)

    def freed(values: Any) -> Any:
        values = values.ravel()
        return values - fixed @ np.linalg.lstsq(fixed, values, rcond=None)[0]

    return _correlation(freed(cost), freed(sparse))


def _stories(run: Run) -> Finding:
    """Over sequences: it is one network."""
    expected = "at a fifth of the cache, H2O's choice costs 0.02 nats less than random keys and than the window"
    if "stories/loss" not in run:
        return not_run(STORIES, expected, ABSENT, "JOMA_DATA=FOLDER joma verify kv-cache --fresh")
    fifth = list(run.config["keeps"]).index(FIFTH)
    cut = run.value("stories/cut")[:, fifth] - run.value("stories/loss")  # (policies, sequences)
    cost = dict(zip(run.config["policies"], cut, strict=True))
    return by_effect(
        STORIES,
        **_against_h2o(STORIES, cost),
        expected=expected,
        what="cost of the other policy (control: H2O's choice)",
        over="sequences",
        details={
            "cost at a fifth of the cache, in nats": {name: float(each.mean()) for name, each in cost.items()},
            "attention": {
                "share of keys that are zero": float(run.value("stories/zero").mean()),
                "the same with random logits": float(run.value("stories/random zero").mean()),
                "on the first key": float(run.value("stories/sink").mean()),
            },
        },
    )


_EXPECTED: dict[Claim, tuple[str, Callable[[Series], dict[str, Any]]]] = {
    ZEROS: (
        "95 % of the keys are zero, a tenth more than in the untrained network and than with random logits",
        _zeros,
    ),
    ARISES: ("attention leaves out a tenth more of the keys than before training", _arises),
    HITTERS: ("the sets share a tenth more of their keys than by chance and than before training", _hitters),
    FIFTH_SUFFICES: (
        "at a fifth of the cache, H2O's choice costs at most 0.02 nats, and 0.02 nats less than random keys with the "
        "same ones protected and than the window",
        _fifth,
    ),
    SINKS_HELP: (
        "at a fifth of the cache, the window costs 0.02 nats more than with the first tokens, which cost at most 0.02",
        _window,
    ),
    EXPLAINS: (
        "with the loss held fixed, sequences and checkpoints with sparser attention lose less (partial correlation "
        "below -0.1)",
        _explains,
    ),
}
CLAIMS: dict[Claim, Callable[[Run], Finding]] = {
    **{claim: partial(_judge, claim, *judged) for claim, judged in _EXPECTED.items()},
    STORIES: _stories,
}
