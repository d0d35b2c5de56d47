"""Who gains and who loses attention: common tokens, distinct ones, and the order among these; by flow and by SGD."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import at_least, at_most
from joma.claims.guards import hardest
from joma.claims.verdicts import by_effect, by_tests
from joma.measure.correlation import spearman
from joma.measure.intervals import Comparison, compare
from joma.runs import Run

ZERO = 1e-9  # the solver's accuracy: logits that are nearer to zero have no sign
COIN = 0.5

COMMON = Claim(
    "common-tokens-lose",
    "JoMA talk slide Suppression",
    "Under the expected gradient the logit of a token that several classes have becomes negative.",
    "It becomes negative if the classes have the token equally often. A token that one class has far more often gains.",
)
DISTINCT = Claim(
    "distinct-tokens-gain",
    "JoMA talk slide Winners",
    "Under the expected gradient the logit of a token that one class alone has becomes positive.",
)
ORDER = Claim(
    "frequent-tokens-grow-faster",
    "JoMA talk slide Winners",
    "Under the expected gradient, of two distinct tokens of a class the more frequent one has the larger logit.",
)
SGD_COMMON = Claim(
    "sgd-common-tokens-lose",
    "JoMA talk slide Suppression",
    "Under SGD with one sequence per step every common token loses attention.",
    matters=0.1,  # of the tokens: one of the ten common ones
    unit="%",
    ceiling=1.0,
    uses=("scan-snap/common-tokens-lose",),
)
SGD_DISTINCT = Claim(
    "sgd-distinct-tokens-gain",
    "JoMA talk slide Winners",
    "Under SGD with one sequence per step every distinct token gains attention.",
    matters=0.1,  # of the tokens: one of the ten distinct ones of a class
    unit="%",
    ceiling=1.0,
    uses=("scan-snap/distinct-tokens-gain",),
)
SGD_ORDER = Claim(
    "sgd-frequent-tokens-grow-faster",
    "JoMA talk slide Winners",
    "Under SGD with one sequence per step the logits of a class's distinct tokens are ordered as their frequencies.",
    matters=0.1,  # of a rank correlation of ten tokens: about one exchange of places in the middle
    ceiling=1.0,
    uses=("scan-snap/frequent-tokens-grow-faster",),
)


def _own(run: Run, values: Any) -> Any:
    """The distinct tokens of (..., tokens), class by class, (..., classes, distinct)."""
    classes, distinct = int(run.config["classes"]), int(run.config["distinct"])
    return values[..., : classes * distinct].reshape(*values.shape[:-1], classes, distinct)


def _shared(run: Run, values: Any) -> Any:
    return values[..., int(run.config["classes"]) * int(run.config["distinct"]) :]


def _share(true: Any) -> float:
    return float(np.mean(true))


def _unmoved(run: Run) -> Any:
    """The control of all three: without common tokens no logit moves, because Y then points along f."""
    return at_most("largest |z| of the same classes without common tokens", np.abs(run.value("alone/z")).max(), ZERO)


def _common(run: Run) -> Finding:
    """At all times of all draws, with a common token alike in all classes, and with frequencies of its own in each."""
    alike, skewed = (_shared(run, run.value(f"{name}/z")) for name in ("alike", "skewed"))
    return by_tests(
        COMMON,
        expected="All common tokens have z ≤ 0 at all times. Without common tokens no logit moves.",
        printed=[at_least("z ≤ 0, frequencies drawn for each class", _share(skewed <= ZERO), 1.0, "%")],
        corrected=[at_least("z ≤ 0, equally frequent in all classes", _share(alike <= ZERO), 1.0, "%")],
        controls=[_unmoved(run)],
        details={"at the end": {"lowest z": float(alike[-1].min()), "highest z if unlike": float(skewed[-1].max())}},
    )


def _distinct(run: Run) -> Finding:
    own, skewed = (_own(run, run.value(f"{name}/z")) for name in ("alike", "skewed"))
    return by_tests(
        DISTINCT,
        expected="All distinct tokens have z ≥ 0 at all times. Without common tokens no logit moves.",
        printed=[at_least("z ≥ 0", _share(own >= -ZERO), 1.0, "%")],
        controls=[_unmoved(run)],
        details={"where common tokens are unlike": {"share with z ≥ 0": _share(skewed >= -ZERO)}},
    )


def _order(run: Run) -> Finding:
    held = {name: _in_order(run, name) for name in ("alike", "skewed")}
    return by_tests(
        ORDER,
        expected="z is ordered as P(l|n) at all times. Without common tokens no logit moves.",
        printed=[at_least("neighbours in order", held["alike"], 1.0, "%")],
        controls=[_unmoved(run)],
        details={"where common tokens are unlike": {"neighbours in order": held["skewed"]}},
    )


def _in_order(run: Run, name: str) -> float:
    classes, distinct = int(run.config["classes"]), int(run.config["distinct"])
    p = run.value(f"{name}/p")
    z = _own(run, run.value(f"{name}/z"))  # (steps, draws, classes, distinct)
    own = np.stack([p[:, n, n * distinct : (n + 1) * distinct] for n in range(classes)], 1)
    return _share(np.diff(np.take_along_axis(z, np.broadcast_to(own.argsort(-1), z.shape), -1)) >= -ZERO)


def _sgd_common(run: Run) -> Finding:
    """The share of common tokens below zero at the end, against labels that say nothing and against a coin."""
    expected = "At every pair of rates all common tokens end below zero: more than the controls."
    what = "share of common tokens with z < 0"
    return _by_rates(
        run, SGD_COMMON, lambda z: (_shared(run, z) < 0).mean(-1), expected=expected, what=what, control=COIN
    )


def _sgd_distinct(run: Run) -> Finding:
    """The share of distinct tokens above zero at the end, against labels that say nothing and against a coin."""
    expected = "At every pair of rates all distinct tokens end above zero: more than the controls."
    what = "share of distinct tokens with z > 0"
    return _by_rates(
        run, SGD_DISTINCT, lambda z: (_own(run, z) > 0).mean((-2, -1)), expected=expected, what=what, control=COIN
    )


def _sgd_order(run: Run) -> Finding:
    """Rank correlation of logits with frequencies over a class's distinct tokens, a mean over classes."""
    places = np.arange(int(run.config["distinct"]), dtype=float)

    def ranked(z: Any) -> Any:
        own = _own(run, z)  # (pairs, seeds, classes, distinct), rarest first
        flat = [spearman(places, row) for row in own.reshape(-1, own.shape[-1])]
        return np.array(flat).reshape(own.shape[:-1]).mean(-1)

    expected = "At every pair of rates logits are in the order of frequencies: rank correlation 1."
    return _by_rates(run, SGD_ORDER, ranked, expected=expected, what="rank correlation of z with P(l|n)", control=0.0)


