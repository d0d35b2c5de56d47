"""Figures on the page: large with their caption, small on a card, and a sentence where there are none."""

import re
from collections.abc import Callable
from html import escape
from importlib.util import find_spec
from typing import Any

from joma.claims.execute import Picture
from joma.figures.style import house_style, to_svg
from joma.figures.types import Figure
from joma.host.extras import install_command, is_checkout
from joma.report.markup import embed_svg, natural_width
from joma.report.svg import compact_svg

_LETTERS = re.compile(r"font-size: ?(\d+(?:\.\d+)?)px")
_CARD, _READABLE = 420.0, 12.0  # pixels: how wide a card shows a figure, and how high its letters must be
_WIDE = 480.0  # points: in half of the page a wider figure could be read only by scrolling, so it has a row of its own


def draw_picture(name: str, caption: str, alt: str, draw: Callable[..., Figure], *given: Any, **named: Any) -> Picture:
    """What `draw` gives for the rest, in the house's style."""
    with house_style():
        return Picture(name, caption, to_svg(draw(*given, **named), title=alt), alt)


def figure(picture: Picture, anchor: str, ids: str = "") -> str:
    """A figure with its caption. It has no number: that would be taken for the number of a figure in the paper.

    ids: what the names inside the picture begin with, else the anchor. A short one saves bytes on a large page.
    """
    width = natural_width(picture.svg)
    wide = ' class="wide"' if width.endswith("pt") and float(width.removesuffix("pt")) > _WIDE else ""
    return (
        f'<figure id="{anchor}"{wide}>{picture_html(picture, ids or anchor)}\n'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def picture_html(picture: Picture, ids: str) -> str:
    """The picture alone."""
    width = natural_width(picture.svg)
    return f'<div class="picture" style="--drawn:{width}">{embed_svg(compact_svg(picture.svg), ids)}</div>'


def is_readable(picture: Picture) -> bool:
    """Whether its smallest letters have 12 px where it is as wide as a card shows it."""
    letters = [float(size) for size in _LETTERS.findall(picture.svg)]
    width = natural_width(picture.svg)
    return width.endswith("pt") and min(letters, default=_READABLE) * _CARD / float(width[:-2]) >= _READABLE


def can_draw() -> bool:
    """Whether matplotlib is there."""
    return find_spec("matplotlib") is not None


def no_figures(consequence: str) -> str:
    """Why a page has no figures, and how to get them. consequence: what giving the command again does not repeat."""
    place = ", in the checkout of joma," if is_checkout() else ""
    return (
        '<p class="notice">This page has no figures, because matplotlib is not installed. Install it with '
        f"<code>{install_command('viz')}</code>{place} and give the command again: {consequence}</p>"
    )
