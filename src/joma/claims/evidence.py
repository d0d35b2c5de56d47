"""What a verdict rests on, as numbers: effects beside their controls, and tests with their bounds.

An `Effect` is a number over seeds beside the same number in the control. A `Test` is a number that must lie on one side
of a bound. `Evidence` collects them for one form of a claim, the printed or the corrected one. Nothing here is a
sentence: `joma.claims.sentences` makes sentences of it, `joma.claims.verdicts` verdicts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from joma.claims.limits import Limits, limits_of
from joma.measure.intervals import Comparison, p_value, seeds_to_decide

Relation = Literal["<=", "<", ">=", ">"]
ENOUGH_TO_AGREE = 4  # seeds that give the same number to the last digit: with fewer, their spread is not known


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

    def as_json(self) -> dict[str, Any]:
        """Plain data; `from_json` gives the test back."""
        value, bound = plain(self.value), plain(self.bound)
        written = {"what": self.what, "value": value, "must": self.must, "bound": bound, "unit": self.unit}
        return written if self.seeds_to_decide is None else written | {"seeds_to_decide": self.seeds_to_decide}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Test:
        """The test that `as_json` wrote."""
        value, bound = number(data["value"]), number(data["bound"])
        return Test(data["what"], value, data["must"], bound, data["unit"], data.get("seeds_to_decide"))


def at_most(what: str, value: float, bound: float, unit: str = "") -> Test:
    """The test that `value` is at most `bound`.

    >>> at_most("distance from the flow", 1e-12, 1e-9).passes
    True
    """
    return Test(what, float(value), "<=", float(bound), unit)


def at_least(what: str, value: float, bound: float, unit: str = "") -> Test:
    """The test that `value` is at least `bound`."""
    return Test(what, float(value), ">=", float(bound), unit)


def below(what: str, value: float, bound: float, unit: str = "") -> Test:
    """The test that `value` is below `bound`, and not equal to it."""
    return Test(what, float(value), "<", float(bound), unit)


def above(what: str, value: float, bound: float, unit: str = "") -> Test:
    """The test that `value` is above `bound`, and not equal to it."""
    return Test(what, float(value), ">", float(bound), unit)


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
    ) -> Effect:  # fmt: skip
        """The effect of a comparison with its control."""
        return Effect(
            found.value, (found.low, found.high), found.control, (found.control_low, found.control_high), found.seeds,
            float(matters), ceiling, unit, what, found.level, over, found.freedom,
            (found.difference_low, found.difference_high),
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
    def may_agree_by_chance(self) -> bool:
        """Whether it has two or three seeds that agree to the last digit, as few runs that all end alike may."""
        return self.half_width == 0 and self.seeds < ENOUGH_TO_AGREE

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
        """How often chance alone gives at least this difference, either way."""
        freedom = max(self.seeds - 1, 0) if self.freedom is None else self.freedom
        return p_value(self.difference, self.half_width, self.level, freedom)

    @property
    def seeds_to_decide(self) -> int | None:
        """With so many seeds the interval holds zero or what matters, not both, in four of five cases; None if unknown.

        The truth is taken to be what was measured, and further seeds to be as unlike as these. How unlike is not known
        of two or three that agree.
        """
        if not self.fits:
            return None
        return seeds_to_decide(
            self.difference, self.half_width, self.seeds, (0.0, self.matters), level=self.level, freedom=self.freedom
        )

    def moved(self, half_widths: float) -> Effect:
        """The effect and its difference moved by so many halves of the difference's interval; the control stays."""
        by = half_widths * self.half_width
        if not math.isfinite(by):
            return self
        interval, difference = ((low + by, high + by) for low, high in (self.interval, self.difference_interval))
        return replace(self, effect=self.effect + by, interval=interval, difference_interval=difference)

    def as_json(self) -> dict[str, Any]:
        """Plain data; `from_json` gives the effect back."""
        return {
            "what": self.what,
            "effect": plain(self.effect),
            "interval": [plain(end) for end in self.interval],
            "control_effect": plain(self.control_effect),
            "control_interval": [plain(end) for end in self.control_interval],
            "difference": plain(self.difference),
            "difference_interval": [plain(end) for end in self.difference_interval],
            "seeds": self.seeds,
            "matters": self.matters,
            "ceiling": self.ceiling,
            "unit": self.unit,
            "level": self.level,
            "over": self.over,
            "freedom": self.freedom,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Effect:
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
            over, data.get("freedom"), (difference_low, difference_high),
        )  # fmt: skip


@dataclass(frozen=True)
class Evidence:
    """What speaks for one form of a claim.

    effects: by case (a layer, a rate, a depth), all of which the claim needs; empty for a mathematical claim.
    tests: for a mathematical claim, that it is true; for an empirical one, that its size or form is the source's.
    direction: for a mathematical claim, what is left of it where the tests fail.
    controls: what must be true so that the tests mean something, such as a twin that must not pass them.

    >>> Evidence(tests=(at_most("distance", 0.1, 0.2),)).effects
    {}
    """

    effects: Mapping[str, Effect] = field(default_factory=dict)
    tests: tuple[Test, ...] = ()
    direction: tuple[Test, ...] = ()
    controls: tuple[Test, ...] = ()

    def __post_init__(self) -> None:
        if not self.effects and not self.tests:
            raise ValueError("evidence needs an effect or a test")
        if self.effects and self.direction:
            raise ValueError("direction is for mathematical claims; an effect has its own in its sign")

    def as_json(self) -> dict[str, Any]:
        """Plain data; `from_json` gives the evidence back."""
        tests = {part: [test.as_json() for test in getattr(self, part)] for part in ("tests", "direction", "controls")}
        return {"effects": {case: effect.as_json() for case, effect in self.effects.items()}, **tests}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Evidence:
        """The evidence that `as_json` wrote."""
        effects = {case: Effect.from_json(effect) for case, effect in data["effects"].items()}
        return Evidence(
            effects, *(tuple(map(Test.from_json, data[part])) for part in ("tests", "direction", "controls"))
        )


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
