"""One panel for a card: a few curves as plain numbers, and how they are drawn as SVG, without matplotlib.

`panel_readers` makes panels from records, `results/keep.py` keeps those of paper scale in panels.json. A panel has one
pair of axes, few ticks, and letters that stay readable on a phone.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from html import escape
from importlib.resources import files
from math import ceil, floor, isfinite, log10
from textwrap import wrap
from typing import Any, Self

import numpy as np

from joma.figures.reading import course
from joma.figures.style import INK
from joma.report.svg import short_path

_POINTS = 60  # as many as a curve of a card's width can show
_DIGITS = 4
WIDTH, HEIGHT, LETTERS = 400, 226, 15.5
"""User units. The page shows a panel at least 320 px wide, where 15.5 units are 12.4 px."""
BESIDE = 290
"""How wide a panel is that stands beside another. The page shows it at least 236 px wide, with letters of 12.6 px."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 28, 46
_LETTER, _LINE, _TICK = 8.7, 17, 50  # how wide a letter is, how high a line of text, how far ticks are apart at least
_DASHES = {"dashed": "7 4", "dotted": "2 4"}
_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
Place = Callable[[float], float]  # from a value to where it is drawn


@dataclass(frozen=True)
class Line:
    """A curve with its name, its colour and its dashes; `low` and `high` bound a band around it."""

    label: str
    colour: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    dashes: str = "solid"  # solid, dashed or dotted, as CSS calls them

    @property
    def ink(self) -> str:
        """Its colour in CSS; ink is that of the text around it, in light and in dark."""
        return "currentColor" if self.colour == INK else self.colour


@dataclass(frozen=True)
class Panel:
    """What a card draws, and what it says about it."""

    y: str
    x: str
    about: str  # whose numbers these are: text, seeds, what a band is
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False

    @property
    def alt(self) -> str:
        text = f"{self.y} by {self.x}."
        for line in self.lines:  # the ends and the extremes: small turns between them are left out
            turns = sorted({0, line.y.index(min(line.y)), line.y.index(max(line.y)), len(line.y) - 1})
            at, values = ([given[turn] for turn in turns] for given in (line.x, line.y))
            text += f" {line.label[0].upper()}{line.label[1:]} {course(at, values, at=self.x, log=self.log_y)}."
        return text

    def as_json(self) -> dict[str, Any]:
        return dict(json.loads(json.dumps(asdict(self))))

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """What `as_json` wrote."""
        curves = ("x", "y", "low", "high")
        lines = (Line(**line | {name: tuple(line[name]) for name in curves}) for line in given["lines"])
        return cls(**{**given, "lines": tuple(lines)})


def line_of(label: str, colour: str, x: Any, rows: Any, *, dashes: str = "solid") -> Line:
    """A curve from one number per point, or from (seeds, points): then their mean, with a band of their range.

    Of many points some are kept: evenly spread, with the first, the lowest, the highest and the last. ValueError where
    no row is finite.
    """
    across, values = np.asarray(x, dtype=float), np.atleast_2d(np.asarray(rows, dtype=float))
    values = values[np.isfinite(values).all(1)]
    if not len(values):
        raise ValueError(f"no curve of {label!r} is finite")
    mean = values.mean(0)
    even = np.linspace(0, len(mean) - 1, min(len(mean), _POINTS)).round().astype(int)
    chosen = np.unique([*even, mean.argmin(), mean.argmax()])

    def short(numbers: np.ndarray) -> tuple[float, ...]:
        return tuple(float(f"{number:.{_DIGITS}g}") for number in numbers[chosen])

    band = (short(values.min(0)), short(values.max(0))) if len(values) > 1 else ((), ())
    return Line(label, colour, short(across), short(mean), *band, dashes)


@cache
def kept_panels() -> Mapping[str, Panel]:
    """The panels of kept runs at paper scale, by the id of the claim that they show."""
    text = files(__package__).joinpath("panels.json").read_text(encoding="utf-8")
    return {name: Panel.from_json(given) for name, given in json.loads(text).items()}


def panel_html(panel: Panel, scale: str, *, width: int = WIDTH) -> str:
    """The picture, which line is which, and whose numbers these are."""
    about = f'<p class="of">{escape(f"{scale}: {panel.about}.")}</p>'
    keys = "".join(
        f'<span class="key"><i style="border-top-style:{line.dashes};color:{line.ink}"></i>{escape(line.label)}</span> '
        for line in panel.lines
    )
    keys = f'<p class="keys">{keys}</p>' if len(panel.lines) > 1 else ""
    return f'<div class="panel">{_svg(panel, width)}{keys}{about}</div>'


def panels_html(panels: Mapping[str, Panel]) -> str:
    """Panels side by side, by the scale that each is of, and their numbers for the script that opens them."""
    if not panels:
        return ""
    width = WIDTH if len(panels) == 1 else BESIDE
    drawn = "".join(panel_html(panel, scale, width=width) for scale, panel in panels.items())
    numbers = json.dumps([{"scale": scale, **_named_ink(panel).as_json()} for scale, panel in panels.items()])
    inside = numbers.replace("<", "\\u003c")  # no name can end the element
    return f'<div class="panels">{drawn}</div><script type="application/json" class="numbers">{inside}</script>'


