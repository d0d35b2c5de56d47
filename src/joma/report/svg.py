"""Matplotlib's SVG made small: what cannot be seen goes, text stays text.

Of a typical figure one part in four is what a reader sees. Names that nothing refers to, groups without a meaning,
metadata, six decimals of a point, a list of ten fonts at every text, and points of a curve that lie on its line within
less than a pixel all go. Markers that repeat become one line with an
SVG <marker>.
"""

import re
import xml.etree.ElementTree as Tree
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import count, pairwise
from string import ascii_letters

_REFERENCE = re.compile(r"""url\(['"]?#([^)'"]+)['"]?\)""")
_NO_TURN = re.compile(r"rotate\(-?0 [^)]*\)")
_NUMBER = re.compile(r"-?\d+\.?\d*")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_PLACE = r"-?\d*\.?\d+ -?\d*\.?\d+(?![.\d])"
_LINES = re.compile(rf"(?<![.\d])({_PLACE})(?:L{_PLACE})+")
_IDLE = re.compile(r"\.00\b|(?<=\.\d)0\b")
_OFF = 0.06  # points by which a curve may move where points are left out: less than a tenth of a pixel
_AROUND = re.compile(r" ?([A-Za-z]) ?")
_UNSEEN = ("metadata", "style")
_OF_THE_PAGE = {"fill": "currentColor", "text-anchor": "start"}
"""What the page's own style gives to every text of a figure."""
_REPEATS = 3  # fewer uses of a marker stay as they are
_SMALL = 12.0  # points


def compact_svg(svg: str) -> str:
    """The same picture in fewer bytes and elements; text that is no whole SVG comes back as it was."""
    try:
        root = Tree.fromstring(svg)
    except Tree.ParseError:
        return svg
    for node in root.iter():
        _shorten(node)
    if root.tag != "svg":
        return svg
    _prune(root)
    _gather(root, (f"m{number}" for number in count()))
    _drop_unused(root)
    _rename(root)
    return Tree.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _shorten(node: Tree.Element) -> None:
    node.tag = _local(node.tag)
    given = {_local(name): value for name, value in node.items() if name != "version"}
    if "transform" in given:
        given["transform"] = _rounded(_NO_TURN.sub("", given["transform"]).strip(), 2)
    if "d" in given:
        given["d"] = short_path(given["d"])
    for name in ("x", "y", "width", "height"):
        if name in given and node.tag in ("text", "use", "rect", "tspan"):
            given[name] = _rounded(given[name], 1)
    if "style" in given:
        given["style"] = _short_style(given["style"], of_text=node.tag == "text")
    node.attrib = {name: value for name, value in given.items() if value or name == "aria-label"}


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
    return _LONG_NUMBER.sub(lambda found: f"{round(float(found[0]), decimals) + 0.0:.7g}", text)


def short_path(path: str, *, every: bool = False) -> str:
    """In tenths of a point, lines by how far they go; a shape around the origin, a marker, in hundredths."""
    small = all(abs(float(number)) <= _SMALL for number in _NUMBER.findall(path))
    short = _AROUND.sub(r"\1", " ".join(_rounded(path, 2 if small else 1).split()))
    moves = partial(_moves, off=0.0 if every else _OFF / 10 if small else _OFF)
    return _LINES.sub(moves, short).replace(" 0.", " .").replace("-0.", "-.").replace(" -", "-")


def _moves(found: re.Match[str], off: float) -> str:
    """A place and lines from it. Steps between rounded places are exact, so that nothing adds up."""
    places = [complex(*map(float, each.split())) for each in found[0].split("L")]
    steps = (after - before for before, after in pairwise(_thinned(places, off) if off else places))
    words = " ".join(f"{step.real:.2f} {step.imag:.2f}" for step in steps)
    return f"{found[1]}l{_IDLE.sub('', words)}"


