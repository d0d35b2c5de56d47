"""What the study `kv-cache` claims, and how it judges: sparsity, and what eviction costs, over seeds."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

import numpy as np

from joma.claims.claim import Claim
from joma.claims.evidence import at_least, at_most
from joma.claims.finding import Finding
from joma.claims.guards import hardest
from joma.claims.verdicts import Numbers, by_effect, not_run
from joma.measure.correlation import pearson
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.sparsity._kv_networks import COMMAND, prefix

NATS = 0.02  # of a loss: smaller costs count as none, as in Figures 6 and 8
KEYS = 0.1  # of all keys: a tenth of a cache more or less
PARTIAL = 0.1  # of a partial correlation: one per cent of what the loss leaves unexplained
SPARSE = 0.95  # of the keys are zero, as H2O says
FIFTH = 0.2  # of the cache, as H2O says
FALLEN = 0.1  # of the loss of guessing: networks that end less below it have not learned
ABSENT = "stories260K was not found through JOMA_DATA when the run was made"
UNLEARNED = "no network learned to predict the next token"

ZEROS = Claim(
    "attention-is-sparse",
    "H2O Sec. 3",
    "In a trained network, over 95 % of the keys get less than 1 % of the largest weight of their query.",
    matters=KEYS,
    unit="%",
    ceiling=1.0,
)
ARISES = Claim(
    "sparsity-arises-in-training",
    "JoMA talk slide takeaways",
    "Attention becomes sparse over training.",
    matters=KEYS,
    unit="%",
    ceiling=1.0,
    uses=("scan-snap-decoder/attention-becomes-sparse",),
)
HITTERS = Claim(
    "heavy-hitters-stay",
    "H2O Sec. 3",
    "A small set of keys draws attention from early and late queries alike.",
    matters=KEYS,
    unit="%",
    ceiling=1.0,
)
FIFTH_SUFFICES = Claim(
    "a-fifth-of-the-cache-suffices",
    "H2O Sec. 3",
    "A network that keeps the fifth of its keys with the most attention loses almost nothing.",
    matters=NATS,
    unit="nats",
    uses=("kv-cache/attention-is-sparse", "kv-cache/heavy-hitters-stay"),
)
SINKS_HELP = Claim(
    "first-tokens-rescue-the-window",
    "StreamingLLM Sec. 3",
    "A window over the last tokens loses much; with the first few tokens kept beside it, the loss is restored.",
    matters=NATS,
    unit="nats",
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
    matters=NATS,
    unit="nats",
)
CLAIMS = (ZEROS, ARISES, HITTERS, FIFTH_SUFFICES, SINKS_HELP, EXPLAINS, STORIES)


class Series:
    """What a run recorded of the networks that learned, over checkpoints."""

    def __init__(self, run: Run) -> None:
        self.run, config = run, run.config
        self.policies, self.keeps = list(config["policies"]), [float(keep) for keep in config["keeps"]]
        self.steps = run.steps("seed 0/loss")
        bound = (1 - FALLEN) * log(config["vocabulary"])
        numbers = range(int(config["seeds"]))
        self.kept = [n for n in numbers if run.array(f"{prefix(n)}loss")[-1].mean() <= bound]
        self.lost = len(numbers) - len(self.kept)

    def of(self, name: str) -> Any:
        """(seeds, checkpoints, ...) of the networks that learned."""
        return np.stack([self.run.array(f"{prefix(number)}{name}") for number in self.kept])

    def mean(self, name: str, checkpoint: int = -1) -> Any:
        """(seeds,) at a checkpoint, mean over all else."""
        found = self.of(name)[:, checkpoint]
        return found.reshape(len(found), -1).mean(1)

    def costs(self, policy: str, keep: float = FIFTH) -> Any:
        """(seeds, checkpoints, sequences): what the policy adds to the loss, in nats per token."""
        cut = self.of("cut")[:, :, self.policies.index(policy), self.keeps.index(keep)]
        return cut - self.of("loss")

    def cost(self, policy: str, keep: float = FIFTH, checkpoint: int = -1) -> Any:
        """(seeds,), mean over sequences."""
        return self.costs(policy, keep)[:, checkpoint].mean(-1)

    @property
    def left_out(self) -> Numbers:
        """For the reader; empty where all count."""
        return {"left out because they did not learn": {"networks": float(self.lost)}} if self.lost else {}

    @property
    def all_costs(self) -> Numbers:
        """What every policy costs at a fifth, at the end, beside what the order of distant words is worth."""
        shown = {policy: float(self.cost(policy).mean()) for policy in self.policies}
        worth = float((self.mean("permuted") - self.mean("loss")).mean())
        return {
            "cost at a fifth of the cache, in nats": shown,
            "distant words in random order": {"cost, in nats": worth},
        }


def _judged(claim: Claim, expected: str, judge: Callable[[Series], dict[str, Any]]) -> Callable[[Run], Finding]:
    """The judge of a claim about networks that learned."""

    def judging(run: Run) -> Finding:
        series = Series(run)
        if not series.kept:
            return not_run(claim, expected, UNLEARNED, COMMAND)
        evidence = judge(series)
        beside = dict(evidence.pop("details", {})) | dict(series.left_out)
        return by_effect(claim, evidence.pop("found"), expected=expected, details=beside, **evidence)

    return judging


def _zeros(series: Series) -> dict[str, Any]:
    zero = series.mean("zero")
    controls = {
        "untrained": compare(zero, series.mean("zero", 0)),
        "random logits of the same spread": compare(zero, series.mean("random zero")),
    }
    return {
        "found": hardest(ZEROS, controls),
        "what": "share of keys below 1 % of their query's largest weight",
        "size": [at_least("share of such keys", float(zero.mean()), SPARSE, "%")],
        "details": {
            "shares": {
                "untrained": float(series.mean("zero", 0).mean()),
                "random logits of the same spread": float(series.mean("random zero").mean()),
                "mass on the heaviest tenth": float(series.mean("top").mean()),
            }
        },
    }


def _arises(series: Series) -> dict[str, Any]:
    over = 1 - series.of("effective").mean((0, 2, 3))
    return {
        "found": compare(1 - series.mean("effective"), 1 - series.mean("effective", 0)),
        "what": "share of keys that attention leaves out, 1 - e^entropy / keys (control: untrained)",
        "details": {
            "over training": {f"step {step}": float(x) for step, x in zip(series.steps, over, strict=True)},
        },
    }


def _hitters(series: Series) -> dict[str, Any]:
    overlap = series.mean("overlap")
    controls = {
        "chance": compare(overlap, series.mean("chance")),
        "untrained": compare(overlap, series.mean("overlap", 0)),
    }
    return {
        "found": hardest(HITTERS, controls),
        "what": "overlap of the heaviest tenth of the keys between two quarters of the queries",
        "details": {"overlap": {"chance": float(series.mean("chance").mean())}},
    }


def _fifth(series: Series) -> dict[str, Any]:
    own = series.cost("h2o")
    controls = {policy: compare(series.cost(policy), own) for policy in ("random", "window")}
    return {
        "found": hardest(FIFTH_SUFFICES, {f"{name} minus H2O": found for name, found in controls.items()}),
        "what": "cost of the other policy at a fifth of the cache (control: H2O's choice)",
        "size": [at_most("cost of H2O's choice", float(own.mean()), NATS, "nats")],
        "details": series.all_costs,
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
    cost = series.costs("h2o")[:, 1:]
    sparse, loss = 1 - series.of("effective by sequence")[:, 1:], series.of("loss")[:, 1:]
    within = [_partial(_centred(c), _centred(s), _centred(x)) for c, s, x in zip(cost, sparse, loss, strict=True)]
    others = {
        policy: float(
            np.mean([_partial(*each) for each in zip(series.costs(policy)[:, 1:], sparse, loss, strict=True)])
        )
        for policy in ("random", "window")
    }
    return {
        "found": compare([-_partial(c, s, x) for c, s, x in zip(cost, sparse, loss, strict=True)], 0.0),
        "what": "minus the partial correlation of cost and sparsity, the loss held fixed",
        "details": {
            "correlation of the cost": {
                "with sparsity, loss held fixed, within checkpoints": float(np.mean(within)),
                "with sparsity alone": _mean_correlation(cost, sparse),
                "with the loss alone": _mean_correlation(cost, loss),
                **{f"with sparsity, loss held fixed, {policy}": value for policy, value in others.items()},
            }
        },
    }


def _mean_correlation(one: Any, other: Any) -> float:
    pairs = zip(one.reshape(len(one), -1), other.reshape(len(other), -1), strict=True)
    return float(np.mean([pearson(a, b) for a, b in pairs]))


def _centred(values: Any) -> Any:
    """Each checkpoint without its mean: what is left differs between sequences."""
    return values - values.mean(-1, keepdims=True)


def _partial(cost: Any, sparse: Any, loss: Any) -> float:
    """The correlation of cost and sparsity that is left when both are freed from what the loss says of them."""
    fixed = np.stack([np.ones(loss.size), loss.ravel()], 1)

    def freed(values: Any) -> Any:
        values = values.ravel()
        return values - fixed @ np.linalg.lstsq(fixed, values, rcond=None)[0]

    return float(pearson(freed(cost), freed(sparse)))


def _stories(run: Run) -> Finding:
    """Over sequences: it is one network."""
    expected = "at a fifth of the cache, H2O's choice costs 0.02 nats less than random keys and than the window"
    if "stories/loss" not in run:
        return not_run(STORIES, expected, ABSENT, "JOMA_DATA=FOLDER joma verify kv-cache --fresh")
    policies, keeps = list(run.config["policies"]), list(run.config["keeps"])
    cut = run.value("stories/cut")[:, keeps.index(FIFTH)] - run.value("stories/loss")  # (policies, sequences)
    cost = dict(zip(policies, cut, strict=True))
    controls = {f"{name} minus H2O": compare(cost[name], cost["h2o"]) for name in ("random", "window")}
    return by_effect(
        STORIES,
        hardest(STORIES, controls),
        expected=expected,
        what="cost of the other policy (control: H2O's choice)",
        over="sequences",
        size=[at_most("cost of H2O's choice", float(cost["h2o"].mean()), NATS, "nats")],
        details={
            "cost at a fifth of the cache, in nats": {name: float(each.mean()) for name, each in cost.items()},
            "attention": {
                "share of keys that are zero": float(run.value("stories/zero").mean()),
                "the same with random logits": float(run.value("stories/random zero").mean()),
                "on the first key": float(run.value("stories/sink").mean()),
            },
        },
    )


JUDGES: tuple[Callable[[Run], Finding], ...] = (
    _judged(
        ZEROS,
        "95 % of the keys are zero, a tenth more than in the untrained network and than with random logits",
        _zeros,
    ),
    _judged(ARISES, "attention leaves out a tenth more of the keys than before training", _arises),
    _judged(HITTERS, "the sets share a tenth more of their keys than by chance and than before training", _hitters),
    _judged(
        FIFTH_SUFFICES,
        "at a fifth of the cache, H2O's choice costs at most 0.02 nats, and 0.02 nats less than random keys with the "
        "same ones protected and than the window",
        _fifth,
    ),
    _judged(
        SINKS_HELP,
        "at a fifth of the cache, the window costs 0.02 nats more than with the first tokens, which cost at most 0.02",
        _window,
    ),
    _judged(
        EXPLAINS,
        "with the loss held fixed, sequences and checkpoints with sparser attention lose less (partial correlation "
        "below -0.1)",
        _explains,
    ),
    _stories,
)
