"""What was published of Figures 6 and 8: their recipe, and the curves of their runs, where these are on this machine.

Only runs that do not differ from the paper's recipe are held against its numbers. Of the curves only distances are
recorded, never the curves themselves: they are not ours to hand on. Under "stored", one `Distance` per row, those of
mean curves; under "stored by seed", (rows, seeds, 3), those of single runs, each from the stored run that began with
the same weights: of our curve, of it without its rises, and of it had it stayed where it began.
"""

import json
import math
import operator
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from joma.claims.contract import Claim, Finding, NotRun, OnlyAtPaperScale
from joma.claims.verdicts import at_most, by_effect
from joma.data.errors import CorpusError
from joma.measure.intervals import Comparison, compare
from joma.recipes.language import PAPER
from joma.recipes.language.curves import alive, best_loss, curve, steps_of
from joma.runs import Run

AS_THE_PAPER = {
    **{name: value for name, value in PAPER.items() if name not in ("device", "precision", "every", "seed")},
    "heads": 1, "dropout": 0.2, "valid_streams": 10, "length": 35, "clip": 0.5, "renew_each_epoch": True, "decay": 1.0,
}  # fmt: skip
"""What must not be changed if results are to be compared with the paper's numbers."""
SIZES = (28_782, 2_049_990, 214_417)  # words of WikiText-2, tokens to train on, tokens to validate
SEEDS = {1: 3, 2: 4, 3: 5}
"""The stored runs number their seeds from 1; their first entropies, equal to ours to five digits, say that the weights
were drawn after torch.manual_seed(3), (4) and (5). Where ours were trained with those, only those are compared:
the mean of ours with the mean of theirs."""
NEAR = 0.1  # nats RMS, for up to five layers and rates up to 1e-3
NEARER = NEAR / 2  # by so much a single run must be nearer than its control; a control is at least NEAR away
NOISES = 2.0  # elsewhere: so many times what the stored curves' own seeds would make two means differ

Stored = list[dict[str, Any]]


def differs(config: Mapping[str, Any], **changes: Any) -> str:
    """In what a recorded config differs from the paper's recipe, in words; empty if in nothing."""
    wanted = AS_THE_PAPER | changes
    found = [f"{name} is {config[name]}, not {value}" for name, value in wanted.items() if config[name] != value]
    return found[0] + (f" (and {len(found) - 1} more options differ)" if found[1:] else "") if found else ""


def not_wikitext_2(run: Run) -> str:
    """Why a run's text, in a folder of that name, is not WikiText-2; empty if it is."""
    words, train, valid = (int(size) for size in run.value("corpus/sizes"))
    if (words, train, valid) == SIZES:
        return ""
    wanted = f"{SIZES[0]} and {SIZES[1]} + {SIZES[2]}"
    return f"the text is not WikiText-2: it has {words} words and {train} + {valid} tokens instead of {wanted}"


def must_be_the_papers(
    run: Run, command: str, *, on_wikitext_2: bool = True, config: Mapping[str, Any] | None = None, **wanted: Any
) -> None:
    """Refuse (`NotRun`) to hold a run against the paper's numbers that has other sizes, or these and another text."""
    if reason := differs(config or run.config, **wanted) or (on_wikitext_2 and not_wikitext_2(run)):
        raise (OnlyAtPaperScale if differs(run.config) else NotRun)(reason, command)


class Distance(NamedTuple):
    """How far the mean curves of one variant and rate are from the stored ones, RMS over points and layers, in nats."""

    layers: float
    rate: float
    rms: float
    tolerance: float
    untrained: float  # the control: how far the stored curves are from ours if ours had stayed where they began
    loss: float = math.nan  # by how much the means of the best validation losses differ
    one_way: float = math.nan
    """The other control: how far the stored curves are from themselves without their rises (their running minimum)."""
    single: float = math.nan
    """RMS of the differences of single runs that began with the same weights; NaN if there are none."""

    @property
    def allowed(self) -> float:
        return self.tolerance if math.isnan(self.one_way) else min(self.tolerance, max(self.one_way, NEAR))

    @property
    def rises(self) -> bool:
        return not self.one_way < NEAR


