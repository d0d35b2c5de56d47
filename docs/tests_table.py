"""The table of docs/explanation/house.md: where the tests of each room are, by what they import.

python docs/tests_table.py                                  # prints it
python docs/tests_table.py --write                          # puts it into the page
python docs/tests_table.py src/joma/monitor/parallel.py     # the tests of one file, nearest first
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE, TESTS, PAGE = ROOT / "src" / "joma", ROOT / "tests", ROOT / "docs" / "explanation" / "house.md"
BEGIN, END = "<!-- table of tests: python docs/tests_table.py --write -->\n", "<!-- end of the table of tests -->"


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


def shown(path: Path) -> str:
    """A path from the root, as code."""
    return f"`{path.relative_to(ROOT)}{'/' if path.is_dir() else ''}`"


def rows() -> list[str]:
    """Per room: the folder of its name under tests/, and what else imports it there."""
    folders: dict[Path, set[Path]] = {room: set() for room in rooms()}
    for test in test_files():
        room = TESTS.joinpath(*test.relative_to(TESTS).parts[:1])
        for file in taken(test) if room.is_dir() else ():  # those beside the rooms ask something of all
            folders.setdefault(room_of(file), set()).add(room)
    lines = ["| Room | Its tests | Tests elsewhere that import it |", "|---|---|---|"]
    for room in rooms():
        own = TESTS / room.relative_to(SOURCE)
        others = sorted(folders[room] - {own, own.parent})
        lines.append(f"| {shown(room)} | {shown(own) if own.is_dir() else ''} | {', '.join(map(shown, others))} |")
    return lines


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
    """Print or write the table, or name the tests of a file."""
    if sys.argv[1:] == ["--write"]:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + "\n".join(rows()) + "\n" + END + rest.partition(END)[2], encoding="utf-8")
    elif sys.argv[1:]:
        for path in nearest(Path(sys.argv[1]).resolve()):
            print(path.relative_to(ROOT))
    else:
        print("\n".join(rows()))


if __name__ == "__main__":
    main()
