"""Runs to look at, a browser, and a live server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from in_browser import launched
from javascript import Call, running
from view.making import heads, monitored, nasty, scanned, verified
from view.stand_in import StandIn, standing_in

from joma.view.feed import Feed
from joma.view.module import PARTS, static
from joma.view.page import write_page


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made")
    monitored(place / "monitored.joma")
    scanned(place / "checkpoints", place)
    verified(place)
    heads(place / "heads.joma")
    nasty(place / "nasty.joma")
    return place


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="session")
def module_js(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Call]:
    parts = [static(name) for name in PARTS if name != "view.js"]
    with running("\n".join(['"use strict";', *parts]), tmp_path_factory.mktemp("js")) as call:
        yield call


@pytest.fixture(scope="session")
def address(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "page.html"
    write_page(Feed([folder]), path)
    return path.as_uri()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages. A console error, an exception or a request for anything from elsewhere fails the test."""
    troubles: list[str] = []
    contexts = []

    def opened(address: str, *, width: int = 1280, theme: str = "light", allowed: tuple[str, ...] = ()) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce", accept_downloads=True
        )
        contexts.append(context)
        page, home = context.new_page(), address.split("#")[0]

        def said(message: Any) -> None:
            if message.type in ("error", "warning") and not any(words in message.text for words in allowed):
                troubles.append(message.text)

        page.on("console", said)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: (troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on(
            "request",
            lambda request: request.url.startswith((home, "data:", "blob:")) or troubles.append(request.url),
        )
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.fixture(scope="module")
def stand_in(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with standing_in(browser, tmp_path_factory.mktemp("stand-in")) as host:
        yield host


@pytest.fixture
def host(stand_in: StandIn) -> StandIn:
    stand_in.forget()
    stand_in.tell()
    stand_in.show("screen=runs")
    return stand_in
