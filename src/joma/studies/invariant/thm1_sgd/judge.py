"""From recorded drifts to findings."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import Test, above, at_most
from joma.claims.verdicts import by_effect, by_residual, by_tests, not_run
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.invariant.thm1_sgd import claims
from joma.studies.invariant.thm1_sgd.run import KINDS, Kind

EXACT = 1e-13  # an identity of finite sums: only rounding is left
ORDER = 0.15  # how far a fitted order may lie from 1
LAW = 0.05  # relative, for a law that holds to first order in the rate


def relative_drift(run: Run, name: str) -> Any:
    """|drift| over |movement|, norms over all tokens of all members. (rates,)."""
    drift, moved = (np.linalg.norm(run.value(f"{name}/{key}"), axis=(-2, -1)) for key in ("drift", "moved"))
    return drift / moved


def _explained(run: Run, name: str) -> Any:
    """1 − |drift| / |movement| of every member at the smallest rate: 1 if the relation is exact, 0 if it says no more
    of z than that it stays where it was. (members,).
    """
    drift, moved = (np.linalg.norm(run.value(f"{name}/{key}")[-1], axis=-1) for key in ("drift", "moved"))
    with np.errstate(divide="ignore", invalid="ignore"):  # a network that did not move has no such share
        return 1 - drift / moved


def _order(run: Run, name: str) -> float:
    """The power of the rate with which the relative drift vanishes."""
    return float(np.polyfit(np.log(run.value("rates")), np.log(relative_drift(run, name)), 1)[0])


def _orders(run: Run, recipe: str) -> dict[str, float]:
    what = "distance of the order of the drift in η from 1"
    return {f"{kind} attention: {what}": abs(_order(run, f"{kind}/{recipe}") - 1) for kind in KINDS}


def _first_order(run: Run, recipe: str) -> list[Test]:
    return [at_most(what, off, ORDER) for what, off in _orders(run, recipe).items()]


def _drifts(run: Run, *recipes: str) -> dict[str, dict[str, float]]:
    """Relative drifts at the smallest rate and their orders."""
    return {
        f"{kind} attention, {recipe}": {
            "drift / movement of z at the smallest η": float(relative_drift(run, f"{kind}/{recipe}")[-1]),
            "order in η": _order(run, f"{kind}/{recipe}"),
        }
        for recipe in recipes
        for kind in KINDS
    }


def identity(run: Run, *, claim: Claim, kind: Kind, decayed: bool) -> Finding:
    """With the sums over the steps of other batches, or of SGD without decay, the identity must not come out."""
    recipes = ("weight decay",) if decayed else ("full batch", "minibatch")
    foreign = ("full batch",) if decayed else ("minibatch", "full batch")
    control = "the sum over the steps of " + ("SGD without decay" if decayed else "the other batches")
    drift, predicted, other = (
        np.stack([run.value(f"{kind}/{recipe}/{key}") for recipe in which])
        for which, key in ((recipes, "drift"), (recipes, "predicted"), (foreign, "predicted"))
    )
    return by_residual(
        claim,
        printed=np.abs(drift).max(),
        corrected=np.abs(drift - predicted).max(),
        tolerance=EXACT,
        what="largest difference",
        expected="The drift equals its sum over steps at every rate.",
        control={control: np.abs(drift - other).max()},
    )


def vanishes(run: Run, *, claim: Claim, recipe: str) -> Finding:
    """The drift of `recipe` is of order 1 in the rate; with weight decay, which no small rate removes, it must not."""
    return by_tests(
        claim,
        expected="The drift is of order 1 in η.",
        printed=_first_order(run, recipe),
        controls=[
            above(f"with weight decay, {what}", off, ORDER) for what, off in _orders(run, "weight decay").items()
        ],
        details=_drifts(run, recipe),
    )


def momentum(run: Run) -> Finding:
    """The drift at rate 0 beside that of SGD; plain SGD itself must not follow the law."""
    law = (1 + float(run.config["momentum"])) / (1 - float(run.config["momentum"]))
    largest = np.abs([run.value(f"{kind}/momentum/drift") for kind in KINDS]).max()
    ratio, plain = (
        {str(kind): _ratio_to_sgd(run, kind, recipe) for kind in KINDS} for recipe in ("momentum", "full batch")
    )
    what = "attention: relative distance of drift / drift of SGD at η → 0 from (1 + β)/(1 − β)"
    return by_tests(
        claims.MOMENTUM,
        expected="As printed: no drift. As corrected: (1 + β)/(1 − β) times the drift of SGD at η → 0.",
        printed=[at_most("largest drift", largest, EXACT)],
        corrected=[at_most(f"{kind} {what}", abs(ratio[kind] / law - 1), LAW) for kind in KINDS],
        controls=[above(f"plain SGD, {kind} {what}", abs(plain[kind] / law - 1), LAW) for kind in KINDS],
        details={"drift / drift of SGD at η → 0": ratio | {"(1 + β)/(1 − β)": law}} | _drifts(run, "momentum"),
    )


def _ratio_to_sgd(run: Run, kind: Kind, recipe: str) -> float:
    """The ratio of drifts at rate 0, from the two smallest rates: what is left of order η cancels."""
    ratio = relative_drift(run, f"{kind}/{recipe}") / relative_drift(run, f"{kind}/full batch")
    return float(np.polyval(np.polyfit(run.value("rates")[-2:], ratio[-2:], 1), 0.0))


def adam(run: Run) -> Finding:
    """Beside the estimate that z stays where it was: a relation that covers Adam explains more than that."""
    expected = "The relation explains most of the movement of z at the smallest rate, and its drift is of order 1 in η."
    explained = {f"{kind} attention": compare(_explained(run, f"{kind}/Adam"), 0.0) for kind in KINDS}
    if not all(shares.seeds for shares in explained.values()):
        reason = "no network moved by a finite amount under Adam"
        return not_run(claims.ADAM, expected, reason, "joma run thm1-sgd --rates 0.05 0.025 0.0125")
    return by_effect(
        claims.ADAM,
        explained,
        what="share of the movement of z that the relation explains at the smallest η",
        expected=expected,
        over="networks",
        size=_first_order(run, "Adam"),
        details=_drifts(run, "Adam", "full batch"),
    )
