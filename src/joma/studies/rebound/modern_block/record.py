"""What `modern-block` recorded, read back by arm: entropy, sinks, and the order in which logits of words move."""

from collections.abc import Sequence

import numpy as np

from joma.measure.correlation import spearman
from joma.measure.intervals import compare
from joma.recipes.language.curves import alive, curve, learned_nothing, steps_of
from joma.runs import Run
from joma.studies.rebound._cases import Case, base_name, comes_back
from joma.studies.rebound._paths import Path, equal_loss, rises, valleys
from joma.studies.rebound.modern_block.run import ARMS, CLIPS, FAMILIES, LATE, MADE, MADE_ARMS, MUON, PLAIN, name_of

END = 0.6  # of the run: an arm whose minimum comes later has no room to recover, and is not judged
FETCHED = 0.5  # of the loss after a trigger without attention: networks that keep more have not learned to attend


def families(run: Run) -> list[str]:
    """Of the language models, if there are any."""
    return [family for family in run.config["families"] if family in FAMILIES]


def arms(run: Run) -> list[str]:
    """All arms of the language models, the plain block first; Muon as "Muon at 0.001"."""
    named = [arm for arm in ARMS if arm == PLAIN or arm in run.config["arms"]]
    return [*named, *CLIPS, *_muons(run)]


def _muons(run: Run) -> list[str]:
    return [muon_at(rate) for rate in run.config["muon_rates"]] if run.config["muon"] else []


def muon_at(rate: float) -> str:
    """The arm of a rate."""
    return f"{MUON} at {rate:g}"


def bases(run: Run, family: str) -> list[str]:
    """The networks of a family."""
    return [name_of(layers, family) for layers in sorted(run.config["layers"])]


def where(run: Run, base: str, arm: str) -> tuple[str, int]:
    """The name under which an arm is recorded, and its number among the arms of that name."""
    if arm in CLIPS:
        return f"{base}, clipped", CLIPS.index(arm)
    if arm.startswith(MUON):
        return f"{base}, {MUON}", _muons(run).index(arm)
    return base, [one for one in arms(run) if one in ARMS].index(arm)


def values(run: Run, base: str, arm: str, what: str) -> np.ndarray:
    """One measure of an arm, (seeds, points, ...)."""
    name, number = where(run, base, arm)
    return np.asarray(curve(run, name, what)[number])


def sound(run: Run, base: str, arm: str) -> np.ndarray:
    """(seeds,) which of them never diverged."""
    name, number = where(run, base, arm)
    return np.asarray(alive(run, name)[number])


def idle(run: Run, base: str, arm: str) -> str:
    """Why an arm shows nothing, because it learned nothing; empty if it learned."""
    name, number = where(run, base, arm)
    return learned_nothing(run, name, number).replace(name, f"{base} with {arm}")


def by_layer(run: Run, base: str, arm: str, what: str) -> np.ndarray:
    """A measure of heads, meant over them, (layers, seeds, points); NaN for seeds that diverged."""
    found = values(run, base, arm, f"block/{what}").mean(-1).astype(np.float64)
    return np.moveaxis(np.where(sound(run, base, arm)[:, None, None], found, np.nan), 2, 0)


def path(run: Run, base: str, arm: str = PLAIN) -> Path:
    """The path of an arm."""
    steps = steps_of(run, where(run, base, arm)[0])
    return Path(steps, by_layer(run, base, arm, "entropy"), values(run, base, arm, "valid/loss"))


def drop(found: Path) -> np.ndarray:
    """From the start to the own minimum, (layers, seeds)."""
    low = np.take_along_axis(found.entropy, valleys(found)[..., None], -1)[..., 0]
    return np.asarray(found.entropy[..., 0] - low)


def recovery(run: Run, case: Case, arm: str = PLAIN) -> np.ndarray:
    """From the own minimum to the end, (seeds,)."""
    return case.mean(rises(path(run, case.base, arm), int(run.config["window"])))


def minimum(run: Run, case: Case, arm: str = PLAIN) -> float:
    """The step at which the mean over seeds is lowest."""
    found = path(run, case.base, arm)
    mean = np.nanmean(np.where(np.isfinite(found.entropy), found.entropy, np.nan), axis=1)
    return float(case.mean(found.steps[mean.argmin(-1)]))