def _named_ink(panel: Panel) -> Panel:
    lines = (replace(line, colour="ink") if line.colour == INK else line for line in panel.lines)
    return replace(panel, lines=tuple(lines))


def _svg(panel: Panel, width: int) -> str:
    title = wrap(panel.y, int(width / _LETTER))
    top, wide = _TOP + _LINE * (len(title) - 1), width - _RIGHT
    across, x_ticks = _scale([v for line in panel.lines for v in line.x], _LEFT, wide, log=panel.log_x)
    x_ticks = x_ticks[:: ceil(len(x_ticks) * _TICK / (wide - _LEFT))] if x_ticks else []
    heights = [v for line in panel.lines for given in (line.y, line.low, line.high) for v in given]
    up, y_ticks = _scale(heights, HEIGHT - _BOTTOM, top, log=panel.log_y)
    frame = f"M{_LEFT} {top}V{HEIGHT - _BOTTOM}H{wide}"
    drawn = [f'<path d="{frame}" style="fill:none;stroke:currentColor;stroke-width:1"/>']
    for at, name in x_ticks:
        drawn.append(f'<path d="M{across(at):.1f} {HEIGHT - _BOTTOM}v4" style="stroke:currentColor"/>')
        middle = min(across(at), width - 0.3 * LETTERS * len(name))  # a long number at the right end stays inside
        drawn.append(_text(middle, HEIGHT - _BOTTOM + 18, name, "middle"))
    for at, name in y_ticks:
        drawn.append(f'<path d="M{_LEFT} {up(at):.1f}h-4" style="stroke:currentColor"/>')
        drawn.append(_text(_LEFT - 8, up(at) + 5, name, "end"))
    for line in (line for line in panel.lines if line.low):
        way = [*zip(line.x, line.high, strict=True), *reversed(list(zip(line.x, line.low, strict=True)))]
        drawn.append(f'<path d="{_path(way, across, up)}z" style="fill:{line.ink};fill-opacity:0.2;stroke:none"/>')
    for line in panel.lines:
        dashes = f";stroke-dasharray:{_DASHES[line.dashes]}" if line.dashes in _DASHES else ""
        look = f"fill:none;stroke:{line.ink};stroke-width:2.4{dashes}"
        way = [*zip(line.x, line.y, strict=True)]
        drawn.append(f'<path class="curve" d="{_path(way, across, up)}" style="{look}"/>')
    drawn += [f'<text x="2" y="{14 + _LINE * at}">{escape(words)}</text>' for at, words in enumerate(title)]
    drawn.append(_text((wide + _LEFT) / 2, HEIGHT - 5, panel.x, "middle"))
    given = f'role="img" aria-label="{escape(panel.alt)}" viewBox="0 0 {width} {HEIGHT}" font-size="{LETTERS}"'
    return f"<svg {given}>{''.join(drawn)}</svg>"


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" style="text-anchor:{anchor}">{escape(words)}</text>'


def _path(points: Sequence[tuple[float, float]], across: Place, up: Place) -> str:
    return short_path("M" + "L".join(f"{across(x):.2f} {up(y):.2f}" for x, y in points))


def _scale(values: Sequence[float], start: float, end: float, *, log: bool) -> tuple[Place, list[tuple[float, str]]]:
    known = [value for value in values if isfinite(value) and (value > 0 or not log)]
    low, high = min(known), max(known)
    ticks = _powers(low, high) if log else _steps(low, high)
    size: Callable[[float], float] = log10 if log else float
    first, wide = size(low), size(high) - size(low) or 1.0

    def place(value: float) -> float:
        return start + (end - start) * (size(value) - first) / wide

    return place, [(tick, name) for tick, name in ticks if low <= tick <= high]


def _steps(low: float, high: float) -> list[tuple[float, str]]:
    """Three to seven round numbers, all written with as many decimals as they need."""
    rough = (high - low or abs(high) or 1.0) / 5
    power = 10.0 ** floor(log10(rough))
    step = next(times * power for times in (1, 2, 2.5, 5, 10) if times * power >= rough)
    ticks = [count * step for count in range(ceil(low / step), floor(high / step) + 1)]
    if high >= 10_000:
        return [(tick, f"{tick / 1000:g}k" if tick else "0") for tick in ticks]
    decimals = next(n for n in range(12) if abs(round(step, n) - step) < 1e-9 * step)
    return [(tick, f"{tick + 0.0:,.{decimals}f}".replace("-", "−")) for tick in ticks]


def _powers(low: float, high: float) -> list[tuple[float, str]]:
    """Powers of ten, every so many that five or so are left; within one decade, and a little more, doublings."""
    first, last = ceil(log10(low)), floor(log10(high))
    if last - first < 3:
        doublings = [low * 2.0**count for count in range(40) if low * 2.0**count <= high * 1.001]
        every = max(1, ceil(len(doublings) / 4))
        return [(value, f"{value:,.0f}" if value >= 10 else f"{value:.2g}") for value in doublings[::every]]
    every = max(1, ceil((last - first + 1) / 5))
    powers = range(last, first - 1, -every)
    return [(10.0**power, f"10{str(power).translate(_RAISED)}" if power else "1") for power in powers]
