"""What `galore-theory` recorded, as judges and figures read it."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.runs import Run
from joma.studies.galore.galore_theory.claims import KEPT
from joma.studies.galore.galore_theory.run import ODD, PRINTED


def worst(values: Any) -> float:
    """The largest, or NaN if there is one among them."""
    return float(np.max(list(values)))


def excess(run: Run, family: str, form: str) -> Any:
    """By how much of it the stable rank is above a bound at its worst moment, (cases,)."""
    rank, bound = run.value(f"lemma/{family}/rank"), run.value(f"lemma/{family}/{form}")
    return (rank / bound - 1).max(-1)


def share_broken(run: Run, family: str) -> float:
    """Of the random cases: how many are above the printed bound at some time."""
    return float((excess(run, family, "printed")[1:] > KEPT).mean())


def columns(run: Run) -> dict[str, Any]:
    """Bytes and printed numbers by model, and three quarters of LoRA's states, in the paper's unit."""
    names = ("weights", "nominal weights", "galore", "galore matrices", "lora", *PRINTED)
    return {name: run.value(f"memory/{name}") for name in names} | {
        "three quarters": 0.75 * run.value("memory/lora") / ODD
    }
