"""Which tests a change selects: those that run the changed function, the cheapest of its own room first.

What tests run in other processes, and what runs when a module is loaded, cannot be watched. There the files are
selected that reach the changed one by imports.
"""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict, deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE, TESTS = ROOT / "src" / "joma", ROOT / "tests"
SECONDS, AT_MOST = 40.0, 400
"""For one fault: tests that took this long together where nothing was wrong, and so many of them."""
FILES = 6
"""Test files for a fault in a function that was not watched."""
PRESETS = ("tests/test_records.py::test_the_paper_preset_and_the_version_of_a_study_are_those_of_its_record",)
"""What asks for each study by its name, which no import shows."""
RUNS_JAVASCRIPT = re.compile(r"\b(js\(|module_js|browser\b|StandIn)")
NOT_BY_A_CHANGE = ("test_dist.py", "test_chaos.py", "test_pages.py", "test_built_pages.py", "test_other_machines.py",
                   "test_add_a_study.py")  # fmt: skip
"""They start whole commands, or need more than Python: too slow for three hundred faults."""


def gathered(folder: Path) -> dict[str, Any]:
    """What the processes of planting/watch.py kept in a folder, by test function and in few bytes."""
    numbers: dict[str, int] = {}
    seconds: dict[str, float] = defaultdict(float)
    ran: dict[str, set[int]] = defaultdict(set)
    failed: set[str] = set()
    for path in sorted(folder.rglob("*.json")):
        part = json.loads(path.read_text(encoding="utf-8"))
        ours = [numbers.setdefault(name, len(numbers)) for name in part["functions"]]
        failed.update(part.get("failed", ()))
        for case, (took, found) in part["tests"].items():
            test, file = case.partition("[")[0], case.partition("::")[0]
            if Path(file).name not in NOT_BY_A_CHANGE:
                seconds[test] += took
                ran[test].update(ours[number] for number in (*part["files"].get(file, ()), *found))
    tests = {test: [round(seconds[test], 3), sorted(ran[test])] for test in ran}
    return {"functions": list(numbers), "tests": tests, "failed": sorted(failed)}


class Selection:
    """Tests for a change, from what was gathered."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.seconds = {test: seconds for test, (seconds, _) in content["tests"].items()}
        self.failed: list[str] = content["failed"]
        self.of_function: dict[str, set[str]] = defaultdict(set)
        for test, (_, numbers) in content["tests"].items():
            for number in numbers:
                self.of_function[content["functions"][number]].add(test)

    def tests_for(self, file: str, scope: str) -> tuple[str, ...]:
        """The tests for a change of a function in src/joma/FILE, nearest and cheapest first."""
        if file.endswith(".js"):
            return tests_of_javascript(file)
        found = self.of_function.get(f"{file} {scope}", set())
        chosen, spent = [], 0.0
        for test in sorted(found, key=lambda test: (nearness(file, test.partition("::")[0]), self.seconds[test], test)):
            if chosen and (spent + self.seconds[test] > SECONDS or len(chosen) >= AT_MOST):
                break
            chosen.append(test)
            spent += self.seconds[test]
        return tuple(chosen) or nearest_by_imports(file)


def tests_of_javascript(file: str) -> tuple[str, ...]:
    """The test files that run what a page runs: those of its room that call its functions or look at a page."""
    found = (TESTS / Path(file).parts[0]).glob("test_*.py")
    those = [path for path in found if RUNS_JAVASCRIPT.search(path.read_text(encoding="utf-8"))]
    return tuple(
        str(path.relative_to(ROOT)) for path in sorted(those, key=lambda one: ("browser" in one.name, one.name))
    )


def nearest_by_imports(file: str) -> tuple[str, ...]:
    """The test files that are nearest to a file of src/joma by imports, and the examples in its docstrings."""
    changed = (SOURCE / file).resolve()
    steps = {test: distances(test).get(changed) for test in test_files()}
    near = {test: nearness(file, str(test.relative_to(ROOT))) for test in steps}
    ranked = sorted((near[test], 9 if count is None else count, str(test.relative_to(ROOT)))
                    for test, count in steps.items() if count is not None or near[test] < 2)  # fmt: skip
    module = changed.relative_to(SOURCE.resolve()).with_suffix("").parts
    name = ".".join(part for part in ("joma", *module) if part != "__init__")
    shows = ">>>" in changed.read_text(encoding="utf-8")
    examples = (f"tests/test_doctests.py::test_examples[{name}]",) if shows else ()
    by_name = PRESETS if file.startswith("studies/") else ()
    return (*(test for _, _, test in ranked[:FILES]), *examples, *by_name)


def nearness(file: str, test: str) -> int:
    """0 for the test named after the file or its folder, 1 for its room, 2 for any other."""
    parts = Path(file).with_suffix("").parts
    folder = Path(test).parts[1:-1]
    room = parts[:2] if parts[0] == "studies" else parts[:1]
    names = {part.strip("_") for part in parts[len(room) :]} - {"study", "run", "__init__"}
    if folder[: len(room)] != room:
        return 2
    return 0 if Path(test).stem.removeprefix("test_") in names else 1


@cache
def test_files() -> tuple[Path, ...]:
    """Every test file that a change may select."""
    return tuple(path for path in sorted(TESTS.rglob("test_*.py")) if path.name not in NOT_BY_A_CHANGE)


@cache
def distances(start: Path) -> dict[Path, int]:
    """How many imports lead from a file to each other file."""
    found, waiting = {start: 0}, deque([start])
    while waiting:
        here = waiting.popleft()
        for there in imports(here):
            if there not in found:
                found[there] = found[here] + 1
                waiting.append(there)
    return found


@cache
def imports(path: Path) -> tuple[Path, ...]:
    """The files of joma and of the tests that a file imports, at its head or inside a function."""
    return tuple(dict.fromkeys(_imports(path)))


def _imports(path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in node.names:
                yield from _files(f"{node.module}.{name.name}") or _files(node.module)
        elif isinstance(node, ast.Import):
            for name in node.names:
                yield from _files(name.name)


@cache
def _files(module: str) -> tuple[Path, ...]:
    if module == "joma" or module.startswith("joma."):
        base = SOURCE.joinpath(*module.split(".")[1:])
        return tuple(path.resolve() for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file())
    names = module.split(".")
    return _helpers().get(names[-1] if (TESTS / names[0]).is_dir() else names[0], ())


@cache
def _helpers() -> dict[str, tuple[Path, ...]]:
    """Modules that tests share, by name."""
    return {
        path.stem: (path,) for path in sorted(TESTS.rglob("*.py")) if not path.name.startswith(("test_", "conftest"))
    }
