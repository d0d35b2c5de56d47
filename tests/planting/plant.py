"""Plant faults, several at a time, each in a tree of its own, and see what the tests make of it.

The tests of a fault run in a process that is forked from this one, which has loaded torch and its like already and has
not loaded joma: three hundred starts would otherwise take longer than the tests.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from planting.fault import Fault
from planting.selection import ROOT

PATIENCE = 240.0
PARTS = ("src", "tests", "docs", "benchmarks", "examples", "requirements")
HEAVY = ("torch", "numpy", "pytest", "scipy.optimize", "matplotlib.pyplot", "transformers", "safetensors.torch")


@dataclass
class Planted:
    """A fault whose tests are running."""

    fault: Fault
    tree: Path
    sound: str
    start: float

    @property
    def target(self) -> Path:
        return self.tree / "src" / "joma" / self.fault.file


def plant(
    faults: list[Fault], tests_of: Callable[[Fault], tuple[str, ...]], jobs: int, minutes: float, options: list[str]
) -> dict[str, str]:
    """Plant them, `jobs` at a time; what the tests made of each, by its key: "caught", "missed" or "hung".

    After so many minutes it ends: what was not reached, or was under way, has no outcome. options: of pytest.
    """
    end = time.monotonic() + 60 * minutes
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "MPLBACKEND": "agg"}
    os.environ.setdefault("TRITON_INTERPRET", "1")  # as tests/conftest.py: what is loaded here may load triton
    for name in HEAVY:
        with suppress(ImportError):
            importlib.import_module(name)
    if "joma" in sys.modules:
        raise RuntimeError("joma is loaded already: faults would not be")
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        trees = [copy_of_the_tree(Path(folder) / str(i)) for i in range(min(jobs, len(faults)))]
        waiting, running = list(reversed(faults)), dict[int, Planted]()
        # Ended from outside, it takes along what it started: a fault may make a test run for ever.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            while (waiting or running) and time.monotonic() < end:
                while waiting and trees:
                    fault, tree = waiting.pop(), trees.pop()
                    tests = tests_of(fault)
                    planted = Planted(
                        fault, tree, (tree / "src" / "joma" / fault.file).read_text("utf-8"), time.monotonic()
                    )
                    planted.target.write_text(fault.planted(planted.sound), encoding="utf-8")
                    running[_test(tree, [*options, *tests])] = planted
                time.sleep(0.02)
                for process, planted in list(running.items()):
                    outcome = _outcome(process, planted)
                    if outcome is None:
                        continue
                    planted.target.write_text(planted.sound, encoding="utf-8")
                    trees.append(planted.tree)
                    del running[process]
                    found[planted.fault.key] = outcome
                    took = time.monotonic() - planted.start
                    print(f"{len(found):3}/{len(faults)} {outcome:6} {took:4.0f} s  {planted.fault}", flush=True)
                    if outcome == "no test":
                        print((planted.tree.parent / "output.txt").read_text("utf-8")[-1500:], flush=True)
        finally:
            for process in running:
                with suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)
    return found


def _test(tree: Path, given: list[str]) -> int:
    """Start pytest in a fork of this process, in a session of its own; its number."""
    process = os.fork()
    if process:
        return process
    status = 70
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        os.chdir(tree)
        output = os.open(tree.parent / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(output, stream)
        paths = [str(tree / "src"), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(tree.parent)}
        tempfile.tempdir = None
        own = (str(ROOT / "src"), str(ROOT / "tests"))
        sys.path[:] = [str(tree / "src"), *(path for path in sys.path if os.path.abspath(path) not in own)]
        import pytest

        for name in [name for name in sys.modules if name.partition(".")[0] == "planting"]:
            del sys.modules[name]
        # hypothesis' plugin was seen already, when this process loaded pytest.
        options = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "-W",
            "ignore::pytest.PytestAssertRewriteWarning",
        ]
        status = int(pytest.main([*options, "--rootdir", str(tree), *given]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _outcome(process: int, planted: Planted) -> str | None:
    """What became of the tests; None while they run."""
    ended, status = os.waitpid(process, os.WNOHANG)
    if not ended and time.monotonic() - planted.start < PATIENCE:
        return None
    with suppress(ProcessLookupError):  # with what the tests started and left behind
        os.killpg(process, signal.SIGKILL)
    if not ended:
        os.waitpid(process, 0)
        return "hung"
    code = os.waitstatus_to_exitcode(status)
    # 1: a test failed. 2: a file could not be loaded, which is 4 where a test of it is named. Below 0: it died.
    if code == 4 and "Error" in (planted.tree.parent / "output.txt").read_text("utf-8"):
        return "caught"
    return "missed" if code == 0 else "caught" if code in (1, 2) or code < 0 else "no test"


def copy_of_the_tree(folder: Path) -> Path:
    """All that tests may look at, without environment and builds; records, which are many and only read, by a link."""
    tree = folder / "tree"
    tree.mkdir(parents=True)
    for part in ROOT.iterdir():
        if part.name == "results":
            (tree / part.name).symlink_to(part)
        elif part.is_dir() and part.name in PARTS:
            shutil.copytree(part, tree / part.name, ignore=shutil.ignore_patterns("__pycache__", "_build"))
        elif part.is_file() and part.name != ".git":
            shutil.copy(part, tree / part.name)
    return tree
