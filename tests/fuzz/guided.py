"""Fuzzing that is guided by the code: `make fuzz`, or `python tests/fuzz/fuzz.py COUNT --guided [--minutes 20]`.

An input that takes joma along a way that none took before becomes a seed. A way is a step from one line to the next
(an arc), in joma's own files. Afterwards the plain fuzzer, which goes by the words of refusals, gets as many inputs of
the same kind, and the arcs of both are counted in the same way. Nothing beyond Python is needed: `sys.settrace` sees
the lines. The tokenizer is read in a process of its own, of which the trace sees nothing.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import process_time
from types import CodeType, FrameType
from typing import Any

from fuzz import Outcome, fuzz

import joma
from joma.runs.machine import machine, versions

HOME = str(Path(joma.__file__).parent)
Arc = tuple[CodeType, int, int]


class Arcs:
    """Collects the arcs of what runs within.

    guide: whether new ones make a seed. seconds: work within, after which it ends.
    """

    def __init__(self, *, guide: bool, seconds: float = float("inf")) -> None:
        self.all: set[Arc] = set()
        self._now: set[Arc] = set()
        self._guide, self._seconds, self._new = guide, seconds, False
        self._worked = 0.0
        self._ours: dict[CodeType, bool] = {}

    def __enter__(self) -> Arcs:
        self._now = set()
        self._before, self._start = sys.gettrace(), process_time()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        self._worked += process_time() - self._start
        self._new = not self._now <= self.all
        self.all |= self._now

    def guides(self) -> bool:
        return self._guide and self._new

    def ended(self) -> bool:
        return self._worked >= self._seconds

    def _called(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if (ours := self._ours.get(code)) is None:
            ours = self._ours[code] = code.co_filename.startswith(HOME)
        if not ours:
            return None
        last, now = code.co_firstlineno, self._now

        def line(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
            nonlocal last
            if event == "line":
                now.add((code, last, last := frame.f_lineno))
            return line

        return line


@dataclass(frozen=True)
class Comparison:
    """What both fuzzers reached with the same number of inputs of one kind."""

    kind: str
    inputs: int
    arcs: int
    """Of the guided one."""
    arcs_by_words: int
    """Of the plain one."""
    only_guided: int
    only_by_words: int
    surprises: list[str]


def compared(kind: str, count: int, *, seconds: float, seed: int, keep: Path | None) -> Comparison:
    """So many inputs guided, or as many as take so many seconds of work, then as many without."""

    def fuzzed(most: int, watch: Arcs) -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            # Traced work is slow, so time decides nothing; memory and errors do.
            return fuzz(kind, most, Path(folder), seed=seed, keep=keep, timed=False, watch=watch)

    by_arcs, by_words = Arcs(guide=True, seconds=seconds), Arcs(guide=False)
    first = fuzzed(count, by_arcs)
    second = fuzzed(first.inputs, by_words)
    a, b = by_arcs.all, by_words.all
    surprises = list(dict.fromkeys([*first.surprises, *second.surprises]))
    return Comparison(kind, first.inputs, len(a), len(b), len(a - b), len(b - a), surprises)


def guided(kinds: Sequence[str], count: int, minutes: float, *, seed: int, keep: Path | None, path: Path | None) -> int:
    """All kinds, each with its share of the minutes; half of it for the comparison. Status 1 if anything surprised."""
    found = []
    for kind in kinds:
        one = compared(kind, count, seconds=60 * minutes / len(kinds) / 2, seed=seed, keep=keep)
        found.append(one)
        print(
            f"{kind:12} {one.inputs:7,} inputs: {one.arcs:,} arcs guided, {one.arcs_by_words:,} by words "
            f"({one.only_guided} and {one.only_by_words} alone), {len(one.surprises)} surprises",
            flush=True,
        )
        for words in one.surprises[:20]:
            print(f"    {words}")
    if path is not None:
        _record(path, found, seed)
    return int(any(one.surprises for one in found))


def _record(path: Path, found: list[Comparison], seed: int) -> None:
    content = {
        "command": f"python tests/fuzz/fuzz.py {max(one.inputs for one in found)} --guided --seed {seed} --kinds "
        + " ".join(one.kind for one in found),
        "seed": seed,
        "date": datetime.now(UTC).date().isoformat(),
        "inputs": 2 * sum(one.inputs for one in found),
        "arcs": sum(one.arcs for one in found),
        "arcs_by_words": sum(one.arcs_by_words for one in found),
        "surprises": sum(len(one.surprises) for one in found),
        "kinds": {one.kind: {key: value for key, value in asdict(one).items() if key != "kind"} for one in found},
        "machine": machine(),
        "versions": versions(),
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
