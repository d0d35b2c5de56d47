"""Numbers in the sentences of the page: rounded to what their interval can tell, with their unit."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, log10

from joma.claims.evidence import Effect
from joma.claims.limits import Limits, limits_of
from joma.claims.words import interval, show
from joma.report.kept import Kept


@dataclass(frozen=True)
class Measured:
    """An effect over seeds, beside its control.

    >>> found = Measured(0.4999, (0.3344, 0.6655), 0.0, "nats", 5)
    >>> found.effect_words, found.control_words, found.seeds_words
    ('0.50 nats [0.33, 0.67]', '0 nats', 'over 5 seeds')
    """

    effect: float
    interval: tuple[float, float]
    control: float
    unit: str
    seeds: int
    limits: Limits = (None, None)
    """Values that it cannot leave; its interval is cut there, and says so."""

    @staticmethod
    def of_effect(effect: Effect) -> Measured:
        """What this run measured."""
        return Measured(effect.effect, effect.interval, effect.control_effect, effect.unit, effect.seeds, effect.limits)

    @staticmethod
    def of_kept(kept: Kept) -> Measured | None:
        """What a kept run measured; None of a mathematical claim."""
        if kept.effect is None or kept.interval is None or kept.control_effect is None:
            return None
        limits = limits_of(kept.what, kept.unit)
        return Measured(kept.effect, kept.interval, kept.control_effect, kept.unit, kept.seeds or 1, limits)

    @property
    def effect_words(self) -> str:
        """The effect with its interval."""
        return f"{self._rounded(self.effect)} {self._range(self.interval, self.limits)}".strip()

    @property
    def opposite_words(self) -> str:
        """The effect the other way round, where a claim expects less of something."""
        low, high = self.interval
        return f"{self._rounded(-self.effect)} {self._range((-high, -low), (None, None))}".strip()

    @property
    def control_words(self) -> str:
        """The same number in the control."""
        return self._rounded(self.control)

    @property
    def seeds_words(self) -> str:
        """How many seeds it was measured with."""
        return f"over {self.seeds} seeds" if self.seeds > 1 else "with one seed"

    def _range(self, ends: tuple[float, float], limits: Limits) -> str:
        return interval(ends, limits, self._bare) if all(map(isfinite, ends)) else ""

    def _bare(self, number: float) -> str:
        return self._rounded(number).removesuffix(f" {self.unit}").removesuffix("°")

    def _rounded(self, number: float) -> str:
        width = self.interval[1] - self.interval[0]
        scale = 100 if self.unit == "%" else 1
        if not isfinite(number) or not isfinite(width) or not width > 0 or scale * abs(self.effect) < 0.01:
            return show(number, self.unit)
        decimals = min(max(round(1.3 - log10(scale * width)), 0), 3)
        shown = f"{scale * number:.{decimals}f}" if number else "0"
        return f"{shown}°" if self.unit == "°" else f"{shown} {self.unit}".rstrip()
