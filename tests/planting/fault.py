"""A fault, all that can be planted, and a draw of them: rooms in proportion to their length, kinds in turn."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from planting.javascript_kinds import changes_of_javascript
from planting.kinds import KINDS, changes_of
from planting.selection import SOURCE

FOREIGN = {"uPlot.iife.min.js"}


@dataclass(frozen=True)
class Fault:
    """A change to one place of a file."""

    file: str
    line: int
    column: int
    """In bytes, as the syntax tree counts."""
    scope: str
    """The function it stands in."""
    kind: str
    before: str
    after: str
    on: str = ""
    """The line it stands on."""
    nth: int = 0
    """Which of those that would read the same, from the top."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.kind}: {self.before[:60]!r} -> {self.after[:40]!r}"

    @property
    def key(self) -> str:
        """The fault in words that hold when lines move."""
        again = f" ({self.nth + 1})" if self.nth else ""
        return f"{self.file} {self.scope or 'module'} | {self.kind} | {self.on} | {self.before} -> {self.after}{again}"

    @property
    def room(self) -> str:
        """The room of the house; studies have rooms of their own, and so has what runs in a page."""
        if self.file.endswith(".js"):
            return f"{self.file.split('/')[0]} (JavaScript)"
        return "/".join(self.file.split("/")[: 2 if self.file.startswith("studies/") else 1])

    def planted(self, text: str) -> str:
        """The file with the fault in it."""
        code, before = text.encode(), self.before.encode()
        at = sum(map(len, code.splitlines(keepends=True)[: self.line - 1])) + self.column
        if code[at : at + len(before)] != before:
            raise ValueError(f"{self} does not stand there")
        return (code[:at] + self.after.encode() + code[at + len(before) :]).decode()


NAMED = (
    ("training/checkpoints.py", 'about.get("identity") != self.identity', "False"),
    ("models/decoder.py", "math.log(10_000)", "math.log(1_000)"),
    ("claims/rules.py", "if effect.high < 0:", "if effect.difference < 0:"),
    ("claims/rules.py", "effect.high < effect.matters", "effect.difference < effect.matters"),
    ("claims/rules.py", "if effect.low > 0:", "if effect.difference > 0:"),
    ("claims/rules.py", "if not effect.fits:", "if False:"),
    ("claims/rules.py", "effect.seeds < 2 or", ""),
    ("measure/intervals.py", "np.isfinite(first) & ", ""),
    ("measure/intervals.py", "(row / size).std(ddof=1)", "(row / size).std()"),
    ("measure/intervals.py", "if paired or known:", "if True:"),
    ("training/series.py", 'write_json(done, begun | {"losses": losses})',
     'done.write_text(json.dumps(begun | {"losses": losses}))'),
)  # fmt: skip
"""Faults in what all studies stand on, by hand: file, before, after."""


def named() -> list[Fault]:
    """The faults written by hand, with the line on which each stands now."""
    found = []
    for file, before, after in NAMED:
        text = (SOURCE / file).read_text(encoding="utf-8")
        head = text[: text.index(before)]
        column = len(head.rpartition("\n")[2].encode())
        line = head.count("\n") + 1
        found.append(Fault(file, line, column, _scope(ast.parse(text), line), "by hand", before, after))
    return found


def _scope(tree: ast.AST, line: int) -> str:
    """The function that a line stands in."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0):
            return ".".join(filter(None, (node.name, _scope(node, line))))
    return ""


def sources() -> list[Path]:
    """All files that faults can be planted in: Python and JavaScript, all of ours."""
    found = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.js")]
    return sorted(path for path in found if path.name not in FOREIGN)


def faults_of(path: Path) -> Iterator[Fault]:
    """Every fault of the general kinds that can be planted in a file."""
    file, seen = path.relative_to(SOURCE).as_posix(), Counter[tuple[str, ...]]()
    read = changes_of_javascript if path.suffix == ".js" else changes_of
    for change in read(path.read_text(encoding="utf-8")):
        alike = (change.scope, change.kind, change.on, change.before, change.after)
        yield Fault(file, **asdict(change), nth=seen[alike])
        seen[alike] += 1


def draw(faults: list[Fault], lengths: dict[str, int], count: int, seed: int) -> list[Fault]:
    """`count` faults: rooms in proportion to their length, within a room the kinds in turn, within a kind by chance.

    Chance is a hash of the fault and the seed: the draw hardly changes when code elsewhere does.
    """
    waiting: dict[str, dict[str, list[Fault]]] = defaultdict(lambda: defaultdict(list))
    for fault in sorted(faults, key=lambda fault: hashlib.sha256(f"{seed} {fault.key}".encode()).hexdigest()):
        waiting[fault.room][fault.kind].append(fault)
    exact = {room: count * lengths[room] / sum(lengths[each] for each in waiting) for room in waiting}
    share = {room: int(exact[room]) for room in waiting}
    for room in sorted(waiting, key=lambda room: share[room] - exact[room])[: count - sum(share.values())]:
        share[room] += 1
    chosen = []
    for place, room in enumerate(sorted(waiting)):
        kinds = waiting[room]
        turn, left = place + seed, share[room]  # small rooms begin with different kinds
        while left and any(kinds.values()):
            kind = KINDS[turn % len(KINDS)]
            turn += 1
            if kinds[kind]:
                chosen.append(kinds[kind].pop(0))
                left -= 1
    return chosen


def lengths_of_rooms() -> dict[str, int]:
    """How many letters each room has: lines of JavaScript are longer than those of Python."""
    lengths: Counter[str] = Counter()
    for path in sources():
        lengths[Fault(path.relative_to(SOURCE).as_posix(), 0, 0, "", "", "", "").room] += path.stat().st_size
    return lengths
