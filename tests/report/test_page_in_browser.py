"""The page in a real browser, opened from a file as a reader would."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from joma.claims.execute import Result
from joma.claims.rules import VERDICTS
from joma.report import write_report

pytestmark = pytest.mark.browser
CHROMIUM = next((p for name in ("chromium", "/usr/bin/chromium", "google-chrome") if (p := shutil.which(name))), None)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium or google-chrome is installed")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
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
    shown: list[str] = page.locator(".ledger tbody tr:visible th").all_inner_texts()
    return shown


def chip(page: Any, verdict: str) -> Any:
    return page.locator(f'.chip[data-verdict="{verdict}"]')


def head(page: Any, column: str) -> Any:
    return page.locator(".ledger thead").get_by_role("button", name=column)


def test_chips_filter_and_count(page: Any) -> None:
    assert page.locator("#shown").inner_text() == "7 of 7 claims"
    chip(page, "fails").click()
    assert sources(page) == ["JoMA eq. 58"]
    assert chip(page, "fails").get_attribute("aria-pressed") == "true"
    chip(page, "not run").click()
    assert sources(page) == ["JoMA eq. 58", "JoMA Fig. 7"]
    assert page.locator("#shown").inner_text() == "2 of 7 claims"
    chip(page, "fails").click()
    chip(page, "not run").click()
    assert len(sources(page)) == 7


def test_search(page: Any) -> None:
    for words, found in {
        "sparse DENSE": ["JoMA eq. 6"],
        "erf(v/√2)": ["JoMA Thm 2"],
        "<script>": ["JoMA eq. 58"],
        "cannot run": ["JoMA Fig. 7"],  # the study's title is not in the row, but found
        "no such word": [],
    }.items():
        page.locator("#search").fill(words)
        assert sources(page) == found, words
    page.locator("#clear").click()
    page.get_by_text("7 of 7 claims").wait_for()
    assert page.locator("#search").input_value() == ""
    assert not page.locator("#clear").is_visible()


def test_study_select(page: Any) -> None:
    page.locator("#study").select_option(label="Far: a study that cannot run")
    assert sources(page) == ["JoMA Fig. 7"]


def test_sources_sort_naturally_by_keyboard(page: Any) -> None:
    as_reported = sources(page)
    head(page, "Source").focus()
    page.keyboard.press("Enter")
    figures = ["JoMA Fig. 4", "JoMA Fig. 5", "JoMA Fig. 7"]
    assert sources(page) == ["JoMA eq. 6", "JoMA eq. 58", *figures, "JoMA Thm 2", "JoMA Thm 10"]
    column = page.locator('.ledger th[data-key="source"]')
    assert column.get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Enter")
    assert sources(page)[0] == "JoMA Thm 10"
    assert column.get_attribute("aria-sort") == "descending"
    page.keyboard.press("Enter")
    assert sources(page) == as_reported
    assert column.get_attribute("aria-sort") is None


def test_numbers_sort_as_numbers_before_words(page: Any) -> None:
    head(page, "Measured").click()
    numbers = ["JoMA Thm 10", "JoMA Fig. 5", "JoMA Fig. 4", "JoMA eq. 6", "JoMA eq. 58"]  # effects by their size
    assert sources(page) == [*numbers, "JoMA Thm 2", "JoMA Fig. 7"]


def test_what_is_missing_comes_last_in_both_directions(page: Any) -> None:
    head(page, "Control").click()
    assert sources(page)[:3] == ["JoMA Fig. 5", "JoMA Fig. 4", "JoMA eq. 6"]
    head(page, "Control").click()
    assert sources(page)[:3] == ["JoMA eq. 6", "JoMA Fig. 4", "JoMA Fig. 5"]


def test_verdicts_sort_in_their_own_order(page: Any) -> None:
    head(page, "Verdict").click()
    shown = page.locator(".ledger tbody .word").all_inner_texts()
    assert shown == list(VERDICTS)


def test_the_address_restores_what_is_shown(page: Any, address: str) -> None:
    chip(page, "fails").click()
    chip(page, "only qualitative").click()
    page.locator("#search").fill("e")
    page.locator("#study").select_option(label="Near: a study <that> runs")
    head(page, "Source").click()
    head(page, "Source").click()
    page.wait_for_url(lambda url: "sort=-source" in url)
    shared = page.url
    page.goto("about:blank")
    page.goto(shared)
    assert sources(page) == ["JoMA eq. 58", "JoMA eq. 6"]
    assert page.locator("#search").input_value() == "e"
    assert chip(page, "only qualitative").get_attribute("aria-pressed") == "true"
    page.locator("#clear").click()
    head(page, "Source").click()
    page.wait_for_url(lambda url: url == address)


def test_a_link_to_a_section_keeps_the_filter(page: Any) -> None:
    chip(page, "fails").click()
    page.wait_for_url(lambda url: "#?" in url)
    page.locator(".ledger tbody tr:visible td a").click()
    assert page.url.endswith("#study-near")
    assert sources(page) == ["JoMA eq. 58"]
    page.go_back()
    assert sources(page) == ["JoMA eq. 58"]


def test_an_address_with_nonsense_shows_everything(page: Any, address: str) -> None:
    page.goto("about:blank")
    page.goto(f"{address}#?verdict=perhaps&sort=colour&study=none")
    assert len(sources(page)) == 7


def test_the_page_never_scrolls_sideways(page: Any) -> None:
    page.locator("details").evaluate_all("all => all.forEach(d => { d.open = true; })")
    for width in (320, 390, 700, 900, 1100, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_rows_become_cards_on_a_phone(page: Any) -> None:
    row = page.locator(".ledger tbody tr").nth(1)
    assert row.evaluate("row => getComputedStyle(row).display") == "table-row"
    page.set_viewport_size({"width": 390, "height": 844})
    assert row.evaluate("row => getComputedStyle(row).display") == "grid"
    chip(page, "fails").click()
    assert not row.is_visible()
    head(page, "Source").click()
    assert page.locator('.ledger th[data-key="source"]').get_attribute("aria-sort") == "ascending"


def test_dark_by_preference_and_by_switch(page: Any) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"

    def becomes(colour: str) -> None:
        """The page is repainted some time after a click or a change of preference."""
        page.wait_for_function(f"colour => {ground} === colour", arg=colour, timeout=5_000)

    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"colour => {ground} !== colour", arg=light, timeout=5_000)
    dark = page.evaluate(ground)
    page.locator("#theme").click()
    becomes(light)
    page.emulate_media(color_scheme="light")
    page.locator("#theme").click()
    becomes(dark)
    page.wait_for_timeout(500)  # what is stored reaches the browser's own process some time later
    page.reload()
    becomes(dark)
    page.emulate_media(media="print")
    becomes(light)


def test_copy(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#study-near .command button").click()
    page.locator("#study-near .command").get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "joma verify near"


def test_print_shows_the_table_without_controls(page: Any) -> None:
    page.emulate_media(media="print")
    assert not page.locator(".controls").is_visible()
    assert not page.locator("#theme").is_visible()
    assert not page.locator(".command button").first.is_visible()
    assert page.locator(".ledger thead").inner_text().split() == [
        "Source", "Claim", "Measured", "Control", "Verdict", "Paper", "scale", "Study",
    ]  # fmt: skip
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


def test_complete_without_javascript(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert len(sources(page)) == 7
    assert not page.locator(".controls").is_visible()
    assert page.locator("figure svg").count() == 2
    context.close()


def test_landmarks_and_names(page: Any) -> None:
    for role in ("banner", "navigation", "main", "contentinfo", "search"):
        assert page.get_by_role(role).count() == 1, role
    assert page.get_by_role("table").count() == 1
    assert page.get_by_role("button", name="holds as corrected 1").count() == 1
    unnamed = "[...document.querySelectorAll('button, input, select, svg[role=img]')].filter(e => " + (
        "!(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).length"
    )
    assert page.evaluate(unnamed) == 0
