"""The playground in a real browser: its functions against joma.theory, its Python against what it shows, its looks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_browser import hold_timers, let_go

from joma.report import playground, write_report

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report([], tmp_path_factory.mktemp("page"), scale="quick").as_uri()


@pytest.fixture
def opened(page: Any) -> Any:
    for fold in page.locator("#playground > details > summary").all():
        fold.click()
    page.locator('[data-panel="hierarchy"] .charts > svg').wait_for()
    return page


def set_sliders(box: Any, places: dict[str, float]) -> None:
    box.locator(".more > summary").click() if not box.locator(".more[open]").count() else None
    for name, value in places.items():
        box.locator(f'input[name="{name}"]').fill(str(value))
    box.page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")


PLACES = {
    "winner": {"delta2": 0.5, "z2": 2},
    "rebound": {"mu1": 4, "mu2": 3.95},
    "spread": {"variance": 3, "n": 20},
    "hierarchy": {"rho": 0.99, "depth": 12, "zero1": 1, "zero2": 1},
}


@pytest.mark.parametrize("name", PLACES)
def test_the_table_and_the_snippet_follow_the_sliders(opened: Any, name: str) -> None:
    """What a panel computes has tests of its own (test_forms.py)."""
    box = opened.locator(f'[data-panel="{name}"]')
    set_sliders(box, PLACES[name])
    at = PLACES[name] | ({"variance": 1000, "n": 2**20} if name == "spread" else {})
    at |= {"delta1": 1, "delta3": -0.5} if name == "winner" else {"mu3": 1} if name == "rebound" else {}
    wanted = opened.evaluate("([name, at]) => jomaPlayground.panels[name].show(at)", [name, at])
    assert box.locator("code").text_content() == wanted["python"]
    assert box.locator("tbody th").all_text_contents() == [row["name"] for row in wanted["rows"]]
    values = box.locator("tbody td").evaluate_all("all => all.map((one) => one.dataset.value)")
    assert values == opened.evaluate(
        "rows => rows.flatMap((row) => [String(row.left), String(row.right)])", wanted["rows"]
    )


def test_what_is_said_follows_the_sliders(opened: Any) -> None:
    box = opened.locator('[data-panel="winner"]')
    set_sliders(box, {"delta2": 0.6, "z2": 2})
    assert box.locator(".says").text_content() == (
        "Token 2 wins. Its weight is infinite at t* = 0.2827, although token 1 is more salient."
    )
    assert "Token 2 wins" in box.locator("svg").first.get_attribute("aria-label")
    box.get_by_role("button", name="Reset").click()
    assert box.locator(".says").text_content() == "Token 1 wins. Its weight is infinite at t* = 1.253."
    box = opened.locator('[data-panel="rebound"]')
    set_sliders(box, {"mu1": 1, "mu2": 1, "mu3": 1})
    assert box.locator(".says").text_content() == "Entropy does not come back."


def test_the_keyboard_is_enough(opened: Any) -> None:
    box = opened.locator('[data-panel="hierarchy"]')
    main, before = box.locator("input").first, box.locator("tbody").text_content()
    main.focus()
    opened.keyboard.press("ArrowRight")
    opened.wait_for_function(
        "before => document.querySelector('[data-panel=hierarchy] tbody').textContent !== before", arg=before
    )
    assert main.get_attribute("aria-valuetext") == box.locator("output").first.text_content() == "0.91"
    opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = box.locator("button", has_text="Copy as Python").element_handle()
    hold_timers(opened)
    button.focus()
    opened.keyboard.press("Enter")
    box.get_by_text("Copied").wait_for()
    assert opened.evaluate("navigator.clipboard.readText()") == box.locator("code").text_content()
    assert "rho, depth = 0.91, 6" in box.locator("code").text_content()
    let_go(opened)
    assert button.text_content() == "Copy as Python"


def test_axes_have_names_and_letters_can_be_read(opened: Any) -> None:
    for width in (1280, 390, 320):
        opened.set_viewport_size({"width": width, "height": 844})
        opened.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
        plots = opened.locator("[data-panel] .charts > svg").evaluate_all(
            "all => all.map((svg) => [svg.getBoundingClientRect().width / svg.viewBox.baseVal.width, svg.textContent])"
        )
        assert len(plots) == 5
        assert all(scale > 0.99 for scale, _ in plots)  # drawn for this width: letters keep their 12 px
        for (_, words), axes in zip(
            plots,
            (("time t", "weight v"), ("time t", "nats"), ("time t", "v/μ"), ("variance", "nats"), ("height H", "P[")),
            strict=True,
        ):
            assert all(label in words for label in axes)


TICKS = """name => [...document.querySelectorAll(`[data-panel="${name}"] .charts > svg:first-child > text`)].map(
  (text) => [text.textContent, Number(text.getAttribute("x")), Number(text.getAttribute("y"))])"""


def test_what_is_drawn_stands_where_the_axes_say(opened: Any) -> None:
    """The dot of the third panel and the last one of the fourth, by the numbers that the axes are marked with."""
    for name, x, y, log in (("spread", 3.98, 5.0350, True), ("hierarchy", 5, 0.4155, False)):
        ticks = opened.evaluate(TICKS, name)
        left = [
            (float(words), place - 4) for words, at, place in ticks if at == 44
        ]  # a label stands 4 px below its line
        low = [(float(words), at) for words, at, place in ticks if at > 44 and words.replace(".", "").isdigit()]
        dot = opened.locator(f'[data-panel="{name}"] .charts > svg > circle').last
        cx, cy = (float(dot.get_attribute(one)) for one in ("cx", "cy"))
        scale = np.log10 if log else np.asarray
        assert np.interp(cx, [at for _, at in low], [scale(value) for value, _ in low]) == pytest.approx(
            scale(x), abs=0.01
        )
        up = sorted(left, key=lambda one: one[1])
        assert np.interp(cy, [at for _, at in up], [value for value, _ in up]) == pytest.approx(y, abs=0.02)


def test_a_printed_report_has_the_drawings(page: Any) -> None:
    assert page.locator("[data-panel]").count() == 0  # asleep
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("[data-panel] .charts > svg").count() == 5


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of the manual, built with its own configuration."""
    for needed in ("sphinx", "furo", "myst_parser", "latex2mathml"):
        pytest.importorskip(needed)
    folder = tmp_path_factory.mktemp("manual")
    docs = folder / "docs"
    docs.mkdir()
    shutil.copytree(ROOT / "docs" / "_ext", docs / "_ext")
    (docs / "_static").mkdir()
    shutil.copy(ROOT / "docs" / "_static" / "manual.css", docs / "_static")
    conf = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    (docs / "conf.py").write_text(conf.replace('"../src', f'"{ROOT}/src'), encoding="utf-8")
    shutil.copy(ROOT / "docs" / "explanation" / "playground.md", docs / "playground.md")
    (docs / "index.md").write_text("# Manual\n\n```{toctree}\nplayground\n```\n", encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(docs), str(folder / "html")],
        check=True,
        capture_output=True,
    )
    return (folder / "html" / "playground.html").as_uri()


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_the_manual_has_the_panels(browser: Any, manual: str, theme: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=theme)
    page, troubles = context.new_page(), []
    page.on("console", lambda message: message.type in ("error", "warning") and troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(manual)
    page.locator('[data-panel="hierarchy"] .charts > svg').wait_for()
    assert page.locator("[data-panel] .charts > svg").count() == 5
    assert page.locator("[data-panel]").evaluate_all("all => all.map((one) => one.dataset.panel)") == list(
        playground.PANELS
    )
    ink = page.locator(".playground svg text").first.evaluate("one => getComputedStyle(one).fill")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ink != ground
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()
    assert troubles == []
