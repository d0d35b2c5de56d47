"""How this room judges networks: only those that learned count, and a control is exceeded only beyond chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, nan
from typing import Any, NamedTuple

import numpy as np

from joma.claims.contract import Claim, Finding, NotRun
from joma.claims.evidence import Test, above
from joma.claims.verdicts import Compared, Numbers, by_effect, not_run
from joma.host.devices import lacking
from joma.measure.intervals import Comparison


class Fates(NamedTuple):
    """What became of the networks that a finding is about, (networks,) each, of any shape."""

    diverged: Any
    learned: Any
    """Whether a network does better at its task than one that knows nothing of it."""

    @property
    def kept(self) -> Any:
        """Those that a verdict may rest on."""
        return self.learned & ~self.diverged

    def of(self, chosen: Any) -> Fates:
        """Those of some networks."""
        return Fates(self.diverged[chosen], self.learned[chosen])

    @property
    def left_out(self) -> Numbers:
        """How many do not count, for the reader; empty where all do."""
        lost = {"diverged": self.diverged, "did not learn": ~self.learned & ~self.diverged}
        counts = {why: float(np.sum(those)) for why, those in lost.items() if np.any(those)}
        return {"networks left out": counts} if counts else {}

    @property
    def reason(self) -> str:
        """Why nothing can be said, where none is left."""
        lost = int(np.sum(self.diverged))
        learned, all_of_them = self.kept.sum(), self.kept.size
        return f"only {learned} of {all_of_them} networks learned their task ({lost} diverged): too few to judge"


def of_learned(
    claim: Claim,
    found: Compared,
    *,
    fates: Fates,
    study: str,
    expected: str,
    corrected: Compared | None = None,
    details: Numbers | None = None,
    **evidence: Any,
) -> Finding:
    """`by_effect` with the number of networks left out; not run if a case has no network that learned."""
    cases = [one for form in (found, corrected) if form is not None for one in _cases(form)]
    if not all(one.seeds for one in cases):
        return not_run(claim, expected, fates.reason, at_paper_scale(study))
    shown = {**(details or {}), **fates.left_out}
    return by_effect(claim, found, expected=expected, corrected=corrected, details=shown, **evidence)


def _cases(form: Compared) -> Sequence[Comparison]:
    return list(form.values()) if isinstance(form, Mapping) else [form]


def beyond(what: str, found: Comparison, unit: str = "", *, matters: float = inf) -> Test:
    """The test that a value is above its control: the lower end of the interval of their difference is above 0.

    matters: of a control, the smallest difference that would. An interval that holds both 0 and such a difference
    neither meets the control nor refutes it: the number is then unknown, so that the verdict is undecided.

    >>> from joma.measure.intervals import compare
    >>> unclear = compare([0.3, 0.2, 0.4], [0.2, 0.2, 0.2])
    >>> beyond("gain", unclear).passes, beyond("gain", unclear, matters=0.1).value
    (False, nan)
    """
    low, high = found.low - found.control, found.high - found.control
    return above(f"lower end of {what}", nan if low <= 0 and high >= matters else low, 0.0, unit)


def at_paper_scale(study: str) -> str:
    """The command for a run that is long and large enough."""
    return f"joma verify {study} --scale paper"


def check_device(device: str, study: str) -> None:
    """Say how to run elsewhere what needs a GPU that is not here."""
    if missing := lacking(device):
        raise NotRun(str(missing), at_paper_scale(study))
