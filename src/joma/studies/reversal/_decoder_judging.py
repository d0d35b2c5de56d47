"""How the decoders of this room are judged: only networks that know what they were taught count, in any question."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, nan
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding, NotRun
from joma.claims.evidence import Test, at_most
from joma.claims.verdicts import Compared, Numbers, by_effect, not_run
from joma.host.devices import lacking
from joma.measure.intervals import Comparison, compare

LEARNED = 0.95
"""Of what was taught, a network must answer at least so much rightly."""
LITTLE = 0.05
"""Of a probability above the uniform guess: less than one answer in twenty is no knowledge worth the name."""


def layers_of(count: int) -> str:
    """The name of a case.

    >>> layers_of(1), layers_of(24)
    ('1 layer', '24 layers')
    """
    return "1 layer" if count == 1 else f"{count} layers"


def over_uniform(what: str, probability: Any, uniform: float) -> Test:
    """The test that a probability is no better than the uniform guess: its interval leaves no room for LITTLE more."""
    return no_more(f"{what} minus the uniform guess", compare(probability, uniform), LITTLE, "%")


def no_more(what: str, found: Comparison, most: float, unit: str = "") -> Test:
    """The test that value - control leaves no room for more than `most`.

    An interval that holds `most` neither meets the bound nor misses it: the number is then unknown, and the claim
    undecided.

    >>> no_more("gain", compare([0.1, 0.0, 0.4]), 0.2).passes, no_more("gain", compare([0.1, 0.0, 0.4]), 0.2).value
    (False, nan)
    """
    low, high = found.low - found.control, found.high - found.control
    return at_most(f"upper end of {what}", nan if low <= most < high else high, most, unit)


def of_learned(
    claim: Claim,
    found: Compared,
    *,
    study: str,
    expected: str,
    left_out: float = 0.0,
    details: Numbers | None = None,
    **evidence: Any,
) -> Finding:
    """`by_effect`, not run where a case has no network that learned what it was taught."""
    cases = list(found.values()) if isinstance(found, Mapping) else [found]
    if not cases or not all(one.seeds for one in cases):
        reason = (
            f"no network, or none of one case, answers {LEARNED:.0%} of what it was taught: there is nothing to judge"
        )
        return not_run(claim, expected, reason, at_paper_scale(study))
    shown = dict(details or {}) | ({"networks left out": {"did not learn": left_out}} if left_out else {})
    return by_effect(claim, found, expected=expected, details=shown, **evidence)


def mean_of(values: Any) -> float:
    """Over the networks that count; NaN where none does."""
    values = np.asarray(values, dtype=float)
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else nan


def hardest_of(values: Any, controls: Mapping[str, Any]) -> dict[str, Comparison]:
    """The comparison whose lower end is lowest, by the name of its control."""
    found = {name: compare(values, other) for name, other in controls.items()}

    def lower(name: str) -> float:
        low = found[name].low - found[name].control
        return low if np.isfinite(low) else -inf

    worst = min(found, key=lower)
    return {worst: found[worst]}


NOBODY = "Too few networks learned what they were taught to show anything."
"""What a caption says then."""


def at_paper_scale(study: str) -> str:
    """The command for a run that is long and large enough."""
    return f"joma verify {study} --scale paper"


def check_device(device: str, study: str) -> None:
    """Say how to run elsewhere what needs a GPU that is not here."""
    if missing := lacking(device):
        raise NotRun(str(missing), at_paper_scale(study))
