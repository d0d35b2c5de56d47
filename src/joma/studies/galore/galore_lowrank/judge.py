"""How the record judges what is claimed about gradients, and about V, the weights of nodes in the basis of words."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import Test, at_least, at_most
from joma.claims.guards import beyond, hardest
from joma.claims.sentences import show
from joma.claims.verdicts import by_effect, not_run
from joma.measure.intervals import Comparison, compare
from joma.recipes.language.curves import best_loss, diverged, learned_nothing, mean_over_seeds
from joma.runs import Run
from joma.studies.galore.galore_lowrank import run as decoders
from joma.studies.galore.galore_lowrank.run import SHUFFLED, gradient, probe, rank, variants

QUARTER = 4  # the smallest rank in the paper's table is a quarter of the width
MOST = 0.9  # of the energy: who keeps nine tenths keeps most
NEAR = 0.8  # of what two batches share at one step: subspaces that share as much have hardly moved
WIDELY = 10.0  # a large growth rate over a small one, as in the study thm2-rank
HALF = 0.5  # of the fall in stable rank, in logarithms

share_claim = partial(Claim, unit="%", ceiling=1.0)

LOW = share_claim(
    "gradient-is-low-rank",
    "GaLore Sec. 3.2",
    "The gradient of every weight matrix has a low stable rank.",
    matters=0.5,  # of the stable rank of a Gaussian matrix with the same norms: a factor of two
)
FALLS = share_claim(
    "gradient-rank-falls",
    "GaLore Lemma 3.3",
    "The stable rank of the gradient falls during training.",
    matters=0.1,  # of the untrained network's: what falls by less than a tenth stays where it is
)
CAPTURES = share_claim(
    "quarter-rank-captures",
    "GaLore Table 2",
    "A projector of a quarter of the full rank, the smallest share in the table, keeps most of the gradient's energy.",
    matters=0.1,  # of the energy: more than random matrices with the same norms would let it keep
)
SLOW = share_claim(
    "subspace-changes-slowly",
    "GaLore Sec. 1",
    "The subspace of the gradient changes slowly: a projector can be used for 200 steps.",
    matters=0.25,  # of the subspace: as much again as random subspaces of a quarter of the dimensions share
)
NODES_FALL = share_claim(
    "nodes-become-low-rank",
    "JoMA talk slide K",
    "With K > 1 nodes, V gradually becomes low rank. This is tested in the lowest layer of real decoders.",
    matters=0.1,  # as for gradients
    uses=("thm2-rank/nodes-low-rank",),
)
NODES_BELOW = share_claim(
    "nodes-gradient-is-lower",
    "JoMA talk slide K",
    "Training makes the gradient of V even lower in rank than V. This is tested in the lowest layer of real decoders.",
    matters=0.1,  # as for gradients
    uses=("thm2-rank/nodes-gradient-rank",),
)
ROWS = Claim(
    "nodes-rows-carry-it",
    "JoMA talk slide K",
    "The rank is low because the growth rates of the rows of V vary widely, more and more so as training goes on.",
    matters=1.0,  # a factor of two between the ratio of growth rates and that of the control
    unit="doublings",
    uses=("thm2-rank/nodes-row-growth",),
)


Numbers = dict[str, dict[str, float]]
Evidence = Callable[[Run], dict[str, Any]]
JUDGES: dict[Claim, Callable[[Run], Finding]] = {}


def _judge(claim: Claim, expected: str) -> Callable[[Evidence], Evidence]:
    """Judge a claim by what a function gives as evidence. Not run, where a decoder learned only word frequencies.

    expected: may name fields of the config in braces.
    """

    def judge_by(evidence: Evidence, run: Run) -> Finding:
        for name in variants(run):
            if reason := learned_nothing(run, name, rate=decoders.TEXT):
                again = f"joma run {run.study} with more --steps or another --rate"
                return not_run(claim, expected.format(**run.config), reason, again)
        given = evidence(run)
        finite = {name: {k: x for k, x in row.items() if np.isfinite(x)} for name, row in given["details"].items()}
        details = {name: row for name, row in finite.items() if row} | diverged(run, variants(run))
        return by_effect(claim, expected=expected.format(**run.config), **given | {"details": details})

    def register(evidence: Evidence) -> Evidence:
        JUDGES[claim] = partial(judge_by, evidence)
        return evidence

    return register


def _cases(run: Run, found: Callable[[str, int], Comparison]) -> dict[str, Comparison]:
    return {f"{name}, {matrix}": found(name, i) for name in variants(run) for i, matrix in enumerate(decoders.MATRICES)}


def _over_matrices(values: np.ndarray) -> float:
    """Mean over seeds of the mean over matrices; (seeds, ..., matrices)."""
    return mean_over_seeds([one.mean() for one in values])


def _batches_are_large(run: Run) -> list[Test]:
    """A batch with fewer positions or targets than the shorter side would limit the rank by itself."""
    least = [float(min(run.value(f"{name}/batch/large"))) / side for name, side in variants(run).items()]
    return [at_least("fewest positions, words or targets in the large batch, per shorter side", min(least), 1.0)]


@_judge(
    LOW,
    "At the end of training every kind of matrix has a gradient whose stable rank is at most half that of a "
    "Gaussian matrix with the same norms of rows and columns, and at most a quarter of the shorter side.",
)
def _low(run: Run) -> dict[str, Any]:
    ends = {name: rank(run, name)[:, -1] for name in variants(run)}
    lacks = {name: 1 - end / rank(run, name, "gaussian")[:, -1] for name, end in ends.items()}
    largest = max(mean_over_seeds(one) / side for name, side in variants(run).items() for one in ends[name].T)
    details: Numbers = {}
    for name in variants(run):
        kinds = {
            "trained": rank(run, name)[:, -1],
            "untrained": rank(run, name)[:, 0],
            "shuffled targets": rank(run, name, text=SHUFFLED)[:, -1],
            "Gaussian, same norms": rank(run, name, "gaussian")[:, -1],
            "one training batch": rank(run, name, "small")[:, -1],
            "without the first direction": gradient(run, name, "large", "stable rank of the rest")[:, -1],
        }
        details[f"stable rank, {name}"] = {
            kind: mean_over_seeds([np.exp(np.log(one).mean()) for one in values]) for kind, values in kinds.items()
        }
        first, shared = gradient(run, name, "large", "energy 1"), probe(run, name, "kept/targets")
        details[f"energy in the first direction, {name}"] = {
            f"{when}{whose}": _over_matrices(values[:, point])
            for when, point in (("untrained", 0), ("trained", -1))
            for whose, values in (("", first), (", in that of shuffled targets", shared))
        }
        for size in ("large", "small"):
            counts = map(float, run.value(f"{name}/batch/{size}"))
            details[f"{size} batch, {name}"] = dict(zip(("positions", "words", "targets"), counts, strict=True))
        own, twin = map(mean_over_seeds, best_loss(run, name))
        by_frequency = float(run.value(f"{name}/loss by frequency"))
        details[f"best validation loss, {name}"] = {"text": own, "twins": twin, "by frequency": by_frequency}
    return {
        "found": _cases(run, lambda name, i: compare(lacks[name][:, i], 0.0)),
        "what": "share of the control's stable rank that is missing",
        "size": [at_most("largest stable rank, as a share of the shorter side", largest, 1 / QUARTER, "%")],
        "controls": _batches_are_large(run),
        "details": details,
    }


def _fall(path: np.ndarray) -> np.ndarray:
    """The share that is lost from the first point to the last, (seeds, ...); path: (seeds, points, ...)."""
    return np.asarray(1 - path[:, -1] / path[:, 0])


@_judge(
    FALLS,
    f"From the first step to the last the stable rank of every kind of matrix falls by at least {show(0.1, '%')}, "
    "and by as much more than in twins that are trained on shuffled targets.",
)
def _falls(run: Run) -> dict[str, Any]:
    lost = {name: [_fall(rank(run, name, text=text)) for text in (decoders.TEXT, SHUFFLED)] for name in variants(run)}

    def found(name: str, i: int) -> Comparison:
        own, twin = (part[:, i] for part in lost[name])
        (one,) = hardest(FALLS, {"nothing": compare(own), "twins": compare(own, twin)}).values()
        return one

    details = {
        f"share lost, mean over matrices, {name}": {"text": _over_matrices(own), "twins": _over_matrices(twin)}
        for name, (own, twin) in lost.items()
    }
    return {"found": _cases(run, found), "what": "share of the untrained stable rank that is lost", "details": details}


@_judge(
    CAPTURES,
    f"At the end of training the first m/4 directions hold at least {show(MOST, '%')} of the energy, and "
    f"at least {show(0.1, '%')} more than in a Gaussian matrix with the same norms of rows and columns.",
)
def _captures(run: Run) -> dict[str, Any]:
    kept = {
        name: [gradient(run, name, batch, "energy m/4")[:, -1].mean(1) for batch in ("large", "gaussian")]
        for name in variants(run)
    }
    smallest = min(mean_over_seeds(one) for own, _ in kept.values() for one in own.T)
    details: Numbers = {}
    for name in variants(run):
        details[f"energy by directions, {name}"] = {
            count: _over_matrices(gradient(run, name, "large", f"energy {count}")[:, -1])
            for count in ("1", "4", "m/16", "m/4")
        }
        details[f"energy in m/4, {name}"] = {
            kind: _over_matrices(gradient(run, name, batch, "energy m/4", text=text)[:, point])
            for kind, batch, text, point in (
                ("untrained", "large", decoders.TEXT, 0),
                ("shuffled targets", "large", SHUFFLED, -1),
                ("one training batch", "small", decoders.TEXT, -1),
            )
        }
    return {
        "found": _cases(run, lambda name, i: compare(*(part[:, i] for part in kept[name]))),
        "what": "share of the energy in the first m/4 directions",
        "size": [at_least("smallest share of energy", smallest, MOST, "%")],
        "controls": _batches_are_large(run),
        "details": details,
    }


@_judge(
    SLOW,
    f"Over the last {{refresh}} steps the first m/4 directions share at least {show(0.25, '%')} more "
    f"than random subspaces, and at least {show(NEAR, '%')} of what the gradients of two large batches share.",
)
def _slow(run: Run) -> dict[str, Any]:
    chance = {name: (side // QUARTER) / side for name, side in variants(run).items()}
    shared, near, details = {}, [], Numbers()
    for name in variants(run):
        first, last = decoders.after_refresh(run, name)[[0, -1]]

        def kept(what: str, point: int = last, text: int = decoders.TEXT, name: str = name) -> float:
            return _over_matrices(probe(run, name, what, text=text)[:, point])

        both = (probe(run, name, f"subspace/{what}")[:, last].mean(1) for what in ("before", "batches"))
        shared[name], batches = both
        near += [mean_over_seeds(a) / mean_over_seeds(b) for a, b in zip(shared[name].T, batches.T, strict=True)]
        details[f"overlap, {name}"] = {
            "over the last refresh": kept("subspace/before"),
            "over the first refresh": kept("subspace/before", first),
            "of two batches": kept("subspace/batches"),
            "with shuffled targets in the same network": kept("subspace/targets"),
            "over the last refresh, twins": kept("subspace/before", text=SHUFFLED),
        }
        details[f"energy of a new batch that is kept, {name}"] = {
            "by its own projector": kept("kept/own"),
            "by another batch's": kept("kept/batch"),
            "by another batch's, a refresh before": kept("kept/before"),
        }
    return {
        "found": _cases(run, lambda name, i: compare(shared[name][:, i], chance[name])),
        "what": "overlap of the first m/4 directions over one refresh",
        "size": [at_least("smallest overlap, as a share of that of two batches", min(near), NEAR, "%")],
        "details": details,
    }


def _both(run: Run, name: str, which: str) -> tuple[np.ndarray, np.ndarray]:
    """One number of V, (seeds, points), of the text and of the twins."""
    return probe(run, name, f"nodes/{which}"), probe(run, name, f"nodes/{which}", text=SHUFFLED)


def _ends(own: np.ndarray, twin: np.ndarray) -> dict[str, float]:
    """Means over seeds of (seeds, points): untrained, trained, and of the trained twins."""
    parts = {"untrained": own[:, 0], "trained": own[:, -1], "twins": twin[:, -1]}
    return {name: mean_over_seeds(part) for name, part in parts.items()}


@_judge(
    NODES_FALL,
    f"V loses at least {show(0.1, '%')} of its untrained stable rank, and as much more than in twins that are "
    "trained on shuffled targets.",
)
def _nodes_fall(run: Run) -> dict[str, Any]:
    paths = {name: _both(run, name, "V") for name in variants(run)}
    lost = {name: [_fall(path) for path in both] for name, both in paths.items()}
    return {
        "found": {name: compare(own) for name, (own, _) in lost.items()},
        "what": "share of the untrained stable rank of V that is lost",
        "controls": [beyond(NODES_FALL, f"more than in twins, {name}", compare(*both)) for name, both in lost.items()],
        "details": {f"stable rank of V, {name}": _ends(*both) for name, both in paths.items()},
    }


@_judge(
    NODES_BELOW,
    f"At the end the stable rank of V' is below that of V by a share that is at least {show(0.1, '%')} larger than "
    "in the untrained network.",
)
def _nodes_below(run: Run) -> dict[str, Any]:
    cases, details = {}, Numbers()
    for name in variants(run):
        ranks = [_both(run, name, which) for which in ("V'", "V")]
        own, twin = (1 - growth / v for growth, v in zip(*ranks, strict=True))
        cases[name] = compare(own[:, -1], own[:, 0])
        details[f"stable rank of V', {name}"] = _ends(*ranks[0])
        details[f"share by which V' is below V, {name}"] = _ends(own, twin)
    return {"found": cases, "what": "share by which the stable rank of V' is below that of V", "details": details}


@_judge(
    ROWS,
    f"At the end a large row of V' (90 %) is at least {WIDELY:g} times a small one (10 %). This ratio is twice "
    "that of the untrained network. The norms of rows and columns alone give half of the fall from the stable rank "
    "of a Gaussian matrix to that of V', in logarithms.",
)
def _rows(run: Run) -> dict[str, Any]:
    spread = {name: _both(run, name, "spread") for name in variants(run)}
    share = {name: [_by_norms(run, name, text) for text in (decoders.TEXT, SHUFFLED)] for name in spread}
    details = {f"ratio of growth rates, {name}": _ends(*both) for name, both in spread.items()}
    details |= {f"share of the fall that norms alone give, {name}": _ends(*both) for name, both in share.items()}
    ratios, explained = (min(mean_over_seeds(own[:, -1]) for own, _ in part.values()) for part in (spread, share))
    return {
        "found": {name: compare(np.log2(own[:, -1]), np.log2(own[:, 0])) for name, (own, _) in spread.items()},
        "what": "logarithm of a large growth rate over a small one",
        "size": [
            at_least("smallest ratio of growth rates", ratios, WIDELY),
            at_least("smallest share of the fall that norms alone give", explained, HALF, "%"),
        ],
        "details": details,
    }


def _by_norms(run: Run, name: str, text: int) -> np.ndarray:
    """The share of the way, in logarithms, from equal norms to V' that a Gaussian matrix with the norms of V' goes."""
    reached, by_its_norms, equal = (
        np.log(probe(run, name, f"nodes/{which}", text=text))
        for which in ("V'", "V' by its norms", "V' of equal norms")
    )
    return np.asarray((equal - by_its_norms) / (equal - reached))