def _by_rates(run: Run, claim: Claim, measured: Any, *, expected: str, what: str, control: float) -> Finding:
    own, twin = (measured(run.value(f"{name}/z")[-1]) for name in ("sgd", "sgd shuffled"))  # (pairs, seeds)
    cases: dict[str, Comparison] = {}
    details = {}
    for pair, mine, other in zip(run.config["sgd_rates"], own, twin, strict=True):
        name = f"η_Y {pair[0]:g}, η_Z {pair[1]:g}"
        (cases[name],) = hardest(claim, {"shuffled": compare(mine, other), "known": compare(mine, control)}).values()
        details[name] = {"with shuffled labels": float(other.mean()), "by chance": control, **_masses(run, pair)}
    size = [at_least(f"smallest {what}, a mean over seeds,", float(own.mean(-1).min()), 1 - ZERO, claim.unit)]
    return by_effect(claim, cases, expected=expected, what=what, size=size, details=details)


def common_share(run: Run, name: str = "sgd") -> Any:
    """Which share of class 1's attention goes to common tokens under SGD, (points, pairs, seeds)."""
    c = run.value("p")[0] * np.exp(run.value(f"{name}/z"))
    return _shared(run, c).sum(-1) / c.sum(-1)


def _masses(run: Run, pair: Any) -> dict[str, float]:
    share = common_share(run)[:, list(map(tuple, run.config["sgd_rates"])).index(tuple(pair))].mean(-1)
    return {"attention to common tokens at first": float(share[0]), "at the end": float(share[-1])}


JUDGES = {
    COMMON: _common,
    DISTINCT: _distinct,
    ORDER: _order,
    SGD_COMMON: _sgd_common,
    SGD_DISTINCT: _sgd_distinct,
    SGD_ORDER: _sgd_order,
}
