"""The path of an SVG in as few characters as a screen can show: tenths of a point, relative, straight parts once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from math import hypot

_TOKEN = re.compile(r"[MLCQZz]|-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_TAKES = {"M": 1, "L": 1, "Q": 2, "C": 3, "Z": 0}
"""Points that a command takes."""
_TENTHS, _HUNDREDTHS = 10, 100
_SMALL = 12.0
"""Points: a shape within this around the origin is a marker, and is kept to hundredths."""
_OFF = 0.6
"""Tenths of a point by which a curve may move where points are left out: less than a tenth of a pixel."""

Point = tuple[int, int]


def short_path(path: str, *, every: bool = False) -> str:
    """A path of absolute M, L, Q, C and Z, made short; one with other commands comes back as it was.

    every: keep all points of a line, because something stands at each of them.

    >>> short_path("M 0.04 0 L 5 5.001 L 10 10.02 L 10 40 z")
    'M0 0l10 10v30z'
    """
    steps = _read(path)
    if steps is None:
        return path
    scale = _HUNDREDTHS if _is_small(steps) else _TENTHS
    return _write([(name, [(round(x * scale), round(y * scale)) for x, y in points]) for name, points in steps], scale,
                  every=every)  # fmt: skip


def _read(path: str) -> list[tuple[str, list[tuple[float, float]]]] | None:
    tokens = _TOKEN.findall(path)
    if re.sub(r"[\s,]", "", _TOKEN.sub("", path)):
        return None
    steps, at, name = [], 0, ""
    while at < len(tokens):
        if tokens[at].isalpha():
            name, at = tokens[at].upper(), at + 1
        elif name == "Z" or not name:
            return None
        numbers = tokens[at : at + 2 * _TAKES[name]]
        if len(numbers) < 2 * _TAKES[name] or any(one.isalpha() for one in numbers):
            return None
        at += len(numbers)
        values = [float(one) for one in numbers]
        steps.append((name, list(zip(values[::2], values[1::2], strict=True))))
        name = "L" if name == "M" and at < len(tokens) and not tokens[at].isalpha() else name
    return steps


def _is_small(steps: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> bool:
    return all(abs(x) <= _SMALL and abs(y) <= _SMALL for _, points in steps for x, y in points)


def _write(steps: list[tuple[str, list[Point]]], scale: int, *, every: bool) -> str:
    """Stretches of straight lines are thinned and written together."""
    words: list[str] = []
    here = (0, 0)
    at = 0
    while at < len(steps):
        name, points = steps[at]
        if name == "L":
            stretch = [here]
            while at < len(steps) and steps[at][0] == "L":
                stretch.append(steps[at][1][0])
                at += 1
            words += _lines(stretch if every else _thinned(stretch, _OFF * scale / _TENTHS), scale)
            here = stretch[-1]
            continue
        if name == "M":
            words.append(f"M{_pair(points[0], scale)}")
        elif name == "Z":
            words.append("z")
        else:
            moved = [(x - here[0], y - here[1]) for x, y in points]
            words.append(name.lower() + _joined([number for pair in moved for number in pair], scale))
        here = points[-1] if points else here
        at += 1
    return "".join(words)


def _lines(stretch: Sequence[Point], scale: int) -> list[str]:
    words, before = [], ""
    for (x, y), (to_x, to_y) in pairwise(stretch):
        dx, dy = to_x - x, to_y - y
        if dy == 0 and dx:
            name, numbers = "h", [dx]
        elif dx == 0 and dy:
            name, numbers = "v", [dy]
        else:
            name, numbers = "l", [dx, dy]
        text = _joined(numbers, scale)
        words.append(f"{name}{text}" if name != before else text if text.startswith("-") else f" {text}")
        before = name
    return words


def _thinned(points: Sequence[Point], off: float) -> list[Point]:
    """Without points that lie on the line between those that stay, within `off` (Douglas and Peucker)."""
    kept = [False] * len(points)
    kept[0] = kept[-1] = True
    stack = [(0, len(points) - 1)]
    while stack:
        first, last = stack.pop()
        away = [_distance(points[place], points[first], points[last]) for place in range(first + 1, last)]
        if away and max(away) > off:
            middle = first + 1 + away.index(max(away))
            kept[middle] = True
            stack += [(first, middle), (middle, last)]
    return [point for point, stays in zip(points, kept, strict=True) if stays]


def _distance(point: Point, start: Point, end: Point) -> float:
    """From a point to the stretch between two others."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    px, py = point[0] - start[0], point[1] - start[1]
    length = dx * dx + dy * dy
    share = min(max((px * dx + py * dy) / length, 0.0), 1.0) if length else 0.0
    return hypot(px - share * dx, py - share * dy)


def _pair(point: Point, scale: int) -> str:
    return _joined(list(point), scale)


def _joined(numbers: Sequence[int], scale: int) -> str:
    text = ""
    for number in numbers:
        shown = _number(number, scale)
        text += shown if not text or shown.startswith("-") else f" {shown}"
    return text


def _number(number: int, scale: int) -> str:
    """A whole number of tenths or hundredths as a decimal without idle zeros."""
    if not number:
        return "0"
    whole = f"{number / scale:.{1 if scale == _TENTHS else 2}f}".rstrip("0").rstrip(".")
    return re.sub(r"^(-?)0\.", r"\1.", whole)
