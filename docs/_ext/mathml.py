"""Formulas as MathML, made while the pages are built: a browser draws them without script and without a network.

A formula that cannot be converted is a warning, which `sphinx-build -W` turns into an error.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from itertools import cycle
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

LOGGER = logging.getLogger(__name__)
SPACES = {"negativethinmathspace": "-0.1667em"}
ALPHABETS = {"double-struck": "DOUBLE-STRUCK", "bold": "BOLD", "script": "SCRIPT"}
FENCES = "|\N{DOUBLE VERTICAL LINE}"
PRIME = "\N{PRIME}"
KINDS = {"Lu": "CAPITAL", "Ll": "SMALL", "Nd": "DIGIT"}


class Unreadable(ValueError):
    """A formula that cannot be written as MathML."""


def mathml(latex: str, *, display: bool) -> str:
    """The formula as one `<math>` element; `Unreadable` where a command is unknown or a brace is missing."""
    try:
        tree = ElementTree.fromstring(convert(latex.strip(), xmlns="", display="block" if display else "inline"))
    except Exception as error:  # the converter has a class of its own for every mistake
        raise Unreadable(f"{latex!r}: {type(error).__name__} {error}") from error
    if left := [text for text in tree.itertext() if "\\" in text]:
        raise Unreadable(f"{latex!r}: unknown command {left[0]}")
    _as_browsers_read_it(tree)
    tree.attrib.pop("xmlns", None)
    return ElementTree.tostring(tree, encoding="unicode")


def _as_browsers_read_it(tree: ElementTree.Element) -> None:
    """MathML Core knows no alphabets but those of Unicode and no named spaces, and must be told which bar opens."""
    sides: dict[str, Iterator[str]] = {fence: cycle(("prefix", "postfix")) for fence in FENCES}
    for element in tree.iter():
        variant = element.get("mathvariant")
        if variant in ALPHABETS:
            element.text = "".join(_letter(letter, ALPHABETS[variant]) for letter in element.text or "")
            del element.attrib["mathvariant"]
        if element.get("width") in SPACES:
            element.set("width", SPACES[element.attrib["width"]])
        if element.tag == "mo" and element.text in sides and "form" not in element.attrib:
            element.set("form", next(sides[element.text]))
        if element.tag == "mo" and (element.text or "").isalpha() and len(element.text or "") > 1:
            element.tag = "mi"  # the name of a function, such as diag
        if element.tag in ("msup", "msubsup") and element[-1].text == PRIME:
            _prime_beside(element)


def _prime_beside(element: ElementTree.Element) -> None:
    """A prime is drawn raised already: as a superscript most fonts would make it a speck."""
    *base, _ = element
    inner = base[0] if element.tag == "msup" else ElementTree.Element("msub")
    if element.tag == "msubsup":
        inner.extend(base)
    prime = ElementTree.Element("mo", {"lspace": "0", "rspace": "0"})
    prime.text = PRIME
    element.tag = "mrow"
    element[:] = [inner, prime]


def _letter(letter: str, alphabet: str) -> str:
    """The letter of another alphabet of Unicode: E becomes a double-struck E."""
    name = unicodedata.name(letter).rsplit(" ", 1)[-1]
    kind = KINDS[unicodedata.category(letter)]
    for prefix in (f"MATHEMATICAL {alphabet}", alphabet):  # some letters were there before the alphabet
        try:
            return unicodedata.lookup(f"{prefix} {kind} {name}")
        except KeyError:
            continue
    raise Unreadable(f"no {alphabet.lower()} {letter}")


def _written(self: HTML5Translator, node: nodes.Element, *, display: bool) -> str:
    try:
        return mathml(node.astext(), display=display)
    except Unreadable as error:
        LOGGER.warning("no MathML for %s", error, location=node)
        return f"<code>{self.encode(node.astext())}</code>"


def inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(_written(self, node, display=False))
    raise nodes.SkipNode


def block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="formula"))
    self.body.append(_written(self, node, display=True))
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
