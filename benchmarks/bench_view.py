"""How fast runs are seen: 24 layers x 16 heads x 8 measures x 1,000 steps, in `joma view`, TensorBoard and trackio.

    python benchmarks/bench_view.py [--record] [--only joma|tensorboard|trackio|long]

`open`: from the address to the first curves on the screen, in an installed chromium, the server being up. `start`:
from the command to a server that answers. `tick`: what one new step of all eight measures costs, on the server (a look
at the file, the rows) and in the page (its main thread is busy), the median of 20. `bytes of a tick` and `questions of
a tick`: what the page is sent for it, and how often it asks. `queries of a tick`: what the server asks of the file.
`zoom`: from a range to its curves.
TensorBoard and trackio get the same numbers, one tag for each head of each layer: they know no arrays.
"""

import contextlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from functools import cache
from pathlib import Path

import numpy as np
from _record import record

from joma.runs import Run
from joma.view.feed import Feed

LAYERS, HEADS, STEPS, LONG = 24, 16, 1000, 100_000
MEASURES = tuple(f"measure_{at}" for at in range(8))
TICKS = 20
PATIENCE = 120  # seconds after which a page counts as one that does not open
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@cache
def numbers(step):
    generator = np.random.default_rng(step)
    return {name: generator.normal(at, 1, (LAYERS, HEADS)).astype(np.float32) for at, name in enumerate(MEASURES)}


def written(path, steps=STEPS, measures=MEASURES):
    """A run as a monitor writes it."""
    run = Run.create(path, study="monitor", config={})
    for step in range(steps):
        values = numbers(step % 2000)
        run.record(step, {name: values[name] for name in measures}, dims=dict.fromkeys(measures, ("layer", "head")))
    return run


@contextlib.contextmanager
def started(*command, ready):
    """A server; gives its address and the seconds until it answers."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        address = ready(process)
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(address, timeout=PATIENCE).read(1)
                break
            if time.perf_counter() - begin > PATIENCE:
                raise TimeoutError(f"{command[0]} does not answer")
            time.sleep(0.02)
        yield address, time.perf_counter() - begin
    finally:
        process.terminate()
        process.wait()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def browsing():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(1000 * PATIENCE)
        yield page
        browser.close()


def opened(page, address, seen):
    """Seconds until `seen` can be seen and was painted."""
    begin = time.perf_counter()
    page.goto(address)
    page.locator(seen).first.wait_for()
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return time.perf_counter() - begin


def busy(client):
    """Milliseconds that the page's main thread has worked since it was asked to count."""
    found = {one["name"]: one["value"] for one in client.send("Performance.getMetrics")["metrics"]}
    return 1e3 * found["TaskDuration"]


def printed_address(process):
    return next(word for line in process.stdout for word in line.split() if word.startswith("http://"))


def viewed(folder):
    """`joma view` on a folder."""
    every = "0.1"
    command = (sys.executable, "-m", "joma", "view", str(folder), "--every", every)
    return started(*command, ready=printed_address)


def joma_rows(folder):
    path = folder / "run.joma"
    run, rows = written(path), []
    with viewed(folder) as (address, start), browsing() as page:
        opening = {}
        for screen in ("curves", "heads"):
            seen = ".legend li" if screen == "curves" else ".scale i"
            opening[screen] = min(opened(page, f"{address}?{at}#?screen={screen}", seen) for at in range(3))
            rows.append({"what": "joma view", "action": f"open {screen}", "seconds": opening[screen]})
            found = page_ticks(page, run)
            rows.append({"what": "joma view", "action": f"tick of {screen}, page", "milliseconds": found["busy"]})
            rows.append({"what": "joma view", "action": f"bytes of a tick, {screen}", "bytes": found["bytes"]})
            rows.append({"what": "joma view", "action": f"questions of a tick, {screen}", "count": found["asked"]})
        rows.append({"what": "joma view", "action": "start", "seconds": start})
    spent, queries = server_ticks(folder, run)
    rows.append({"what": "joma view", "action": "tick, server", "milliseconds": spent})
    rows.append({"what": "joma view", "action": "queries of a tick", "count": queries})
    run.close()
    rows.append({"what": "joma view", "action": "bytes on disk", "megabytes": path.stat().st_size / 1e6})
    return rows


def page_ticks(page, run):
    """Of one new step: what the page works for it, what it asks, and what it is sent."""
    found, counts, client = [], {"bytes": 0, "asked": 0}, page.context.new_cdp_session(page)
    for domain in ("Performance", "Network"):
        client.send(f"{domain}.enable")

    def count(name, by):
        counts[name] += by

    client.on("Network.dataReceived", lambda event: count("bytes", event["dataLength"]))
    client.on("Network.requestWillBeSent", lambda _: count("asked", 1))
    for _ in range(TICKS):
        step = run.last_step(MEASURES[0]) + 1
        before = busy(client)
        with page.expect_response(lambda answer: "/after?" in answer.url):
            run.record(step, numbers(step))
        page.wait_for_timeout(150)
        found.append(busy(client) - before)
    client.detach()
    return {"busy": statistics.median(found), **{name: number / TICKS for name, number in counts.items()}}


