"""Runs, scans and results show themselves: as widgets where anywidget is installed, as words without it, as figures."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import until
from view.making import grid, heads

from joma.claims.execute import Result, execute
from joma.host.errors import BadInput
from joma.runs import Run
from joma.scan.result.curves import Scan
from joma.scan.sweep.record import stored_scan
from joma.studies import load
from joma.view import Feed, notebook

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    study = load("thm5")
    return execute(study, study.quick, tmp_path_factory.mktemp("result"), pictures=False)


@pytest.fixture(scope="module")
def scan(folder: Path) -> Scan:
    (path,) = (folder / "runs").glob("scan-*.sqlite")
    with Run.open(path) as run:
        return stored_scan(run)


def test_a_run_a_scan_and_a_result_are_widgets(tmp_path: Path, result: Result, scan: Scan) -> None:
    pytest.importorskip("anywidget")
    heads(tmp_path / "a.joma", 5)
    with Run.open(tmp_path / "a.joma") as run:
        for thing in (run, scan, result):
            shown = thing._repr_mimebundle_()
            data = shown[0] if isinstance(shown, tuple) else shown
            assert WIDGET in data, thing


def test_a_widget_answers_what_it_is_asked(tmp_path: Path, result: Result) -> None:
    pytest.importorskip("anywidget")
    heads(tmp_path / "a.joma", 5)
    with Run.open(tmp_path / "a.joma") as run:
        shown = notebook.widget(run)
    assert [one["id"] for one in shown.index["runs"]] == ["a.joma"]
    assert shown.screen == "curves"
    sent: list[Any] = []
    shown.send = lambda head, buffers: sent.append((head, buffers))
    shown._asked(shown, {"id": 7, "ask": "series", "run": "a.joma", "series": "entropy"}, [])
    shown._asked(shown, {"id": 8, "ask": "series", "run": "../a.joma", "series": "entropy"}, [])
    shown._asked(shown, {"id": 9, "ask": "after", "run": "a.joma", "series": "entropy", "cursor": 3}, [])
    shown._asked(shown, {"id": 10, "ask": "series", "run": [], "series": {}}, [])
    (first, buffers), (second, _), (third, rows), (fourth, _) = sent
    assert first["id"] == 7
    values = np.frombuffer(buffers[1], "<f4").reshape(first["shape"])
    np.testing.assert_array_equal(values, np.stack([grid(step) for step in range(5)]))
    assert second == {"id": 8, "fault": "there is no run '../a.joma'"}
    assert third["cursor"] == 5
    assert np.frombuffer(rows[0]).tolist() == [3, 4]
    assert fourth["fault"]
    feed = notebook.feed_of(result)
    assert feed is not None
    found = notebook.answered(feed, {"ask": "claims"})[0]["claims"]
    assert [one["id"] for one in found] == [finding.id for finding in result.findings]


def test_a_widget_tells_what_is_new_until_nobody_writes(tmp_path: Path) -> None:
    pytest.importorskip("anywidget")
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        run.record(0, {"entropy": grid(0), "loss": 1.0}, dims={"entropy": ("layer", "head")})
        shown = notebook.widget(run, every=3600)  # we look ourselves
        sent: list[Any] = []
        shown.send = lambda head, buffers: sent.append((head, buffers))
        for question in ({"ask": "series"}, {"ask": "series", "means": ["head"]}):
            shown._asked(shown, {"id": 1, "run": "a.joma", "series": "entropy", **question}, [])
        sent.clear()
        shown.look()
        assert sent == []  # nothing is new
        run.record(1, {"entropy": grid(1), "loss": 2.0})
        assert notebook.is_written(shown.look())
        (all_rows, numbers), (means, mean_numbers) = sent  # what was asked for, and nothing of the loss
        assert all_rows["pushed"]
        assert means["means"] == ["head"]
        np.testing.assert_array_equal(np.frombuffer(numbers[1], "<f4").reshape(1, 4, 3)[0], grid(1))
        np.testing.assert_allclose(np.frombuffer(mean_numbers[1], "<f4"), grid(1).mean(1))
        assert shown.index["runs"][0]["last"] == 1
        sent.clear()
        run.record(2, {"entropy": grid(2), "loss": 3.0})
        shown.look()
        assert [np.frombuffer(rows[0]).tolist() for _, rows in sent] == [[2], [2]]  # no row comes twice
        run.finish()
    assert not notebook.is_written(shown.look())
    assert shown.index["runs"][0]["state"] == "finished"


def test_a_widget_is_sent_the_four_series_that_were_asked_for_last(tmp_path: Path) -> None:
    pytest.importorskip("anywidget")
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        run.record(0, {f"s{at}": 1.0 for at in range(7)})
        shown = notebook.widget(run, every=3600)
        sent: list[Any] = []
        shown.send = lambda head, buffers: sent.append(head)
        for at in (0, 1, 2, 3, 4, 5, 2):
            shown._asked(shown, {"id": 1, "ask": "series", "run": "a.joma", "series": f"s{at}"}, [])
        zoomed = {"id": 1, "ask": "series", "run": "a.joma", "series": "s6", "low": 0, "high": 1}
        shown._asked(shown, zoomed, [])  # a part of a series does not grow
        sent.clear()
        run.record(1, {f"s{at}": 2.0 for at in range(7)})
        shown.look()
        assert [head["series"] for head in sent] == ["s3", "s4", "s5", "s2"]


def test_a_widget_follows_by_itself_and_stops_when_the_run_is_over(tmp_path: Path) -> None:
    pytest.importorskip("anywidget")
    before = set(threading.enumerate())
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        run.append("loss", 0, 1.0)
        shown = notebook.widget(run, every=0.01)
        (follower,) = set(threading.enumerate()) - before
        run.append("loss", 7, 2.0)
        until(lambda: shown.index["runs"][0]["last"] == 7)
        run.finish()
    until(lambda: not follower.is_alive())
    assert shown.index["runs"][0]["state"] == "finished"
    with Run.open(tmp_path / "a.joma") as run:
        notebook.widget(run)
    assert set(threading.enumerate()) <= before  # of a finished run nobody is waiting


def test_without_the_extra_words_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads(tmp_path / "a.joma", 5)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    notebook._widget_class.cache_clear()
    with Run.open(tmp_path / "a.joma") as run:
        assert run._repr_mimebundle_() == {"text/plain": "Run('a.joma', study='demo', finished, 1 series)"}
        with pytest.raises(ImportError, match=r"a widget needs anywidget: pip install -e '\.\[notebook\]'"):
            notebook.widget(run)
    scan = Scan("a", [0], [], {})
    assert scan._repr_mimebundle_() == {"text/plain": repr(scan)}


def test_a_run_is_plotted_by_layer(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    heads(tmp_path / "a.joma", 5)
    with Run.open(tmp_path / "a.joma") as run:
        figure = run.plot()
        (axes,) = figure.axes
        assert axes.get_title("left") == "attention entropy (nats)"
        lines = [line for line in axes.lines if len(line.get_xdata()) == 5]
        assert len(lines) == 4
        for layer, line in enumerate(lines):  # the mean over three heads is 10 above the first
            np.testing.assert_allclose(line.get_ydata(), np.arange(5) + 100 * layer + 10)
        with pytest.raises(BadInput, match="there is no series 'entropi' to draw; did you mean 'entropy'"):
            run.plot("entropi")


def test_a_scan_and_a_result_are_plotted(scan: Scan, result: Result) -> None:
    pytest.importorskip("matplotlib")
    (axes,) = scan.plot("stable_rank/mlp").axes
    lines = [line for line in axes.lines if len(line.get_xdata()) == 3]
    np.testing.assert_allclose([line.get_ydata()[-1] for line in lines], scan.curves["stable_rank/mlp"].values[-1])
    figures = result.plot()
    assert figures
    assert all(figure.axes for figure in figures)


def test_what_cannot_be_plotted_is_one_sentence(
    tmp_path: Path, result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        run.keep("x", lambda: 1.0)
        with pytest.raises(BadInput, match="nothing here has several steps"):
            run.plot()
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(BadInput, match=r"figures need matplotlib: pip install -e '\.\[viz\]'"):
            run.plot("x")


@pytest.mark.browser
def test_a_widget_draws(browser: Any, tmp_path: Path) -> None:
    """The text that anywidget gets, with a model such as anywidget makes: get, on, send, and answers as messages."""
    import base64

    heads(tmp_path / "a.joma", 5)
    heads(tmp_path / "later.joma", 7)
    with Run.open(tmp_path / "a.joma") as run:
        feed = notebook.feed_of(run)
    assert feed is not None
    page = browser.new_page()
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))

    def ask(question: dict[str, Any]) -> list[Any]:
        head, buffers = notebook.answered(feed, question)
        return [head, [base64.b64encode(each).decode() for each in buffers]]

    page.expose_function("askPython", ask)
    page.set_content("<style>body { color: green }</style><p id=before>before</p><div id=cell></div>")
    page.add_style_tag(content=notebook.style())
    start = """async ([text, index]) => {
      const widget = await import(URL.createObjectURL(new Blob([text], { type: 'text/javascript' })));
      const calls = new Map(), state = { index, screen: 'curves', address: false };
      const view = (text) => new DataView(Uint8Array.from(atob(text), (one) => one.charCodeAt(0)).buffer);
      const model = { get: (name) => state[name], set() {}, save_changes() {}, off() {},
        on: (what, call) => calls.set(what, call),
        send: async (question) => { const [head, buffers] = await askPython(question); calls.get('msg:custom')({ ...head, id: question.id }, buffers.map(view)); } };
      window.push = (head, buffers) => calls.get('msg:custom')(head, buffers.map(view));
      window.away = widget.default.render({ model, el: document.getElementById('cell') });
    }"""  # noqa: E501
    page.evaluate(start, [notebook.module(), feed.index()])
    page.locator("#cell .legend li").first.wait_for()
    assert page.locator("#cell .legend b").all_inner_texts() == ["14", "114", "214", "314"]
    rows = Feed([tmp_path]).after("later.joma", "entropy", 5)  # a busy kernel sends them unasked
    letters = [base64.b64encode(each).decode() for each in rows.buffers]
    page.evaluate("([head, buffers]) => push(head, buffers)", [{**rows.head, "run": "b.joma", "pushed": True}, letters])
    page.evaluate("([head, buffers]) => push(head, buffers)", [{**rows.head, "run": "a.joma", "pushed": True}, letters])
    until(lambda: page.locator("#cell .legend b").all_inner_texts() == ["16", "116", "216", "316"])
    page.get_by_role("button", name="Heads", exact=True).click()
    page.locator("#cell .map canvas").wait_for()
    assert page.evaluate("location.hash") == ""  # the address is the notebook's
    assert page.evaluate("getComputedStyle(document.getElementById('before')).color") == "rgb(0, 128, 0)"
    assert page.evaluate("getComputedStyle(document.body).fontFamily") == page.evaluate(
        "getComputedStyle(document.getElementById('before')).fontFamily"
    )
    page.evaluate("away()")
    assert page.locator("#cell > *").count() == 0
    page.close()
    assert troubles == []
