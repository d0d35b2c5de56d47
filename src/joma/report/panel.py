"""One panel for a card: a few curves as plain numbers, small enough to travel with the package.

`panel_readings` makes panels from records, `results/keep.py` keeps those of paper scale in panels.json, and
`panel_svg` draws them, without matplotlib.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from joma.figures.reading import course

_POINTS = 60
"""As many as a curve of a card's width can show."""
_DIGITS = 4


@dataclass(frozen=True)
class Line:
    """A curve with its name, its colour and its dashes; `low` and `high` bound a band around it."""

    label: str
    colour: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    dashes: str = "solid"
    """solid, dashed or dotted, as CSS calls them."""


@dataclass(frozen=True)
class Panel:
    """What a card draws, and what it says about it.

    >>> line = Line("one layer", "#026ed0", (0.0, 10.0, 20.0), (2.0, 1.0, 1.5))
    >>> Panel("entropy (nats)", "step", "5 seeds", (line,)).alt
    'entropy (nats) by step. One layer falls from 2 to 1 at step 10, then rises to 1.5.'
    """

    y: str
    x: str
    about: str
    """Whose numbers these are: text, seeds, what a band is."""
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False

    @property
    def alt(self) -> str:
        """What is seen, in words."""
        told = (f"{line.label[0].upper()}{line.label[1:]} {self._course(line)}." for line in self.lines)
        return " ".join([f"{self.y} by {self.x}.", *told])

    def _course(self, line: Line) -> str:
        """Its ends and its extremes: small turns between them are not told."""
        turns = sorted({0, line.y.index(min(line.y)), line.y.index(max(line.y)), len(line.y) - 1})
        at, values = ([given[turn] for turn in turns] for given in (line.x, line.y))
        return course(at, values, at=self.x, log=self.log_y)

    def as_json(self) -> dict[str, Any]:
        """As panels.json keeps it."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @staticmethod
    def from_json(given: Mapping[str, Any]) -> Panel:
        """What `as_json` wrote."""
        curves = ("x", "y", "low", "high")
        lines = (Line(**line | {name: tuple(line[name]) for name in curves}) for line in given["lines"])
        return Panel(**{**given, "lines": tuple(lines)})


def line_of(label: str, colour: str, x: Any, rows: Any, *, dashes: str = "solid") -> Line:
    """A curve from one number per point, or from (seeds, points): then their mean, with a band of their range."""
    across, values = np.asarray(x, dtype=float), np.atleast_2d(np.asarray(rows, dtype=float))
    values = values[np.isfinite(values).all(1)]
    chosen = _chosen(values.mean(0))
    band = len(values) > 1
    return Line(
        label,
        colour,
        _short(across[chosen]),
        _short(values.mean(0)[chosen]),
        _short(values.min(0)[chosen]) if band else (),
        _short(values.max(0)[chosen]) if band else (),
        dashes,
    )


@cache
def kept_panels() -> Mapping[str, Panel]:
    """The panels of kept runs at paper scale, by the id of the claim that they show.

    >>> "fig6/fig6-one-layer" in kept_panels()
    True
    """
    text = files("joma.report").joinpath("panels.json").read_text(encoding="utf-8")
    return {name: Panel.from_json(given) for name, given in json.loads(text).items()}


def _chosen(mean: np.ndarray) -> np.ndarray:
    """Which points to keep: evenly spread, with the first, the lowest, the highest and the last."""
    even = np.linspace(0, len(mean) - 1, min(len(mean), _POINTS)).round().astype(int)
    return np.unique([*even, mean.argmin(), mean.argmax()])


def _short(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(f"{value:.{_DIGITS}g}") for value in values)