def server_ticks(folder, run):
    """Of one new step, a look at the folder and the rows of one series: milliseconds, and queries to SQLite."""
    feed, found, queries, plain = Feed([folder]), [], 0, Run._rows

    def counted(*given):
        nonlocal queries
        queries += 1
        return plain(*given)

    feed.index()
    feed.series("run.joma", MEASURES[0])
    for _ in range(TICKS):
        step = run.last_step(MEASURES[0]) + 1
        run.record(step, numbers(step))
        cursor = feed._runs["run.joma"].held[MEASURES[0]].row
        Run._rows = counted
        begin = time.perf_counter()
        feed.index()
        feed.after("run.joma", MEASURES[0], cursor)
        found.append(1e3 * (time.perf_counter() - begin))
        Run._rows = plain
    return statistics.median(found), queries / TICKS


def long_rows(folder):
    """One measure over 100,000 steps."""
    run = written(folder / "long.joma", LONG, MEASURES[:1])
    run.finish()
    rows = []
    with viewed(folder) as (address, _), browsing() as page:
        for turn in ("first", "again"):
            seconds = opened(page, f"{address}?{turn}#?screen=curves", ".legend li")
            rows.append({"what": f"joma view, {LONG:,} steps", "action": f"open curves, {turn}", "seconds": seconds})
        begin = time.perf_counter()
        with page.expect_response(lambda answer: "low=" in answer.url):
            page.evaluate("location.hash = '#?screen=curves&low=5000&high=6000'")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        rows.append({"what": f"joma view, {LONG:,} steps", "action": "zoom", "seconds": time.perf_counter() - begin})
        seconds = opened(page, f"{address}?heads#?screen=heads", ".scale i")
        rows.append({"what": f"joma view, {LONG:,} steps", "action": "open heads", "seconds": seconds})
    return rows


def tags(step):
    return {
        f"{name}/layer {layer}/head {head}": float(values[layer, head])
        for name, values in numbers(step).items()
        for layer in range(LAYERS)
        for head in range(HEADS)
    }


def tensorboard_rows(folder):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer, begin = EventFileWriter(str(folder)), time.perf_counter()
    for step in range(STEPS):
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in tags(step).items()]
        writer.add_event(Event(step=step, wall_time=time.time(), summary=Summary(value=values)))
    writer.close()
    rows = [{"what": "tensorboard", "action": "write", "seconds": time.perf_counter() - begin}]
    port = free_port()
    command = (
        sys.executable,
        "-m",
        "tensorboard.main",
        "--logdir",
        str(folder),
        "--port",
        str(port),
        "--load_fast=false",
    )
    with started(*command, ready=lambda _: f"http://127.0.0.1:{port}/") as (address, start), browsing() as page:
        rows.append({"what": "tensorboard", "action": "start", "seconds": start})
        loaded = time.perf_counter()  # it reads in the background: wait until all tags are known
        while time.perf_counter() - loaded < PATIENCE:
            text = urllib.request.urlopen(f"{address}data/plugin/scalars/tags").read().decode()
            if text.count("/head ") >= LAYERS * HEADS * len(MEASURES):
                break
            time.sleep(0.1)
        rows.append(
            {"what": "tensorboard", "action": "until all tags are read", "seconds": time.perf_counter() - loaded}
        )
        seconds = min(opened(page, f"{address}?{at}#timeseries", "scalar-card line-chart") for at in range(3))
        rows.append({"what": "tensorboard", "action": "open", "seconds": seconds})
    return rows


def trackio_rows(folder):
    import os

    os.environ["TRACKIO_DIR"] = str(folder)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    from trackio.sqlite_storage import SQLiteStorage

    begin = time.perf_counter()
    for start in range(0, STEPS, 100):
        steps = list(range(start, start + 100))
        SQLiteStorage.bulk_log("bench", "run", [tags(step) for step in steps], steps=steps)
    rows = [{"what": "trackio", "action": "write", "seconds": time.perf_counter() - begin}]
    port = free_port()
    code = "import trackio; trackio.show('bench', open_browser=False, block_thread=True)"
    os.environ["GRADIO_SERVER_PORT"] = str(port)
    with started(sys.executable, "-c", code, ready=lambda _: f"http://127.0.0.1:{port}/") as (address, start):
        rows.append({"what": "trackio", "action": "start", "seconds": start})
        with browsing() as page:
            try:
                seconds = opened(page, f"{address}?project=bench", "canvas.marks")
            except Exception as error:
                print(f"trackio did not open: {str(error).splitlines()[0]}")
                seconds = float("inf")
            rows.append({"what": "trackio", "action": "open", "seconds": seconds if seconds < PATIENCE else None})
    return rows


def main():
    wanted = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else None
    parts = {"joma": joma_rows, "long": long_rows, "tensorboard": tensorboard_rows, "trackio": trackio_rows}
    rows = []
    for name, measure in parts.items():
        if wanted in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                for row in measure(Path(folder)):
                    rows.append(row)
                    (unit, value), *_ = [one for one in row.items() if one[0] not in ("what", "action")]
                    shown = "not within the patience" if value is None else f"{value:.3g} {unit}"
                    print(f"{row['what']:<28} {row['action']:<26} {shown}", flush=True)
    record("view", rows)


if __name__ == "__main__":
    main()
