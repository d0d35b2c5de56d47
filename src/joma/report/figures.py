"""Figures on the page: large with their caption, small on a card, and a sentence where there are none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING

from joma.report.compact import compact_svg
from joma.report.markup import embed_svg, natural_width

if TYPE_CHECKING:
    from joma.claims.execute import Picture, Result


_LETTERS = re.compile(r"font-size: ?([\d.]+)px")
_CARD, _READABLE = 420.0, 12.0
"""Pixels: how wide a card shows a figure, and how high its letters must be."""
_WIDE = 480.0
"""Points: in half of the page a wider figure could be read only by scrolling, so it has a row of its own."""


def figure(picture: Picture, anchor: str, ids: str = "") -> str:
    """A figure with its caption. It has no number: that would be taken for the number of a figure in the paper.

    ids: what the names inside the picture begin with, else the anchor. A short one saves bytes on a large page.
    """
    width = natural_width(picture.svg)
    wide = ' class="wide"' if width.endswith("pt") and float(width.removesuffix("pt")) > _WIDE else ""
    return (
        f'<figure id="{anchor}"{wide}>{_picture(picture, ids or anchor)}\n'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def small_figure(picture: Picture, anchor: str) -> str:
    """The same picture without a caption."""
    return _picture(picture, anchor)


def is_readable(picture: Picture) -> bool:
    """Whether its smallest letters have 12 px where it is as wide as a card shows it."""
    letters = [float(size) for size in _LETTERS.findall(picture.svg)]
    width = natural_width(picture.svg)
    return width.endswith("pt") and min(letters, default=_READABLE) * _CARD / float(width[:-2]) >= _READABLE


def missing_figures(results: Sequence[Result]) -> str:
    """Why a page of finished runs has no figures, and how to get them; empty if it has some.

    >>> missing_figures([])
    ''
    """
    drawn = any(result.pictures for result in results)
    if drawn or not any(result.run for result in results) or find_spec("matplotlib"):
        return ""
    return (
        '<p class="notice">This page has no figures, because matplotlib is not installed. '
        'Install it with <code>pip install "joma[viz]"</code> and give the command again: '
        "finished runs are only drawn, not run.</p>"
    )


def _picture(picture: Picture, ids: str) -> str:
    width = natural_width(picture.svg)
    return f'<div class="picture" style="--drawn:{width}">{embed_svg(compact_svg(picture.svg), ids)}</div>'
