"""The files of the playground: what the report inlines, what the manual serves, and that both are one copy."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from missing import installed

from joma.figures import style as figures
from joma.report import playground, write_report

ROOT = Path(__file__).parents[2]
MOST_BYTES = 50_000


def test_every_panel_has_its_words_its_forms_and_its_drawing() -> None:
    drawn = re.search(r"const PANELS = .*\(\{ (.+?) \}\);", playground.script())
    assert drawn is not None
    assert drawn[1].split(", ") == list(playground.PANELS)
    for name in playground.PANELS:
        tree = ElementTree.fromstring(playground.panel(name))
        assert [div.get("class") for div in tree.findall("dl/div")] == ["printed", "corrected"]
        assert all(div.find("dd/math") is not None for div in tree.findall("dl/div"))
        assert [div.get("data-panel") for div in tree.findall("div")] == [name]


def test_formulas_are_what_their_latex_gives() -> None:
    pytest.importorskip("latex2mathml")
    if not installed("sphinx"):
        pytest.skip("sphinx makes the manual")
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    from mathml import mathml

    for name in playground.PANELS:
        for formula in ElementTree.fromstring(playground.panel(name)).iter("math"):
            made = ElementTree.fromstring(mathml(formula.attrib["alttext"], display=False))
            written = [ElementTree.tostring(part, encoding="unicode").strip() for part in formula]
            assert written == [ElementTree.tostring(part, encoding="unicode") for part in made], name


def test_colours_are_those_of_figures() -> None:
    known = {figures.BLUE, figures.ORANGE, figures.GREEN, figures.RED, figures.PURPLE, figures.GREY}
    assert set(re.findall(r"#[0-9a-f]{6}\b", playground.script() + playground.style())) <= known
    named = re.search(r"\[BLUE, ORANGE, GREEN, RED, GREY\] = \[(.+?)\]", playground.script())
    assert named is not None
    wanted = (figures.BLUE, figures.ORANGE, figures.GREEN, figures.RED, figures.GREY)
    assert re.findall(r"#\w+", named[1]) == list(wanted)


def test_the_report_has_the_playground_and_stays_small(tmp_path: Path) -> None:
    page = write_report([], tmp_path, scale="quick").read_text(encoding="utf-8")
    for name in playground.PANELS:
        assert page.count(f'data-panel="{name}"') == page.count(f'id="playground-{name}"') == 1
    assert '<a href="#playground">Playground</a>' in page
    assert playground.script() in page
    assert "</script" not in playground.script()
    added = playground.script() + playground.style() + playground.folded_panels()
    assert len(added.encode()) < MOST_BYTES


def test_the_manual_serves_the_same_files() -> None:
    conf = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    folder = "../src/joma/report/template/playground"
    assert f'"{folder}"' in conf
    for name in (*playground.SCRIPTS, playground.STYLE):
        assert (ROOT / "docs" / folder / name).is_file()
    page = (ROOT / "docs" / "explanation" / "playground.md").read_text(encoding="utf-8")
    assert re.findall(r"```\{playground\} (\w+)", page) == list(playground.PANELS)
