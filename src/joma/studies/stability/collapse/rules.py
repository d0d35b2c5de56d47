"""The rules that are compared: each gives a score per place and point, and rings where it is above a threshold.

Those of `joma.monitor` have the thresholds that the monitor has. To compare like with like, every rule also gets the
threshold at which it rings in `FALSE_ALARMS` of the healthy runs of other seeds.

    largest logit     of a head
    entropy floor     minus a head's entropy, as a share of ln T
    entropy fall      of a head since the point before, over the largest fall of its first `HISTORY` points
    rank drop         minus the stable rank of a matrix, as a share of its start
    update entropy    how far the spectral entropy of a head's change lies below the median of the points before
    drift entropy     the same of its change since the start
    sign diversity    minus the share of inputs on the rarer side of a matrix's leading direction
    gradient norm     its ln, less that of the median of the points before
    loss              less the lowest so far
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from joma.monitor.alarms import Alarm, EntropyFall, EntropyFloor, LargestLogit, RankDrop, usual_alarms
from joma.monitor.tables import Rows, Table
from joma.runs import Run

HISTORY = EntropyFall().first  # measuring points that rules which compare with a network's own past look back on
FALSE_ALARMS = 0.05  # the share of healthy runs in which a calibrated rule rings
Scores = np.ndarray
"""(members, points, places): the higher the worse. -inf where a rule cannot ring yet, inf where nothing is finite."""


@dataclass(frozen=True)
class Rule:
    """One of them.

    - series: what it looks at, as it is recorded
    - score: from (members, points, places) and ln T to scores
    - own: the threshold of the monitor, None where it has no such alarm
    """

    series: str
    score: Callable[[np.ndarray, float], Scores]
    own: float | None = None


def _fall(entropy: np.ndarray, log_keys: float) -> Scores:
    alarm, falls = EntropyFall(), np.full(entropy.shape, -np.inf)
    falls[:, 1:] = entropy[:, :-1] - entropy[:, 1:]
    largest = np.maximum(falls[:, 1 : alarm.first], 0.0).max(1, keepdims=True)
    falls[:, : alarm.first] = -np.inf
    found: Scores = falls / np.maximum(largest, alarm.least / alarm.times * log_keys)
    return found


def _below_median(values: np.ndarray, log_keys: float) -> Scores:
    return np.asarray(_median_before(values) - values)


def _above_median(values: np.ndarray, log_keys: float) -> Scores:
    logs = np.log(np.maximum(values, np.finfo(float).tiny))
    median = _median_before(logs)
    return np.asarray(logs - np.where(np.isinf(median), np.inf, median))


def _median_before(values: np.ndarray) -> np.ndarray:
    found = np.full(values.shape, -np.inf)
    # At the start no step was made: what a change is measured by has no value there.
    windows = np.lib.stride_tricks.sliding_window_view(values[:, 1:-1], HISTORY, axis=1)
    found[:, HISTORY + 1 :] = np.median(windows, axis=-1)
    return found


def _above_lowest(loss: np.ndarray, log_keys: float) -> Scores:
    return np.asarray(loss - np.minimum.accumulate(loss, axis=1))


RULES: Mapping[str, Rule] = {
    "largest logit": Rule("probe/largest_logit", lambda values, _: values, LargestLogit().limit),
    "entropy floor": Rule("probe/entropy", lambda values, log_keys: -values / log_keys, -EntropyFloor().share),
    "entropy fall": Rule("probe/entropy", _fall, EntropyFall().times),
    "rank drop": Rule("probe/stable_rank", lambda values, _: -values / values[:, :1], -RankDrop().share),
    "update entropy": Rule("weights/update_entropy", _below_median),
    "drift entropy": Rule("weights/drift_entropy", _below_median),
    "sign diversity": Rule("probe/sign_diversity", lambda values, _: -values),
    "gradient norm": Rule("probe/gradient_norm", _above_median),
    "loss": Rule("probe/loss", _above_lowest),
}
"""Every rule by name."""
CONTROLS = ("gradient norm", "loss")  # what needs no look at attention or at single matrices


def scores(name: str, values: np.ndarray, log_keys: float) -> Scores:
    """What a rule makes of a series (points, members, ...): (members, points, places)."""
    by_member = np.moveaxis(np.asarray(values, dtype=np.float64), 0, 1)
    flat = by_member.reshape(*by_member.shape[:2], -1)
    known = np.isfinite(flat)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = RULES[name].score(np.where(known, flat, 0.0), log_keys)
    # From the first number that is not finite on there is nothing to compare with.
    return np.where(np.logical_and.accumulate(known, axis=1), found, np.inf)


def one_place(found: Scores, share: np.ndarray) -> Scores:
    """The scores of one place of each member alone. share: (members,), from 0 to 1, of all places."""
    place = np.minimum((share * found.shape[2]).astype(int), found.shape[2] - 1)
    return np.take_along_axis(found, place[:, None, None], axis=2)


def threshold(healthy: Scores, false_alarms: float = FALSE_ALARMS) -> float:
    """The score above which at most this share of healthy runs ever comes."""
    highest = np.sort(healthy.max((1, 2)))[::-1]
    return float(highest[int(false_alarms * len(highest))])


def first_ring(found: Scores, above: float) -> np.ndarray:
    """The first point at which any place is above the threshold, (members,); -1 where none ever is."""
    rings = np.any(found > above, axis=-1)
    return np.where(rings.any(1), rings.argmax(1), -1)


def usual_rings(run: Run, name: str, length: int) -> np.ndarray:
    """The step at which each alarm of the monitor rings first, (alarms, members); -1 where it never does."""
    steps, alarms = run.steps(f"{name}/probe/loss"), usual_alarms()
    found = np.full((len(alarms), run.array(f"{name}/probe/loss").shape[1]), -1)
    for step, tables in zip(steps, _tables(run, name, length), strict=True):
        for at, alarm in enumerate(alarms):
            for member in {int(alert.layer) for alert in alarm.look(int(step), tables)}:
                found[at, member] = step if found[at, member] < 0 else found[at, member]
    return found


def _tables(run: Run, name: str, length: int) -> Iterator[dict[str, Table]]:
    """What a monitor would have had at every point; a layer is called by the number of its member."""
    heads = {series: run.array(f"{name}/probe/{series}") for series in ("entropy", "largest_logit")}
    ranks = run.array(f"{name}/probe/stable_rank")
    _, members, layers, count = heads["entropy"].shape
    rows = Rows(
        tuple(str(member) for member in range(members) for _ in range(layers)),
        (count,) * (members * layers),
        (length,) * (members * layers),
    )
    matrices = Rows(tuple(str(member) for member in range(members) for _ in range(ranks[0, 0].size)))
    for point in range(len(ranks)):
        found = {series: Table(each[point].reshape(-1, count).astype(float), rows) for series, each in heads.items()}
        yield found | {"stable_rank": Table(ranks[point].reshape(-1).astype(float), matrices)}


def alarm_names() -> list[str]:
    """The alarms of the monitor in their order, as `usual rings` has them."""
    names: dict[type[Alarm], str] = {
        LargestLogit: "largest logit",
        EntropyFloor: "entropy floor",
        EntropyFall: "entropy fall",
        RankDrop: "rank drop",
    }
    return [names.get(type(alarm), "not finite") for alarm in usual_alarms()]
