"""Why a record of language models may show nothing: runs that diverged, networks that learned nothing."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from joma.recipes.language_curves import LEARNED, alive, best_loss, learned_at, mean_over_seeds
from joma.runs import Run


def diverged(run: Run, variants: Iterable[str]) -> dict[str, dict[str, float]]:
    """How many members of each variant had a loss that was no longer finite, for a finding's `details`; {} if none."""
    lost = {f"runs of {name}": float((~alive(run, name)).sum()) for name in variants}
    lost = {name: count for name, count in lost.items() if count}
    return {"diverged and left out": lost} if lost else {}


def learned_nothing(run: Run, variant: str, rate: int = 0) -> str:
    """Why the networks of one rate show nothing: they learned the words' frequencies and no more. Empty if more.

    Where all diverged there is no loss, and nothing was learned either.
    """
    if learned_at(run, variant)[rate]:
        return ""
    loss = mean_over_seeds(best_loss(run, variant)[rate])
    if not isfinite(loss):
        return f"the networks of {variant} learned nothing: all diverged"
    frequencies = float(run.value(f"{variant}/loss by frequency"))
    return (
        f"the networks of {variant} learned no more than how frequent words are: their best loss is {loss:.3f} nats, "
        f"predicting by frequency alone has {frequencies:.3f} nats, and they must be {LEARNED:g} nats lower than that"
    )
