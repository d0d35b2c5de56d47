"""The page in a real browser, opened from a file as a reader would."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kept_records import RECORDS, WHY
from patience import PATIENCE

from joma.claims.execute import Result, execute
from joma.claims.verdicts import by_residual
from joma.report import read_scan, scan_runs, write_comparison, write_report, write_scan_page
from joma.runs import Run
from joma.scan import Fault
from joma.scan.sweep.record import remember, stored_scan
from joma.studies import load
from joma.studies.stored import result_of

pytestmark = pytest.mark.browser
CHROMIUM = next((p for name in ("chromium", "/usr/bin/chromium", "google-chrome") if (p := shutil.which(name))), None)
MOST_BYTES, MOST_ASLEEP, MOST_AWAKE = 365_000, 1_120, 4_400
"""What the page of `real` may have: it has two thirds of each."""
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def patient(make: Callable[..., Any]) -> Callable[..., Any]:
    """Contexts and pages that wait for as long as a busy machine takes; playwright's own patience is 30 s."""

    def made(**options: Any) -> Any:
        one = make(**options)
        one.set_default_timeout(1000 * PATIENCE)
        return one

    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium or google-chrome is installed")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=1000 * PATIENCE)
        browser.new_context, browser.new_page = patient(browser.new_context), patient(browser.new_page)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(results: list[Result], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(results, tmp_path_factory.mktemp("page"), scale="quick").as_uri()


@pytest.fixture(scope="module")
def context(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    yield context
    context.close()


@pytest.fixture
def page(context: Any, address: str) -> Iterator[Any]:
    """The page at 1280 px. A console error, an exception or a request for anything but the file fails the test."""
    page = context.new_page()
    troubles: list[str] = []
    page.on("console", lambda message: message.type in ("error", "warning") and troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: request.url.split("#")[0] != address and troubles.append(request.url))
    page.goto(address)
    yield page
    page.evaluate("localStorage.clear()")
    page.close()
    assert troubles == []


def sources(page: Any) -> list[str]:
    """Where the claims come from that can be seen."""
    shown: list[str] = page.locator(".claim:visible .source").all_inner_texts()
    return shown


def chip(page: Any, verdict: str) -> Any:
    return page.locator(f'.chip[data-verdict="{verdict}"]')


def said(page: Any) -> str:
    words: str = page.locator("#shown").inner_text()
    return words


def test_chips_filter_and_count(page: Any) -> None:
    assert sources(page) == []  # all are folded
    chip(page, "fails").click()
    assert sources(page) == ["JoMA eq. 58"]
    assert chip(page, "fails").get_attribute("aria-pressed") == "true"
    assert not page.locator("#study-far").is_visible()
    assert not page.locator("#study-near .body").is_visible()
    chip(page, "not run").click()
    assert sources(page) == ["JoMA eq. 58", "JoMA Fig. 7"]
    assert said(page) == "2 of 7 claims"
    chip(page, "fails").click()
    chip(page, "not run").click()
    assert said(page) == ""
    assert page.locator("#study-far").is_visible()
    assert page.locator("#study-near .body").is_visible()
    assert sources(page) == []  # folded again


def test_search(page: Any) -> None:
    for words, found in {
        "sparse DENSE": ["JoMA eq. 6"],
        "erf(v/√2)": ["JoMA Thm 2"],
        "<script>": ["JoMA eq. 58"],
        "cannot run": ["JoMA Fig. 7"],  # the title of its study
        "near/fig4": ["JoMA Fig. 4"],
        "no such word": [],
    }.items():
        page.locator("#search").fill(words)
        assert sources(page) == found, words
    assert said(page) == "No claim matches “no such word”."
    page.locator("#search").fill("needs a GPU")
    chip(page, "fails").click()
    assert said(page) == "No claim matches “needs a GPU” among: fails."
    page.locator("#clear").click()
    page.locator("#study-near .body").wait_for()
    assert page.locator("#search").input_value() == ""
    assert not page.locator("#clear").is_visible()


def test_the_address_restores_what_is_shown(page: Any, address: str) -> None:
    chip(page, "fails").click()
    chip(page, "only qualitative").click()
    page.locator("#search").fill("near")
    page.wait_for_url(lambda url: "search=near" in url)
    shared = page.url
    page.goto("about:blank")
    page.goto(shared)
    assert sources(page) == ["JoMA eq. 58", "JoMA eq. 6"]
    assert page.locator("#search").input_value() == "near"
    assert chip(page, "only qualitative").get_attribute("aria-pressed") == "true"
    page.locator("#clear").click()
    page.wait_for_url(lambda url: url == address)


def test_an_address_with_nonsense_shows_everything(page: Any, address: str) -> None:
    page.goto("about:blank")
    page.goto(f"{address}#?verdict=perhaps&sort=colour&study=none")
    assert page.locator(".study:visible").count() == 2
    page.goto("about:blank")
    page.goto(f"{address}#no-such-anchor")
    assert page.locator(".study:visible").count() == 2


def test_a_link_opens_what_it_points_to(page: Any, address: str) -> None:
    page.goto("about:blank")
    page.goto(f"{address}#study-near-eq58")
    target = page.locator("#study-near-eq58")
    assert target.evaluate("one => one.open && one.closest('.claims').open")
    assert target.locator("dl").is_visible()
    assert target.evaluate("one => one.getBoundingClientRect().top < innerHeight")
    target.locator("summary").click()
    assert not target.locator("dl").is_visible()
    page.locator("#study-near .body > summary").click()
    page.locator("#study-near .notable a").first.click()  # the same address once more
    assert target.locator("dl").is_visible()


def test_a_link_ends_a_search_that_hides_what_it_points_to(page: Any) -> None:
    chip(page, "fails").click()
    page.wait_for_url(lambda url: "#?" in url)
    page.evaluate("location.hash = '#study-near-ten'")
    page.locator("#study-near-ten dl").wait_for()
    assert chip(page, "fails").get_attribute("aria-pressed") == "false"
    page.go_back()
    page.locator("#study-near-ten").wait_for(state="hidden")
    assert sources(page) == ["JoMA eq. 58"]
    page.evaluate("location.hash = '#study-near'")  # can be seen: the search stays
    page.wait_for_url(lambda url: url.endswith("#study-near"))
    assert sources(page) == ["JoMA eq. 58"]


def elements(page: Any) -> int:
    count: int = page.evaluate("document.querySelectorAll('*').length")
    return count


def test_a_study_enters_the_page_when_it_is_opened(page: Any) -> None:
    asleep = elements(page)
    assert page.locator(".study figure, .study .claim").count() == 0
    page.locator("#study-near .body > summary").click()
    page.locator("#study-near figure").first.wait_for()
    assert page.locator("#study-near .claim").count() == 0
    page.locator("#study-near .claims > summary").click()
    page.locator("#study-near .claim").first.wait_for()
    assert page.locator("#study-near .claim").count() == 6
    assert page.locator("#study-far .claim").count() == 0  # sleeps on
    assert elements(page) > asleep + 150
    page.locator("#study-near .body > summary").click()  # closed and opened again: nothing enters twice
    page.locator("#study-near .body > summary").click()
    assert page.locator("#study-near figure").count() == 2
    assert page.locator("#study-near .command button").count() == 1


def test_a_search_looks_into_what_sleeps_and_wakes_no_figure(page: Any) -> None:
    page.locator("#search").fill("sparse dense")
    assert sources(page) == ["JoMA eq. 6"]
    assert page.locator(".study figure").count() == 0


@pytest.mark.parametrize("name", ["study-near-eq58", "near/eq58", "figure-near-alike-too"])
def test_a_link_wakes_what_it_points_to(page: Any, address: str, name: str) -> None:
    page.goto("about:blank")
    page.goto(f"{address}#{name}")
    target = page.locator("#figure-near-alike-too" if "alike" in name else "#study-near-eq58")
    target.wait_for()
    assert target.evaluate("one => one.getBoundingClientRect().top < innerHeight")


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
        """The page is repainted some time after a click or a change of preference."""
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


def test_copy(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#study-near .body > summary").click()
    page.locator("#study-near .command button").first.click()
    page.locator("#study-near .command").get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "joma verify near"


def test_print_unfolds_and_has_no_controls(page: Any) -> None:
    page.emulate_media(media="print")
    assert not page.locator(".controls").is_visible()
    assert not page.locator("#theme").is_visible()
    assert not page.locator(".command button").first.is_visible()
    printed = (
        "() => { dispatchEvent(new Event('beforeprint')); return document.querySelectorAll('.study figure').length; }"
    )
    assert page.evaluate(printed) == 2  # at once: the printer does not wait for what comes later
    assert len(sources(page)) == 7
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
    assert len(sources(page)) == 6
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


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
@pytest.mark.parametrize("which", [0, 1])
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
    [("light", 1280, "open"), ("light", 390, "closed"), ("dark", 1280, "closed"), ("dark", 390, "open")],
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


def test_the_card_draws_the_scale_that_its_sentence_tells(browser: Any, tmp_path: Path, results: list[Result]) -> None:
    """The figure of this run only falls, and the sentence is of paper scale: entropy comes back."""
    stored = result_of(RECORDS / "fig6" / "fig6.sqlite")
    falls = '<svg viewBox="0 0 100 100"><path class="curve" d="M0 0L100 100"/></svg>'
    picture = dataclasses.replace(stored.pictures[0], svg=falls)
    quick = dataclasses.replace(stored, command="joma verify fig6", pictures=[picture])
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(write_report([quick, *results], tmp_path, scale="quick").as_uri())
    card = page.locator("#card-fig6")
    assert "At paper scale attention entropy comes back by 0.50 nats" in card.inner_text()
    assert "This run: holds (L = 1, layer 1: 0.50 nats" in card.inner_text()
    assert "Paper scale: WikiText-2, mean of 5 seeds" in card.inner_text()
    heights = card.locator("svg .curve").evaluate(
        "way => [...Array(201).keys()].map(i => way.getPointAtLength(way.getTotalLength() * i / 200).y)"
    )
    page.close()
    assert heights[0] < heights[-1] < max(heights) - 50  # up is less: it falls, and ends far above its lowest point


def test_headline_and_column_give_one_number_for_one_scale(browser: Any, tmp_path: Path) -> None:
    """One claim of Theorem 2 comes out differently in this run: both counts are there, each with its scale."""
    study = load("thm2")
    run = execute(study, study.quick, tmp_path, pictures=False)
    spoiled = by_residual(next(iter(study.claims)), printed=0.3, corrected=0.2, tolerance=1e-9, expected="zero")
    changed = dataclasses.replace(run, findings=[dataclasses.replace(spoiled, study="thm2"), *run.findings[1:]])
    page = browser.new_page()
    page.goto(write_report([changed], tmp_path, scale="quick").as_uri())
    headline, column = (page.locator(place).inner_text() for place in ("h1", ".holding"))
    page.close()
    assert headline == "7 of 8 mathematical claims hold at paper scale, 5 only if corrected."
    assert re.search(r"Mathematics, paper scale\s+7 of 8 hold", column), column
    assert re.search(r"Mathematics, this run\s+6 of 8 hold", column), column


def test_a_study_named_like_a_scan_makes_no_section_of_scans(
    browser: Any, tmp_path: Path, results: list[Result]
) -> None:
    (tmp_path / "runs").mkdir()
    for name in ("scan-snap", "scan-snap-decoder"):
        with Run.create(tmp_path / "runs" / f"{name}-0123456789.sqlite", study=name, config={}):
            pass
    page = browser.new_page()
    page.goto(write_report(results, tmp_path, scale="quick", scans=scan_runs(tmp_path)).as_uri())
    assert page.locator("#scans").count() == 0
    assert "cannot be shown" not in page.locator("body").inner_text()
    page.close()


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


def violations_on(browser: Any, address: str, theme: str, width: int, folds: str) -> list[tuple[str, str]]:
    """What axe finds wrong with a page."""
    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme=theme, reduced_motion="reduce", bypass_csp=True
    )
    page = context.new_page()
    page.goto(address)
    if folds == "open":
        page.evaluate("dispatchEvent(new Event('beforeprint'))")  # everything is awake and open
    page.evaluate(axe)
    # What is drawn inside a figure has tests of its own, and there is so much of it that axe would take minutes.
    page.locator("svg").evaluate_all("all => all.forEach(svg => svg.replaceChildren())")
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    context.close()
    assert found["testEngine"]["name"] == "axe-core"
    return [(one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]]
