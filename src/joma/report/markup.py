"""Small pieces of HTML that pages share: templates and their head, text, numbers, durations, anchors, inline SVG."""

import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template

NOTHING = '<span class="none">–</span>'


def filled(name: str, **parts: str) -> str:
    """A template with its parts in place; what is text must be escaped already."""
    return Template(_read(name)).substitute(parts)


def head(title: str, *, style: str = "", script: str = "") -> str:
    """Everything before the body. Only our own script may run: the policy names it by its hash.

    style, script: what this page has beyond what all pages have.
    """
    style, script = _read("style.css") + style, _read("script.js") + script
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return filled("head.html", title=escape(title), style=style, script=script, script_hash=digest)


def _read(name: str) -> str:
    return files("joma.report").joinpath("template", name).read_text(encoding="utf-8")


_UNIT = r"%|nats²?|bits|ms|s|min|h|[kMGT]i?B|seeds?|steps?|epochs?|layers?|tokens?|octaves?|doublings?|standard"
_BEFORE_UNIT = re.compile(rf"(?<=\d) (?=(?:{_UNIT})(?!\w))")


def prose(text: str) -> str:
    r"""Text of a sentence. A number and its unit stay on one line."""
    return escape(_BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", text))


def rows(given: Mapping[str, str]) -> str:
    """The rows of a description list, of names and contents that are HTML already."""
    return "".join(f"<div><dt>{name}</dt><dd>{content}</dd></div>" for name, content in given.items())


def section(anchor: str, title: str, content: str) -> str:
    """A part of the page with its heading; nothing where it would be empty."""
    opening = f'<section id="{anchor}" aria-labelledby="{anchor}--title"><h2 id="{anchor}--title">{escape(title)}</h2>'
    return f"{opening}\n{content}\n</section>" if content else ""


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 59.5:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


class Anchors:
    """Element ids that are unique on the page, close to the text they stand for."""

    def __init__(self, *taken: str) -> None:
        self._taken: set[str] = set(taken)

    def take(self, *words: str) -> str:
        wanted = re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")
        anchor, count = wanted, 1
        while anchor in self._taken:
            count += 1
            anchor = f"{wanted}-{count}"
        self._taken.add(anchor)
        return anchor


_TAG = re.compile(r"""<[a-zA-Z](?:"[^"]*"|'[^']*'|[^"'>])*>""")
_ID = re.compile(r"""(\sid=["']|url\(["']?#|\s(?:xlink:)?href=["']#)""")
_STYLE = re.compile(r"<style\b.*?</style>", re.DOTALL)
_VIEW_BOX = re.compile(r"""\sviewBox=["'][-\d.]+[ ,]+[-\d.]+[ ,]+(\d+\.?\d*)""")


def embed_svg(svg: str, prefix: str) -> str:
    """The SVG with its ids, and all references to them, under `prefix--`, so that pictures do not share them.

    Matplotlib names its elements alike in every picture, and a page with two of them would draw one with the
    clip paths and markers of the other. Its <style> speaks of all elements, `*`: inline it would reach the whole
    page, so it goes, and the page's own style says the same of figures alone. Anchors never contain `--`.
    """
    return _TAG.sub(lambda tag: _ID.sub(rf"\g<1>{prefix}--", tag[0]), _STYLE.sub("", svg))


def natural_width(svg: str) -> str:
    """The width the picture was drawn for, as a CSS length: matplotlib's user unit is a point."""
    found = _VIEW_BOX.search(svg)
    return f"{float(found[1]):g}pt" if found else "100%"


def command(line: str) -> str:
    """A command line to copy; the script adds the button."""
    return f'<div class="command"><pre><code>{escape(line)}</code></pre></div>'
