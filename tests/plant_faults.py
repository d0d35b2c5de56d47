"""Plant faults, one at a time, and see whether the tests catch them: does a test fail when a control is dropped?

python tests/plant_faults.py                      # all named faults and a sample of 100 others; records results/
python tests/plant_faults.py --list               # what would be planted
python tests/plant_faults.py --only linear/thm2   # those of one file

A fault is a small change to the code of a study: its control is dropped, a bound turned round, a residual typed in, one
seed given to all members, a check for networks that learned nothing left out. The tests of that study must then fail.
The tree is copied first; the checkout is not touched.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cores import cores

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "joma"
SAMPLE, SEED, PATIENCE = 100, 0, 600.0


@dataclass(frozen=True)
class Fault:
    """A change to one place of a file, and the tests that should see it."""

    file: str
    line: int
    column: int
    """In bytes, as the syntax tree counts."""
    kind: str
    before: str
    after: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.kind}: {self.before[:60]!r} -> {self.after[:40]!r}"

    def planted(self, text: str) -> str:
        """The file with the fault in it."""
        lines = text.encode().splitlines(keepends=True)
        at = sum(map(len, lines[: self.line - 1])) + self.column
        code, before = text.encode(), self.before.encode()
        if code[at : at + len(before)] != before:
            raise ValueError(f"{self} does not stand there")
        return (code[:at] + self.after.encode() + code[at + len(before) :]).decode()


TURNED = {"at_least": "at_most", "at_most": "at_least", "above": "below", "below": "above"}
NOTHING = {"controls": "()", "size": "()", "control": "None", "corrected_size": "()"}


def faults_of(path: Path) -> Iterator[Fault]:
    """Every fault of the general kinds that can be planted in a file."""
    text = path.read_text(encoding="utf-8")
    file = path.relative_to(SOURCE).as_posix()
    for node in ast.walk(ast.parse(text)):
        for kind, part, after in changes(node, text):
            before = ast.get_source_segment(text, part) or ""
            if before and before != after:
                yield Fault(file, part.lineno, part.col_offset, kind, before, after, where_tested(file))


def changes(node: ast.AST, text: str) -> Iterator[tuple[str, ast.expr, str]]:
    """(kind, what is replaced, by what) for one node of the syntax tree."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name, given = node.func.id, {word.arg: word.value for word in node.keywords}
        if name == "compare" and len(node.args) > 1 and not isinstance(node.args[1], ast.Constant | ast.Starred):
            yield "control dropped", node.args[1], "0.0"
        if name == "compare" and "level" in given:
            yield "level lowered", given["level"], "0.5"
        if name in TURNED:
            yield "bound turned round", node.func, TURNED[name]
        if name in ("by_effect", "by_tests", "by_residual"):
            for word in NOTHING.keys() & given.keys():
                yield f"{word} dropped", given[word], NOTHING[word]
        if name == "by_residual" and not isinstance(given.get("printed"), ast.Constant | None):
            yield "residual typed in", given["printed"], "0.0"
    if isinstance(node, ast.If) and "not_run(" in (ast.get_source_segment(text, node.body[0]) or ""):
        yield "nothing learned is not asked", node.test, "False"


def where_tested(file: str) -> tuple[str, ...]:
    """Where the tests of a file are: those of its study; of a helper, of the studies that use it; else the room's.

    A study is a file, studies/ROOM/NAME.py, or a folder, studies/ROOM/NAME/.
    """
    parts = Path(file).with_suffix("").parts
    if parts[0] != "studies":
        return (f"tests/{parts[0]}",)
    room, name = Path(*parts[:2]), parts[2]
    wanted = [name.strip("_")]
    if name.startswith("_"):
        users = [each.relative_to(SOURCE / room) for each in sorted((SOURCE / room).rglob("*.py"))
                 if name in each.read_text("utf-8")]  # fmt: skip
        wanted += [user.with_suffix("").parts[0] for user in users]
    tests = ROOT / "tests" / room
    found = [tests / f"test_{name}.py" for name in dict.fromkeys(wanted) if (tests / f"test_{name}.py").is_file()]
    return tuple(str(one.relative_to(ROOT)) for one in found or [tests])


