"""What a verdict rests on, as numbers: effects beside their controls, and tests with their bounds.

An `Effect` is a number over seeds beside the same number in the control. A `Test` is a number that must lie on one side
of a bound. `Evidence` collects them for one form of a claim, the printed or the corrected one. Nothing here is a
sentence: `joma.claims.sentences` makes sentences of it, `joma.claims.verdicts` verdicts.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from joma.claims.limits import Limits, limits_of
from joma.measure.intervals import Comparison, p_value, seeds_to_decide, t_quantile

Relation = Literal["<=", "<", ">=", ">"]
ENOUGH_TO_AGREE = 10
"""Seeds that give the same number: fewer do not tell how unlike others are. Ten rule out that 26 % of others differ."""
SAME = 1e-9
"""Numbers that differ by less, as a share of their size or of what matters, are the same: rounding makes as much."""
FIRM_SEEDS, FIRM_P, FIRM_SIGNS = 5, 0.0025, 0.05
"""What a firm difference needs: so many seeds, a p of Student's t, and one of signs; see `joma.claims.rules`."""


@dataclass(frozen=True)
class Test:
    """A number and the bound that it must keep.

    >>> Test("share of pairs in order", 0.98, ">=", 1.0).passes
    False
    >>> Test("distance", float("nan"), "<=", 1.0).passes
    False
    """

    __test__ = False  # pytest collects what is called Test

    what: str
    value: float
    must: Relation
    bound: float
    unit: str = ""
    seeds_to_decide: int | None = None
    """Of a number that chance leaves open (it is not a number then): so many seeds would tell, if that is known."""
    half_width: float = 0.0
    """Of the number's interval over seeds, where that is known: a verdict that hangs on less is fragile."""

    @property
    def passes(self) -> bool:
        """Whether the bound is kept. What is not a number keeps none."""
        value, bound = self.value, self.bound
        return {"<=": value <= bound, "<": value < bound, ">=": value >= bound, ">": value > bound}[self.must]

    @property
    def shortfall(self) -> float:
        """How far the value is on the wrong side of the bound: 0 where it passes, infinite where it is not a number."""
        if self.passes:
            return 0.0
        gap = abs(self.value - self.bound)
        return math.inf if math.isnan(gap) else max(gap, sys.float_info.min)

    def moved(self, half_widths: float) -> "Test":
        """The test with its number moved by so many halves of its interval."""
        return replace(self, value=self.value + half_widths * self.half_width) if self.half_width else self

    def as_json(self) -> dict[str, Any]:
        """Plain data; `from_json` gives the test back."""
        value, bound = plain(self.value), plain(self.bound)
        written = {"what": self.what, "value": value, "must": self.must, "bound": bound, "unit": self.unit}
        written |= {} if self.seeds_to_decide is None else {"seeds_to_decide": self.seeds_to_decide}
        return written | ({"half_width": self.half_width} if self.half_width else {})

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Test":
        """The test that `as_json` wrote."""
        value, bound = number(data["value"]), number(data["bound"])
        further = data.get("seeds_to_decide"), float(data.get("half_width", 0.0))
        return Test(data["what"], value, data["must"], bound, data["unit"], *further)


def at_most(what: str, value: float | Comparison, bound: float, unit: str = "") -> Test:
    """The test that `value` is at most `bound`.

    value: of a comparison its mean over seeds, so that the test knows how sure it is; as for the three others.

    >>> at_most("distance from the flow", 1e-12, 1e-9).passes
    True
    """
    return _test(what, value, "<=", bound, unit)


def at_least(what: str, value: float | Comparison, bound: float, unit: str = "") -> Test:
    """The test that `value` is at least `bound`."""
    return _test(what, value, ">=", bound, unit)


def below(what: str, value: float | Comparison, bound: float, unit: str = "") -> Test:
    """The test that `value` is below `bound`, and not equal to it."""
    return _test(what, value, "<", bound, unit)


def above(what: str, value: float | Comparison, bound: float, unit: str = "") -> Test:
    """The test that `value` is above `bound`, and not equal to it."""
    return _test(what, value, ">", bound, unit)


def _test(what: str, value: float | Comparison, must: Relation, bound: float, unit: str) -> Test:
    mean, half = (value.value, (value.high - value.low) / 2) if isinstance(value, Comparison) else (value, 0.0)
    return Test(what, float(mean), must, float(bound), unit, half_width=half if math.isfinite(half) else 0.0)


