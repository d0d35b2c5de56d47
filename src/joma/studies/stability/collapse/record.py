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
from joma.studies.stability.collapse.run import HEALTHY, PLAIN, QK_NORM, REMEDIES, RISING, SUDDEN, WARMED

MARGIN = 0.5  # Nats above the lowest loss so far. A spike of that size which comes back is no divergence
LASTING = 3  # measuring points


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
    return {one: np.where(row < 0, -1, row // every).astype(int) for one, row in zip(alarm_names(), steps, strict=True)}


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


NOTHING, WARM_UP = "nothing", "warm-up"
BENCH = (NOTHING, QK_NORM, WARM_UP, *REMEDIES)  # what is done to runs whose rate is too high


def bench(run: Run, remedy: str) -> tuple[str, np.ndarray]:
    """Where the runs of a remedy are: an ensemble, and its members in the order of cells and seeds, -1 for none."""
    name = PLAIN if remedy in (NOTHING, WARM_UP) else remedy
    kind, rate, seed = (column(run, name, field) for field in ("kind", "rate", "seed"))
    cells = [(SUDDEN, each) for each in run.config["bench_high_rates"]]
    cells += [(RISING, each) for each in run.config["bench_top_rates"]]
    first, found = int(run.config["seed"]), []
    for wanted, each in cells:
        wanted = {SUDDEN: WARMED, RISING: -1}[wanted] if remedy == WARM_UP else wanted
        for one in range(first, first + int(run.config["seeds"])):
            here = np.flatnonzero((kind == wanted) & (rate == each) & (seed == one))
            found.append(int(here[0]) if len(here) else -1)
    return name, np.array(found)


def of_bench(run: Run, remedy: str, what: str) -> np.ndarray:
    """Of the runs of `bench` whether each diverges ("diverged"), or its loss at the end; NaN where there is none.

    A loss that is not finite counts as the largest of all: left out, it would speak for the remedy that it failed with.
    """
    name, members = bench(run, remedy)
    values = diverged(run, name).astype(float) if what == "diverged" else _ends(run, name)
    if what != "diverged" and not np.isfinite(values).all():
        ends = np.concatenate([_ends(run, each) for each in (PLAIN, QK_NORM, *REMEDIES)])
        values = np.where(np.isfinite(values), values, ends[np.isfinite(ends)].max())
    return np.where(members < 0, np.nan, values[members])


def _ends(run: Run, name: str) -> np.ndarray:
    return np.asarray(run.array(f"{name}/probe/loss")[-1].astype(float))


def per_seed(run: Run, values: np.ndarray, which: np.ndarray) -> np.ndarray:
    """The mean of some runs of `bench` for every seed, (seeds,); NaN for a seed that has none."""
    table = np.where(which, values, np.nan).reshape(-1, int(run.config["seeds"]))
    known = np.isfinite(table)
    total = np.where(known, table, 0.0).sum(0)
    return np.where(known.any(0), total / np.maximum(known.sum(0), 1), np.nan)


def kept_whole(run: Run, remedy: str) -> np.ndarray:
    """The share of a seed's runs at rates that are too high that do not diverge, (seeds,)."""
    values = 1 - of_bench(run, remedy, "diverged")
    return per_seed(run, values, np.isfinite(values))


def learned(run: Run, remedy: str) -> np.ndarray:
    """How far the loss ends below the words' frequencies, over a seed's runs whose plain twins do not diverge."""
    below = float(run.value("loss by frequency")) - of_bench(run, remedy, "loss")
    return per_seed(run, below, of_bench(run, NOTHING, "diverged") == 0)


def harm(run: Run, remedy: str) -> np.ndarray:
    """How far the loss ends above that of the plain twin, over a seed's runs whose plain twins do not diverge."""
    above = of_bench(run, remedy, "loss") - of_bench(run, NOTHING, "loss")
    return per_seed(run, above, of_bench(run, NOTHING, "diverged") == 0)


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
