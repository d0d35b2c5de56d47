"""Matplotlib's SVG made small: what cannot be seen goes, text stays text.

Of a typical figure one part in four is what a reader sees. Names that nothing refers to, groups without a meaning,
metadata, six decimals of a point, a list of ten fonts at every text, and points of a curve that lie on its line within
less than a pixel all go. Markers that repeat become one line with an SVG <marker>, which is drawn alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from string import ascii_letters

from joma.report.svg_path import short_path

_PART = re.compile(r"""<!--.*?-->|<(/?)([\w:-]+)((?:"[^"]*"|'[^']*'|[^"'>])*?)(/?)>|([^<]+)""", re.DOTALL)
_ATTRIBUTE = re.compile(r"""([\w:-]+)\s*=\s*("[^"]*"|'[^']*')""")
_REFERENCE = re.compile(r"""url\(['"]?#([^)'"]+)['"]?\)""")
_NO_TURN = re.compile(r"rotate\(-?0 [^)]*\)")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_UNSEEN = ("metadata", "style")
_OF_THE_PAGE = {"fill": "currentColor", "text-anchor": "start"}
"""What the page's own style gives to every text of a figure."""
_REPEATS = 3
"""Fewer uses of a marker stay as they are."""


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
    root = _parse(svg)
    if root is None:
        return svg
    for node in root.nodes():
        _shorten(node)
    _prune(root)
    _gather(root, (f"m{number}" for number in count()))
    _drop_unused(root)
    _rename(root)
    return _write(root)


def _parse(svg: str) -> _Node | None:
    """The tree, None where tags do not match."""
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
    given = node.given
    for name in [name for name in given if name.startswith("xmlns") or name == "version"]:
        del given[name]
    if "xlink:href" in given:
        given["href"] = given.pop("xlink:href")
    if "transform" in given:
        given["transform"] = _LONG_NUMBER.sub(_two_decimals, _NO_TURN.sub("", given["transform"]).strip())
    if "d" in given:
        given["d"] = short_path(given["d"])
    for name in ("x", "y", "width", "height"):
        if name in given and node.tag in ("text", "use", "rect", "tspan"):
            given[name] = _LONG_NUMBER.sub(_one_decimal, given[name])
    if "style" in given:
        given["style"] = _short_style(given["style"], of_text=node.tag == "text")
    node.given = {name: value for name, value in given.items() if value or name == "aria-label"}


@cache
def _short_style(style: str, *, of_text: bool) -> str:
    parts = dict(part.strip().split(":", 1) for part in style.split(";") if ":" in part)
    kept = {name.strip(): value.strip() for name, value in parts.items()}
    if of_text:
        kept = {name: value for name, value in kept.items() if _OF_THE_PAGE.get(name) != value}
        if kept.get("font-family", "").startswith("'DejaVu Sans'"):
            del kept["font-family"]
    return ";".join(f"{name}:{_LONG_NUMBER.sub(_two_decimals, value)}" for name, value in kept.items())


def _one_decimal(found: re.Match[str]) -> str:
    return f"{round(float(found[0]), 1) + 0.0:g}"


def _two_decimals(found: re.Match[str]) -> str:
    return f"{round(float(found[0]), 2) + 0.0:g}"


def _prune(node: _Node) -> None:
    """Without what is never drawn, the space between tags, and groups that change nothing."""
    spoken = node.tag in ("text", "tspan", "title", "desc")
    kept: list[_Node | str] = []
    for one in node.inside:
        if isinstance(one, str):
            kept += [one] if spoken else []
        elif one.tag not in _UNSEEN and not _is_blank(one):
            _prune(one)
            kept += one.inside if one.tag == "g" and not set(one.given) - {"id"} else [one]
    node.inside = kept


def _is_blank(node: _Node) -> bool:
    """A path without ink, as matplotlib draws grounds."""
    return node.tag == "path" and node.given.get("style") == "fill:none"


def _gather(node: _Node, names: Iterator[str]) -> None:
    """Uses of one shape in one style, with nothing but text between them, become one line of markers."""
    for run in _runs(node):
        groups: dict[tuple[str, str], list[_Node]] = {}
        for use in run:
            groups.setdefault((use.given.get("href", ""), use.given.get("style", "")), []).append(use)
        for (href, style), uses in groups.items():
            if len(uses) >= _REPEATS and all(set(use.given) <= {"href", "style", "x", "y"} for use in uses):
                _mark(node, uses, href, style, next(names))
    for one in node.inside:
        if isinstance(one, _Node):
            _gather(one, names)


def _runs(node: _Node) -> list[list[_Node]]:
    runs: list[list[_Node]] = [[]]
    for one in node.inside:
        if isinstance(one, _Node) and one.tag == "use":
            runs[-1].append(one)
        elif not (isinstance(one, _Node) and one.tag in ("text", "defs")):
            runs.append([])
    return runs


def _mark(parent: _Node, uses: list[_Node], href: str, style: str, name: str) -> None:
    places = " ".join(f"L {use.given.get('x', '0')} {use.given.get('y', '0')}" for use in uses)
    line = _Node("path", {"d": short_path("M" + places[1:], every=True), "style": f"fill:none;marker:url(#{name})"})
    shape = _Node("use", {"href": href})
    look = {"id": name, "markerUnits": "userSpaceOnUse", "style": f"overflow:visible;{style}".rstrip(";")}
    at = next(place for place, one in enumerate(parent.inside) if one is uses[0])
    gone = set(map(id, uses))
    before = [one for one in parent.inside[:at] if id(one) not in gone]
    after = [one for one in parent.inside[at:] if id(one) not in gone]
    parent.inside = [*before, _Node("marker", look, [shape]), line, *after]


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
    for node in root.nodes():
        node.inside = [
            one
            for one in node.inside
            if isinstance(one, str) or node.tag != "defs" or used & {each.given.get("id", "") for each in one.nodes()}
        ]
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
    """a, b, ..., Z, ba, bb: as numbers with 52 digits.

    >>> _letters(0), _letters(51), _letters(52)
    ('a', 'Z', 'ba')
    """
    rest, digit = divmod(number, len(ascii_letters))
    return (_letters(rest) if rest else "") + ascii_letters[digit]


def _write(node: _Node) -> str:
    given = "".join(f' {name}="{value}"' for name, value in node.given.items())
    inside = "".join(one if isinstance(one, str) else _write(one) for one in node.inside)
    return f"<{node.tag}{given}>{inside}</{node.tag}>" if inside else f"<{node.tag}{given}/>"
