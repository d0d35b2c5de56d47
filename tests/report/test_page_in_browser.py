"""What a reader does with the page in a real browser, opened from a file: filter, search, follow links."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from in_browser import chip, elements, hold_timers, let_go, said, sources
from kept_records import RECORDS

from joma.claims.execute import Result
from joma.report import write_report
from joma.report.claims.panels import kept_panels
from joma.studies.stored import result_of


def test_chips_filter_and_count(page: Any) -> None:
    assert sources(page) == []  # all are folded
    chip(page, "fails").click()
    assert sources(page) == ["JoMA eq. 58"]
    assert chip(page, "fails").get_attribute("aria-pressed") == "true"
    assert not page.locator("#study-far").is_visible()
    assert not page.locator("#study-near .body").is_visible()
    chip(page, "not run").click()
    assert sources(page) == ["JoMA eq. 58", "JoMA Fig. 7"]
    assert said(page) == "2 of 9 claims"
    chip(page, "fails").click()
    chip(page, "not run").click()
    assert said(page) == ""
    assert page.locator("#study-far").is_visible()
    assert page.locator("#study-near .body").is_visible()
    assert sources(page) == []  # folded again


def test_the_theme_is_switched_and_its_button_says_to_what(page: Any) -> None:
    for theme, words in (("dark", "Light page"), ("light", "Dark page")):
        page.locator("#theme").click()
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        assert page.locator("#theme").text_content() == words


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


def test_a_study_enters_the_page_when_it_is_opened(page: Any) -> None:
    asleep = elements(page)
    assert page.locator(".study figure, .study .claim").count() == 0
    page.locator("#study-near .body > summary").click()
    page.locator("#study-near figure").first.wait_for()
    assert page.locator("#study-near .claim").count() == 0
    page.locator("#study-near .claims > summary").click()
    page.locator("#study-near .claim").first.wait_for()
    assert page.locator("#study-near .claim").count() == 8
    assert page.locator("#study-far .claim").count() == 0  # sleeps on
    assert elements(page) > asleep + 150
    page.locator("#study-near .body > summary").click()  # closed and opened again: nothing enters twice
    page.locator("#study-near .body > summary").click()
    assert page.locator("#study-near figure").count() == 2
    assert page.locator("#study-near .command button").count() == 2


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


def test_copy(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#study-near .body > summary").click()
    hold_timers(page)
    button = page.locator("#study-near .command button").first
    button.click()
    page.locator("#study-near .command").get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "joma verify near"
    let_go(page)
    assert button.text_content() == "Copy"


@pytest.mark.browser
def test_a_card_draws_the_curves_of_its_sentence(browser: Any, tmp_path: Path, results: list[Result]) -> None:
    """A figure that only falls is not what this run found: entropy comes back."""
    stored = result_of(RECORDS / "fig6" / "fig6.sqlite")
    falls = '<svg viewBox="0 0 100 100"><path class="curve" d="M0 0L100 100"/></svg>'
    picture = dataclasses.replace(stored.pictures[0], svg=falls)
    quick = dataclasses.replace(stored, command="joma verify fig6", pictures=[picture])
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(write_report([quick, *results], tmp_path, scale="quick").as_uri())
    card = page.locator("#card-fig6")
    said = card.inner_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "Yes. Attention entropy falls and then recovers, by 0.50 nats" in said
    assert "At paper scale: holds (size shown). Attention entropy falls and then recovers, by 0.50 nats" in said
    assert "Paper scale: WikiText-2, mean of 5 seeds" in card.inner_text()
    assert card.locator("svg").count() == 2  # and paper scale beside it
    heights = card.locator("svg .curve").first.evaluate(
        "way => [...Array(201).keys()].map(i => way.getPointAtLength(way.getTotalLength() * i / 200).y)"
    )
    page.close()
    assert heights[0] < heights[-1] < max(heights) - 50  # up is less: it falls, and ends far above its lowest point


@pytest.mark.browser
def test_the_curves_of_a_card_open_zoom_and_are_read_off(browser: Any, tmp_path: Path, results: list[Result]) -> None:
    quick = dataclasses.replace(result_of(RECORDS / "fig6" / "fig6.sqlite"), command="joma verify fig6")
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    page, troubles = context.new_page(), []
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(write_report([quick, *results], tmp_path, scale="quick").as_uri())
    open_curves = page.get_by_role("button", name="Open the curves: Does attention entropy fall and then recover?")
    open_curves.click()
    dialog = page.get_by_role("dialog", name="Does attention entropy fall and then recover?")
    dialog.locator("canvas").wait_for()
    line = kept_panels()["fig6/fig6-one-layer"].lines[0]
    chart = dialog.get_by_role("group", name="attention entropy (nats) by training step, 1 curve")
    chart.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    dialog.locator(".reading", has_text=f"training step {line.x[2]:,.0f} · one layer: {line.y[2]:g} [").wait_for()
    page.keyboard.press("+")
    dialog.get_by_role("button", name="Whole range").wait_for()
    with page.expect_download() as waiting:
        dialog.get_by_role("button", name="CSV").click()
    head, *rows = Path(waiting.value.path()).read_text().splitlines()
    assert head == "training step,one layer,one layer low,one layer high"
    low, high = line.x[0] + (line.x[-1] - line.x[0]) / 4, line.x[0] + 3 * (line.x[-1] - line.x[0]) / 4
    shown = [at for at, x in enumerate(line.x) if low <= x <= high]
    wanted = [[line.x[at], line.y[at], line.low[at], line.high[at]] for at in shown]
    assert [[float(one) for one in row.split(",")] for row in rows] == wanted
    dialog.get_by_label("Scale").select_option("This run")
    dialog.locator(".note", has_text="This run: WikiText-2").wait_for()
    assert not dialog.get_by_role("button", name="Whole range").is_visible()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    assert open_curves.evaluate("button => button === document.activeElement")
    assert troubles == []
    context.close()
