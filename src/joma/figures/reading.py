"""Words for what a figure shows, made from its numbers: the alternative text of figures is built from them."""

import itertools
from collections.abc import Iterable
from math import isfinite, isinf
from typing import Any

import numpy as np

FLAT = 0.02  # of the largest value, or powers of ten: what moves by less stays where it is
TURN = 0.05  # of the whole movement: smaller turns are not told


def number(value: float, unit: str = "") -> str:
    """A number as one says it: two or three digits, commas in thousands, shares in percent where the unit is %.

    >>> number(4.937, "nats"), number(40_000, "steps"), number(0.1234, "%"), number(3.2e-13), number(60.0, "°")
    ('4.94 nats', '40,000 steps', '12.3 %', '3.2e-13', '60°')
    """
    if not isfinite(value):
        return ("minus " * (value < 0) + "infinity") if isinf(value) else "no number"
    if unit == "%":
        return f"{_digits(100 * float(value))} %"
    return f"{_digits(float(value))}{'' if unit in ('', '°') else ' '}{unit}"


def _digits(value: float) -> str:
    if value < 0:
        return f"−{_digits(-value)}"
    if value == 0 or 1e-3 <= value < 1e6:
        short = f"{value:.3g}" if value < 1000 else f"{value:.0f}"
        return f"{float(short):,.10g}"
    return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e").replace(".0e", "e")


def course(x: Any, y: Any, unit: str = "", *, at: str = "step", log: bool = False) -> str:
    """How y goes over x, as the rest of a sentence that begins with what y is.

    `at` names what x counts. With `log` the size of a movement is judged in powers of ten. Values that are no
    numbers are left out. More than three turns are not told one by one.

    >>> course([0, 3000, 9000], [4.9, 1.6, 1.9], "nats")
    'falls from 4.9 to 1.6 nats at step 3,000, then rises to 1.9 nats'
    >>> course([0, 1, 2], [1.0, 1.0, 1.001]), course([0, 1], [0.0, 0.5], "%"), course([7], [2.5])
    ('stays near 1', 'rises from 0 % to 50 %', 'is 2.5 at step 7')
    >>> course([1, 2, 3], [1e-16, 1e-9, 1e-3], log=True)
    'rises from 1e-16 to 0.001'
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"x and y must be two rows of one length, got shapes {x.shape} and {y.shape}")
    fine = np.isfinite(x) & np.isfinite(y) & ((y > 0) if log else True)
    x, y = x[fine], y[fine]
    if len(y) == 0:
        return "has no values"
    if len(y) == 1:
        return f"is {number(y[0], unit)} at {at} {number(x[0])}"
    height = np.log10(y) if log else y
    if np.ptp(height) <= FLAT * (1 if log else np.abs(y).max()):
        return f"stays {'at' if np.ptp(y) == 0 else 'near'} {number(float(y.mean()), unit)}"
    if len(turns := _turns(height)) > 4:
        low, high = number(float(y.min()), unit), number(float(y.max()), unit)
        return f"goes up and down between {low} and {high}, from {number(y[0], unit)} to {number(y[-1], unit)}"
    parts = []
    for i, (start, end) in enumerate(itertools.pairwise(turns)):
        verb = "rises" if y[end] > y[start] else "falls"
        first = f" from {_bare(y[start], unit)}" if i == 0 else ""
        last = "" if i == len(turns) - 2 else f" at {at} {number(x[end])}"
        parts.append(f"{verb}{first} to {number(y[end], unit)}{last}")
    return ", then ".join(parts)


def _bare(value: float, unit: str) -> str:
    """The first of two numbers: a unit that is a word stands at the second only."""
    return number(value, unit if unit in ("%", "°") else "")


def _turns(height: Any) -> list[int]:
    """Places where the curve turns by more than TURN of its whole movement, with its first and its last."""
    least, turns, extreme, rising = TURN * np.ptp(height), [0], 0, 0
    for i, value in enumerate(height):
        if rising == 0 and abs(value - height[0]) >= least:
            rising, extreme = (1 if value > height[0] else -1), i
        elif rising and (value - height[extreme]) * rising > 0:
            extreme = i
        elif rising and (height[extreme] - value) * rising >= least:
            turns.append(extreme)
            rising, extreme = -rising, i
    return [*turns, len(height) - 1]


def between(values: Any, unit: str = "") -> str:
    """The smallest and the largest of some values.

    >>> between([0.5, 0.25, float("nan")], "nats"), between([3.0, 3.0])
    ('between 0.25 and 0.5 nats', 'at 3')
    """
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    if not values.size:
        return "without a value"
    low, high = float(values.min()), float(values.max())
    if number(low, unit) == number(high, unit):
        return f"at {number(low, unit)}"
    return f"between {_bare(low, unit)} and {number(high, unit)}"


def listing(parts: Iterable[str]) -> str:
    """Parts in one sentence, with commas and an "and" before the last.

    >>> listing(["a"]), listing(["a", "b"]), listing(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
