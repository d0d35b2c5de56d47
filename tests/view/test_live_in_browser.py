"""The live page in a real browser: it grows while another process writes, survives damage, and is read by no other."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from patience import until
from view.making import heads
from view.serving import serving

from joma.view.feed import Feed

pytestmark = pytest.mark.browser
WRITER = """
import sys
import numpy as np
from joma.runs import Run

run = Run.create(sys.argv[1], study="monitor", config={})
for line in sys.stdin:
    if line.strip() == "finish":
        run.finish()
    else:
        step = int(line)
        run.record(step, {"entropy": step + 100.0 * np.arange(3)[:, None] + 10.0 * np.arange(2), "loss": 1.0 / step},
                   dims={"entropy": ("layer", "head")})
    print("done", flush=True)
"""


@contextmanager
def writing(path: Path) -> Iterator[Callable[[object], None]]:
    """Another process that writes a run: what is sent to it is recorded when `send` returns."""
    program = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout

        def send(word: object) -> None:
            process.stdin.write(f"{word}\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            assert process.stdout.readline() == "done\n"  # type: ignore[union-attr]

        try:
            yield send
        finally:
            process.kill()


def last(page: Any, curve: str) -> str:
    words: str = page.locator(".legend li", has_text=curve).locator("b").inner_text()
    return words


def test_it_grows_while_another_process_writes_and_asks_for_new_rows_alone(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    with writing(tmp_path / "a.joma") as send:
        for step in (1, 2, 3):
            send(step)
        with serving(Feed([tmp_path])) as (address, _):
            page = open_page(f"{address}#?screen=curves&series=entropy&by.head=0")
            page.locator(".legend li").first.wait_for()
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            assert last(page, "layer 2") == "203"
            assert page.locator(".live").inner_text() == "1 run being written"
            for step in (4, 7, 5):
                send(step)
            until(lambda: last(page, "layer 2") == "207")
            # steps that came late lie where they belong
            until(lambda: page.locator(".legend li").count() == 3)
            assert asked
            assert all("/after?" in url for url in asked), asked
            page.get_by_role("button", name="Heads", exact=True).click()
            page.locator(".steps output", has_text="7 of 7").wait_for()
            send(9)
            page.locator(".steps output", has_text="9 of 9").wait_for()
            send("finish")
            page.get_by_role("button", name="Runs", exact=True).click()
            page.locator("td", has_text="finished").wait_for()
            until(lambda: page.locator(".live").inner_text() == "")
            page.close()


def test_only_what_a_screen_shows_grows_and_a_late_look_gets_all(open_page: Callable[..., Any], tmp_path: Path) -> None:
    with writing(tmp_path / "a.joma") as send:
        for step in (1, 2, 3):
            send(step)
        with serving(Feed([tmp_path])) as (address, _):
            page = open_page(f"{address}#?screen=curves&series=entropy&by.head=0")
            page.locator(".legend li").first.wait_for()
            page.get_by_label("Series").select_option("loss")
            until(lambda: page.locator(".legend li").count() == 0)
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            for step in range(4, 9):
                with page.expect_response(lambda answer: "/after?" in answer.url):
                    send(step)
            assert all("series=loss" in url for url in asked), asked
            page.get_by_label("Series").select_option("entropy")
            # another series begins with the mean over heads: 5 above head 0
            until(lambda: page.locator(".legend li").count() == 3 and last(page, "layer 2") == "213")
            page.close()


def test_open_claims_stay_open_while_a_run_is_written(
    open_page: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "findings.json").write_bytes((folder / "findings.json").read_bytes())
    with writing(tmp_path / "a.joma") as send:
        send(1)
        with serving(Feed([tmp_path])) as (address, _):
            page = open_page(f"{address}#?screen=claims")
            until(lambda: page.locator(".live").inner_text() == "1 run being written")  # claims may come before runs do
            page.locator("details.claim summary").nth(1).click()
            page.locator("details.claim[open] .detail").wait_for()
            assert page.locator(".figures").count() == 0  # the run of its study is not here
            page.evaluate("document.querySelector('details.claim').dataset.mine = '1'")
            send("finish")
            until(lambda: page.locator(".live").inner_text() == "")
            assert page.locator("details.claim[open]").count() == 1
            assert page.locator("details.claim[data-mine]").count() == 1  # nothing was made anew
            page.close()


def test_a_new_run_appears_and_one_that_is_damaged_says_so(open_page: Callable[..., Any], tmp_path: Path) -> None:
    heads(tmp_path / "a.joma", 5)
    heads(tmp_path / "b.joma", 5)
    with serving(Feed([tmp_path])) as (address, _):
        page = open_page(f"{address}#?screen=runs")
        until(lambda: page.locator("tbody tr").count() == 2)
        heads(tmp_path / "c.joma", 5)
        until(lambda: page.locator("tbody tr").count() == 3)
        page.goto(f"{address}#?screen=curves&run=a.joma")
        page.locator(".legend li").first.wait_for()
        content = (tmp_path / "a.joma").read_bytes()
        (tmp_path / "a.joma").write_bytes(content[:5000])  # under its eyes
        page.get_by_role("button", name="Runs", exact=True).click()
        page.locator("td.fault", has_text="cannot be read").wait_for()
        page.get_by_role("button", name="Curves", exact=True).click()
        page.locator(".legend li").first.wait_for()  # another run is shown
        (tmp_path / "a.joma").write_bytes(content)
        page.get_by_role("button", name="Runs", exact=True).click()
        until(lambda: page.locator("td.fault").count() == 0)
        (tmp_path / "b.joma").unlink()
        until(lambda: page.locator("tbody tr").count() == 2)
        page.close()


def test_a_bit_that_flipped_in_a_series_is_one_sentence(open_page: Callable[..., Any], tmp_path: Path) -> None:
    heads(tmp_path / "a.joma", 5)
    import sqlite3

    with sqlite3.connect(tmp_path / "a.joma") as connection:
        connection.execute("UPDATE entries SET data = zeroblob(length(data)) WHERE step = 3")
    connection.close()
    with serving(Feed([tmp_path])) as (address, _):
        page = open_page(f"{address}#?screen=curves")
        page.locator(".notice", has_text="step 3 of 'entropy' is damaged").wait_for()
        assert not page.locator(".chart").is_visible()
        page.close()


def test_a_server_that_is_gone_is_told(open_page: Callable[..., Any], tmp_path: Path) -> None:
    heads(tmp_path / "a.joma", 5)
    with serving(Feed([tmp_path])) as (address, _):
        page = open_page(address, allowed=("ERR_", "Failed to load"))
        page.locator(".legend li").first.wait_for()
    page.locator(".live", has_text="The server does not answer.").wait_for()
    assert page.locator(".legend li").count() == 4  # what was seen stays


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[str]:
    """The page of another site: it tries whatever a page can."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("<!DOCTYPE html><title>elsewhere</title>")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given, directory=str(tmp_path / "site"))

        def log_message(self, *_: Any) -> None:
            """Nothing is said."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_the_page_of_another_site_reads_nothing(browser: Any, tmp_path: Path, elsewhere: str) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    heads(folder / "a.joma", 5)
    with serving(Feed([folder])) as (address, _):
        page = browser.new_page()
        page.goto(elsewhere)
        # even one that knows the token
        tries = """async (address) => {
          const found = {};
          for (const [name, given] of [['plain', {}], ['blind', { mode: 'no-cors' }], ['with cookies', { credentials: 'include' }]]) {
            try { const answer = await fetch(address + 'series?run=a.joma&series=entropy', given); found[name] = [answer.type, (await answer.text()).length]; }
            catch (error) { found[name] = 'refused'; }
          }
          found.script = await new Promise((done) => { const one = document.createElement('script'); one.src = address + 'module.js'; one.onload = () => done('ran'); one.onerror = () => done('refused'); document.head.append(one); });
          found.frame = await new Promise((done) => { const one = document.createElement('iframe'); one.src = address; one.onload = () => { try { done(one.contentDocument ? one.contentDocument.body.textContent : 'refused'); } catch { done('refused'); } }; document.body.append(one); });
          found.events = await new Promise((done) => { const one = new EventSource(address + 'events'); one.onmessage = () => done('heard'); one.addEventListener('runs', () => done('heard')); one.onerror = () => done('refused'); });
          return found; }"""  # noqa: E501
        found = page.evaluate(tries, address)
        assert found["plain"] == "refused"
        assert found["with cookies"] == "refused"
        assert found["blind"] in ("refused", ["opaque", 0])
        assert found["script"] == "refused"
        assert found["frame"] in ("refused", "")
        assert found["events"] == "refused"
        page.close()
