"""How workers beside each other read the test files: each begins elsewhere, so that no file is compiled by all of them.

What pytest makes of a file with its asserts is kept beside it, for others and for later. In a fresh checkout, or after
a change, workers that read in the same order would all make it, each for itself, at the same time.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import pytest

Entry = TypeVar("Entry")


def place(environ: Mapping[str, str]) -> tuple[int, int]:
    """Which worker this is, of how many; without workers the first of one."""
    return int(environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]), int(environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def turned(entries: Sequence[Entry], worker: int, workers: int) -> list[Entry]:
    """All of them, from this worker's own place on.

    >>> turned("abcdef", 1, 3)
    ['c', 'd', 'e', 'f', 'a', 'b']
    """
    first = len(entries) * worker // workers
    return [*entries[first:], *entries[:first]]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    if isinstance(collector, pytest.Directory) and report.passed:
        report.result = turned(report.result, *place(os.environ))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All workers must name the tests in one order."""
    items.sort(key=lambda item: item.path.parts)
