"""Figures made small: fewer bytes and elements, the same picture, text as text."""

from __future__ import annotations

import re

import numpy as np
import pytest

from joma.figures.style import house_style, panels, to_svg
from joma.report.svg import _letters, compact_svg, short_path


@pytest.fixture(scope="module")
def drawn() -> str:
    with house_style():
        figure, (left, right) = panels(2)
        left.plot(np.linspace(0, 1, 400), np.linspace(0, 1, 400), label="straight")
        left.fill_between([0, 0.5, 1], [0, 0.2, 0.1], [0.5, 0.6, 0.7], alpha=0.3)
        right.scatter(np.arange(40), np.arange(40) % 7, s=9)
        right.set(title="Many < dots", xlabel="v² & Δ")
        return to_svg(figure, title="two panels")


def test_a_figure_needs_a_third_of_its_bytes_and_of_its_elements(drawn: str) -> None:
    small = compact_svg(drawn)
    assert len(small) < len(drawn) / 3
    assert small.count("<") < drawn.count("<") / 3
    for gone in ("<metadata", "<style", "xmlns", "DejaVu", "rotate(-0"):
        assert gone not in small


def test_all_words_stay_words(drawn: str) -> None:
    words = re.compile(r"<text[^>]*>([^<]*)</text>")
    assert words.findall(compact_svg(drawn)) == words.findall(drawn)
    for label in ('aria-label="two panels"', 'aria-label=""'):  # an empty one says that there is nothing to say
        assert f'role="img" {label}' in compact_svg(drawn.replace('aria-label="two panels"', label))


def test_every_name_that_is_referred_to_stands_once_and_no_other(drawn: str) -> None:
    small = compact_svg(drawn)
    names = re.findall(r' id="([^"]+)"', small)
    assert sorted(names) == sorted(set(names))
    assert set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', small)) - {("", "")}
    assert {a or b for a, b in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', small)} == set(names)


def test_all_dots_stand_in_one_line_of_markers(drawn: str) -> None:
    small = compact_svg(drawn)
    assert drawn.count("<use") > 50
    assert small.count("<use") < 12
    ways = re.findall(r'<path d="([^"]+)" style="fill:none;marker', small)
    assert 40 in [len(points(way)) for way in ways]


def test_dots_of_two_colours_stay_of_two_colours() -> None:
    """As in a legend: one shape, uses beside each other with nothing but text between them."""
    colours = ["red", "blue", "red", "blue", "blue", "red", "blue"]
    uses = "".join(
        f'<use href="#dot" x="{40 + 10 * at}" y="50" style="fill:{colour}"/><text x="1" y="2">{at}</text>'
        for at, colour in enumerate(colours)
    )
    small = compact_svg(f'<svg><defs><path id="dot" d="M 0 0 L 1 1 z"/></defs>{uses}</svg>')
    looks = dict(re.findall(r'<marker id="([^"]+)"[^>]*?fill:(\w+)', small))
    ways = re.findall(r'<path d="([^"]+)" style="fill:none;marker:url\(#([^)]+)\)', small)
    found = {looks[name]: [x for x, _ in points(way)] for way, name in ways}
    places = {colour: [40.0 + 10 * at for at, one in enumerate(colours) if one == colour] for colour in colours}
    assert found == {colour: pytest.approx(place) for colour, place in places.items()}


def points(path: str) -> list[tuple[float, float]]:
    """Where a path of M and l goes: written anew here, so that it does not trust the code under test."""
    here, found = (0.0, 0.0), []
    for name, numbers in re.findall(r"([Ml])([^Mlz]*)", path):
        values = [float(one) for one in re.findall(r"-?(?:\d+\.?\d*|\.\d+)", numbers)]
        for x, y in zip(values[::2], values[1::2], strict=True):
            here = (x, y) if name == "M" else (here[0] + x, here[1] + y)
            found.append(here)
    return found


def distance(point: np.ndarray, way: np.ndarray) -> float:
    start, along = way[:-1], np.diff(way, axis=0)
    share = np.clip(((point - start) * along).sum(1) / np.maximum((along**2).sum(1), 1e-12), 0, 1)
    return float(np.linalg.norm(point - start - share[:, None] * along, axis=1).min())


def test_a_thinned_curve_is_nowhere_off_by_what_can_be_seen() -> None:
    x = np.linspace(0, 400, 2000)
    y = 100 + 60 * np.sin(x / 30) + 0.3 * np.sin(x * 3)
    path = "M " + " L ".join(f"{a:.6f} {b:.6f}" for a, b in zip(x, y, strict=True))
    short = short_path(path)
    assert len(short) < len(path) / 5
    way = np.array(points(short))
    assert max(distance(np.array(point), way) for point in zip(x, y, strict=True)) < 0.15
    assert way[-1] == pytest.approx((400, y[-1]), abs=0.06)


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("M 1 1 L 1 1", "M1 1l0 0"),
        ("M 0 0 L 10 0 L 10 5 z", "M0 0l10 0 0 5z"),
        ("M 20.04 20 C 21 22 23 24 25.06 26 z", "M20 20C21 22 23 24 25.1 26z"),
        ("M 0 1.5 C 0.397805 1.5 0.77937 1.341951 1.06066 1.06066 z", "M0 1.5C0.4 1.5 .78 1.34 1.06 1.06z"),
        ("M 30 0 L 40 40 M 50 50 L 60 60", "M30 0l10 40M50 50l10 10"),
        ("M 0 0 A 1 1 0 0 0 2 2", "M0 0A1 1 0 0 0 2 2"),
        ("m 0.001 0 l 12345.678 1", "m0 0l12345.7 1"),
        ("M 1.2.3 4 L 5 6", "M1.2.3 4L5 6"),  # damaged: left as it is
        ("M 1 4 L 5 6.7.8 L 20 6", "M1 4L5 6.7.8L20 6"),
        ("M . 4 L 5 6 L . 6", "M. 4L5 6L. 6"),
        ("", ""),
    ],
)
def test_paths(path: str, short: str) -> None:
    assert short_path(path) == short