def find_stored(data: str) -> Stored | None:
    """The stored curves under `data` or JOMA_DATA, or None: reference/wikitext2_runs.json."""
    folder = data or os.environ.get("JOMA_DATA")
    path = Path(folder or "", "reference", "wikitext2_runs.json")
    if not folder or not path.is_file():
        return None
    try:
        stored: Stored = json.loads(path.read_text(encoding="utf-8"))
        steps: dict[tuple[int, float], list[int]] = {}
        if stored and all(
            _is_a_run(one) and steps.setdefault((one["layers"], one["lr"]), one["steps"]) == one["steps"]
            for one in stored
        ):
            return stored
    except (ValueError, TypeError, AttributeError, KeyError):
        pass
    raise CorpusError(
        f"{path} is not a list of runs with layers, lr, seed, steps, val_loss[step] and entropy[step][layer], finite "
        "numbers all, and with the same steps in all runs of one depth and rate"
    )


def _is_a_run(one: dict[str, Any]) -> bool:
    layers, points = operator.index(one["layers"]), len(one["steps"])
    operator.index(one["seed"])
    shapes = {"lr": (), "steps": (points,), "val_loss": (points,), "entropy": (points, layers)}
    arrays = {name: np.asarray(one[name]) for name in shapes}
    return points > 1 and all(
        array.shape == shapes[name] and array.dtype.kind in "if" and bool(np.isfinite(array).all())
        for name, array in arrays.items()
    )


def keep_distances(run: Run, variants: dict[str, int], stored: Stored) -> None:
    """Record how far the trained variants (name: layers) are from the stored curves."""
    run.keep("stored", lambda: distances(run, variants, stored))
    run.keep("stored by seed", lambda: distances_by_seed(run, variants, stored))


def distances(run: Run, variants: dict[str, int], stored: Stored) -> np.ndarray:
    """One `Distance` per row for every variant (name: layers) and rate of which curves with our points are stored."""
    rows = [_distance(run, *one) for one in _compared(run, variants, stored)]
    return np.array(rows).reshape(-1, len(Distance._fields))


def distances_by_seed(run: Run, variants: dict[str, int], stored: Stored) -> np.ndarray:
    """(rows, seeds, 3) with the rows of `distances`; NaN for seeds that have no part in it."""
    rows = [_by_seed(run, *one) for one in _compared(run, variants, stored)]
    return np.array(rows) if rows else np.zeros((0, 0, 3))


def _compared(run: Run, variants: dict[str, int], stored: Stored) -> Iterator[tuple[str, int, float, Stored]]:
    for variant, layers in variants.items():
        for index, rate in enumerate(run.value(f"{variant}/rates")):
            theirs = [one for one in stored if one["layers"] == layers and np.isclose(one["lr"], rate)]
            if theirs and len(np.intersect1d(steps_of(run, variant), theirs[0]["steps"])) > 1:
                yield variant, index, float(rate), theirs


def _chosen(run: Run, variant: str, index: int, theirs: Stored) -> tuple[np.ndarray, Stored, bool]:
    seeds, survived = run.value(f"{variant}/seeds"), alive(run, variant)[index]
    pairs = {int(seed) for seed in seeds[survived]} & {SEEDS.get(one["seed"]) for one in theirs}
    if not pairs:
        return survived, theirs, False
    return survived & np.isin(seeds, list(pairs)), [one for one in theirs if SEEDS.get(one["seed"]) in pairs], True


def _distance(run: Run, variant: str, index: int, rate: float, theirs: Stored) -> Distance:
    _, mine, other = np.intersect1d(steps_of(run, variant), theirs[0]["steps"], return_indices=True)
    spread = np.array([one["entropy"] for one in theirs])[:, other].std(0, ddof=1) if len(theirs) > 1 else None
    noise = math.nan if spread is None else _rms(spread) * math.sqrt(2 / len(theirs))
    kept, theirs, paired = _chosen(run, variant, index, theirs)
    chosen = kept if kept.any() else slice(None)  # NaN if all diverged: near to nothing
    each = curve(run, variant, "sequence/entropy")[index][chosen].mean(-1)[:, mine]  # (seeds, points, layers)
    others = np.array([one["entropy"] for one in theirs])[:, other]
    ours, reference = each.mean(0), others.mean(0)
    strict = (ours.shape[1] <= 5 and rate <= 1e-3) or math.isnan(noise)
    losses = best_loss(run, variant)[index][chosen].mean() - np.mean([min(one["val_loss"]) for one in theirs])
    seeds = list(run.value(f"{variant}/seeds")[chosen])
    twins = [each[seeds.index(SEEDS[one["seed"]])] for one in theirs] if paired else []
    return Distance(
        layers=ours.shape[1],
        rate=rate,
        rms=_rms(ours - reference),
        tolerance=NEAR if strict else NOISES * noise,
        untrained=_rms(ours[:1] - reference),
        loss=abs(float(losses)),
        one_way=_rms(np.minimum.accumulate(reference) - reference),
        single=_rms(np.array(twins) - others) if paired else math.nan,
    )