@dataclass(frozen=True)
class Effect:
    """A mean over seeds beside that of its control, on the scale on which the claim expects more of it.

    `interval` is the effect's own, `control_interval` the control's, and `difference_interval` that of effect -
    control, which decides. `matters` is the smallest difference that would matter, stated with the claim. `ceiling` is
    the largest value that the effect could have, where there is one.

    >>> from joma.measure.intervals import compare
    >>> gain = Effect.of(compare([0.72, 0.70, 0.74], [0.68, 0.67, 0.69]), matters=0.02)
    >>> round(gain.effect, 2), [round(end, 2) for end in gain.interval], gain.level, round(gain.control_effect, 2)
    (0.72, [0.61, 0.83], 0.99, 0.68)
    >>> round(gain.difference, 2), [round(end, 3) for end in gain.difference_interval]
    (0.04, [-0.017, 0.097])
    """

    effect: float
    interval: tuple[float, float]
    control_effect: float
    control_interval: tuple[float, float]
    seeds: int
    matters: float
    ceiling: float | None = None
    unit: str = ""
    what: str = ""
    level: float = 0.95
    """Of the intervals."""
    over: str = "seeds"
    """What was drawn several times: seeds, matrices, networks."""
    freedom: int | None = None
    """Of the difference's interval; None in records that do not say: then as many as seeds, less one."""
    difference_interval: tuple[float, float] = (math.nan, math.nan)
    """Beside a constant it follows from the effect's own, and need not be given."""
    failed: int = 0
    """Seeds without a number, such as networks that diverged: they count as the worst."""
    sign_p: float | None = None
    """One-sided p of signs, or of ranks; None in records that do not say."""
    numbers: tuple[tuple[float, ...], ...] = field(default=(), compare=False, repr=False)
    """Seed by seed, the effect's and the control's; a record does not keep them."""
    paired: bool = field(default=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.matters > 0 or not math.isfinite(self.matters):
            raise ValueError(f"matters must be a positive number, stated before the run, got {self.matters!r}")
        if self.against_constant:
            low, high = (end - self.control_effect for end in self.interval)
            object.__setattr__(self, "difference_interval", (low, high))

    @staticmethod
    def of(
        found: Comparison, *, matters: float, ceiling: float | None = None, unit: str = "", what: str = "",
        over: str = "seeds",
    ) -> "Effect":  # fmt: skip
        """The effect of a comparison with its control."""
        return Effect(
            found.value, (found.low, found.high), found.control, (found.control_low, found.control_high), found.seeds,
            float(matters), ceiling, unit, what, found.level, over, found.freedom,
            (found.difference_low, found.difference_high), found.failed, found.sign_p, found.numbers, found.paired,
        )  # fmt: skip

    @property
    def difference(self) -> float:
        """Effect minus control."""
        return self.effect - self.control_effect

    @property
    def low(self) -> float:
        """The lower end of the interval of effect - control."""
        return self.difference_interval[0]

    @property
    def high(self) -> float:
        """The upper end of that interval."""
        return self.difference_interval[1]

    @property
    def half_width(self) -> float:
        """Half of that interval: a difference below this could not have been seen."""
        return (self.high - self.low) / 2

    @property
    def agrees(self) -> bool:
        """Whether all seeds give the same difference, but for rounding."""
        size = max(abs(self.effect), abs(self.control_effect), self.matters)
        return self.half_width <= SAME * size

    @property
    def may_agree_by_chance(self) -> bool:
        """Whether it has so few seeds that agree as may all end alike."""
        return self.agrees and self.seeds < ENOUGH_TO_AGREE

    @property
    def firm(self) -> bool:
        """Whether a difference from the control is beyond doubt, and not beyond chance alone.

        It has seeds enough, a clear p, and signs (of other seeds: ranks) that say the same without any law of seeds.
        """
        agreed = self.sign_p is None or self.sign_p <= FIRM_SIGNS
        return self.seeds >= FIRM_SEEDS and self.p <= FIRM_P and agreed

    @property
    def limits(self) -> Limits:
        """Values that it cannot leave, such as 0 and 1 of a probability: an interval is shown cut there."""
        return limits_of(self.what, self.unit)

    @property
    def fits(self) -> bool:
        """Whether an effect that matters has room between the control and the ceiling."""
        return self.ceiling is None or self.control_effect + self.matters <= self.ceiling

    @property
    def size_shown(self) -> bool:
        """Whether all of the interval is at least what matters, and not its middle alone."""
        return self.low >= self.matters

    @property
    def slightly_reversed(self) -> bool:
        """Whether it is below its control beyond chance, by less than what matters."""
        return self.high < 0 and self.difference > -self.matters

    @property
    def against_constant(self) -> bool:
        """Whether its control is a number that is known, such as 0 or chance, and was not measured over seeds."""
        return self.control_interval[0] == self.control_interval[1]

    @property
    def p(self) -> float:
        """How often chance alone gives at least this difference, either way.

        Of seeds that agree, whose spread is not known, how often so many lie on one side.
        """
        if self.agrees:
            return 0.5 ** max(self.seeds - 1, 0) if self.difference else 1.0
        freedom = max(self.seeds - 1, 0) if self.freedom is None else self.freedom
        return p_value(self.difference, self.half_width, self.level, freedom)

    @property
    def seeds_to_decide(self) -> int | None:
        """With so many seeds the interval holds zero or what matters, not both, in four of five cases; None if unknown.

        The truth is taken to be what was measured, and further seeds to be as unlike as these. How unlike is not known
        of two or three that agree.
        """
        if not self.fits or self.failed or self.agrees:
            return None
        return seeds_to_decide(
            self.difference, self.half_width, self.seeds, (0.0, self.matters), level=self.level, freedom=self.freedom
        )

    def one_of(self, cases: int) -> "Effect":
        """The effect with intervals as wide as is due to one that was chosen among so many (Bonferroni)."""
        freedom = max(self.seeds - 1, 0) if self.freedom is None else self.freedom
        if cases < 2 or freedom < 1 or not self.half_width > 0:
            return self
        level = 1 - (1 - self.level) / cases
        wider = t_quantile(level, freedom) / t_quantile(self.level, freedom)
        ends = [(mean - wider * (mean - low), mean + wider * (high - mean)) for mean, (low, high) in (
            (self.effect, self.interval), (self.difference, self.difference_interval))]  # fmt: skip
        return replace(self, interval=ends[0], difference_interval=ends[1], level=level)

    def moved(self, half_widths: float) -> "Effect":
        """The effect and its difference moved by so many halves of the difference's interval; the control stays."""
        by = half_widths * self.half_width
        if not math.isfinite(by):
            return self
        interval, difference = ((low + by, high + by) for low, high in (self.interval, self.difference_interval))
        return replace(self, effect=self.effect + by, interval=interval, difference_interval=difference)

    def as_json(self) -> dict[str, Any]:
        """Plain data; `from_json` gives the effect back."""
        written: dict[str, Any] = {"what": self.what}
        for name in MEASURED:
            found = getattr(self, name)
            written[name] = [plain(end) for end in found] if isinstance(found, tuple) else plain(found)
        return written | {name: getattr(self, name) for name in _AS_THEY_ARE}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Effect":
        """The effect that `as_json` wrote.

        Before version 3 `interval` was that of the difference, moved by the control, and the effect's own was not kept.
        """
        low, high = map(number, data["interval"])
        control = number(data["control_effect"])
        control_low, control_high = map(number, data["control_interval"])
        if "difference_interval" in data:
            difference_low, difference_high = map(number, data["difference_interval"])
        else:
            difference_low, difference_high = low - control, high - control
            low, high = (low, high) if control_low == control_high else (math.nan, math.nan)
        over = data.get("over", "seeds")  # records before it counted seeds
        return Effect(
            number(data["effect"]), (low, high), control, (control_low, control_high),
            int(data["seeds"]), float(data["matters"]), data["ceiling"], data["unit"], data["what"], data["level"],
            over, data.get("freedom"), (difference_low, difference_high), data.get("failed", 0), data.get("sign_p"),
        )  # fmt: skip


@dataclass(frozen=True)
class Evidence:
    """What speaks for one form of a claim.

    effects: by case (a layer, a rate, a depth), all of which the claim needs; empty for a mathematical claim.
    tests: for a mathematical claim, that it is true; for an empirical one, that its size or form is the source's.
    direction: for a mathematical claim, what is left of it where the tests fail.
    controls: what must be true so that the tests mean something, such as a network that must not pass them.
    horizon: what must be true so that anything is decided: curves no longer move by what matters.

    >>> Evidence(tests=(at_most("distance", 0.1, 0.2),)).effects
    {}
    """

    effects: Mapping[str, Effect] = field(default_factory=dict)
    tests: tuple[Test, ...] = ()
    direction: tuple[Test, ...] = ()
    controls: tuple[Test, ...] = ()
    horizon: tuple[Test, ...] = ()

    def __post_init__(self) -> None:
        if not self.effects and not self.tests:
            raise ValueError("evidence needs an effect or a test")
        if self.effects and self.direction:
            raise ValueError("direction is for mathematical claims; an effect has its own in its sign")

    def as_json(self) -> dict[str, Any]:
        """Plain data; `from_json` gives the evidence back."""
        tests = {part: [test.as_json() for test in getattr(self, part)] for part in _PARTS
                 if part != "horizon" or self.horizon}  # fmt: skip
        return {"effects": {case: effect.as_json() for case, effect in self.effects.items()}, **tests}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Evidence":
        """The evidence that `as_json` wrote."""
        effects = {case: Effect.from_json(effect) for case, effect in data["effects"].items()}
        return Evidence(effects, *(tuple(map(Test.from_json, ({"horizon": ()} | dict(data))[part])) for part in _PARTS))


_PARTS = ("tests", "direction", "controls", "horizon")
MEASURED = ("effect", "interval", "control_effect", "control_interval", "difference", "difference_interval")
"""Of an effect: the numbers that came of a run, and may have gone wrong."""
_AS_THEY_ARE = ("seeds", "matters", "ceiling", "unit", "level", "over", "freedom", "failed", "sign_p")


def plain(value: float) -> float | str:
    """JSON has no NaN and no infinity: a number that went wrong is written as a word.

    >>> plain(0.5), plain(float("nan"))
    (0.5, 'nan')
    """
    value = float(value)
    return value if math.isfinite(value) else str(value)


def number(value: float | str) -> float:
    """The number that `plain` wrote.

    >>> number("inf"), number(0.5)
    (inf, 0.5)
    """
    return float(value)
