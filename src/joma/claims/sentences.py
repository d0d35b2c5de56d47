"""Words for evidence, made in this place alone and never read back: what was measured, beside what, what is missing.

Intervals of probabilities and shares are cut at 0 and 1, and say so (`joma.claims.limits`); not inside `as_computed`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from math import floor, isfinite, log10

from joma.claims.evidence import ENOUGH_TO_AGREE, Effect, Evidence, Test
from joma.claims.limits import Limits, cut
from joma.claims.rules import of_effect

_NEEDED = {"<=": "at most", "<": "below", ">=": "at least", ">": "above"}
Cases = Mapping[str, Mapping[str, float]]
_CUT = ContextVar("_CUT", default=True)


@contextmanager
def as_computed() -> Iterator[None]:
    """Words made inside give intervals as they were computed: those of files, which hold what was judged."""
    before = _CUT.set(False)
    try:
        yield
    finally:
        _CUT.reset(before)


def show(number: float, unit: str = "") -> str:
    """A number as a reader wants it: four digits, or two and the power of ten; shares in percent.

    >>> show(0.36), show(4e-14), show(12.6, "nats"), show(0.987, "%")
    ('0.36', '4.0e-14', '12.6 nats', '98.7 %')
    """
    if not isfinite(number):
        return {"inf": "infinite", "-inf": "minus infinite"}.get(str(float(number)), "unknown")
    if unit == "%":
        return f"{100 * number:.3g} %"
    if number == 0 or 1e-3 <= abs(number) < 1e5:
        shown = f"{number:.4g}" if abs(number) < 1000 else f"{number:.0f}"
    else:
        shown = f"{number:.1e}".replace("e-0", "e-").replace("e+0", "e+")
    return f"{shown} {unit}".rstrip() if unit != "°" else f"{shown}°"


def measured(printed: Evidence, corrected: Evidence | None = None, details: Cases | None = None) -> float | str:
    """What was measured: the bare number where there is only one, else each number with its name.

    >>> from joma.claims.evidence import at_most
    >>> measured(Evidence(tests=(at_most("distance", 0.36, 1e-9),)), Evidence(tests=(at_most("distance", 0.0, 1e-9),)))
    'as printed: distance 0.36 (needed: at most 1.0e-9); as corrected: distance 0 (needed: at most 1.0e-9)'
    """
    if corrected is None and not printed.effects and len(printed.tests) == 1 and not printed.direction and not details:
        return printed.tests[0].value
    forms = [_evidence(form) for form in (printed, corrected) if form is not None]
    named = [f"as printed: {forms[0]}", f"as corrected: {forms[1]}"] if len(forms) > 1 else forms
    cases = [(case, ", ".join(f"{k} {show(v)}" for k, v in row.items())) for case, row in (details or {}).items()]
    return "; ".join([*named, *(_named(case, words) for case, words in cases)])


def brief(printed: Evidence, corrected: Evidence | None = None, main: Effect | None = None) -> str:
    """The numbers that decide, in one line: the effect beside its control, or how far each form is off.

    main: of an empirical claim, the effect that decides.

    >>> from joma.claims.evidence import at_most
    >>> brief(Evidence(tests=(at_most("distance", 0.36, 1e-9),)), Evidence(tests=(at_most("distance", 0.0, 1e-9),)))
    'as printed: distance 0.36 (needed: at most 1.0e-9); as corrected: distance 0 (needed: at most 1.0e-9)'
    """
    if main is not None:
        cases = [*printed.effects.items(), *(corrected or printed).effects.items()]
        case = next((name for name, one in cases if one is main), "")
        beside = f"{value(main)}; control {_control(main)}"
        beside += "" if main.against_constant else f"; difference {difference(main)}"
        beside += _but(main, corrected or printed)
        return _named(case, beside if main.seeds else _missing(main))
    if corrected is None:
        return _test(worst(printed))
    return f"as printed: {_test(worst(printed))}; as corrected: {_test(worst(corrected))}"


def _but(main: Effect, evidence: Evidence) -> str:
    """Of an effect that is above its own control: what else had to be true and is not, or is not known."""
    wrong = [test for test in evidence.controls if not test.passes]
    if not wrong or of_effect(main) != "holds":
        return ""
    known = [test for test in wrong if isfinite(test.value)]
    return f"; but {_test(max(known, key=lambda test: test.shortfall) if known else wrong[0])}"


def worst(evidence: Evidence) -> Test:
    """The test of a mathematical claim that decides: the one that misses its bound by most, or comes closest to it."""
    return max((*evidence.tests, *evidence.direction), key=lambda test: test.shortfall)


def control(printed: Evidence, corrected: Evidence | None = None) -> str | None:
    """What stands beside it: the control of every effect, and what had to be true of controls."""
    parts = []
    for evidence in filter(None, (printed, corrected)):
        parts += _by_case({case: _control(effect) for case, effect in evidence.effects.items()})
        parts += map(_test, evidence.controls)
    return "; ".join(dict.fromkeys(parts)) or None


def missing(printed: Evidence, corrected: Evidence | None = None) -> str:
    """What an undecided claim could have seen, and what would decide it; empty where every effect is decided.

    >>> from joma.measure.intervals import compare
    >>> missing(Evidence({"": Effect.of(compare([0.3, 0.0, 0.3], 0.0), matters=0.1)}))
    'it could have seen a difference of at least 1.0; 9 seeds would probably decide'
    """
    parts = []
    for evidence in filter(None, (printed, corrected)):
        open_cases = {case: one for case, one in evidence.effects.items() if of_effect(one) == "undecided"}
        parts += _by_case({case: _missing(effect) for case, effect in open_cases.items()})
        parts += [f"{test.what}: {_would_decide(test.seeds_to_decide, 'seeds')}"
                  for test in (*evidence.tests, *evidence.controls) if test.seeds_to_decide]  # fmt: skip
        parts += [f"it still moves: {_test(test)}; train longer" for test in evidence.horizon if not test.passes]
    return "; ".join(dict.fromkeys(parts))


def _missing(effect: Effect) -> str:
    if not isfinite(effect.half_width):
        few = f"only {effect.seeds}" if effect.seeds else "none"
        return f"{few} of the {effect.over} could be compared, at least 2 are needed"
    if not effect.fits:
        return (
            f"the control is at {show(effect.control_effect, effect.unit)}, and a difference of "
            f"{show(effect.matters, effect.unit)} does not fit below the ceiling of "
            f"{show(effect.ceiling or 0.0, effect.unit)}"
        )
    if effect.failed and effect.low > 0:
        return f"{_failed(effect)}, and what failed counts as the worst"
    if effect.may_agree_by_chance:
        few = f"all {effect.seeds} {effect.over} give exactly what the control gives, as so few may by chance"
        return f"{few}; at least {ENOUGH_TO_AGREE} {effect.over} are needed"
    rounded = _rounded(effect.unit, effect.difference_interval, effect.effect)
    seen = f"it could have seen a difference of at least {rounded(effect.half_width)}{_unit(effect)}"
    return f"{seen}; {_would_decide(effect.seeds_to_decide, effect.over)}"


def _would_decide(count: int | None, over: str) -> str:
    return f"{count} {over} would probably decide" if count else f"no known number of {over} would decide"


def _evidence(evidence: Evidence) -> str:
    parts = [_effects(evidence.effects)] if evidence.effects else []
    parts += [_test(test) for test in (*evidence.tests, *evidence.direction)]
    return "; ".join(dict.fromkeys(parts))


def _effects(effects: Mapping[str, Effect]) -> str:
    kinds = {(effect.what, effect.seeds, effect.over) for effect in effects.values()}
    if len(effects) == 1 or len(kinds) > 1:
        found = {case: f"{one.what} {_both(one)}{_seeds(one)}".strip() for case, one in effects.items()}
        return "; ".join(_named(case, words) for case, words in found.items())
    one = next(iter(effects.values()))
    cases = "; ".join(f"{case} {_both(effect)}" for case, effect in effects.items())
    return _named(f"{one.what}{_seeds(one)}".strip(), cases)


def value(effect: Effect) -> str:
    """The effect with its own interval.

    >>> value(Effect(0.4999, (0.3344, 0.6655), 0.0, (0.0, 0.0), 5, 0.05, unit="nats"))
    '0.50 nats [0.33, 0.67]'
    """
    return _with(effect, effect.effect, effect.interval, effect.limits)


def difference(effect: Effect) -> str:
    """How far it is above its control, with the interval of that: what decides where the control was measured."""
    return _with(effect, effect.difference, effect.difference_interval)


def _both(effect: Effect) -> str:
    more = "" if effect.against_constant or not isfinite(effect.half_width) else f" (difference {difference(effect)})"
    return value(effect) + more


def _with(effect: Effect, number: float, ends: tuple[float, float], limits: Limits = (None, None)) -> str:
    """A number with its own interval; without one where a record does not know it, and knows the difference's."""
    rounded = _rounded(effect.unit, ends, number)
    shown = f"{rounded(number)}{_unit(effect)}"
    if isfinite(effect.half_width) and not isfinite(ends[1] - ends[0]):
        return shown
    return f"{shown} {interval(ends, limits, rounded)}{level(effect)}"


