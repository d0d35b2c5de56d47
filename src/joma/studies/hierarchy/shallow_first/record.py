"""What a run of `shallow-first` recorded: networks that learned, and their series in the true and the permuted tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.runs import Run
from joma.studies.hierarchy._networks import Fates
from joma.studies.hierarchy.shallow_first.claims import DECODER, DEPTH, EARLY, LEARNED

# What a network's series holds, (points, members, true or permuted tree, L + 3):
ALONE, ORDER, MOVED = DEPTH, DEPTH + 1, DEPTH + 2
"""After the means by height: by how much tokens without a sibling exceed others as far from the query; the rank
correlation of the change since the start with lowness; how much has moved."""


def fates(run: Run, *names: str) -> Fates:
    """Of the members of these networks, one after the other."""
    return Fates.joined([_fates(run, name) for name in names])


def _fates(run: Run, name: str) -> Fates:
    """Even guesses lose ln(tokens) or ln(classes); the loss of blocks is summed over the queries, one a token."""
    tokens = 10 * run.config["classes"]
    guessed = np.log(run.config["classes"] if name.endswith("class") else tokens)
    chance = guessed if name == DECODER else tokens * guessed
    diverged = run.array(f"{name}/diverged_at")[-1] >= 0
    for what in ("attention", "weights", "says"):
        if f"{name}/{what}" in run:
            diverged = diverged | ~np.isfinite(run.array(f"{name}/{what}")).all((0, 2, 3))
    return Fates(diverged, run.array(f"{name}/train_loss")[-1] <= (1 - LEARNED) * chance)


def series(run: Run, name: str, what: str = "attention") -> Any:
    """Of the members that learned; of all where none did, for a figure to show."""
    values = run.array(f"{name}/{what}")
    kept = fates(run, name).kept
    return values[:, kept] if kept.any() else values


def by_height(values: Any) -> tuple[Any, Any]:
    """Of a series: means over pairs at each height, in the true and the permuted tree, (points, members, L) each."""
    return values[:, :, 0, :DEPTH], values[:, :, 1, :DEPTH]


def column(values: Any, which: int) -> tuple[Any, Any]:
    """Of a series: ALONE, ORDER or MOVED, in the true and the permuted tree, (points, members) each."""
    return values[:, :, 0, which], values[:, :, 1, which]


def early(values: Any) -> Any:
    """Of each member the first measuring point at which a tenth of the whole movement of a series has happened."""
    moved = values[:, :, 0, MOVED]
    begun = moved >= EARLY * moved.max(0)
    begun[0] = False
    begun[-1] = True  # where nothing moves
    return begun.argmax(0)


def contrasts(run: Run) -> tuple[Any, Any]:
    """ln p by which the decoder prefers a token at height h to one at h + 1, given m: (points, members, L - 1) each."""
    true, permuted = by_height(series(run, DECODER, "says"))
    return -np.diff(true, axis=-1), -np.diff(permuted, axis=-1)
