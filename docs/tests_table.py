"""Where the tests of a file are, by what they import: the nearest first.

python docs/tests_table.py src/joma/probes/_parallel.py
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE, TESTS = ROOT / "src" / "joma", ROOT / "tests"


@cache
def taken(path: Path) -> frozenset[Path]:
    """The files of joma that a Python file imports, at its head or inside of a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {file_of(each.name) for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {file_of(f"{node.module}.{each.name}") or file_of(node.module) for each in node.names}
    return frozenset(found - {None})


@cache
def file_of(module: str) -> Path | None:
    """The file of a module of joma, or None."""
    name, *parts = module.split(".")
    base = SOURCE.joinpath(*parts)
    files = (base.with_suffix(".py"), base / "__init__.py") if name == "joma" and parts else ()
    return next((path for path in files if path.is_file()), None)


def test_files() -> list[Path]:
    """All of them; what tests share is none."""
    return sorted(TESTS.rglob("test_*.py"))


@cache
def rooms() -> list[Path]:
    """The folders of joma; of the studies, each subject."""
    folders = sorted(path.parent for path in SOURCE.glob("*/__init__.py"))
    subjects = sorted(path.parent for path in (SOURCE / "studies").glob("*/__init__.py"))
    return [*(path for path in folders if path.name != "studies"), SOURCE / "studies", *subjects]


@cache
def room_of(path: Path) -> Path:
    """The room that a file of joma is in."""
    return next((each for each in reversed(rooms()) if each in path.parents), SOURCE)


def nearest(file: Path) -> list[Path]:
    """Test files of one file of joma: those named after it, those that import it, those that import what imports it."""
    name = file.parent.name if file.stem in ("__init__", "study", "run") else file.stem
    own = TESTS / file.relative_to(SOURCE).parent

    def distance(test: Path) -> tuple[int, bool, str]:
        named = test.stem.removeprefix("test_") == name.strip("_")
        direct, through = file in taken(test), any(file in taken(each) for each in taken(test))
        return (0 if named and direct else 1 if direct else 2 if through else 3, own not in test.parents, str(test))

    ranked = sorted((distance(test), test) for test in test_files())
    return [test for (steps, *_), test in ranked if steps < 3]


def main() -> None:
    """Name the tests of a file."""
    for path in nearest(Path(sys.argv[1]).resolve()):
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
