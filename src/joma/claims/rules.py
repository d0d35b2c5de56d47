"""From numbers to a verdict. These rules read evidence and nothing else, so that a verdict can be worked out again.

An effect is judged by the interval of effect - control (95 %, or 99 % over four seeds or fewer) and by the smallest
difference that matters:

    above zero, the difference at least what matters        holds
    above zero, the difference smaller                      only qualitative
    below zero, the difference at least what matters        fails
    below zero, the difference smaller                      not above its control (slightly reversed)
    holds zero and nothing that matters                     not above its control
    is zero alone, over two or three seeds                  undecided
    holds zero and something that matters, or is unknown    undecided

Two or three seeds that all give exactly what the control gives rule nothing out: so few runs may end alike by chance,
and the width of their interval, which would rule an effect out, is not known. Where they agree above or below the
control a difference was seen: the verdict stands, and is fragile.

An effect that could not fit between its control and its ceiling is undecided too. A claim with several cases holds
where every case does; where some are above their controls and another fails, it is mixed. What an undecided case might
still become is tried out: where it cannot change the verdict of the whole, the whole is decided.

A verdict is fragile if it changes when effects move by a quarter of half their intervals: another machine may round
its way there. It is fragile too if it rests on two or three seeds that agree to the last digit, above or below their
control: how unlike further seeds would be is not known.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations
from math import isfinite, isnan
from typing import Literal, get_args

from joma.claims.evidence import Effect, Evidence, Test

Verdict = Literal[
    "holds", "holds as corrected", "only qualitative", "mixed", "not above its control", "undecided", "fails",
    "at paper scale", "not run",
]  # fmt: skip
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
UNJUDGED: tuple[Verdict, ...] = ("at paper scale", "not run")
"""Without evidence: the claim is about paper scale and cannot be seen smaller, or nothing was measured."""
_DECIDED: tuple[Verdict, ...] = ("holds", "only qualitative", "not above its control", "fails")
_BETTER: tuple[Verdict, ...] = ("undecided", "only qualitative", "mixed", "not above its control", "fails")
"""Where neither form of a claim holds, the first of these that one of them got."""
NUDGE = 0.25
"""Of half an interval."""


def judged(printed: Evidence, corrected: Evidence | None = None) -> Verdict:
    """The verdict on a claim from what speaks for its printed and its corrected form.

    >>> from joma.claims.evidence import at_most
    >>> printed, corrected = (Evidence(tests=(at_most("distance", off, 1e-9),)) for off in (0.36, 4e-14))
    >>> judged(printed), judged(printed, corrected)
    ('fails', 'holds as corrected')
    """
    first = of_evidence(printed)
    if corrected is None or first == "holds":
        return first
    second = of_evidence(corrected)
    if second == "holds":
        return "holds as corrected"
    return next(verdict for verdict in _BETTER if verdict in (first, second))


def is_fragile(printed: Evidence, corrected: Evidence | None = None) -> bool:
    """Whether the verdict changes when the effects, all or one of them, move by a quarter of half their intervals.

    Or whether it is decided by two or three seeds of an effect that agree to the last digit.

    >>> from joma.measure.intervals import compare
    >>> near, far = (Effect.of(compare([v, v + 0.1, v + 0.2, v, v + 0.1]), matters=0.05) for v in (0.02, 0.3))
    >>> is_fragile(Evidence({"": near})), is_fragile(Evidence({"": far}))
    (True, False)
    """
    now = judged(printed, corrected)
    read = [printed] if corrected is None or now == "holds" else [printed, corrected]
    if now != "undecided" and any(_agrees_by_chance(effect) for each in read for effect in each.effects.values()):
        return True
    cases = {None, *printed.effects, *(corrected.effects if corrected else ())}
    return any(judged(_moved(printed, by, case), corrected and _moved(corrected, by, case)) != now
               for by in (-NUDGE, NUDGE) for case in cases)  # fmt: skip


def _agrees_by_chance(effect: Effect) -> bool:
    """Whether it is decided by so few seeds that agree; where it is not, the verdict of the whole rests on others."""
    return effect.may_agree_by_chance and of_effect(effect) != "undecided"


def _moved(evidence: Evidence, by: float, case: str | None) -> Evidence:
    """With one case moved, or all of them if None."""
    effects = {name: one.moved(by) if case in (None, name) else one for name, one in evidence.effects.items()}
    return replace(evidence, effects=effects)


def of_evidence(evidence: Evidence) -> Verdict:
    """The verdict on one form of a claim."""
    return _of_effects(evidence) if evidence.effects else _of_tests(evidence)


def of_effect(effect: Effect) -> Verdict:
    """The verdict on one effect.

    >>> from joma.measure.intervals import compare
    >>> of_effect(Effect.of(compare([0.3, 0.0, 0.3], 0.0), matters=0.1))
    'undecided'
    """
    if effect.seeds < 2 or not (isfinite(effect.low) and isfinite(effect.high)):
        return "undecided"
    if effect.high < 0:
        return "not above its control" if effect.slightly_reversed else "fails"
    if not effect.fits:
        return "undecided"
    if effect.low > 0:
        return "holds" if effect.difference >= effect.matters else "only qualitative"
    ruled_out = effect.high < effect.matters and not effect.may_agree_by_chance
    return "not above its control" if ruled_out else "undecided"


def together(verdicts: Iterable[Verdict], then: Callable[[Verdict], Verdict] = lambda verdict: verdict) -> Verdict:
    """The verdict on a claim that needs several cases, from the verdicts on each.

    then: what size and controls make of the verdict on the effects. What an undecided case might become goes through
    it too: where the size is missed for certain, the claim cannot hold any more.

    >>> together(["holds", "undecided"]), together(["holds", "fails", "undecided"])
    ('undecided', 'mixed')
    """
    several = list(verdicts)
    known = frozenset(several) - {"undecided"}
    open_cases = several.count("undecided")
    if not open_cases:
        return then(_whole(known))
    sizes = range(1, min(open_cases, len(_DECIDED)) + 1)
    might_be = {then(_whole(known | frozenset(some))) for size in sizes for some in combinations(_DECIDED, size)}
    return might_be.pop() if len(might_be) == 1 else "undecided"


def _whole(verdicts: frozenset[Verdict]) -> Verdict:
    if verdicts == {"holds"}:
        return "holds"
    if verdicts & {"holds", "only qualitative"}:
        return "mixed" if "fails" in verdicts else "only qualitative"
    return "fails" if verdicts == {"fails"} else "not above its control"


def _of_effects(evidence: Evidence) -> Verdict:
    def then(found: Verdict) -> Verdict:
        if found not in ("holds", "only qualitative", "mixed"):
            return found
        if unmet := _unmet(evidence.controls):
            return unmet
        if found == "holds" and not _pass(evidence.tests):
            return "undecided" if _unknown(evidence.tests) else "only qualitative"
        return found

    return together(map(of_effect, evidence.effects.values()), then)


def _of_tests(evidence: Evidence) -> Verdict:
    if _pass(evidence.tests):
        return _unmet(evidence.controls) or "holds"
    if evidence.direction and _pass(evidence.direction):
        return _unmet(evidence.controls) or "only qualitative"
    return "fails"


def _unmet(controls: tuple[Test, ...]) -> Verdict | None:
    """What a control that is not as it must be makes of a favourable verdict."""
    if _pass(controls):
        return None
    return "undecided" if _unknown(controls) else "not above its control"


def _unknown(tests: tuple[Test, ...]) -> bool:
    """Whether none is missed for certain."""
    return all(test.passes or isnan(test.value) for test in tests)


def _pass(tests: tuple[Test, ...]) -> bool:
    return all(test.passes for test in tests)
