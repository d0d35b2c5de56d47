"""The curves of the runs behind Figures 6 and 8, where they are on this machine: how far ours are from them.

Only distances are recorded, never the curves themselves: they are not ours to hand on.
"""

from __future__ import annotations

import json
import math
import operator
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from joma.data.errors import CorpusError
from joma.runs import Run
from joma.studies._language_model_curves import alive, best_loss, curve, steps_of

SEEDS = {1: 3, 2: 4, 3: 5}
"""The stored runs number their seeds from 1; their first entropies, equal to ours to five digits, say that the weights
were drawn after torch.manual_seed(3), (4) and (5). Where ours were trained with those, only those are compared:
the mean of ours with the mean of theirs."""
NEAR = 0.1  # nats RMS, for up to five layers and rates up to 1e-3
NOISES = 2.0  # elsewhere: so many times what the stored curves' own seeds would make two means differ


class Distance(NamedTuple):
    """How far the mean curves of one variant and rate are from the stored ones, RMS over points and layers, in nats."""

    layers: float
    rate: float
    rms: float
    tolerance: float
    untrained: float
    """The control: how far the stored curves are from ours if ours had stayed where they began."""
    loss: float = math.nan
    """By how much the means of the best validation losses differ."""
    one_way: float = math.nan
    """The other control: how far the stored curves are from themselves without their rises (their running minimum)."""
    single: float = math.nan
    """RMS of the differences of single runs that began with the same weights; NaN if there are none."""

    @property
    def allowed(self) -> float:
        """The tolerance, unless curves that do not come back at all would be within it."""
        return self.tolerance if math.isnan(self.one_way) else min(self.tolerance, max(self.one_way, NEAR))


def find_stored(data: str) -> list[dict[str, Any]] | None:
    """The stored curves under `data` or JOMA_DATA, or None: reference/wikitext2_runs.json.

    Raises a `CorpusError` for a file that holds something else.
    """
    folder = data or os.environ.get("JOMA_DATA")
    path = Path(folder or "", "reference", "wikitext2_runs.json")
    if not folder or not path.is_file():
        return None
    try:
        stored: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        if stored and all(_is_a_run(one) for one in stored) and _agree_on_steps(stored):
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


def _agree_on_steps(stored: list[dict[str, Any]]) -> bool:
    steps: dict[tuple[int, float], list[int]] = {}
    return all(steps.setdefault((one["layers"], one["lr"]), one["steps"]) == one["steps"] for one in stored)


def distances(run: Run, variants: dict[str, int], stored: list[dict[str, Any]]) -> np.ndarray:
    """One `Distance` a row for every variant (name: layers) and rate of which curves with our points are stored."""
    rows = []
    for variant, layers in variants.items():
        for index, rate in enumerate(run.value(f"{variant}/rates")):
            theirs = [one for one in stored if one["layers"] == layers and np.isclose(one["lr"], rate)]
            if theirs and len(np.intersect1d(steps_of(run, variant), theirs[0]["steps"])) > 1:
                rows.append(_distance(run, variant, index, float(rate), theirs))
    return np.array(rows).reshape(-1, len(Distance._fields))


def _distance(run: Run, variant: str, index: int, rate: float, theirs: list[dict[str, Any]]) -> Distance:
    _, mine, other = np.intersect1d(steps_of(run, variant), theirs[0]["steps"], return_indices=True)
    spread = np.array([one["entropy"] for one in theirs])[:, other].std(0, ddof=1) if len(theirs) > 1 else None
    noise = math.nan if spread is None else _rms(spread) * math.sqrt(2 / len(theirs))
    seeds, survived = run.value(f"{variant}/seeds"), alive(run, variant)[index]
    pairs = {int(seed) for seed in seeds[survived]} & {SEEDS.get(one["seed"]) for one in theirs}
    if pairs:
        survived = survived & np.isin(seeds, list(pairs))
        theirs = [one for one in theirs if SEEDS.get(one["seed"]) in pairs]
    chosen = survived if survived.any() else slice(None)  # NaN if all diverged: near to nothing
    each = curve(run, variant, "sequence/entropy")[index][chosen].mean(-1)[:, mine]  # (seeds, points, layers)
    others = np.array([one["entropy"] for one in theirs])[:, other]
    ours, reference = each.mean(0), others.mean(0)
    strict = (ours.shape[1] <= 5 and rate <= 1e-3) or math.isnan(noise)
    losses = best_loss(run, variant)[index][chosen].mean() - np.mean([min(one["val_loss"]) for one in theirs])
    twins = [each[list(seeds[chosen]).index(SEEDS[one["seed"]])] for one in theirs] if pairs else []
    return Distance(
        layers=ours.shape[1],
        rate=rate,
        rms=_rms(ours - reference),
        tolerance=NEAR if strict else NOISES * noise,
        untrained=_rms(ours[:1] - reference),
        loss=abs(float(losses)),
        one_way=_rms(np.minimum.accumulate(reference) - reference),
        single=_rms(np.array(twins) - others) if pairs else math.nan,
    )


def _rms(difference: np.ndarray) -> float:
    return float(np.sqrt(np.square(difference).mean()))
