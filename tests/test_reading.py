"""Workers read the test files from different places on, and still name the tests in one order."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CONFTEST = f"""
import os, sys
sys.path.insert(0, {str(TESTS)!r})
import reading

def pytest_configure(config):
    config.pluginmanager.register(reading)

def pytest_collectstart(collector):
    if collector.nodeid.endswith(".py"):
        with open(os.environ["READ"] + os.environ.get("PYTEST_XDIST_WORKER", ""), "a") as file:
            file.write(collector.path.stem[-1])
"""


@pytest.mark.parametrize(("workers", "read"), [(0, {"": "abcd"}), (2, {"gw0": "abcd", "gw1": "cdab"})])
def test_each_worker_begins_elsewhere(tmp_path, monkeypatch, workers, read):
    """xdist refuses to run tests that its workers name in different orders."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in "abcd":
        (tmp_path / f"test_{name}.py").write_text("def test_one(): pass\n")
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("READ", str(tmp_path / "read"))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        str(workers),
        "-p",
        "no:cacheprovider",
        "--rootdir",
        tmp_path,
    ]
    done = subprocess.run([*command, "-c", "/dev/null", tmp_path], cwd=tmp_path, capture_output=True, text=True)
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    assert {path.name.removeprefix("read"): path.read_text() for path in tmp_path.glob("read*")} == read
