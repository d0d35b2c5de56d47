"""Whether attention begins to come back when what it reads begins to spread over more directions.

Both moments are read alike, seed by seed and layer by layer: the lowest point of entropy, and of the participation rank
of the layer's input, from the first point on at which the network knows more than how frequent words are. Before that
entropy dips once and recovers (see `rebound-onset`). A parabola in the logarithm of the step says where between the
measuring points, which are √2 apart, the lowest point lies. Another seed's rank is the control: a moment that all
networks of a recipe share would say nothing of cause.

The claim came after the run: the record had been judged and kept. This rule was written before anyone looked at when
ranks turn in it.
"""

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.verdicts import at_most, by_effect
from joma.measure.intervals import compare
from joma.recipes.language.curves import LEARNED, curve, mean_over_seeds, steps_of
from joma.runs import Run
from joma.studies.rebound._cases import Case
from joma.studies.rebound._points import lowest_between
from joma.studies.rebound.spread import record

IN_TIME = 0.1  # of the logarithm of a step: a tenth of the step, a third of the way between two measuring points
NEAR = 0.22  # ln 1.25: the two steps may differ by a quarter


def judge_onset(claim: Claim, run: Run, cases: list[Case]) -> Finding:
    """Minus the distance between the steps at which entropy and rank turn, beside that to another seed's rank."""
    own = {case: case.mean(distances(run, case.base)) for case in cases}
    other = {case: case.mean(distances(run, case.base, others=True)) for case in cases}
    details = {
        f"{case.name}, step of the lowest": {
            what: float(np.exp(mean_over_seeds(case.mean(log_turns(run, case.base, of)))))
            for what, of in (("entropy", "valid/entropy"), ("rank", "spread/rank"))
        }
        for case in cases
    }
    return by_effect(
        claim,
        {case.name: compare(-own[case], -other[case]) for case in cases},
        what="minus the distance of ln steps; control: another seed's rank",
        size=[at_most(f"{case.name}, distance", mean_over_seeds(own[case]), NEAR) for case in cases],
        details=details,
    )


def distances(run: Run, variant: str, *, others: bool = False) -> np.ndarray:
    """How far apart, in ln of the step, entropy and rank turn, (layers, seeds); others: with the next seed's rank."""
    entropy, rank = (log_turns(run, variant, what) for what in ("valid/entropy", "spread/rank"))
    return np.asarray(np.abs(entropy - (np.roll(rank, -1, axis=1) if others else rank)))


def log_turns(run: Run, variant: str, what: str) -> np.ndarray:
    """ln of the step at which a measure is lowest, (layers, seeds); NaN for seeds that diverged or learned nothing."""
    values, steps = record.values(run, variant, what).mean(-1), steps_of(run, variant)
    bound = float(run.value(f"{variant}/loss by frequency")) - LEARNED
    below = curve(run, variant, "valid/loss")[0] < bound  # (seeds, points)
    found = np.full(values.shape[:2], np.nan)
    for layer, seed in np.ndindex(*found.shape):
        points = values[layer, seed]
        if below[seed].any() and np.isfinite(points).all():
            found[layer, seed] = lowest(np.log(steps[1:]), points[1:], max(int(below[seed].argmax()) - 1, 0))
    return found


def lowest(x: np.ndarray, y: np.ndarray, first: int) -> float:
    """Where a curve is lowest from the point `first` on, by the parabola through that point and its neighbours."""
    at = first + int(y[first:].argmin())
    if at in (first, len(y) - 1):
        return float(x[at])
    around = slice(at - 1, at + 2)
    return lowest_between(x[around], y[around])
