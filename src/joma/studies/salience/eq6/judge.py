"""How each claim is judged by the record."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import above, at_least, at_most, below
from joma.claims.verdicts import by_effect, by_residual, by_tests, not_run
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.salience.eq6 import claims
from joma.studies.salience.eq6.claims import DROP, MAJORITY, REBOUND
from joma.studies.salience.eq6.run import LEARNED, TARGETS, entropy

EXACT = 1e-9  # an identity along a flow at rtol 1e-12
CLOCK = 1e-4  # Euler steps of Figure 4, extrapolated to step 0, against the closed form


_off = partial(by_residual, tolerance=EXACT, what="largest difference")


def critical(run: Run) -> Finding:
    """Where flows end, from both sides of μ; μ of another component must not fit."""
    ends, targets = run.value("long run"), np.array(TARGETS)
    return _off(
        claims.CRITICAL,
        printed=np.abs(ends - targets).max(),
        expected="In the long run the flow reaches v = μ from both sides, with and without the factor.",
        control={"μ of another component": float(np.abs(ends - np.roll(targets, 1)).min())},
    )


def factor(run: Run) -> Finding:
    """Both exponents along the flow of v and z together."""
    v, z = run.value("flow").swapaxes(0, 1)
    return _off(
        claims.FACTOR,
        printed=np.abs(v**2 - z).max(),
        corrected=np.abs(v**2 / 2 - z).max(),
        expected="The logarithm of the factor equals the logits along the flow.",
        control={"no factor": float(np.abs(z).max())},
    )


def attention(run: Run) -> Finding:
    """The entropy of both exponents beside that of the logits; that of uniform attention must be off."""
    v, z = run.value("flow").swapaxes(0, 1)
    true = _entropy(z)
    return _off(
        claims.ATTENTION,
        printed=np.abs(_entropy(v**2) - true).max(),
        corrected=np.abs(_entropy(v**2 / 2) - true).max(),
        expected="The entropy equals that of the logits along the flow.",
        control={"uniform attention": float(np.abs(_entropy(0 * v) - true).max())},
    )


def _pair(run: Run, key: str) -> tuple[Any, Any]:
    """A number of every draw, with attention and without."""
    return run.value(f"attention/{key}"), run.value(f"no attention/{key}")


def _learned(run: Run) -> float:
    """The share of components that the figure's own draw has learned by its last recorded step, with attention or
    without, whichever is less.
    """
    ends = np.stack([weights[-1] for weights in _pair(run, "v")])
    return float((ends >= LEARNED * run.value("mu")[0]).mean(-1).min())


def _too_short(run: Run, claim: Claim, expected: str, share: float) -> Finding | None:
    """What is found if no more than `share` of the components is learned: nothing."""
    if _learned(run) > share:
        return None
    return not_run(claim, expected, "the run ended before its components were learned", "joma run eq6 --steps 5000")


def order(run: Run) -> Finding:
    """The share of pairs in order, beside that without attention."""
    expected = "Of two components the more salient one reaches 90 % of its target first."
    if short := _too_short(run, claims.ORDER, expected, 0.0):
        return short
    what = "share of pairs in which the more salient component is learned first"
    return by_effect(claims.ORDER, compare(*_pair(run, "in order")), what=what, over="draws", expected=expected)


def fall(run: Run) -> Finding:
    """How deep the entropy drops, beside the drop without attention; with equal targets it must not move."""
    expected = "The entropy drops deeper than without attention, and it does not drop with equal targets."
    if short := _too_short(run, claims.FALL, expected, 0.0):
        return short
    start, lowest, equal = _pair(run, "start"), _pair(run, "lowest"), run.value("equal targets/entropy")
    at = {"lowest at step": float(run.value("attention/at")[0])}
    return by_effect(
        claims.FALL,
        compare(start[0] - lowest[0], start[1] - lowest[1]),
        what="drop of entropy from the start to its minimum",
        expected=expected,
        over="draws",
        controls=[at_most("equal targets: change of entropy", np.ptp(equal), EXACT, "nats")],
        details={"seed 0": {"start": float(start[0][0]), "lowest": float(lowest[0][0]), **at}},
    )


def rise(run: Run) -> Finding:
    """How far the entropy rises after its minimum, beside the rise without attention."""
    expected = (
        f"After its minimum the entropy rises by over {REBOUND:g} nats in most draws. It does not without attention."
    )
    if short := _too_short(run, claims.RISE, expected, MAJORITY):
        return short
    end, lowest = _pair(run, "end"), _pair(run, "lowest")
    rise, plain = end[0] - lowest[0], end[1] - lowest[1]
    more = _share_above(rise, REBOUND) - _share_above(plain, REBOUND)
    what = f"share of draws that rise by {REBOUND:g} nats, minus the same share without attention"
    return by_effect(
        claims.RISE,
        compare(rise, plain),
        what="rise of entropy from its minimum to the end",
        expected=expected,
        over="draws",
        size=[above(what, more, MAJORITY, "%")],
        details={"seed 0": {"lowest": float(lowest[0][0]), "end": float(end[0][0])}},
    )


def _share_above(values: Any, bound: float) -> float:
    return float((values > bound).mean()) if np.isfinite(values).all() else float("nan")


def same_path(run: Run) -> Finding:
    """The smallest entropy of the figure at step size 0, beside both closed forms."""
    full, half, closed = (run.value(f"{name}/lowest") for name in ("attention", "half step", "closed form"))
    limit = 2 * half - full[: len(half)]  # the error of an Euler step is of first order
    return by_residual(
        claims.SAME_PATH,
        printed=float(abs(run.value("eq. 6/entropy")[1].min() - limit[0])),
        corrected=np.abs(closed - limit).max(),
        tolerance=CLOCK,
        what="largest difference",
        expected="The formula gives the smallest entropy of the figure at step size 0.",
        control={"without attention": float(np.abs(closed - run.value("no attention/lowest")[: len(half)]).min())},
        details={"seed 0": {"smallest entropy at step size 0": float(limit[0])}},
    )


def rank(run: Run) -> Finding:
    """Rank and stable rank of the closed form with many nodes; without attention the stable rank must not move."""
    stable, exact, plain = (run.value(f"rank/{n}") for n in ("stable", "exact", "stable without attention"))
    return by_tests(
        claims.RANK,
        expected=f"As printed: the rank drops and recovers. As corrected: the stable rank does, by {DROP:g}.",
        printed=[
            at_least("drop of the rank", exact[0] - exact.min(), 1.0),
            at_least("recovery of the rank", exact[-1] - exact.min(), 1.0),
        ],
        corrected=[
            above("drop of the stable rank", stable[0] - stable.min(), DROP),
            above("recovery of the stable rank", stable[-1] - stable.min(), DROP),
            at_most("change of the rank", exact.max() - exact.min(), 0.0),
        ],
        controls=[below("without attention: change of the stable rank", np.ptp(plain), DROP)],
        details={"stable rank": {"start": float(stable[0]), "lowest": float(stable.min()), "end": float(stable[-1])}},
    )


def nonlinear(run: Run) -> Finding:
    """The rise of entropy along eq. 6; along Theorem 2 there must be none."""
    rises = [curve[-1] - curve.min() for curve in (run.value("eq. 6/entropy")[1], run.value("linear MLP/entropy"))]
    return by_tests(
        claims.NONLINEAR,
        expected="The entropy rises after its minimum along eq. 6, and does not rise along Theorem 2.",
        printed=[above("rise of entropy along eq. 6", rises[0], REBOUND, "nats")],
        controls=[at_most("linear MLP: rise of entropy", rises[1], REBOUND, "nats")],
    )


def _entropy(logits: Any) -> Any:
    return entropy(torch.from_numpy(np.array(logits))).numpy()
