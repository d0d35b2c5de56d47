"""The live host alone: what it makes of news. What hosts ask and answer is called in Node (test_parts.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from joma.view.module import static
from joma.view.news import news_of

pytestmark = pytest.mark.browser
AROUND = """
let host;
function render({ model }) { host = model; }
window.EventSource = class { constructor() { window.events = {}; } addEventListener(name, call) { events[name] = call; } };
"""  # noqa: E501


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page()
    yield page
    page.close()


def opened(page: Any, folder: Path, host: str) -> None:
    text = f"<div id=joma></div><script>{AROUND}</script>"
    path = folder / "page.html"
    code = static("hosts.js") + static(host)
    path.write_text(f"<!DOCTYPE html><meta charset=utf-8>{text}<script>{code}</script>", encoding="utf-8")
    page.goto(path.as_uri())


def entry(id: str, *, last: int = 0, alarms: range = range(0), state: str = "being written") -> dict[str, Any]:
    series = [
        {"name": name, "dims": [], "steps": last + 1, "first": 0, "last": last * more, "cursor": last + 1}
        for name, more in (("loss", 1), ("entropy", 2))
    ]
    told = [{"step": at, "says": f"alarm {at}"} for at in alarms]
    return {"id": id, "identity": id, "state": state, "series": series, "alarms": told, "last": last}


def test_a_live_page_knows_the_runs_that_the_server_knows(page: Any, tmp_path: Path) -> None:
    opened(page, tmp_path, "live_host.js")
    states = [
        [entry("a"), entry("b", alarms=range(5))],
        [entry("a", last=3), entry("b", alarms=range(2, 8))],  # the oldest alarms are told no longer
        [entry("b", last=9, alarms=range(3, 9)), entry("a", last=3)],  # what was written last comes first
        [entry("c"), entry("b", last=9, alarms=range(8, 12), state="finished")],  # one is gone, one is new
        [entry("b", last=9, alarms=range(20, 22), state="finished"), {"id": "c", "fault": "it is damaged"}],
    ]
    told: dict[str, Any] = {}
    for state in states:
        now = {run["id"]: run for run in state}
        news = {"order": list(now), **news_of(told, now)}
        page.evaluate("news => events.runs({ data: JSON.stringify(news) })", news)
        assert page.evaluate("host.get('index').runs") == state
        told = now
    page.evaluate("events.error()")
    assert page.evaluate("host.get('lost')")
    page.evaluate("events.open()")
    assert not page.evaluate("host.get('lost')")
