"""Formulas become MathML that a browser draws by itself, and one that cannot is an error."""

import re
import sys
from xml.etree import ElementTree

import pytest
from missing import installed
from page_blocks import ROOT, pages, text_of

if not all(map(installed, ("sphinx", "latex2mathml"))):  # without importing a folder that is only called so
    pytest.skip("sphinx and latex2mathml make formulas", allow_module_level=True)
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from mathml import Unreadable, mathml


def formulas(page):
    """(LaTeX, whether it stands on a line of its own) of a page."""
    text = re.sub(r"^ *```.*?^ *```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    found = [(latex, True) for latex in re.findall(r"\$\$(.*?)\$\$", text, re.DOTALL)]
    return found + [
        (latex, False) for latex in re.findall(r"\$([^$]+)\$", re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL))
    ]


def test_every_formula_is_converted():
    found = [(page, *formula) for page in pages() for formula in formulas(page)]
    assert len(found) > 400
    for _, latex, display in found:
        tree = ElementTree.fromstring(mathml(latex, display=display))
        assert tree.get("display") == ("block" if display else "inline")
        assert {element.get("mathvariant", "normal") for element in tree.iter()} == {"normal"}, latex


@pytest.mark.parametrize("latex", [r"\nosuchcommand x", r"\frac{1}{", "x_{"])
def test_a_formula_that_cannot_be_converted_is_refused(latex):
    with pytest.raises(Unreadable):
        mathml(latex, display=False)


@pytest.mark.parametrize(
    ("latex", "drawn"),
    [
        (r"\mathbb E", "<mi>𝔼</mi>"),
        (r"\mathbf 1", "<mn>𝟏</mn>"),
        (r"\lVert v\rVert", '<mo form="prefix">‖</mo><mi>v</mi><mo form="postfix">‖</mo>'),
        (r"a\!b", '<mspace width="-0.1667em" />'),
        (r"\operatorname{diag}x", "<mi>diag</mi>"),
        (r"v'", '<mrow><mi>v</mi><mo lspace="0" rspace="0">′</mo></mrow>'),
        (r"\theta_1'", '<msub><mi>θ</mi><mn>1</mn></msub><mo lspace="0" rspace="0">′</mo>'),
    ],
)
def test_what_browsers_do_not_know_is_written_in_what_they_know(latex, drawn):
    assert drawn in mathml(latex, display=False)