NAMED = (
    ("training/checkpoints.py", 'about.get("identity") != self.identity', "False", "tests/training/test_ensemble.py"),
    ("models/decoder.py", "math.log(10_000)", "math.log(1_000)", "tests/models/test_decoder.py"),
    ("claims/rules.py", "if effect.high < 0:", "if effect.difference < 0:", "tests/claims"),
    ("claims/rules.py", "effect.high < effect.matters", "effect.difference < effect.matters", "tests/claims"),
    ("claims/rules.py", "if effect.low > 0:", "if effect.difference > 0:", "tests/claims"),
    ("claims/rules.py", "if not effect.fits:", "if False:", "tests/claims"),
    ("claims/rules.py", "effect.seeds < 2 or", "", "tests/claims"),
    ("measure/intervals.py", "np.isfinite(first) & ", "", "tests/measure/test_intervals.py"),
    ("measure/intervals.py", "row.std(ddof=1)", "row.std()", "tests/measure/test_intervals.py"),
    ("measure/intervals.py", "if paired or known:", "if True:", "tests/measure/test_intervals.py"),
    ("training/series.py", "write_text(done,", "done.write_text(", "tests/training/test_series.py"),
)  # fmt: skip
"""Faults in what all studies stand on, by hand: file, before, after, tests."""


def named() -> list[Fault]:
    """The faults written by hand, with the line on which each stands now."""
    found = []
    for file, before, after, tests in NAMED:
        text = (SOURCE / file).read_text(encoding="utf-8")
        head = text[: text.index(before)]
        column = len(head.rpartition("\n")[2].encode())
        found.append(Fault(file, head.count("\n") + 1, column, "by hand", before, after, (tests,)))
    return found


def all_faults() -> list[Fault]:
    """The named ones, then a sample of the others, the same every time."""
    files = sorted([*(SOURCE / "studies").glob("*/**/*.py"), *(SOURCE / "recipes").rglob("*.py")])
    general = [fault for path in files for fault in faults_of(path)]
    random.Random(SEED).shuffle(general)
    return [*named(), *general]


def caught(fault: Fault, tree: Path) -> bool:
    """Whether the tests fail with the fault in the tree."""
    target = tree / "src" / "joma" / fault.file
    sound = target.read_text(encoding="utf-8")
    target.write_text(fault.planted(sound), encoding="utf-8")
    try:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *fault.tests]
        paths = os.pathsep.join([str(tree / "src")])
        environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=PATIENCE, check=False)
        return done.returncode == 1
    except subprocess.TimeoutExpired:
        return True
    finally:
        target.write_text(sound, encoding="utf-8")


def copy_of_the_tree(folder: Path) -> Path:
    """What the tests need, without environment, records and builds."""
    tree = folder / "tree"
    for part in ("src", "tests", "docs", "results"):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__", "_build"))
    for part in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / part, tree / part)
    return tree


def plant(faults: list[Fault], jobs: int) -> list[Fault]:
    """Plant them all, `jobs` at a time; returns those that no test saw."""
    missed: list[Fault] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        trees = [copy_of_the_tree(Path(folder) / str(i)) for i in range(jobs)]

        def one(i: int) -> None:
            tree = trees.pop()
            try:
                seen = caught(faults[i], tree)
            finally:
                trees.append(tree)
            if not seen:
                missed.append(faults[i])
            print(f"{'caught' if seen else 'MISSED'}  {faults[i]}", flush=True)

        list(pool.map(one, range(len(faults))))
    return missed


def record(faults: list[Fault], missed: list[Fault]) -> None:
    """Keep the result in results/planted_faults.json."""
    from joma.host.files import write_json
    from joma.runs.machine import versions

    content = {
        "command": "python tests/plant_faults.py",
        "versions": versions(),
        "planted": len(faults),
        "caught": len(faults) - len(missed),
        "missed": [str(fault) for fault in missed],
        "faults": [str(fault) for fault in faults],
    }
    write_json(ROOT / "results" / "planted_faults.json", content)


def main() -> int:
    """Plant, print, record; status 1 if more than three in a hundred are missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="say what would be planted, and plant nothing")
    parser.add_argument("--only", default="", metavar="PART", help="files whose path has this in it")
    parser.add_argument("--sample", type=int, default=SAMPLE, help="how many beside the named ones; 0 for all")
    parser.add_argument("--jobs", type=int, default=cores(), help="at a time (default: one per core)")
    options = parser.parse_args()
    found = [fault for fault in all_faults() if options.only in fault.file]
    hand = [fault for fault in found if fault.kind == "by hand"]
    general = [fault for fault in found if fault.kind != "by hand"]
    faults = [*hand, *(general if options.only or not options.sample else general[: options.sample])]
    if options.list:
        print(*faults, f"{len(faults)} of {len(found)} that can be planted", sep="\n")
        return 0
    missed = plant(faults, options.jobs)
    share = 1 - len(missed) / max(1, len(faults))
    print(f"{len(faults) - len(missed)} of {len(faults)} planted faults were caught ({share:.1%})", *missed, sep="\n")
    if not options.only:
        record(faults, missed)
    return 0 if share >= 0.97 else 1


if __name__ == "__main__":
    sys.exit(main())
