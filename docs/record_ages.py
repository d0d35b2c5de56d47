"""How much of the code that a benchmark speaks of changed since its record.

python docs/record_ages.py

A benchmark speaks of the files of joma that it imports, of all files of a room that it takes something from by the
room's name, and of what those import from their own rooms; of all files where it starts the command alone. A file that
moved is the same file.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests_table import ROOT, SOURCE, room_of, taken

SHARES = ((0.0, "none"), (0.1, "less than a tenth"), (0.5, "less than half"))


def git(*words: str) -> str:
    """What git says of this checkout; nothing where there is no history, or not so far back."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout


@cache
def spoken_of(script: Path) -> frozenset[Path]:
    """The files of joma whose speed the script measures."""
    waiting, found = set(taken(script)), set[Path]()
    while waiting:
        file = waiting.pop()
        found.add(file)
        room = room_of(file)
        near = file.parent.rglob("*.py") if file == room / "__init__.py" else taken(file)
        waiting |= {each for each in near if room_of(each) == room} - found
    return frozenset(found)


def scripts_of(name: str) -> list[Path]:
    """A benchmark and what lies beside it for that benchmark alone."""
    return sorted((ROOT / "benchmarks").glob(f"*_{name}*.py"))


@cache
def changed(commit: str) -> dict[Path, int]:
    """Lines of each file of joma that the commit did not have; a file that moved is compared with what it was."""
    words = iter(git("diff", "--numstat", "-M", "-z", commit, "--", "src").split("\0"))
    found = {}
    for word in words:
        added, _, name = word.split("\t") if word else ("", "", "")
        moved = bool(word) and not name  # then come its name and its new one
        name = (next(words), next(words))[1] if moved else name
        if added.isdigit():
            found[ROOT / name] = int(added)
    return found


def share(name: str, commit: str) -> float:
    """Of the lines that a benchmark speaks of, those that were not there at the commit."""
    files = {each for script in scripts_of(name) for each in spoken_of(script)} or set(SOURCE.rglob("*.py"))
    lines = sum(len(each.read_text(encoding="utf-8").splitlines()) for each in files)
    return sum(changed(commit).get(each, 0) for each in files) / max(1, lines)


def said(younger: float) -> str:
    """A share in words that stay true for long."""
    return next((word for most, word in SHARES if younger <= most), "more than half")


def records() -> Iterator[tuple[str, str, str, bool]]:
    """Each record by its file and its benchmark, with every commit that rows of it were measured at; whether a part."""
    for path in sorted((ROOT / "results").glob("bench_*.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        yield path.stem, kept["benchmark"], kept["commit"], False
        for commit in sorted({row["earlier_commit"] for row in kept["rows"] if row.get("earlier_commit")}):
            yield path.stem, kept["benchmark"], commit, True


def rows() -> list[str]:
    """The table: record, when and at which commit, and how much of its code is younger."""
    lines = ["| Record | Measured | Of the code it speaks of, younger than that |", "|---|---|---|"]
    for stem, name, commit, part in records():
        when = git("log", "-1", "--format=%cs", commit).strip()
        lines.append(f"| `{stem}`{', some rows' * part} | {when}, `{commit[:8]}` | {said(share(name, commit))} |")
    return lines


def main() -> None:
    """Print the table."""
    print("\n".join(rows()))


if __name__ == "__main__":
    main()
