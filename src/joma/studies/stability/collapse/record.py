"""What `collapse` recorded, read back: who diverged and when, when each rule rang, and how long before.

A run diverges at the first point from which on its loss stays at least `MARGIN` above its lowest so far, to the end, or
is not finite. That must be so for `LASTING` points at least. A lead is a share of the steps up to there: 0 where the
rule rang at that point, later, or never.
"""

import numpy as np

from joma.measure.intervals import Comparison, compare
from joma.recipes.language.curves import LEARNED
from joma.runs import Run
from joma.studies.stability.collapse.rules import (
    HISTORY,
    RULES,
    alarm_names,
    first_ring,
    one_place,
    scores,
    threshold,
)
from joma.studies.stability.collapse.run import HEALTHY, PLAIN, RISING, SUDDEN, WARMED

MARGIN = 0.5
"""Nats above the lowest loss so far. A spike of that size which comes back is no divergence."""
LASTING = 3
"""Measuring points."""


def event(run: Run, name: str) -> np.ndarray:
    """The measuring point at which each member diverges, (members,); -1 where it does not."""
    loss = run.array(f"{name}/probe/loss").astype(np.float64).T  # (members, points)
    above = np.where(np.isfinite(loss), loss - np.fmin.accumulate(loss, axis=1), np.inf)
    for_good = np.minimum.accumulate((above >= MARGIN)[:, ::-1], axis=1)[:, ::-1]
    return np.where(for_good[:, -LASTING], for_good.argmax(1), -1)


def column(run: Run, name: str, field: str) -> np.ndarray:
    """A number of every member: kind, rate, warm_up, seed or open."""
    return np.asarray(run.value(f"{name}/{field}"))


def of_kind(run: Run, name: str, *kinds: int, is_open: bool = False) -> np.ndarray:
    """Which members are of these kinds, (members,) bool; those that calibrate, or all others."""
    return np.asarray(np.isin(column(run, name, "kind"), kinds) & (column(run, name, "open") == is_open))


def diverged(run: Run, name: str) -> np.ndarray:
    """Which members diverge, (members,) bool."""
    return np.asarray(event(run, name) >= 0)


def judged(run: Run) -> np.ndarray:
    """The plain members whose warnings are judged: they diverge, after every rule can ring."""
    return np.asarray(of_kind(run, PLAIN, SUDDEN, WARMED, RISING) & (event(run, PLAIN) > HISTORY))


def quiet(run: Run, *, is_open: bool) -> np.ndarray:
    """Healthy plain members that do not diverge: open ones calibrate, the others show how often a rule is wrong."""
    return np.asarray(of_kind(run, PLAIN, HEALTHY, is_open=is_open) & ~diverged(run, PLAIN))


def unharmed(run: Run) -> np.ndarray:
    """Judged plain members whose rate is too high and that do not diverge."""
    return np.asarray(of_kind(run, PLAIN, SUDDEN, WARMED, RISING) & ~diverged(run, PLAIN))


def by_seed(run: Run, name: str, values: np.ndarray, which: np.ndarray) -> np.ndarray:
    """The mean of some members' values for every judged seed, (seeds,); NaN for a seed that has none."""
    first, count = int(run.config["seed"]), int(run.config["seeds"])
    seeds = column(run, name, "seed")
    groups = [values[which & (seeds == seed)] for seed in range(first, first + count)]
    return np.array([group.mean() if len(group) else np.nan for group in groups])


def rings(run: Run, rule: str, *, place: bool = False) -> np.ndarray:
    """The point at which a rule rings first, calibrated, (members,); -1 if never. place: on one random place alone."""
    found = scores(rule, run.array(f"{PLAIN}/{RULES[rule].series}"), np.log(run.config["length"]))
    found = one_place(found, run.value(f"{PLAIN}/place")) if place else found
    return first_ring(found, threshold(found[quiet(run, is_open=True)]))