def level(effect: Effect) -> str:
    """The level of its intervals, where it is not the usual 95 %.

    >>> level(Effect(0.5, (0.4, 0.6), 0.0, (0.0, 0.0), 3, 0.1, level=0.99))
    ' at 99 %'
    """
    return "" if effect.level == 0.95 or not isfinite(effect.half_width) else f" at {100 * effect.level:.4g} %"


def _by_case(said: Mapping[str, str]) -> list[str]:
    cases: dict[str, list[str]] = {}
    for case, words in said.items():
        cases.setdefault(words, []).append(case)
    return [_named(", ".join(filter(None, several)), words) for words, several in cases.items()]


def control_value(effect: Effect) -> str:
    """The control, with its own interval where it was measured."""
    if not effect.against_constant:
        return _with(effect, effect.control_effect, effect.control_interval, effect.limits)
    return f"{_rounded(effect.unit, effect.interval, effect.effect)(effect.control_effect)}{_unit(effect)}"


def _control(effect: Effect) -> str:
    return "the constant " * effect.against_constant + control_value(effect)


def interval(ends: tuple[float, float], limits: Limits, rounded: Callable[[float], str]) -> str:
    """The ends in brackets, cut at the limits; an end that is written otherwise for it says so.

    >>> interval((-0.006, 0.054), (0.0, 1.0), "{:.2f}".format)
    '[0.00 (cut), 0.05]'
    """
    if not (isfinite(ends[0]) and isfinite(ends[1])):
        return "[no interval]"
    shown = cut(ends, limits) if _CUT.get() else ends
    low, high = (rounded(now) + " (cut)" * (rounded(now) != rounded(was)) for now, was in zip(shown, ends, strict=True))
    return f"[{low}, {high}]"


