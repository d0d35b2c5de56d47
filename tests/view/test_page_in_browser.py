"""What a reader does with a page that has its data inside: every screen, mouse, keyboard, phone, dark."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_browser import violations_on
from view.making import NASTY, heads

from joma.runs import Run
from joma.view.feed import Feed
from joma.view.page import write_page

pytestmark = pytest.mark.browser
SCREENS = {
    "runs": "",
    "curves": "&run=heads.joma",
    "heads": "&run=monitored.joma",
    "split": "&run=monitored.joma",
    "claims": "",
}


def at(address: str, screen: str, words: str = "") -> str:
    return f"{address}#?screen={screen}{words}"


def legend(page: Any) -> dict[str, str]:
    page.locator(".legend li").first.wait_for()
    return {
        row.locator("span").last.inner_text(): row.locator("b").inner_text() for row in page.locator(".legend li").all()
    }


def saved(page: Any, kind: str) -> Path:
    with page.expect_download() as waiting:
        page.get_by_role("button", name=kind.upper()).click()
    return Path(waiting.value.path())


def table(page: Any) -> list[list[str]]:
    return list(csv.reader(saved(page, "csv").read_text(encoding="utf-8").splitlines()))


def test_the_address_holds_the_view(open_page: Callable[..., Any], address: str) -> None:
    words = "&run=heads.joma&series=entropy&by.layer=2&by.head=each&logy=1&smooth=0.5&low=10&high=20"
    page = open_page(at(address, "curves", words))
    assert set(legend(page)) == {f"layer 2, head {head}" for head in range(3)}
    assert page.get_by_label("log y", exact=True).is_checked()
    assert page.get_by_label("Smoothing", exact=True).input_value() == "0.5"
    _, *rows = table(page)
    assert [float(row[0]) for row in rows] == list(range(10, 21))
    page.get_by_role("button", name="Whole range").click()
    assert len(table(page)) == 41
    assert "low=" not in page.url
    page.goto("about:blank")
    page.goto(f"{address}#?screen=nowhere&run=none&series=none&by.layer=77&low=x&smooth=much&step=-1")
    page.locator("tbody tr").first.wait_for()


def test_a_curve_can_be_hidden_zoomed_and_read_with_keys_alone(open_page: Callable[..., Any], address: str) -> None:
    page = open_page(at(address, "curves", "&run=heads.joma&by.layer=each"))
    key = page.get_by_role("button", name="layer 0")
    key.focus()
    page.keyboard.press("Enter")
    assert key.get_attribute("aria-pressed") == "false"
    assert page.evaluate("document.activeElement.dataset.curve") == "layer 0"
    assert table(page)[0] == ["step", "layer 1", "layer 2", "layer 3"]
    page.locator(".chart").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.locator(".reading", has_text="step 1 · layer").wait_for()
    page.keyboard.press("End")
    page.locator(".reading", has_text="step 39 · layer").wait_for()
    page.keyboard.press("+")
    page.wait_for_url(lambda url: "low=9.75" in url and "high=29.25" in url)
    page.keyboard.press("0")
    page.wait_for_url(lambda url: "low=" not in url)


def test_dragging_zooms(open_page: Callable[..., Any], address: str) -> None:
    page = open_page(at(address, "curves", "&run=heads.joma"))
    area = page.locator(".u-over").bounding_box()
    page.mouse.move(area["x"] + area["width"] / 4, area["y"] + 50)
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] / 2, area["y"] + 60, steps=4)
    page.mouse.up()
    page.wait_for_url(lambda url: "low=" in url)
    steps = [float(row[0]) for row in table(page)[1:]]
    assert steps == list(range(10, 20)) or steps == list(range(10, 21)) or steps == list(range(9, 20))
    assert page.locator(".reading").inner_text().startswith("step ")


def test_a_record_of_one_step_is_drawn_along_its_longest_axis(open_page: Callable[..., Any], tmp_path: Path) -> None:
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        run.keep("curve", lambda: np.arange(20.0).reshape(2, 10) ** 2)
    write_page(Feed([tmp_path]), tmp_path / "page.html")
    page = open_page((tmp_path / "page.html").as_uri())
    assert legend(page) == {"axis 0 = 0": "81", "axis 0 = 1": "361"}
    assert page.get_by_label("Along", exact=True).input_value() == "dim_1"


def test_nothing_but_text_is_made_of_names(open_page: Callable[..., Any], tmp_path: Path, address: str) -> None:
    page = open_page(at(address, "runs"))
    assert NASTY in page.locator("tr", has_text="nasty.joma").inner_text()
    for screen in ("curves", "heads", "split"):
        page.goto("about:blank")
        page.goto(at(address, screen, "&run=nasty.joma"))
        page.locator("select").first.wait_for(state="attached")
        page.wait_for_function("document.querySelector('canvas')?.width > 50")
    page.goto("about:blank")
    page.goto(at(address, "curves", "&run=nasty.joma&by.head=each"))
    assert NASTY in next(iter(legend(page)))
    svg = saved(page, "svg").read_text(encoding="utf-8")
    assert "<script" not in svg
    assert "<img" not in svg
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    assert page.locator("img").count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_screen_is_accessible_and_fits(browser: Any, address: str, theme: str, width: int) -> None:
    for screen, words in SCREENS.items():
        assert violations_on(browser, at(address, screen, words), theme, width, "closed") == [], screen


def test_a_phone_shows_every_screen_without_scrolling_sideways(open_page: Callable[..., Any], address: str) -> None:
    page = open_page(address, width=390)
    for screen, words in SCREENS.items():
        page.goto("about:blank")
        page.goto(at(address, screen, words))
        page.locator(".joma-view main > div").wait_for()
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, screen


def test_the_dark_page_is_dark_and_stays_so(open_page: Callable[..., Any], address: str) -> None:
    background = "getComputedStyle(document.querySelector('.joma-view')).backgroundColor"
    page = open_page(at(address, "curves", "&run=heads.joma"), theme="dark")
    dark = page.evaluate(background)
    assert dark == "rgb(21, 23, 26)"
    page.get_by_role("button", name="Light page").click()
    assert page.evaluate(background) == "rgb(255, 254, 251)"
    page.reload()
    assert page.evaluate(background) == "rgb(255, 254, 251)"
    legend(page)


def test_a_keyboard_reaches_every_screen(open_page: Callable[..., Any], address: str) -> None:
    page = open_page(address)
    for name in ("Curves", "Heads", "Split", "Claims", "Runs"):
        page.get_by_role("button", name=name, exact=True).focus()
        page.keyboard.press("Enter")
        assert page.get_by_role("button", name=name, exact=True).get_attribute("aria-current") == "page"
        assert page.locator("h1").inner_text() == name


def test_a_thinned_page_says_so_and_keeps_its_spike(open_page: Callable[..., Any], tmp_path: Path) -> None:
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        for step in range(1200):
            run.append("x", step, np.where(np.arange(50) == 7, 50.0 * (step == 777), 1.0), dims=("head",))
    write_page(Feed([tmp_path]), tmp_path / "page.html", megabytes=0.05)
    page = open_page(at((tmp_path / "page.html").as_uri(), "curves", "&by.head=7"))
    page.locator(".note", has_text="so spikes stay").wait_for()
    rows = [(float(x), float(y)) for x, y in table(page)[1:]]
    assert max(y for _, y in rows) == 50.0
    page.get_by_label("head", exact=True).select_option("mean")
    page.locator(".note", has_text="whole steps, evenly spread").wait_for()
    rows = [(float(x), float(y)) for x, y in table(page)[1:]]
    assert all(y == pytest.approx(0.98 + (x == 777)) for x, y in rows)


def test_one_run_opens_with_its_curves(open_page: Callable[..., Any], tmp_path: Path) -> None:
    heads(tmp_path / "a.joma", 5)
    write_page(Feed([tmp_path / "a.joma"]), tmp_path / "page.html")
    page = open_page((tmp_path / "page.html").as_uri())
    assert page.locator("h1").inner_text() == "Curves"
    assert len(legend(page)) == 4


def test_a_claim_shows_the_figures_of_its_study(open_page: Callable[..., Any], address: str) -> None:
    page = open_page(f"{address}#?screen=claims&find=thm5")
    page.locator("details.claim summary").first.click()
    picture = page.locator("details.claim[open] figure img").first
    picture.wait_for()
    page.wait_for_function(
        "document.querySelector('figure img').naturalWidth > 0"
    )  # it is a picture, and no broken one
    assert len(picture.get_attribute("alt") or "") > 20
    assert "drawn from runs/thm5-" in page.locator(".figures").first.inner_text()
    assert page.locator("svg").count() == 0  # nothing of it is part of the page