def late(run: Run, case: Case, arm: str) -> bool:
    """Whether the minimum comes too late for a recovery to be seen."""
    return minimum(run, case, arm) > END * float(run.config["steps"])


def cases(run: Run, family: str) -> list[Case]:
    """The layers that come back in the plain block."""
    every = [Case(base, (n,)) for base in bases(run, family) for n in range(len(path(run, base).entropy))]
    return [case for case in every if comes_back(recovery(run, case))]


def label(case: Case) -> str:
    """As in "1 layer, norms after" or "2 layers, norms after: layer 2"."""
    return case.base if case.base.startswith(f"{base_name(1)},") else case.name


def removed(run: Run, case: Case, arm: str) -> np.ndarray:
    """The share of the plain twin's recovery that an arm does not have, (seeds,), of its mean over seeds."""
    plain = recovery(run, case)
    return np.asarray((plain - recovery(run, case, arm)) / compare(plain).value)


# ---- the order in which words' logits move


def order(run: Run, base: str, arm: str, ends: np.ndarray | None = None) -> np.ndarray:
    """How much earlier the logits of salient words get half way, (seeds,): 1 if in order, 0 without one.

    A word's logit counts less the mean over words, from the start on. Salient are words whose logit has moved far at
    the end: the minimum of the first layer's entropy, or the measuring points `ends` (seeds,). It is minus the rank
    correlation of how far a word's logit has moved with when it was first half way, in the logarithm of the step.
    """
    found = path(run, base, arm)
    moved = values(run, base, arm, "block/words").astype(np.float64)
    moved = moved - moved.mean(-1, keepdims=True)
    moved = moved - moved[:, :1]
    ends = valleys(found)[0] if ends is None else ends
    each = [_order(found.steps, way, int(end)) for way, end in zip(moved, ends, strict=True)]
    return np.where(sound(run, base, arm), each, np.nan)


def _order(steps: np.ndarray, way: np.ndarray, end: int) -> float:
    if end < 2:
        return float("nan")
    way = way[: end + 1] * np.sign(way[end])
    half = way[-1] / 2
    first = np.maximum((way >= half).argmax(0), 1)  # it is 0 at the start
    words = np.arange(way.shape[1])
    before, after = way[first - 1, words], way[first, words]
    share = np.where(after > before, (half - before) / np.where(after > before, after - before, 1.0), 1.0)
    logs = np.log(np.maximum(steps[: end + 1], 1))
    when = logs[first - 1] + np.clip(share, 0.0, 1.0) * (logs[first] - logs[first - 1])
    return -spearman(way[-1], when)


def orders(run: Run, base: str, one: str, other: str, *, at_equal_loss: bool) -> tuple[np.ndarray, np.ndarray]:
    """The order in two arms, (seeds,) each: each to its own minimum, or to where both have the same loss."""
    if not at_equal_loss:
        return order(run, base, one), order(run, base, other)
    first, second = equal_loss(path(run, base, one), path(run, base, other))
    return order(run, base, one, first), order(run, base, other, second)


# ---- the made language


def made(run: Run, arm: str, what: str) -> np.ndarray:
    """A measure of networks that read the made language, (points, seeds, ...), meant over layers and heads."""
    found = run.array(f"{MADE}/made/{what}")
    seeds = int(run.config["seeds"])
    found = found[:, MADE_ARMS.index(arm) * seeds :][:, :seeds]
    return np.asarray(found.mean((2, 3)) if found.ndim > 2 else found).astype(np.float64)


def learned(run: Run, arm: str) -> np.ndarray:
    """(seeds,) which networks attend where they must."""
    return np.asarray(made(run, arm, "fetched")[-1] <= FETCHED * float(run.value("unfetched")))


def sink(run: Run, arm: str, what: str = "sink", step: int = -1) -> np.ndarray:
    """Attention of late queries on the first key, (seeds,); NaN for networks that did not learn."""
    return np.asarray(np.where(learned(run, arm), made(run, arm, what)[step], np.nan))


def uniform(length: int) -> float:
    """The attention on the first key where late queries attend to all keys alike."""
    return float(np.mean(1 / np.arange(length // LATE + 1, length + 1)))


def known(values: Sequence[float] | np.ndarray) -> float:
    """The mean of what is a number."""
    return compare(np.asarray(values, dtype=float)).value