def _unit(effect: Effect) -> str:
    return effect.unit if effect.unit == "°" else f" {effect.unit}".rstrip()


def _rounded(unit: str, ends: tuple[float, float], of: float) -> Callable[[float], str]:
    """Writes numbers with the digits that the interval gives sense to. of: the number that the interval is around.

    Two digits of its half where that begins with 1 to 4, else one; never less than the whole number.
    """
    scale = 100.0 if unit == "%" else 1.0
    half = float(f"{scale * (ends[1] - ends[0]) / 2:.9g}")  # 0.05 as it was meant
    if not isfinite(half) or half < 1e-12 * abs(scale * of) or not 1e-5 < half < 1e5:
        return lambda number: show(scale * number)
    place = floor(log10(half))
    decimals = max(-place + (half / 10**place < 5), 0)

    def decimal(number: float) -> str:  # what is exactly nothing is 0, and what rounds to nothing has no sign
        known = isfinite(number) and number != 0
        return f"{round(scale * number, decimals) + 0.0:.{decimals}f}" if known else show(scale * number)

    return decimal


def _seeds(effect: Effect) -> str:
    over = f" over {effect.seeds} {effect.over}" if effect.seeds > 1 else ""
    return f"{over}; {_failed(effect)}" if effect.failed else over


def _failed(effect: Effect) -> str:
    return f"{effect.failed} of {effect.failed + effect.seeds} {effect.over} failed"


def _test(test: Test) -> str:
    return f"{test.what} {show(test.value, test.unit)} (needed: {_NEEDED[test.must]} {show(test.bound, test.unit)})"


def _named(case: str, words: str) -> str:
    return f"{case}: {words}" if case else words
