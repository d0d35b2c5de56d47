"""Tests pass on every machine: none looks at a clock, and those who play another machine do what they say."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import as_other_machines as others
import hypothesis
import pytest

TESTS = Path(__file__).parent
FILES = sorted(path for path in TESTS.rglob("*.py") if path.name.startswith(("test_", "conftest")))
CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time"}
SUSPECT = re.compile(rf"\b({'|'.join(sorted(CLOCKS))}|communicate|join)\s*\(|timeout|deadline")
"""Where none of this stands no call is in haste: such a file need not be parsed."""
MILLISECONDS = {"set_default_timeout", "set_default_navigation_timeout"}
"""What playwright counts in milliseconds, for every later wait of a page."""
LEAST = 300
"""Seconds: a limit that only keeps a test from hanging is no shorter."""


def called(call):
    """The name of what is called, and that of the module that it is asked of."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr, getattr(function.value, "id", "")
    return getattr(function, "id", ""), ""


def hurries(call):
    """Why a call makes a test depend on how fast the machine is, or nothing."""
    name, of = called(call)
    if name in CLOCKS and of in ("", "time"):
        return f"looks at the clock ({name})"
    given = [word.value for word in call.keywords if word.arg in ("timeout", "deadline")]
    given += call.args[:1] if name in ("communicate", "join") else []
    given += call.args[:1] if name in MILLISECONDS else []
    short = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, int | float)]
    least = 1000 * LEAST if name in MILLISECONDS else LEAST
    return f"waits for {short[0]} alone" if short and short[0] < least else ""


def in_haste(source):
    if not SUSPECT.search(source):
        return []
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [f"line {call.lineno} {why}" for call in calls if (why := hurries(call))]


def test_no_test_passes_or_fails_by_how_fast_the_machine_is():
    assert len(FILES) > 250
    sources = {path.relative_to(TESTS).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
    found = {name: in_haste(source) for name, source in sources.items()}
    assert {name: why for name, why in found.items() if why} == {}


@pytest.mark.parametrize(
    "source",
    [
        "assert time.monotonic() - start < 20",
        "start = perf_counter()",
        "process.communicate(timeout=60)",
        "thread.join(5)",
        "page.set_default_timeout(120_000)",
        "@settings(deadline=200)\ndef test(): pass",
    ],
)
def test_haste_is_seen(source):
    assert in_haste(source)


@pytest.mark.parametrize(
    "source",
    [
        "process.wait(timeout=PATIENCE)",
        "settings(deadline=None)",
        "', '.join(words)",
        "page.set_default_timeout(600_000)",
    ],
)
def test_patience_is_no_haste(source):
    assert in_haste(source) == []


def test_no_example_of_hypothesis_has_a_deadline():
    assert hypothesis.settings().deadline is None


def printed(code, **environment):
    path = os.pathsep.join([str(TESTS / "other_machine"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", code]
    settings = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run(command, env=settings, capture_output=True, text=True, check=True).stdout.split()


def test_every_clock_of_the_slow_machine_runs_ahead():
    code = (
        "import time, os\n"
        "def spent(): return [time.monotonic() - a, time.perf_counter() - b, (time.monotonic_ns() - c) / 1e9]\n"
        "a, b, c = time.monotonic(), time.perf_counter(), time.monotonic_ns()\n"
        "before = os.times().elapsed; time.sleep(0.2); wall = os.times().elapsed - before\n"
        "print(*(each / wall for each in spent()))\n"
    )
    assert all(float(factor) > 10 for factor in printed(code, JOMA_TEST_CLOCK="20"))


@pytest.fixture
def any_python(monkeypatch):
    """Interpreters are taken as they are named: asking each what it has would load torch there."""
    asked = []

    def answers(command, **_):
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "3.99.1 2.99.0\n", "")

    monkeypatch.setattr(others.subprocess, "run", answers)
    monkeypatch.setattr(others.shutil, "which", lambda name: f"/bin/{name}")
    return asked


@pytest.mark.usefixtures("any_python")
def test_the_machines_name_tests_that_are_there():
    for machine in [*others.quick_machines(), *others.machines([sys.executable])]:
        assert all((TESTS / path).exists() for path in machine.paths)


@pytest.mark.usefixtures("any_python")
def test_long_tests_run_on_all_machines_but_the_quick_ones():
    for machine in (*others.quick_machines(), *others.machines([sys.executable])):
        assert ("not long" in machine.command()) == (machine in others.quick_machines()), machine.name
