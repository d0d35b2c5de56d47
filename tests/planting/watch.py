"""A plugin of pytest that notes which functions of joma every test runs, and for how long.

JOMA_WATCH=FOLDER PYTHONPATH=tests pytest -p planting.watch    # one file in FOLDER for each process of the tests

What a fixture runs is noted for all tests of its file: one of them pays for it, the others look at what it made. What
runs in another process is not seen.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

SOURCE = str(Path(__file__).parents[2] / "src" / "joma") + os.sep


class Watch:
    """The functions that run between two calls of `take`."""

    def __init__(self) -> None:
        self.seen: set[CodeType] = set()
        if sys.version_info >= (3, 12):
            self.monitoring = sys.monitoring
            self.tool = self.monitoring.PROFILER_ID
            self.monitoring.use_tool_id(self.tool, "planting.watch")
            self.monitoring.register_callback(self.tool, self.monitoring.events.PY_START, self.started)
            self.monitoring.set_events(self.tool, self.monitoring.events.PY_START)
        else:
            threading.settrace(self.traced)
            sys.settrace(self.traced)

    def started(self, code: CodeType, offset: int) -> Any:
        """A function starts; once is enough until `take`."""
        if code.co_filename.startswith(SOURCE):
            self.seen.add(code)
        return self.monitoring.DISABLE

    def traced(self, frame: FrameType, event: str, argument: Any) -> None:
        """A function starts, in a Python that has no sys.monitoring."""
        if frame.f_code.co_filename.startswith(SOURCE):
            self.seen.add(frame.f_code)

    def end(self) -> None:
        """Watch no longer: at its exit Python takes modules apart."""
        if sys.version_info >= (3, 12):
            self.monitoring.set_events(self.tool, 0)
        else:
            threading.settrace(None)  # type: ignore[arg-type]
            sys.settrace(None)

    def take(self) -> set[str]:
        """What ran since the last call, as 'measure/intervals.py compare'."""
        seen, self.seen = self.seen, set()
        if sys.version_info >= (3, 12):
            self.monitoring.restart_events()
        else:
            sys.settrace(self.traced)
        return {f"{code.co_filename[len(SOURCE) :]} {scope(code.co_qualname)}" for code in seen}


def scope(name: str) -> str:
    """A function's name as planting/kinds.py writes it: without <locals>, <lambda>, <genexpr>."""
    return ".".join(part for part in name.split(".") if not part.startswith("<"))


WATCH = Watch()
RAN: dict[str, set[str]] = defaultdict(set)
SECONDS: dict[str, float] = defaultdict(float)
PREPARED: dict[str, set[str]] = defaultdict(set)
FAILED: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Any:
    """What fixtures run belongs to all tests of the file."""
    start = time.perf_counter()
    WATCH.take()
    try:
        return (yield)
    finally:
        PREPARED[item.nodeid.partition("::")[0]] |= WATCH.take()
        SECONDS[item.nodeid] += time.perf_counter() - start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """What the test itself runs."""
    start = time.perf_counter()
    try:
        return (yield)
    finally:
        RAN[item.nodeid] |= WATCH.take()
        SECONDS[item.nodeid] += time.perf_counter() - start


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What fails where nothing is wrong would see every fault."""
    if report.failed:
        FAILED.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Keep what was seen; functions by number, for there are few of them and many tests."""
    WATCH.end()
    numbers: dict[str, int] = {}
    tests = {name: [round(SECONDS[name], 3), sorted(numbers.setdefault(each, len(numbers)) for each in ran)]
             for name, ran in RAN.items()}  # fmt: skip
    files = {name: sorted(numbers.setdefault(each, len(numbers)) for each in ran) for name, ran in PREPARED.items()}
    folder = Path(os.environ["JOMA_WATCH"])
    folder.mkdir(parents=True, exist_ok=True)
    content = {"functions": list(numbers), "tests": tests, "files": files, "failed": sorted(FAILED)}
    (folder / f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.json").write_text(json.dumps(content), encoding="utf-8")