def _thinned(points: Sequence[complex], off: float) -> list[complex]:
    """Without points that lie on the line between those that stay, within `off` (Douglas and Peucker)."""
    kept, stack = {0, len(points) - 1}, [(0, len(points) - 1)]
    while stack:
        first, last = stack.pop()
        start, along = points[first], points[last] - points[first]
        away = [_distance(point - start, along) for point in points[first + 1 : last]]
        if away and max(away) > off:
            middle = first + 1 + away.index(max(away))
            kept.add(middle)
            stack += [(first, middle), (middle, last)]
    return [points[at] for at in sorted(kept)]


def _distance(point: complex, along: complex) -> float:
    """From the line between zero and `along`."""
    share = (point * along.conjugate()).real / abs(along) ** 2 if along else 0.0
    return abs(point - min(max(share, 0.0), 1.0) * along)


def _prune(node: Tree.Element) -> None:
    """Without what is never drawn, the space between tags, paths without ink, and groups that change nothing."""
    spoken = node.tag in ("text", "tspan", "title", "desc")
    kept = list[Tree.Element]()
    for one in node:
        one.tail = one.tail if spoken else None
        if one.tag not in _UNSEEN and not (one.tag == "path" and one.get("style") == "fill:none"):
            _prune(one)
            kept += list(one) if one.tag == "g" and not set(one.keys()) - {"id"} else [one]
    node.text = node.text if spoken else None
    node[:] = kept


def _gather(node: Tree.Element, names: Iterator[str]) -> None:
    """Uses of one shape in one style, with nothing but text between them, become one line of markers."""
    runs: list[list[Tree.Element]] = [[]]
    for one in node:
        if one.tag == "use":
            runs[-1].append(one)
        elif one.tag not in ("text", "defs"):
            runs.append([])
    for run in runs:
        groups: dict[tuple[str, str], list[Tree.Element]] = {}
        for use in run:
            groups.setdefault((use.get("href", ""), use.get("style", "")), []).append(use)
        for (href, style), uses in groups.items():
            if len(uses) >= _REPEATS and all(set(use.keys()) <= {"href", "style", "x", "y"} for use in uses):
                _mark(node, uses, href, style, next(names))
    for one in node:
        _gather(one, names)


def _mark(parent: Tree.Element, uses: list[Tree.Element], href: str, style: str, name: str) -> None:
    way = "L".join(f"{use.get('x', '0')} {use.get('y', '0')}" for use in uses)
    look = {"id": name, "markerUnits": "userSpaceOnUse", "style": f"overflow:visible;{style}".rstrip(";")}
    marker = Tree.Element("marker", look)
    Tree.SubElement(marker, "use", {"href": href})
    line = Tree.Element("path", {"d": short_path(f"M{way}", every=True), "style": f"fill:none;marker:url(#{name})"})
    at = list(parent).index(uses[0])
    parent[at:at] = [marker, line]
    for use in uses:
        parent.remove(use)


def _references(root: Tree.Element) -> set[str]:
    found = set[str]()
    for node in root.iter():
        for name, value in node.items():
            found |= set(_REFERENCE.findall(value))
            found |= {value[1:]} if name == "href" and value.startswith("#") else set()
    return found


def _drop_unused(root: Tree.Element) -> None:
    """Shapes in <defs> that nothing refers to any more, and empty <defs>."""
    used = _references(root)
    for node in root.iter("defs"):
        node[:] = [one for one in node if used & {each.get("id", "") for each in one.iter()}]
    for node in root.iter():
        node[:] = [one for one in node if one.tag != "defs" or len(one)]


def _rename(root: Tree.Element) -> None:
    used = _references(root)
    short: dict[str, str] = {}
    for node in root.iter():
        name = node.get("id", "")
        if name in used:
            node.set("id", short.setdefault(name, _letters(len(short))))
        else:
            node.attrib.pop("id", None)
    for node in root.iter():
        for name, value in node.items():
            if name == "href" and value.startswith("#"):
                node.set(name, f"#{short.get(value[1:], value[1:])}")
            elif "url(" in value:
                node.set(name, _REFERENCE.sub(lambda one: f"url(#{short.get(one[1], one[1])})", value))


def _letters(number: int) -> str:
    """a, b, ..., Z, ba, bb: as numbers with 52 digits."""
    rest, digit = divmod(number, len(ascii_letters))
    return (_letters(rest) if rest else "") + ascii_letters[digit]