def _by_seed(run: Run, variant: str, index: int, rate: float, theirs: Stored) -> np.ndarray:
    """(seeds, 3): each of our seeds beside the stored run of that seed; beside the mean of all where none is shared."""
    _, mine, other = np.intersect1d(steps_of(run, variant), theirs[0]["steps"], return_indices=True)
    kept, theirs, paired = _chosen(run, variant, index, theirs)
    curves = {SEEDS.get(one["seed"]): np.array(one["entropy"])[other] for one in theirs}
    mean = np.mean([np.array(one["entropy"])[other] for one in theirs], axis=0)
    found = np.full((len(kept), 3), np.nan)
    for place in np.flatnonzero(kept):
        ours = curve(run, variant, "sequence/entropy")[index, place].mean(-1)[mine]  # (points, layers)
        reference = curves[int(run.value(f"{variant}/seeds")[place])] if paired else mean
        found[place] = [_rms(one - reference) for one in (ours, np.minimum.accumulate(ours), ours[:1])]
    return found


def _rms(difference: np.ndarray) -> float:
    return float(np.sqrt(np.square(difference).mean()))


EXPECTED = (
    "single runs are nearer to the published runs than two controls: the same curves without their rises, and flat "
    f"curves at their start; nearer by at least {NEARER:g} nats RMS and by more than seeds differ. Mean "
    f"curves are within {NEAR:g} nats; above L = 5 or a rate of 1e-3, within twice the noise of the published seeds"
)


def near_stored(run: Run, claim: Claim) -> Finding:
    """Are single runs nearer to the stored ones than controls made of themselves, and are the mean curves near?

    The controls are our curves without their rises, and our curves had they stayed where they began. The first is none
    where the stored curves hardly rise. A record of mean curves alone gives one number per row and no interval.
    Networks that learned nothing count here: those of the figure did not learn at that rate either, nor should ours.
    """
    command = f"JOMA_DATA=FOLDER joma verify {run.study} --scale paper"
    must_be_the_papers(run, command)
    if "stored" not in run:  # a finished run is taken as it is
        raise NotRun("the data folder has no reference/wikitext2_runs.json", f"{command} --fresh")
    stored = [Distance(*row) for row in run.value("stored")]
    rows = {f"L = {row.layers:.0f}, rate {row.rate:g}": row for row in stored}
    if not rows:
        raise NotRun("reference/wikitext2_runs.json has no curves of these depths, rates and measuring points", command)
    by_seed = run.value("stored by seed") if "stored by seed" in run else [None] * len(rows)
    excess = float(np.max([row.rms - row.allowed for row in rows.values()]))  # NaN if one is
    losses = [row.loss for row in rows.values() if math.isfinite(row.loss)]
    return by_effect(
        claim,
        {name: _nearer(row, seeds) for (name, row), seeds in zip(rows.items(), by_seed, strict=True)},
        what="distance of the control minus our distance",
        size=[at_most("largest distance of a mean curve beyond what is allowed", excess, 0.0, "nats")],
        details={name: _numbers(row) for name, row in rows.items()}
        | ({"best validation losses": {"largest distance": max(losses)}} if losses else {}),
    )


def _nearer(row: Distance, seeds: np.ndarray | None) -> Comparison:
    if seeds is None:
        return compare([min(row.one_way, row.untrained) - row.rms if row.rises else row.untrained - row.rms])
    ours, without_rises, at_start = seeds[np.isfinite(seeds).any(1)].T  # rows of NaN fill up to the most seeds
    controls = [at_start - ours, without_rises - ours] if row.rises else [at_start - ours]
    return min(map(compare, controls), key=lambda one: one.value)


def _numbers(row: Distance) -> dict[str, float]:
    found = {
        "distance of the mean curves": row.rms,
        "allowed": row.allowed,
        "distance of published curves from themselves without rises": row.one_way,
        "distance of published curves from our start": row.untrained,
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}
