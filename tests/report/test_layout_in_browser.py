"""How the page looks in a real browser: on all screens, dark, printed, without a script, to a screen reader."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_browser import elements, sources, violations_on
from kept_records import RECORDS, WHY

from joma.claims.contract import Claim
from joma.claims.execute import Result, execute
from joma.claims.verdicts import by_effect
from joma.measure.intervals import compare
from joma.report import read_scan, write_comparison, write_report, write_scan_page
from joma.runs import Run
from joma.scan import Fault
from joma.scan.sweep.record import remember, stored_scan
from joma.studies import load
from joma.studies.stored import result_of

pytestmark = pytest.mark.browser


MOST_BYTES, MOST_ASLEEP, MOST_AWAKE = 430_000, 1_120, 4_400

"""What the page of `real` may have: it has two thirds of each."""


def test_the_page_never_scrolls_sideways(page: Any) -> None:
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # everything is awake and open
    for width in (320, 390, 700, 900, 1100, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_first_screen_answers_the_questions(page: Any) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    bottom = "selector => document.querySelector(selector).getBoundingClientRect().bottom"
    assert page.evaluate(bottom, ".answers") < 800
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate(bottom, ".answers") < 2 * 844  # after one swipe


def test_the_first_figure_is_on_the_screen_of_its_heading(page: Any) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.evaluate("location.hash = '#study-near'")
    page.locator("#study-near figure").first.wait_for()
    top = page.locator("#study-near h2").bounding_box()["y"]
    figure = page.locator("#study-near figure svg").first.bounding_box()
    assert top <= figure["y"]
    assert figure["y"] + figure["height"] < top + 800


LINES_OF_PAIRS = """() => [...document.querySelectorAll('h1 span')].flatMap(span => {
  const text = span.firstChild, range = document.createRange();
  return [...text.data.matchAll(/[0-9.]+\\s(?:nats|%)/g)].map(found => {
    range.setStart(text, found.index); range.setEnd(text, found.index + found[0].length);
    return [found[0].replace(/\\s/, ' '), range.getClientRects().length];
  });
})"""
"""Numbers with units in the headline, and in how many lines each stands."""


def test_a_number_of_the_headline_stands_in_one_line_with_its_unit(
    browser: Any, results: list[Result], tmp_path: Path
) -> None:
    """On screens of many widths, so that lines end at every word of it; balanced lines would hide some of them."""
    claim = Claim("fig6-one-layer", "JoMA Fig. 6", "Entropy comes back.", matters=0.05, unit="nats")
    found = by_effect(claim, compare([0.5, 0.52, 0.48], 0.0), expected="a rebound")
    study = dataclasses.replace(results[0].study, name="fig6")
    rebound = dataclasses.replace(results[0], study=study, findings=[dataclasses.replace(found, study="fig6")])
    path = write_report([rebound, results[1]], tmp_path, scale="quick")
    page = browser.new_page()
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('h1 span').forEach(span => { span.style.textWrap = 'wrap'; })")
    for width in range(320, 1300, 20):
        page.set_viewport_size({"width": width, "height": 844})
        pairs = page.evaluate(LINES_OF_PAIRS)
        assert pairs, "the headline has no number"
        assert {lines for _, lines in pairs} == {1}, width
    page.close()


def test_rows_of_the_verdict_table_fold_on_a_phone(page: Any) -> None:
    row = page.locator(".verdict-table tbody tr").first
    assert row.evaluate("row => getComputedStyle(row).display") == "table-row"
    page.set_viewport_size({"width": 390, "height": 844})
    assert row.evaluate("row => getComputedStyle(row).display") == "grid"


def test_dark_by_preference_and_by_switch(browser: Any, address: str) -> None:
    """In a context of its own: what one test stores must not be read by another."""
    ground = "getComputedStyle(document.body).backgroundColor"
    context = browser.new_context(color_scheme="light")
    page = context.new_page()

    def becomes(colour: str) -> None:
        page.wait_for_function(f"colour => {ground} === colour", arg=colour, polling=100)

    page.goto(address)
    page.get_by_role("button", name="Dark page").wait_for()  # the script has run
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    page.get_by_role("button", name="Light page").wait_for()
    page.wait_for_function(f"colour => {ground} !== colour", arg=light, polling=100)
    dark = page.evaluate(ground)
    page.locator("#theme").click()
    becomes(light)
    page.emulate_media(color_scheme="light")
    page.locator("#theme").click()
    becomes(dark)
    page.wait_for_function("localStorage.getItem('joma-theme') === 'dark'", polling=100)
    page.reload()
    page.get_by_role("button", name="Light page").wait_for()
    becomes(dark)
    page.emulate_media(media="print")
    becomes(light)
    context.close()


def test_print_unfolds_and_has_no_controls(page: Any) -> None:
    page.emulate_media(media="print")
    assert not page.locator(".controls").is_visible()
    assert not page.locator("#theme").is_visible()
    assert not page.locator(".command button").first.is_visible()
    printed = (
        "() => { dispatchEvent(new Event('beforeprint')); return document.querySelectorAll('.study figure').length; }"
    )
    assert page.evaluate(printed) == 2  # at once: the printer does not wait for what comes later
    assert len(sources(page)) == 9
    assert page.locator("#study-near figure:visible").count() == 2
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


def test_complete_without_javascript(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert not page.locator(".controls").is_visible()
    page.locator("#study-near .body > summary").click()
    assert page.locator("#study-near figure svg:visible").count() == 2
    page.locator("#study-near .claims > summary").click()
    assert len(sources(page)) == 8
    page.locator("#study-near-two > summary").click()
    assert page.locator("#study-near-two dl").is_visible()
    context.close()


def test_landmarks_and_names(page: Any) -> None:
    for role in ("banner", "navigation", "main", "contentinfo", "search"):
        assert page.get_by_role(role).count() == 1, role
    assert page.get_by_role("table").count() == 1
    assert page.get_by_role("button", name="holds as corrected 1").count() == 1
    assert page.get_by_role("region", name="All studies").count() == 1
    unnamed = "[...document.querySelectorAll('button, input, select, svg[role=img]')].filter(e => " + (
        "!(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).length"
    )
    assert page.evaluate(unnamed) == 0


@pytest.fixture(scope="module")
def real(results: list[Result], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page of real records with everything on it: cards, both scales, a broken study, a scan, a damaged scan."""
    if not RECORDS.is_dir():
        pytest.skip(WHY)
    folder = tmp_path_factory.mktemp("real")
    stored = [result_of(RECORDS / name / f"{name}.sqlite") for name in ("fig6", "table1")]
    quick = [dataclasses.replace(one, command=f"joma verify {one.study.name}", cached=True) for one in stored]
    lemma = load("lemma6")
    broken = Result(lemma, {}, 0.0, [], [], "joma verify lemma6", None, error="RuntimeError: <boom>")
    theorem = load("thm2")
    shown = [execute(theorem, theorem.quick, folder), *quick, broken, *results]
    scan, damaged = folder / "scan-a.sqlite", folder / "scan-b.sqlite"
    with Run.create(scan, study="scan", config={"source": "a/b", "groups": {"mlp": ["v", "w"]}}) as run:
        for step in (0, 100):
            run.record(step, {"stable_rank/mlp": np.array([4.0, 3.0 + step])})
    damaged.write_text("no database")
    return write_report(shown, folder, scale="quick", scans=[scan, damaged]).as_uri()


