"""Matplotlib's SVG made small: what cannot be seen goes, text stays text.

Of a typical figure one part in four is what a reader sees. Names that nothing refers to, groups without a meaning,
metadata, six decimals of a point, a list of ten fonts at every text, and points of a curve that lie on its line within
less than a pixel all go. Markers that repeat become one line with an SVG <marker>. Paths are relative, in tenths.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count, pairwise
from math import hypot
from string import ascii_letters

_PART = re.compile(r"""<!--.*?-->|<(/?)([\w:-]+)((?:"[^"]*"|'[^']*'|[^"'>])*?)(/?)>|([^<]+)""", re.DOTALL)
_ATTRIBUTE = re.compile(r"""([\w:-]+)\s*=\s*("[^"]*"|'[^']*')""")
_REFERENCE = re.compile(r"""url\(['"]?#([^)'"]+)['"]?\)""")
_NO_TURN = re.compile(r"rotate\(-?0 [^)]*\)")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_UNSEEN = ("metadata", "style")
_OF_THE_PAGE = {"fill": "currentColor", "text-anchor": "start"}
"""What the page's own style gives to every text of a figure."""
_REPEATS = 3  # fewer uses of a marker stay as they are

_TOKEN = re.compile(r"[MLCQZz]|-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_TAKES = {"M": 1, "L": 1, "Q": 2, "C": 3, "Z": 0}  # points that a command takes
_TENTHS, _HUNDREDTHS = 10, 100
_FARTHEST = 1e9
_SMALL = 12.0  # points: a shape within this around the origin is a marker, and is kept to hundredths
_OFF = 0.6  # tenths of a point by which a curve may move where points are left out: less than a tenth of a pixel

Point = tuple[int, int]


@dataclass
class _Node:
    tag: str
    given: dict[str, str] = field(default_factory=dict)
    inside: list[_Node | str] = field(default_factory=list)

    def nodes(self) -> Iterator[_Node]:
        """Itself and all below it."""
        yield self
        for one in self.inside:
            if isinstance(one, _Node):
                yield from one.nodes()


def compact_svg(svg: str) -> str:
    """The same picture in fewer bytes and elements; text that is no whole SVG comes back as it was.

    >>> compact_svg('<svg><metadata>x</metadata><g id="a"><g><text x="1.2345" y="2">a</text></g></g></svg>')
    '<svg><text x="1.2" y="2">a</text></svg>'
    """
    if (root := _parse(svg)) is None:
        return svg
    for node in root.nodes():
        _shorten(node)
    _prune(root)
    _gather(root, (f"m{number}" for number in count()))
    _drop_unused(root)
    _rename(root)
    return _write(root)


def _parse(svg: str) -> _Node | None:
    top = _Node("")
    open_nodes = [top]
    for closing, tag, given, alone, text in _PART.findall(svg):
        if text:
            open_nodes[-1].inside.append(text)
        elif closing:
            if len(open_nodes) < 2 or open_nodes.pop().tag != tag:
                return None
        elif tag:
            node = _Node(tag, {name: value[1:-1] for name, value in _ATTRIBUTE.findall(given)})
            open_nodes[-1].inside.append(node)
            if not alone:
                open_nodes.append(node)
    found = [one for one in top.inside if isinstance(one, _Node)]
    return found[0] if len(found) == 1 and len(open_nodes) == 1 and found[0].tag == "svg" else None


def _shorten(node: _Node) -> None:
    given = {name: v for name, v in node.given.items() if not name.startswith("xmlns") and name != "version"}
    if "xlink:href" in given:
        given["href"] = given.pop("xlink:href")
    if "transform" in given:
        given["transform"] = _rounded(_NO_TURN.sub("", given["transform"]).strip(), 2)
    if "d" in given:
        given["d"] = short_path(given["d"])
    for name in ("x", "y", "width", "height"):
        if name in given and node.tag in ("text", "use", "rect", "tspan"):
            given[name] = _rounded(given[name], 1)
    if "style" in given:
        given["style"] = _short_style(given["style"], of_text=node.tag == "text")
    node.given = {name: value for name, value in given.items() if value or name == "aria-label"}


@cache
def _short_style(style: str, *, of_text: bool) -> str:
    parts = (part.split(":", 1) for part in style.split(";") if ":" in part)
    kept = {name.strip(): value.strip() for name, value in parts}
    if of_text:
        kept = {name: value for name, value in kept.items() if _OF_THE_PAGE.get(name) != value}
        if kept.get("font-family", "").startswith("'DejaVu Sans'"):
            del kept["font-family"]
    return ";".join(f"{name}:{_rounded(value, 2)}" for name, value in kept.items())


def _rounded(text: str, decimals: int) -> str:
    return _LONG_NUMBER.sub(lambda found: f"{round(float(found[0]), decimals) + 0.0:g}", text)


def _prune(node: _Node) -> None:
    """Without what is never drawn, the space between tags, paths without ink, and groups that change nothing."""
    spoken = node.tag in ("text", "tspan", "title", "desc")
    kept: list[_Node | str] = []
    for one in node.inside:
        if isinstance(one, str):
            kept += [one] if spoken else []
        elif one.tag not in _UNSEEN and not (one.tag == "path" and one.given.get("style") == "fill:none"):
            _prune(one)
            kept += one.inside if one.tag == "g" and not set(one.given) - {"id"} else [one]
    node.inside = kept


def _gather(node: _Node, names: Iterator[str]) -> None:
    """Uses of one shape in one style, with nothing but text between them, become one line of markers."""
    runs: list[list[_Node]] = [[]]
    for one in node.inside:
        if isinstance(one, _Node) and one.tag == "use":
            runs[-1].append(one)
        elif not (isinstance(one, _Node) and one.tag in ("text", "defs")):
            runs.append([])
    for run in runs:
        groups: dict[tuple[str, str], list[_Node]] = {}
        for use in run:
            groups.setdefault((use.given.get("href", ""), use.given.get("style", "")), []).append(use)
        for (href, style), uses in groups.items():
            if len(uses) >= _REPEATS and all(set(use.given) <= {"href", "style", "x", "y"} for use in uses):
                _mark(node, uses, href, style, next(names))
    for one in node.inside:
        if isinstance(one, _Node):
            _gather(one, names)


def _mark(parent: _Node, uses: list[_Node], href: str, style: str, name: str) -> None:
    places = " ".join(f"L {use.given.get('x', '0')} {use.given.get('y', '0')}" for use in uses)
    line = _Node("path", {"d": short_path("M" + places[1:], every=True), "style": f"fill:none;marker:url(#{name})"})
    look = {"id": name, "markerUnits": "userSpaceOnUse", "style": f"overflow:visible;{style}".rstrip(";")}
    gone, replaced = set(map(id, uses)), list[_Node | str]()
    for one in parent.inside:
        if one is uses[0]:
            replaced += [_Node("marker", look, [_Node("use", {"href": href})]), line]
        elif id(one) not in gone:
            replaced.append(one)
    parent.inside = replaced


def _references(root: _Node) -> set[str]:
    found = set()
    for node in root.nodes():
        for name, value in node.given.items():
            found |= set(_REFERENCE.findall(value))
            found |= {value[1:]} if name == "href" and value.startswith("#") else set()
    return found


def _drop_unused(root: _Node) -> None:
    """Shapes in <defs> that nothing refers to any more, and empty <defs>."""
    used = _references(root)
    for node in (node for node in root.nodes() if node.tag == "defs"):
        shapes = [one for one in node.inside if isinstance(one, _Node)]
        node.inside = [one for one in shapes if used & {each.given.get("id", "") for each in one.nodes()}]
    for node in root.nodes():
        node.inside = [one for one in node.inside if isinstance(one, str) or one.tag != "defs" or one.inside]


def _rename(root: _Node) -> None:
    """Short names for what is referred to, none for the rest."""
    used = _references(root)
    short: dict[str, str] = {}
    for node in root.nodes():
        if node.given.get("id") in used:
            name = node.given["id"]
            node.given["id"] = short.setdefault(name, _letters(len(short)))
        else:
            node.given.pop("id", None)
    for node in root.nodes():
        for name, value in node.given.items():
            if name == "href" and value.startswith("#"):
                node.given[name] = f"#{short.get(value[1:], value[1:])}"
            elif "url(" in value:
                node.given[name] = _REFERENCE.sub(lambda one: f"url(#{short.get(one[1], one[1])})", value)


def _letters(number: int) -> str:
    """a, b, ..., Z, ba, bb: as numbers with 52 digits."""
    rest, digit = divmod(number, len(ascii_letters))
    return (_letters(rest) if rest else "") + ascii_letters[digit]


def _write(node: _Node) -> str:
    given = "".join(f' {name}="{value}"' for name, value in node.given.items())
    inside = "".join(one if isinstance(one, str) else _write(one) for one in node.inside)
    return f"<{node.tag}{given}>{inside}</{node.tag}>" if inside else f"<{node.tag}{given}/>"


def short_path(path: str, *, every: bool = False) -> str:
    """A path of absolute M, L, Q, C and Z, made short; one with other commands comes back as it was.

    every: keep all points of a line, because something stands at each of them.

    >>> short_path("M 0.04 0 L 5 5.001 L 10 10.02 L 10 40 z")
    'M0 0l10 10v30z'
    >>> short_path("M 0 0 L 1e999 1")
    'M 0 0 L 1e999 1'
    """
    if (steps := _read_path(path)) is None:
        return path
    small = all(abs(x) <= _SMALL and abs(y) <= _SMALL for _, points in steps for x, y in points)
    scale = _HUNDREDTHS if small else _TENTHS
    rounded = [(name, [(round(x * scale), round(y * scale)) for x, y in points]) for name, points in steps]
    return _write_path(rounded, scale, every=every)


def _read_path(path: str) -> list[tuple[str, list[tuple[float, float]]]] | None:
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
        if any(abs(one) > _FARTHEST for one in values):  # or infinite: no figure has such a point
            return None
        steps.append((name, list(zip(values[::2], values[1::2], strict=True))))
        name = "L" if name == "M" and at < len(tokens) and not tokens[at].isalpha() else name
    return steps


def _write_path(steps: list[tuple[str, list[Point]]], scale: int, *, every: bool) -> str:
    """Stretches of straight lines are thinned and written together."""
    words: list[str] = []
    here, at = (0, 0), 0
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
            words.append(f"M{_joined(points[0], scale)}")
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
        name = "h" if dx and not dy else "v" if dy and not dx else "l"
        text = _joined({"h": [dx], "v": [dy], "l": [dx, dy]}[name], scale)
        words.append(f"{name}{text}" if name != before else text if text.startswith("-") else f" {text}")
        before = name
    return words


def _thinned(points: Sequence[Point], off: float) -> list[Point]:
    """Without points that lie on the line between those that stay, within `off` (Douglas and Peucker)."""
    kept, stack = {0, len(points) - 1}, [(0, len(points) - 1)]
    while stack:
        first, last = stack.pop()
        away = [_distance(point, points[first], points[last]) for point in points[first + 1 : last]]
        if away and max(away) > off:
            middle = first + 1 + away.index(max(away))
            kept.add(middle)
            stack += [(first, middle), (middle, last)]
    return [points[at] for at in sorted(kept)]


def _distance(point: Point, start: Point, end: Point) -> float:
    dx, dy = end[0] - start[0], end[1] - start[1]
    px, py = point[0] - start[0], point[1] - start[1]
    length = dx * dx + dy * dy
    share = min(max((px * dx + py * dy) / length, 0.0), 1.0) if length else 0.0
    return hypot(px - share * dx, py - share * dy)


def _joined(numbers: Sequence[int], scale: int) -> str:
    """Tenths or hundredths as decimals without idle zeros; a minus sign needs no space before it."""
    decimals = (f"{n / scale:.{1 if scale == _TENTHS else 2}f}".rstrip("0").rstrip(".") if n else "0" for n in numbers)
    return " ".join(re.sub(r"^(-?)0\.", r"\1.", decimal) for decimal in decimals).replace(" -", "-")
