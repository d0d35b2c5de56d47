"""Claims and findings about Theorem 1 outside gradient flow: from recorded drifts to verdicts."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np

from joma.claims.contract import Claim, Finding, each_claim
from joma.claims.evidence import Test, above, at_most
from joma.claims.verdicts import by_effect, by_residual, by_tests, not_run
from joma.measure.intervals import compare
from joma.runs import Run

EXACT = 1e-13  # an identity of finite sums: only rounding is left
ORDER = 0.15  # how far a fitted order may lie from 1
LAW = 0.05  # relative, for a law that holds to first order in the rate
HALF = 0.5  # of the movement of z: a relation that leaves more than half of it open does not describe it

Kind = Literal["exp", "linear"]
KINDS: tuple[Kind, ...] = ("exp", "linear")

INVARIANTS = ("thm1/exp-invariant", "thm1/linear-invariant")
IDENTITY_EXP = Claim(
    "sgd-identity-exp",
    "JoMA Thm 1",
    "Under exp attention z − κΣv²/(2T) does not change in training (κ, T printed as 1).",
    "Under SGD it changes by exactly −κ/(2T) ΣΣ(Δv)², summed over steps and nodes, for any batches. So z lags behind.",
    uses=("thm1/exp-invariant",),
)
IDENTITY_LINEAR = Claim(
    "sgd-identity-linear",
    "JoMA Thm 1",
    "Under linear attention z² − κΣv² does not change in training (κ printed as 1).",
    "Under SGD it changes by exactly Σ[(Δz)² − κΣ(Δv)²], summed over steps and nodes, for any batches.",
    uses=("thm1/linear-invariant",),
)
LIMIT = Claim(
    "sgd-limit",
    "JoMA Thm 1",
    "The relation is derived for gradient flow. It also describes SGD with small steps.",
    uses=INVARIANTS,
)
BATCHES = Claim(
    "sgd-minibatch",
    "JoMA Thm 1",
    "The relation holds for any data, so it also describes minibatch training with small steps.",
    uses=INVARIANTS,
)
MOMENTUM = Claim(
    "sgd-momentum",
    "JoMA Thm 1",
    "The relation holds in training. Momentum is not mentioned.",
    "With momentum β the drift is still O(η). It is (1 + β)/(1 − β) times the drift of SGD at the same effective rate.",
    uses=("thm1-sgd/sgd-limit",),
)
ADAM = Claim(
    "adam",
    "JoMA Thm 1",
    "The relation is derived for gradient flow and stated for training in general. So it covers Adam with small steps.",
    matters=HALF,
    unit="%",
    ceiling=1.0,
    uses=INVARIANTS,
)
DECAY_EXP = Claim(
    "weight-decay-exp",
    "JoMA Thm 1",
    "The relation for exp attention holds in training. Weight decay is not mentioned.",
    "Weight decay adds exactly −η_z(λ_z z − λ_w Σv²/T) per step to the drift of SGD. No small rate removes it.",
    uses=("thm1-sgd/sgd-identity-exp",),
)
DECAY_LINEAR = Claim(
    "weight-decay-linear",
    "JoMA Thm 1",
    "The relation for linear attention holds in training. Weight decay is not mentioned.",
    "Weight decay adds exactly −2η_z(λ_z z² − λ_w Σv²) per step. At equal rates and decay z² − Σv² falls as exp(−2λt).",
    uses=("thm1-sgd/sgd-identity-linear",),
)
CLAIMS = (IDENTITY_EXP, IDENTITY_LINEAR, LIMIT, BATCHES, MOMENTUM, ADAM, DECAY_EXP, DECAY_LINEAR)


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


def _identity(
    run: Run, *, claim: Claim, kind: Kind, recipes: tuple[str, ...], foreign: tuple[str, ...], control: str
) -> Finding:
    """foreign: recipes whose sums over steps are not those of `recipes`; with them the identity must not come out."""
    drift, predicted, other = (
        np.stack([run.value(f"{kind}/{recipe}/{key}") for recipe in which])
        for which, key in ((recipes, "drift"), (recipes, "predicted"), (foreign, "predicted"))
    )
    return by_residual(
        claim,
        printed=float(np.abs(drift).max()),
        corrected=float(np.abs(drift - predicted).max()),
        tolerance=EXACT,
        what="largest difference",
        expected="The drift equals its sum over steps at every rate.",
        control={control: float(np.abs(drift - other).max())},
    )


OFF_ORDER = "distance of the order of the drift in η from 1"


def _off_order(run: Run, recipe: str, kind: Kind) -> float:
    return abs(_order(run, f"{kind}/{recipe}") - 1)


def _vanishes(run: Run, *, claim: Claim, recipe: str) -> Finding:
    """The drift of `recipe` is of order 1 in the rate; with weight decay, which no small rate removes, it must not."""
    return by_tests(
        claim,
        expected="The drift is of order 1 in η.",
        printed=_orders(run, recipe),
        controls=[
            above(f"with weight decay, {kind} attention: {OFF_ORDER}", _off_order(run, "weight decay", kind), ORDER)
            for kind in KINDS
        ],
        details=_drifts(run, recipe),
    )


def _orders(run: Run, recipe: str) -> list[Test]:
    return [at_most(f"{kind} attention: {OFF_ORDER}", _off_order(run, recipe, kind), ORDER) for kind in KINDS]


def _drifts(run: Run, *recipes: str) -> dict[str, dict[str, float]]:
    """Relative drifts at the smallest rate and their orders."""
    return {
        f"{kind} attention, {recipe}": {
            "drift / movement of z at the smallest η": float(relative_drift(run, name)[-1]),
            "order in η": _order(run, name),
        }
        for recipe in recipes
        for kind in KINDS
        for name in [f"{kind}/{recipe}"]
    }


def _momentum(run: Run) -> Finding:
    law = (1 + float(run.config["momentum"])) / (1 - float(run.config["momentum"]))
    largest = float(np.abs([run.value(f"{kind}/momentum/drift") for kind in KINDS]).max())
    ratio, plain = (
        {str(kind): _ratio_to_sgd(run, kind, recipe) for kind in KINDS} for recipe in ("momentum", "full batch")
    )
    what = "attention: relative distance of drift / drift of SGD at η → 0 from (1 + β)/(1 − β)"
    return by_tests(
        MOMENTUM,
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


def _adam(run: Run) -> Finding:
    """Beside the estimate that z stays where it was: a relation that covers Adam explains more than that."""
    expected = "The relation explains most of the movement of z at the smallest rate, and its drift is of order 1 in η."
    explained = {kind: _explained(run, f"{kind}/Adam") for kind in KINDS}
    if not all(np.isfinite(shares).any() for shares in explained.values()):
        reason = "no network moved by a finite amount under Adam"
        return not_run(ADAM, expected, reason, "joma run thm1-sgd --rates 0.05 0.025 0.0125")
    return by_effect(
        ADAM,
        {f"{kind} attention": compare(shares, 0.0) for kind, shares in explained.items()},
        what="share of the movement of z that the relation explains at the smallest η",
        expected=expected,
        over="networks",
        size=_orders(run, "Adam"),
        details=_drifts(run, "Adam", "full batch"),
    )


PLAIN: dict[str, Any] = {
    "recipes": ("full batch", "minibatch"),
    "foreign": ("minibatch", "full batch"),
    "control": "the sum over the steps of the other batches",
}
DECAYED: dict[str, Any] = {
    "recipes": ("weight decay",),
    "foreign": ("full batch",),
    "control": "the sum over the steps of SGD without decay",
}

JUDGE = each_claim(
    partial(_identity, claim=IDENTITY_EXP, kind="exp", **PLAIN),
    partial(_identity, claim=IDENTITY_LINEAR, kind="linear", **PLAIN),
    partial(_vanishes, claim=LIMIT, recipe="full batch"),
    partial(_vanishes, claim=BATCHES, recipe="minibatch"),
    _momentum,
    _adam,
    partial(_identity, claim=DECAY_EXP, kind="exp", **DECAYED),
    partial(_identity, claim=DECAY_LINEAR, kind="linear", **DECAYED),
)
