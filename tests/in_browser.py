"""What tests of pages do with a browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import pytest
from patience import PATIENCE

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


@contextmanager
def launched() -> Iterator[Any]:
    """A browser; the test is skipped where there is none."""
    if CHROMIUM is None:
        pytest.skip("no chromium or google-chrome is installed")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=1000 * PATIENCE)
        browser.new_context, browser.new_page = patient(browser.new_context), patient(browser.new_page)
        yield browser
        browser.close()


def patient(make: Callable[..., Any]) -> Callable[..., Any]:
    """Contexts and pages that wait for as long as a busy machine takes; playwright's own patience is 30 s."""

    def made(**options: Any) -> Any:
        one = make(**options)
        one.set_default_timeout(1000 * PATIENCE)
        return one

    return made


def hold_timers(page: Any) -> None:
    """From now on nothing on the page happens by its clock: a word that is shown for a second stays until `let_go`."""
    page.evaluate("() => { window.held = []; window.setTimeout = (call) => held.push(call); }")


def let_go(page: Any) -> None:
    """What `hold_timers` held happens now."""
    page.evaluate("() => held.splice(0).forEach((call) => call())")


def sources(page: Any) -> list[str]:
    """Where the claims come from that can be seen."""
    shown: list[str] = page.locator(".claim:visible .source").all_inner_texts()
    return shown


def chip(page: Any, verdict: str) -> Any:
    return page.locator(f'.chip[data-verdict="{verdict}"]')


def said(page: Any) -> str:
    words: str = page.locator("#shown").inner_text()
    return words


def elements(page: Any) -> int:
    count: int = page.evaluate("document.querySelectorAll('*').length")
    return count


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