@pytest.mark.parametrize("odd", ["", "no picture", "<svg><g></svg>", "<svg></g></svg>", "<p></p>", "<svg>"])
def test_what_is_no_whole_picture_comes_back_as_it_was(odd: str) -> None:
    assert compact_svg(odd) == odd


def test_places_and_sizes_are_kept_to_tenths() -> None:
    small = compact_svg('<svg><rect x="1.2345" y="2.26" width="3.04" height="10.96" style="fill:red"/></svg>')
    assert dict(re.findall(r'(x|y|width|height)="([^"]*)"', small)) == {
        "x": "1.2", "y": "2.3", "width": "3", "height": "11"
    }  # fmt: skip


EVERYTHING = """<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 90.123456 40" version="1.1" role="img">
 <!-- a comment -->
 <title>two</title>
 <metadata>x</metadata>
 <defs><style>*{}</style></defs>
 <g id="figure_1"><g id="patch_1"><path d="M 0 0 L 1 1" style="fill: none"/></g>
  <g id="axes_1" clip-path="url(#p1)">
   <defs>
    <path id="dot" d="M -1.256 0 L 1.254 0 z"/>
    <path id="lost" d="M 0 0 L 2 2"/>
    <g id="pair"><path id="inner" d="M 0 0 L 3 1"/></g>
   </defs>
   <use xlink:href="#dot" x="10.04" y="20" style="fill: red"/>
   <use xlink:href="#dot" x="20" y="30.06" style="fill: red"/>
   <text x="1.26" y="2" transform="rotate(-0 1 2)"
    style="font: 9px 'DejaVu Sans'; fill: currentColor; text-anchor: start">a &lt; b</text>
   <use xlink:href="#dot" x="40" y="20" style="fill: red"/>
   <rect x="5" y="5" width="2.26" height="3" style="opacity: 0.12345"/>
   <use xlink:href="#dot" x="50" y="20" style="fill: red"/>
   <use xlink:href="#inner" x="7" y="8"/>
   <use xlink:href="#inner" x="9" y="8" transform="translate(1.23456 2)"/>
  </g>
  <g><text x="3" y="4" transform="rotate(-90 3.456 4)"
    style="font-family: 'DejaVu Sans', serif; fill: blue; text-anchor: middle"><tspan x="3.33">t</tspan></text></g>
 </g>
 <defs><clipPath id="p1"><rect x="1" y="2" width="80" height="30"/></clipPath>
  <clipPath id="p2"><rect x="1" y="2" width="8" height="3"/></clipPath></defs>
</svg>"""


def test_of_a_picture_with_everything_all_that_is_seen_stays_and_nothing_else() -> None:
    """Three dots of one look become one line of markers, at 10 20, 20 30.1 and 40 20; the fourth lies above a box."""
    assert compact_svg(EVERYTHING) == (
        '<svg viewBox="0 0 90.123456 40" role="img"><title>two</title><g clip-path="url(#d)"><defs>'
        '<path id="a" d="M-1.26 0l2.51 0z" /><path id="b" d="M0 0l3 1" /></defs>'
        '<marker id="c" markerUnits="userSpaceOnUse" style="overflow:visible;fill:red"><use href="#a" />'
        '</marker><path d="M10 20l10 10.1 20-10.1" style="fill:none;marker:url(#c)" />'
        '<text x="1.3" y="2" style="font:9px \'DejaVu Sans\'">a &lt; b</text>'
        '<rect x="5" y="5" width="2.3" height="3" style="opacity:0.12" />'
        '<use href="#a" x="50" y="20" style="fill:red" /><use href="#b" x="7" y="8" />'
        '<use href="#b" x="9" y="8" transform="translate(1.23 2)" /></g>'
        '<text x="3" y="4" transform="rotate(-90 3.46 4)" style="fill:blue;text-anchor:middle">'
        '<tspan x="3.3">t</tspan></text><defs><clipPath id="d"><rect x="1" y="2" width="80" height="30" />'
        "</clipPath></defs></svg>"
    )


def test_short_names_count_with_letters() -> None:
    given = [(0, "a"), (25, "z"), (26, "A"), (51, "Z"), (52, "ba"), (53, "bb"), (2703, "ZZ"), (2704, "baa")]
    assert [_letters(number) for number, _ in given] == [name for _, name in given]
