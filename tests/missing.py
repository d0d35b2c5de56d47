"""A test that needs an optional package is skipped where that is not installed, with its name as the reason.

Which packages are optional stands in pyproject.toml. A test need not say what it needs: it is known by what fails.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

NAMES = {
    "mlflow-skinny": ["mlflow"],
    "axe-playwright-python": ["axe_playwright_python"],
    "moto": ["moto", "boto3", "botocore"],
}
"""Where a package is imported by another name than its own, or brings others along that tests import."""
BROUGHT = {"viz": ["PIL"], "hf": ["tokenizers", "httpx"], "dev": ["docutils"]}


def optional() -> set[str]:
    """Names of modules that come with no plain `pip install joma`."""
    listed = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    found = set()
    for extra, packages in listed["project"]["optional-dependencies"].items():
        names = [re.match(r"[\w.-]+", each)[0] for each in packages]
        found |= {module for name in names for module in NAMES.get(name, [name.replace("-", "_")])}
        found |= set(BROUGHT.get(extra, ()))
    return found


OPTIONAL = optional()


def missing(error: BaseException | None) -> str | None:
    """The optional package for want of which this was raised, or what it was raised from; None if that is not why."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, ModuleNotFoundError):
            name = (error.name or "").partition(".")[0]
            if name in OPTIONAL and not installed(name):
                return name
        error = error.__cause__ or error.__context__
    return None


def installed(name: str) -> bool:
    if sys.modules.get(name, name) is None:  # a test has hidden it
        return True
    try:
        found = find_spec(name)
        return found is not None and found.origin is not None  # a folder without code is importable, and no package
    except (ImportError, ValueError):  # a test may have put something in its place
        return True


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """A file that cannot be imported is skipped as a whole."""
    report = yield
    name = report.failed and missing(report.call.excinfo.value)
    if name:
        report.outcome, report.longrepr = "skipped", (str(collector.path), 1, f"Skipped: {reason(name)}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    return (yield from _skipped_where_missing())


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    return (yield from _skipped_where_missing())


def _skipped_where_missing() -> Iterator[None]:
    try:
        return (yield)
    except Exception as error:
        if name := missing(error):
            pytest.skip(reason(name))
        raise


def reason(name: str) -> str:
    return f"could not import {name!r}, which is optional"