@pytest.fixture(scope="module")
def scan_pages(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The page of a scan with everything on it, and one of two scans."""
    folder = tmp_path_factory.mktemp("scans")
    groups = {"mlp": ["h.0.w", "h.1.w"], "attention_q": ["h.0.q", "h.1.q"]}
    config = {"source": "owner/a-model-with-a-long-name-that-goes-on-and-on", "groups": groups}
    faults = [
        Fault(7, "step7", "a.bin", "h.0.w", "is_a_long_word_" * 12),
        Fault(100, "step100", None, None, "x", "entropy"),
    ]
    with Run.create(folder / "a.sqlite", study="scan", config=config) as run:
        for step in (0, 100):
            values = {f"stable_rank/{group}": np.array([4.0, 3.0 + step]) for group in groups}
            run.record(step, {**values, "entropy": np.array([[1.0, 2.0], [0.5, step]])})
        found = dataclasses.replace(stored_scan(run), faults=faults, notes=("a note",), coverage={"mlp": (2, 3)})
        remember(run, found, (0, 7, 100))
    shown = dataclasses.replace(read_scan(folder / "a.sqlite"), violations=("stable_rank<5: step 0",))
    pages = (
        write_scan_page(shown, folder / "a.html"),
        write_comparison((shown, shown), folder / "b.html", made_by="joma"),
    )
    return [page.as_uri() for page in pages]


@pytest.mark.parametrize(("which", "theme", "width"), [(0, "light", 390), (1, "dark", 1280)])
def test_axe_finds_nothing_on_the_page_of_a_scan(
    browser: Any, scan_pages: list[str], theme: str, width: int, which: int
) -> None:
    assert violations_on(browser, scan_pages[which], theme, width, "open") == []


def test_the_page_of_a_scan_never_scrolls_sideways(browser: Any, scan_pages: list[str]) -> None:
    page = browser.new_page()
    for address in scan_pages:
        page.goto(address)
        page.locator("details").evaluate_all("all => all.forEach(d => { d.open = true; })")
        for width in (320, 390, 700, 1280):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


@pytest.mark.parametrize(
    ("theme", "width", "folds"),
    [("light", 1280, "open"), ("light", 390, "closed"), ("dark", 390, "open")],
)
def test_axe_finds_nothing(browser: Any, real: str, theme: str, width: int, folds: str) -> None:
    assert violations_on(browser, real, theme, width, folds) == []


CARD_LETTERS = """() => [...document.querySelectorAll('.card svg text')].map((text) => {
  const box = text.ownerSVGElement, shown = box.getBoundingClientRect().width / box.viewBox.baseVal.width;
  return shown * parseFloat(getComputedStyle(text).fontSize);
})"""


@pytest.mark.parametrize("width", [1280, 390])
def test_letters_on_cards_can_be_read(browser: Any, real: str, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.goto(real)
    letters = page.evaluate(CARD_LETTERS)
    page.close()
    assert len(letters) > 20
    assert min(letters) >= 12


def test_the_page_is_small_and_most_of_it_sleeps(browser: Any, real: str) -> None:
    """By bytes and elements of a page of six studies and a scan; a clock would tell of the machine."""
    whole = Path(real.removeprefix("file://")).stat().st_size
    page = browser.new_page()
    page.goto(real)
    asleep = elements(page)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    awake = elements(page)
    page.close()
    assert whole < MOST_BYTES
    assert asleep < MOST_ASLEEP
    assert awake < MOST_AWAKE
