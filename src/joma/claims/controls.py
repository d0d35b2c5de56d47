"""A number with several controls: the one that is hardest to exceed, and a further one as a test.

Cases (layers, depths, rates) are things that a claim speaks of; some of them may be missed, and a part of the claim is
left. Controls are not: a number that one of its controls reaches as well says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite, nan

from joma.claims.claim import Claim
from joma.claims.evidence import Effect, Test, at_least
from joma.claims.rules import Verdict, of_effect
from joma.measure.intervals import Comparison

_WORST_FIRST: tuple[Verdict, ...] = ("fails", "not above its control", "undecided", "only qualitative", "holds")


def hardest(claim: Claim, controls: Mapping[str, Comparison]) -> dict[str, Comparison]:
    """The comparison with the control that is hardest to exceed, under its name, as `by_effect` takes it.

    It is the one with the least favourable verdict; among equals, the one whose interval begins lowest. So a claim is
    above all of its controls if it is above this one.

    >>> from joma.measure.intervals import compare
    >>> claim = Claim("taught", "CDAG Thm 1", "Gradients teach.", matters=0.05, unit="%")
    >>> seen = [0.90, 0.91, 0.89]
    >>> list(hardest(claim, {"chance": compare(seen, 0.5), "untrained": compare(seen, [0.90, 0.90, 0.91])}))
    ['untrained']
    """
    if not controls:
        raise ValueError(f"{claim.name}: at least one control is needed, got none")

    def favour(name: str) -> tuple[int, float]:
        found = controls[name]
        low = found.low - found.control
        return _WORST_FIRST.index(_verdict(claim, found)), low if isfinite(low) else -inf

    worst = min(controls, key=favour)
    return {worst: controls[worst]}


def beyond(claim: Claim, what: str, found: Comparison) -> Test:
    """The test that the comparison with a further control holds: value - control, by what matters to the claim.

    Where that is undecided the value is not a number, and the claim is undecided with it.

    >>> from joma.measure.intervals import compare
    >>> claim = Claim("closer", "CDAG Sec. 1.2", "It is closer.", matters=5.0, unit="°")
    >>> beyond(claim, "gap beyond the untrained network's", compare([44.0, 45.0, 43.0], [59.0, 60.0, 58.0])).value
    -15.0
    """
    matters = claim.matters or inf
    value = nan if _verdict(claim, found) == "undecided" else found.difference
    return at_least(what, value, matters, claim.unit)


def _verdict(claim: Claim, found: Comparison) -> Verdict:
    return of_effect(Effect.of(found, matters=claim.matters or inf, ceiling=claim.ceiling))
