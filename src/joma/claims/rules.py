"""From numbers to a verdict. These rules read evidence and nothing else, so that a verdict can be worked out again.

An effect is judged by the interval of effect - control (95 %, or 99 % over four seeds or fewer) and by the smallest
difference that matters:

    above zero, the difference at least what matters        holds
    above zero, the difference smaller                      only qualitative
    below zero, the difference at least what matters        fails
    below zero, the difference smaller                      not above its control (slightly reversed)
    holds zero and nothing that matters                     not above its control
    is zero alone, over fewer than ten seeds                undecided
    holds zero and something that matters, or is unknown    undecided

Fewer than ten seeds that all give what the control gives, but for rounding, rule nothing out: runs may end alike by
chance, and how unlike others would be is not known. A seed that failed has no number and counts as the worst: beside it
no effect is above its control.

An effect that could not fit between its control and its ceiling is undecided too. A claim with several cases holds
where every case does; where some are above their controls and another fails, it is mixed. Who picks the cases that
differ from their controls among others that do not has chosen: their intervals are then as wide as Bonferroni asks.
What an undecided case might still become is tried out: where it cannot change the verdict of the whole, the whole is
decided. A number of a mathematical claim that could not be computed leaves it undecided.

A verdict is fragile in two ways. It changes when effects and the numbers of its tests move by a quarter of half their
intervals: another machine may round its way there. Or it would be undecided without the differences that are not firm.
A firm one has at least five seeds, p <= 0.0025 by Student's t, and p <= 0.05 by signs alone (by ranks, of other seeds).

Why these: intervals of 95 % suppose Gaussian seeds. With a tail downwards five seeds rarely show it, and up to 18 % of
claims without effect "hold"; a test of signs does not help, as the median is then above zero. With p <= 0.0025 it is
2.5 % for an exponential tail and 5 % for a lognormal one, and five seeds still see 4 standard deviations in 85 % of
cases (benchmarks/bench_rules.py measures all of this). Seeds of which a fifth collapse cannot be told from healthy ones
before one is seen: n of them are all healthy with probability 0.8^n, by any rule.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import isfinite, isnan, nan
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
_DIFFERS: tuple[Verdict, ...] = ("holds", "only qualitative", "fails")
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
    if second == "holds":  # of a printed form that could not be computed nobody knows that it needs the correction
        return "undecided" if first == "undecided" and not printed.effects else "holds as corrected"
    return next(verdict for verdict in _BETTER if verdict in (first, second))


def is_fragile(printed: Evidence, corrected: Evidence | None = None) -> bool:
    """Whether the verdict changes when effects and tests, all or one, move by a quarter of half their intervals.

    Or whether it rests on a difference that is not firm: without it the verdict would be another.

    >>> from joma.measure.intervals import compare
    >>> near, far = (Effect.of(compare([v, v + 0.1, v + 0.2, v, v + 0.1]), matters=0.05) for v in (0.02, 0.3))
    >>> is_fragile(Evidence({"": near})), is_fragile(Evidence({"": far}))
    (True, False)
    """
    now = judged(printed, corrected)
    forms = [form for form in (printed, corrected) if form is not None]
    if judged(*map(_firm_alone, forms)) != now:
        return True
    parts = {None, *(case for form in forms for case in form.effects), *(test for form in forms for test in form.tests)}
    parts |= {test for form in forms for test in form.controls}
    return any(judged(*(_moved(form, by, part) for form in forms)) != now for by in (-NUDGE, NUDGE) for part in parts)


def _firm_alone(evidence: Evidence) -> Evidence:
    """As if differences that are not firm had no interval, and so were undecided."""
    unknown = (nan, nan)
    effects = {
        case: replace(one, interval=unknown, difference_interval=unknown)
        if of_effect(one) in _DIFFERS and not one.firm
        else one
        for case, one in evidence.effects.items()
    }
    return replace(evidence, effects=effects)


def _moved(evidence: Evidence, by: float, part: str | Test | None) -> Evidence:
    """With one case or one test moved, or all of them if None."""
    effects = {name: one.moved(by) if part in (None, name) else one for name, one in evidence.effects.items()}
    tests, controls = (
        tuple(test.moved(by) if part is None or part == test else test for test in several)
        for several in (evidence.tests, evidence.controls)
    )
    return replace(evidence, effects=effects, tests=tests, controls=controls)


def of_evidence(evidence: Evidence) -> Verdict:
    """The verdict on one form of a claim; where its curves still move, nothing is decided."""
    if not _pass(evidence.horizon):
        return "undecided"
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
    if effect.low > 0 and effect.failed:
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
    if "undecided" not in several:
        return then(_whole(known))
    might_be = {then(_whole(known | {one})) for one in _DECIDED}  # what two may become is as open as what one may
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

    return together(map(of_effect, _chosen(list(evidence.effects.values()))), then)


def _chosen(cases: list[Effect]) -> list[Effect]:
    """The cases; those that differ from their controls beside others that do not, with the intervals of a choice."""
    differ = [one.low > 0 or one.high < 0 for one in cases]
    if all(one.low > 0 for one in cases) or all(one.high < 0 for one in cases):
        return cases
    return [one.one_of(len(cases)) if chosen else one for one, chosen in zip(cases, differ, strict=True)]


def _of_tests(evidence: Evidence) -> Verdict:
    if _pass(evidence.tests):
        return _unmet(evidence.controls) or "holds"
    if evidence.direction and _pass(evidence.direction):
        return _unmet(evidence.controls) or "only qualitative"
    return "undecided" if _unknown(evidence.tests) else "fails"


def _unmet(controls: tuple[Test, ...]) -> Verdict | None:
    if _pass(controls):
        return None
    return "undecided" if _unknown(controls) else "not above its control"


def _unknown(tests: tuple[Test, ...]) -> bool:
    return all(test.passes or isnan(test.value) for test in tests)


def _pass(tests: tuple[Test, ...]) -> bool:
    return all(test.passes for test in tests)
