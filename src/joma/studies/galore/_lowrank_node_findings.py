"""How the record judges what the talk says about V, the weights of K > 1 nodes in the basis of words."""

from __future__ import annotations

import numpy as np

from joma.claims.contract import Finding
from joma.claims.evidence import at_least
from joma.claims.guards import beyond
from joma.claims.verdicts import by_effect
from joma.claims.words import show
from joma.measure.intervals import compare
from joma.recipes.language_curves import mean_over_seeds
from joma.runs import Run
from joma.studies.galore._lowrank_claims import HALF, NODES_BELOW, NODES_FALL, ROWS, WIDELY
from joma.studies.galore._lowrank_config import variants
from joma.studies.galore._lowrank_findings import Numbers, fall, judged, told
from joma.studies.galore._lowrank_networks import SHUFFLED, TEXT
from joma.studies.galore._lowrank_record import probe


def _both(run: Run, name: str, which: str) -> tuple[np.ndarray, np.ndarray]:
    """One number of V, (seeds, points), of the text and of the twins."""
    return probe(run, name, f"nodes/{which}"), probe(run, name, f"nodes/{which}", text=SHUFFLED)


def _ends(own: np.ndarray, twin: np.ndarray) -> dict[str, float]:
    """Means over seeds of (seeds, points): untrained, trained, and of the trained twins."""
    parts = {"untrained": own[:, 0], "trained": own[:, -1], "twins": twin[:, -1]}
    return {name: mean_over_seeds(part) for name, part in parts.items()}


def judge_nodes_fall(run: Run) -> Finding:
    """What V loses of its untrained stable rank; it must be more than in the twins."""
    expected = (
        f"V loses at least {show(0.1, '%')} of its untrained stable rank, and as much more than in twins that are "
        "trained on shuffled targets."
    )

    def judge() -> Finding:
        paths = {name: _both(run, name, "V") for name in variants(run.config)}
        lost = {name: [fall(path) for path in both] for name, both in paths.items()}
        return by_effect(
            NODES_FALL,
            {name: compare(own) for name, (own, _) in lost.items()},
            expected=expected,
            what="share of the untrained stable rank of V that is lost",
            controls=[beyond(NODES_FALL, f"more than in twins, {name}", compare(*both)) for name, both in lost.items()],
            details=told(run, {f"stable rank of V, {name}": _ends(*both) for name, both in paths.items()}),
        )

    return judged(NODES_FALL, expected, run, judge)


def judge_nodes_below(run: Run) -> Finding:
    """By which share V' is below V, beside the same share in the untrained network."""
    expected = (
        f"At the end the stable rank of V' is below that of V by a share that is at least {show(0.1, '%')} larger than "
        "in the untrained network."
    )

    def judge() -> Finding:
        cases, beside = {}, Numbers()
        for name in variants(run.config):
            ranks = [_both(run, name, which) for which in ("V'", "V")]
            own, twin = (1 - growth / v for growth, v in zip(*ranks, strict=True))
            cases[name] = compare(own[:, -1], own[:, 0])
            beside[f"stable rank of V', {name}"] = _ends(*ranks[0])
            beside[f"share by which V' is below V, {name}"] = _ends(own, twin)
        return by_effect(
            NODES_BELOW,
            cases,
            expected=expected,
            what="share by which the stable rank of V' is below that of V",
            details=told(run, beside),
        )

    return judged(NODES_BELOW, expected, run, judge)


def judge_rows(run: Run) -> Finding:
    """Growth rates of the rows beside the untrained network's, and what norms alone do to the rank."""
    expected = (
        f"At the end a large row of V' (90 %) is at least {WIDELY:g} times a small one (10 %). This ratio is twice "
        "that of the untrained network. The norms of rows and columns alone give half of the fall from the stable rank "
        "of a Gaussian matrix to that of V', in logarithms."
    )

    def judge() -> Finding:
        spread = {name: _both(run, name, "spread") for name in variants(run.config)}
        share = {name: [by_norms(run, name, text=text) for text in (TEXT, SHUFFLED)] for name in spread}
        beside = {f"ratio of growth rates, {name}": _ends(*both) for name, both in spread.items()}
        beside |= {f"share of the fall that norms alone give, {name}": _ends(*both) for name, both in share.items()}
        ratios, explained = (min(mean_over_seeds(own[:, -1]) for own, _ in part.values()) for part in (spread, share))
        return by_effect(
            ROWS,
            {name: compare(np.log2(own[:, -1]), np.log2(own[:, 0])) for name, (own, _) in spread.items()},
            expected=expected,
            what="logarithm of a large growth rate over a small one",
            size=[
                at_least("smallest ratio of growth rates", ratios, WIDELY),
                at_least("smallest share of the fall that norms alone give", explained, HALF, "%"),
            ],
            details=told(run, beside),
        )

    return judged(ROWS, expected, run, judge)


def by_norms(run: Run, name: str, *, text: int = TEXT) -> np.ndarray:
    """The share of the way, in logarithms, from equal norms to V' that a Gaussian matrix with the norms of V' goes."""
    reached, by_its_norms, equal = (
        np.log(probe(run, name, f"nodes/{which}", text=text))
        for which in ("V'", "V' by its norms", "V' of equal norms")
    )
    return np.asarray((equal - by_its_norms) / (equal - reached))
