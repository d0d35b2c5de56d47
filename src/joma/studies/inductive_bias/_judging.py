"""How this room judges networks: only those that learned count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.verdicts import Compared, by_effect, not_run

AGAIN = "joma verify inductive-bias --scale paper"


def mean_known(values: Any) -> float:
    """The mean of what is a number, NaN where nothing is."""
    known = np.asarray(values)[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")


def of_learned(claim: Claim, found: Compared, *, expected: str, **evidence: Any) -> Finding:
    """`by_effect`; not run if a case has no network that learned."""
    cases = found.values() if isinstance(found, Mapping) else [found]
    if not all(one.seeds for one in cases):
        return not_run(claim, expected, "no network learned its task, or all diverged: nothing to compare", AGAIN)
    return by_effect(claim, found, expected=expected, **evidence)