def usual(run: Run) -> dict[str, np.ndarray]:
    """The point at which each alarm of the monitor rings first with its own threshold, (members,); -1 if never."""
    steps, every = run.value(f"{PLAIN}/usual rings"), int(run.config["every"])
    return {
        name: np.where(row < 0, -1, row // every).astype(int) for name, row in zip(alarm_names(), steps, strict=True)
    }


def any_of(several: dict[str, np.ndarray]) -> np.ndarray:
    """The point at which the first of several rings, (members,); -1 if none does."""
    far = np.iinfo(int).max
    earliest = np.min([np.where(ring < 0, far, ring) for ring in several.values()], axis=0)
    return np.where(earliest == far, -1, earliest)


def leads(run: Run, ring: np.ndarray) -> np.ndarray:
    """How long before the event a rule rings, as a share of the steps until then, (members,)."""
    at = event(run, PLAIN)
    before = (ring >= 0) & (ring < at)
    return np.where(before, (at - ring) / np.maximum(at, 1), 0.0)


def lead(run: Run, rule: str, *, place: bool = False) -> np.ndarray:
    """The mean lead of the calibrated rule over a seed's runs that diverge, (seeds,)."""
    return by_seed(run, PLAIN, leads(run, rings(run, rule, place=place)), judged(run))


def usual_lead(run: Run, names: tuple[str, ...] = ()) -> np.ndarray:
    """The same of the monitor's alarms with their own thresholds: of these, or of whichever rings first."""
    found = {name: ring for name, ring in usual(run).items() if not names or name in names}
    return by_seed(run, PLAIN, leads(run, any_of(found)), judged(run))


def false_alarms(run: Run, ring: np.ndarray) -> float:
    """The share of healthy runs of judged seeds in which it rings."""
    return float((ring[quiet(run, is_open=False)] >= 0).mean())


def share_diverged(run: Run, name: str, *kinds: int) -> np.ndarray:
    """The share of a seed's members of these kinds that diverge, (seeds,)."""
    return by_seed(run, name, diverged(run, name).astype(float), of_kind(run, name, *kinds))


def lowest_entropy(run: Run, name: str, *kinds: int) -> np.ndarray:
    """The entropy of the head that has least at the end, as a share of ln T, the mean of a seed's members, (seeds,)."""
    ends = run.array(f"{name}/probe/entropy")[-1].astype(float)  # (members, layers, heads)
    return by_seed(run, name, ends.min((1, 2)) / np.log(run.config["length"]), of_kind(run, name, *kinds))


def final_loss(run: Run, name: str, *kinds: int) -> float:
    """The median loss at the end of all members of these kinds."""
    ends = run.array(f"{name}/probe/loss")[-1].astype(float)[of_kind(run, name, *kinds)]
    return float(np.median(ends)) if len(ends) else np.nan


def mean_leads(run: Run) -> dict[str, Comparison]:
    """The lead of every rule, over seeds."""
    return {rule: compare(lead(run, rule)) for rule in RULES}


def nothing_learned(run: Run) -> str:
    """Why nothing can be said: healthy networks did not learn, or diverged. Empty if they learned."""
    still = quiet(run, is_open=False)
    if not still.any() or not quiet(run, is_open=True).any():
        return "every healthy run diverged"
    best = float(run.array(f"{PLAIN}/probe/loss").astype(float)[:, still].min(0).mean())
    frequencies = float(run.value("loss by frequency"))
    if best < frequencies - LEARNED:
        return ""
    return (
        f"healthy networks learned no more than how frequent words are: their lowest loss is {best:.3f} nats, that of "
        f"the frequencies {frequencies:.3f} nats"
    )


def nothing_diverged(run: Run) -> str:
    """Why there are no leads: fewer than two seeds have a run that diverges in time. Empty if there are some."""
    seeds = int(np.isfinite(by_seed(run, PLAIN, np.zeros(len(judged(run))), judged(run))).sum())
    if seeds >= 2:
        return ""
    high = of_kind(run, PLAIN, SUDDEN, WARMED, RISING)
    early = int((diverged(run, PLAIN) & high & ~judged(run)).sum())
    return (
        f"{seeds} of {run.config['seeds']} seeds have a run that diverges after its first {HISTORY} measuring points; "
        f"{early} runs diverged before"
    )
