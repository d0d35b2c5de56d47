"""Fuzz everything that joma reads from outside: `python tests/fuzz/fuzz.py 10000` (so many inputs of each kind).

No exception but the documented one, nothing over 2 s of work or 500 MB. An input whose outcome is new, by the words of
its refusal, becomes a seed itself: so the search goes deeper than single changes. The same number gives the same
inputs. What surprises is kept under --keep, and belongs into the tests.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from target import Target
from targets import TARGETS

from joma.runs.machine import machine, versions

SECONDS, MEGABYTES, STUCK = 2.0, 500.0, 30
STUCK_ANYWHERE = 600  # seconds, on a machine of any speed
_MOST_SEEDS = 400


class Stuck(Exception):
    """An input took so long that it was given up."""


@dataclass
class Outcome:
    """What became of the inputs of one kind."""

    kind: str
    inputs: int = 0
    refused: int = 0
    accepted: int = 0
    outcomes: int = 0
    """Different ones, as the sentences tell."""
    slowest: float = 0.0
    """Seconds of work."""
    grown: float = 0.0
    """Megabytes by which the process grew at most, at one input."""
    surprises: list[str] = field(default_factory=list)


def fuzz(
    kind: str,
    count: int,
    folder: Path,
    *,
    seed: int = 0,
    keep: Path | None = None,
    timed: bool = True,
) -> Outcome:
    """Feed `count` spoiled inputs of a kind; the same seed gives the same ones.

    timed: slow ones surprise.
    """
    target, random = TARGETS[kind], Random(f"{kind} {seed}")
    pool = target.seeds(folder)
    assert pool, f"{kind} has no seeds"
    for content in pool:  # honest ones are read
        assert _fed(target, content, folder, timed)[0] in ("accepted", "refused"), kind
    outcome, known, honest = Outcome(kind), set[str](), len(pool)
    for number in range(count):
        near = random.random() < 0.5  # to an honest input: what is spoiled already hardly gets further
        content = target.spoil(random.choice(pool[:honest] if near else pool), random, pool)
        if keep is not None:
            (keep / f"{kind}.last").write_bytes(content)  # if the process dies, this is why
        before, start = _megabytes(), process_time()
        verdict, words = _fed(target, content, folder, timed)
        seconds, grown = process_time() - start, _megabytes() - before
        outcome.slowest, outcome.grown = max(outcome.slowest, seconds), max(outcome.grown, grown)
        outcome.inputs += 1
        outcome.refused += verdict == "refused"
        outcome.accepted += verdict == "accepted"
        if verdict == "surprise" or (timed and seconds > SECONDS) or grown > MEGABYTES:
            outcome.surprises.append(f"{kind} {number}: {words} ({seconds:.1f} s, {grown:.0f} MB)")
            if keep is not None:
                (keep / f"{kind}-{number}").write_bytes(content)
        new = words not in known
        known.add(words)
        if new and len(pool) < _MOST_SEEDS and len(content) < 200_000:
            pool.append(content)
    outcome.outcomes = len(known)
    return outcome


def _fed(target: Target, content: bytes, folder: Path, timed: bool) -> tuple[str, str]:
    """What happened, and in words without names and numbers."""
    try:
        with _not_for_ever(STUCK if timed else STUCK_ANYWHERE):
            target.read(content, folder)
        return "accepted", "accepted"
    except target.may_raise as error:
        said = str(error)
        if "\n" in said.replace(str(folder), "") and target.may_raise[0].__name__ != "DamagedError":
            return "surprise", f"more than one line: {said[:200]!a}"
        return "refused", re.sub(r"[0-9]+|'[^']*'|\"[^\"]*\"|/\S*|\\\S*", "", said)[:120]
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        return "surprise", f"{type(error).__name__}: {str(error)[:200]!a} at {Path(place.filename).name}:{place.lineno}"


@contextmanager
def _not_for_ever(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Stuck(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=1000)
    parser.add_argument("--kinds", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for the inputs that surprise")
    parser.add_argument(
        "--json", type=Path, help="where to write the counts; kinds that are there already are added up"
    )
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    failed = False
    for kind in options.kinds:
        with tempfile.TemporaryDirectory() as folder:
            outcome = fuzz(kind, options.count, Path(folder), seed=options.seed, keep=options.keep)
        failed |= bool(outcome.surprises)
        print(
            f"{kind:12} {outcome.inputs:7,} inputs: {outcome.refused:,} refused, {outcome.accepted:,} accepted, "
            f"{outcome.outcomes} outcomes, {len(outcome.surprises)} surprises; slowest {outcome.slowest:.2f} s",
            flush=True,
        )
        for words in outcome.surprises[:20]:
            print(f"    {words}")
        if options.json:
            _add(options.json, outcome)
    return int(failed)


def _add(path: Path, outcome: Outcome) -> None:
    """Counts of several calls, one after another."""
    content = json.loads(path.read_text()) if path.exists() else {"kinds": {}}
    new = asdict(outcome)
    old = content["kinds"].get(outcome.kind)
    if old:
        summed = {key: old[key] + new[key] for key in ("inputs", "refused", "accepted", "surprises")}
        most = {key: max(old[key], new[key]) for key in ("outcomes", "slowest", "grown")}
        new = {**new, **summed, **most}
    rounded = {"slowest": round(new["slowest"], 3), "grown": round(new["grown"], 1)}
    content["kinds"][outcome.kind] = {**new, **rounded, "versions": versions()}
    content["inputs"] = sum(kind["inputs"] for kind in content["kinds"].values())
    content["limits"] = {"seconds": SECONDS, "megabytes": MEGABYTES}
    content = {"machine": machine(), "versions": versions()} | content  # of the first kinds; later ones tell their own
    content["surprises"] = sum(len(kind["surprises"]) for kind in content["kinds"].values())
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
