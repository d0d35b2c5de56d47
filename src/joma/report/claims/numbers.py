"""Effects in the sentences of the page: rounded to what their interval can tell, with their unit."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite, log10

from joma.claims.evidence import Effect
from joma.claims.words import interval, show


def effect_text(effect: Effect) -> str:
    """The effect with its interval.

    >>> found = Effect(0.4999, (0.3344, 0.6655), 0.0, (0.0, 0.0), 5, 0.05, unit="nats")
    >>> effect_text(found), control_text(found), seeds_text(found)
    ('0.50 nats [0.33, 0.67]', '0 nats', 'over 5 seeds')
    """
    ends, unit = effect.interval, effect.unit
    shown = _rounded(effect, effect.effect)
    if not all(map(isfinite, ends)):
        return shown
    return f"{shown} {interval(ends, effect.limits, lambda end: _rounded(effect, end).removesuffix(unit).rstrip())}"


def opposite_text(effect: Effect) -> str:
    """The effect the other way round, where a claim expects less of something. It has no limits any more."""
    low, high = effect.interval
    return effect_text(replace(effect, effect=-effect.effect, interval=(-high, -low), what=""))


def control_text(effect: Effect) -> str:
    """The same number in the control."""
    return _rounded(effect, effect.control_effect)


def seeds_text(effect: Effect) -> str:
    """How many seeds it was measured with."""
    return f"over {effect.seeds} seeds" if effect.seeds > 1 else "with one seed"


def _rounded(effect: Effect, number: float) -> str:
    width = 2 * effect.half_width
    scale = 100 if effect.unit == "%" else 1
    if not isfinite(number) or not isfinite(width) or not width > 0 or scale * abs(effect.effect) < 0.01:
        return show(number, effect.unit)
    decimals = min(max(round(1.3 - log10(scale * width)), 0), 3)
    shown = f"{scale * number:.{decimals}f}" if number else "0"
    return f"{shown}°" if effect.unit == "°" else f"{shown} {effect.unit}".rstrip()
