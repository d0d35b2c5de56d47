"""The hosts alone: what the live one makes of news and answers, and what a page with its data inside answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from joma.view.module import static
from joma.view.news import news_of
from joma.view.packing import packed

pytestmark = pytest.mark.browser
AROUND = """
let host;
function render({ model }) { host = model; }
window.EventSource = class { constructor() { window.events = {}; } addEventListener(name, call) { events[name] = call; } };
window.fetch = async (address) => { window.asked = address; return new Response(answer, { headers: { 'content-type': kind } }); };
let answer, kind;
const answered = (question) => new Promise((done) => {
  const call = (head, buffers) => { if (head.id === question.id) { host.off('msg:custom', call); done([head, buffers]); } };
  host.on('msg:custom', call);
  host.send(question);
});
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
const letters = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer)));
"""  # noqa: E501


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page()
    yield page
    page.close()


def opened(page: Any, folder: Path, host: str, data: Any = None) -> None:
    """A page with a host and nothing that draws."""
    inside = json.dumps(data).replace("<", "\\u003c")
    text = f"<div id=joma></div><script type=application/json id=joma-data>{inside}</script><script>{AROUND}</script>"
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


def test_a_live_page_asks_in_the_words_of_the_server_and_reads_its_numbers(page: Any, tmp_path: Path) -> None:
    opened(page, tmp_path, "live_host.js")
    values = np.array([[0.5, 2.0**-30], [1e300, -3.0], [np.nan, 7.0]])
    sent = packed(np.array([1, 5, 9]), values, run="a é", cursor=3)
    question = {"id": 7, "ask": "series", "run": "a é", "series": "x/y", "whole": True, "means": ["layer", "head"],
                "low": 0, "high": 2.5}  # fmt: skip
    code = """async ([question, text]) => { answer = bytes(text); kind = 'application/octet-stream';
      const [head, buffers] = await answered(question); return [asked, head, buffers.map(letters)]; }"""
    address, head, buffers = page.evaluate(code, [question, base64.b64encode(sent.as_bytes()).decode()])
    found = urlsplit(address)
    wanted = {"run": ["a é"], "series": ["x/y"], "whole": ["1"], "means": ["layer", "head"], "low": ["0"],
              "high": ["2.5"]}  # fmt: skip
    assert (found.path, parse_qs(found.query)) == ("series", wanted)
    assert head == {**sent.head, "id": 7}
    assert np.frombuffer(base64.b64decode(buffers[0])).tolist() == [1, 5, 9]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(buffers[1])).reshape(3, 2), values)


def test_a_page_with_its_data_inside_answers_from_the_run_that_is_meant(page: Any, tmp_path: Path) -> None:
    thinned, whole = (packed(np.arange(count), np.arange(float(count))) for count in (3, 2))
    series = {"a": {"x": {**thinned.as_text(), "whole": whole.as_text()}}, "b": {"x": thinned.as_text()}}
    figures = {name: {"figures": [{"caption": f"of {name}"}]} for name in ("a", "b")}
    opened(page, tmp_path, "file_host.js", {"series": series, "figures": figures, "claims": [1], "titles": {}})

    def ask(**question: Any) -> Any:
        head, buffers = page.evaluate(
            "async (one) => { const [head, buffers] = await answered(one); return [head, buffers.map(letters)]; }",
            {"id": 1, **question},
        )
        return head, [
            np.frombuffer(base64.b64decode(each), kind) for each, kind in zip(buffers, ("<f8", "<f4"), strict=False)
        ]

    for name in ("b", "a", "none"):
        wanted = figures.get(name, {"figures": []})["figures"]
        assert ask(ask="figures", run=name)[0]["figures"] == wanted
    for question, steps in (({}, 3), ({"whole": True}, 2), ({"means": ["head"]}, 2), ({"means": []}, 3)):
        head, (at, values) = ask(ask="series", run="a", series="x", **question)
        assert (len(at), values.tolist()) == (steps, list(range(steps))), question
        assert head["means"] == []  # the reader takes the mean
    assert len(ask(ask="series", run="b", series="x", whole=True)[1][0]) == 3  # all is there
    assert ask(ask="series", run="b", series="y")[0]["fault"] == "y of b is not in this page"
