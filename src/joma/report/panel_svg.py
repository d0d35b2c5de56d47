"""A panel as SVG that is drawn for a card: one pair of axes, few ticks, letters that stay readable on a phone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import ceil, floor, isfinite, log10

from joma.figures.style import INK
from joma.report.panel import Line, Panel
from joma.report.svg_path import short_path

WIDTH, HEIGHT, LETTERS = 400, 226, 15.5
"""User units. The page shows a panel at least 320 px wide, where 15.5 units are 12.4 px."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 28, 46
_DASHES = {"dashed": "7 4", "dotted": "2 4"}
_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def panel_html(panel: Panel, scale: str) -> str:
    """The picture, which line is which, and whose numbers these are. scale: "Paper scale" or "This run"."""
    about = f'<p class="of">{escape(f"{scale}: {panel.about}.")}</p>'
    named = "".join(_key(line) for line in panel.lines) if len(panel.lines) > 1 else ""
    keys = f'<p class="keys">{named}</p>' if named else ""
    return f'<div class="panel">{_svg(panel)}{keys}{about}</div>'


def _key(line: Line) -> str:
    look = f"border-top-style:{line.dashes};color:{_colour(line)}"
    return f'<span class="key"><i style="{look}"></i>{escape(line.label)}</span> '


def _svg(panel: Panel) -> str:
    across, x_ticks = _scale([v for line in panel.lines for v in line.x], _LEFT, WIDTH - _RIGHT, log=panel.log_x)
    heights = [v for line in panel.lines for given in (line.y, line.low, line.high) for v in given]
    up, y_ticks = _scale(heights, HEIGHT - _BOTTOM, _TOP, log=panel.log_y)
    drawn = [_frame(), *(_x_tick(across(at), name) for at, name in x_ticks)]
    drawn += [_y_tick(up(at), name) for at, name in y_ticks]
    drawn += [_band(line, across, up) for line in panel.lines if line.low]
    drawn += [_curve(line, across, up) for line in panel.lines]
    drawn.append(f'<text x="2" y="14">{escape(panel.y)}</text>')
    drawn.append(_text((WIDTH + _LEFT - _RIGHT) / 2, HEIGHT - 5, panel.x, "middle"))
    return (
        f'<svg role="img" aria-label="{escape(panel.alt)}" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="{LETTERS}">'
        f"{''.join(drawn)}</svg>"
    )


def _frame() -> str:
    return (
        f'<path d="M{_LEFT} {_TOP}V{HEIGHT - _BOTTOM}H{WIDTH - _RIGHT}" '
        'style="fill:none;stroke:currentColor;stroke-width:1"/>'
    )


def _x_tick(at: float, name: str) -> str:
    line = f'<path d="M{at:.1f} {HEIGHT - _BOTTOM}v4" style="stroke:currentColor"/>'
    half = 0.3 * LETTERS * len(name)
    return line + _text(min(at, WIDTH - half), HEIGHT - _BOTTOM + 18, name, "middle")


def _y_tick(at: float, name: str) -> str:
    return f'<path d="M{_LEFT} {at:.1f}h-4" style="stroke:currentColor"/>' + _text(_LEFT - 8, at + 5, name, "end")


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" style="text-anchor:{anchor}">{escape(words)}</text>'


Place = Callable[[float], float]


def _curve(line: Line, across: Place, up: Place) -> str:
    dashes = f";stroke-dasharray:{_DASHES[line.dashes]}" if line.dashes in _DASHES else ""
    path = _path(list(zip(line.x, line.y, strict=True)), across, up)
    return f'<path class="curve" d="{path}" style="fill:none;stroke:{_colour(line)};stroke-width:2.4{dashes}"/>'


def _band(line: Line, across: Place, up: Place) -> str:
    way = [*zip(line.x, line.high, strict=True), *reversed(list(zip(line.x, line.low, strict=True)))]
    return f'<path d="{_path(way, across, up)}z" style="fill:{_colour(line)};fill-opacity:0.2;stroke:none"/>'


def _path(points: Sequence[tuple[float, float]], across: Place, up: Place) -> str:
    return short_path("M" + "L".join(f"{across(x):.2f} {up(y):.2f} " for x, y in points))


def _colour(line: Line) -> str:
    return "currentColor" if line.colour == INK else line.colour


def _scale(values: Sequence[float], start: float, end: float, *, log: bool) -> tuple[Place, list[tuple[float, str]]]:
    """From a value to its place, and the ticks with their names."""
    known = [value for value in values if isfinite(value) and (value > 0 or not log)]
    low, high = min(known), max(known)
    ticks = _powers(low, high) if log else _steps(low, high)
    size: Callable[[float], float] = log10 if log else float
    first, last = size(low), size(high)
    wide = last - first or 1.0

    def place(value: float) -> float:
        return start + (end - start) * (size(value) - first) / wide

    return place, [(tick, name) for tick, name in ticks if low <= tick <= high]


def _steps(low: float, high: float) -> list[tuple[float, str]]:
    """Three to seven round numbers, all written with as many decimals as they need."""
    rough = (high - low or abs(high) or 1.0) / 5
    power = 10.0 ** floor(log10(rough))
    step = next(times * power for times in (1, 2, 2.5, 5, 10) if times * power >= rough)
    ticks = [count * step for count in range(ceil(low / step), floor(high / step) + 1)]
    decimals = next(n for n in range(12) if abs(round(step, n) - step) < 1e-9 * step)
    return [(tick, _named(tick, decimals, high)) for tick in ticks]


def _named(tick: float, decimals: int, high: float) -> str:
    if high >= 10_000:
        return f"{tick / 1000:g}k" if tick else "0"
    return f"{tick + 0.0:,.{decimals}f}".replace("-", "−")


def _powers(low: float, high: float) -> list[tuple[float, str]]:
    """Powers of ten, every so many that five or so are left; within one decade, and a little more, doublings."""
    first, last = ceil(log10(low)), floor(log10(high))
    if last - first < 3:
        doublings = [low * 2.0**count for count in range(40) if low * 2.0**count <= high * 1.001]
        every = max(1, ceil(len(doublings) / 4))
        return [(value, f"{value:,.0f}" if value >= 1 else f"{value:.1g}") for value in doublings[::every]]
    every = max(1, ceil((last - first + 1) / 5))
    powers = range(last, first - 1, -every)
    return [(10.0**power, f"10{str(power).translate(_RAISED)}" if power else "1") for power in powers]
