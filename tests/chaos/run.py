"""Disturb joma as the world does, and compare with an undisturbed run: `make chaos`.

    python tests/chaos/run.py                        # about 1,000 kills, eight to fifteen minutes on two cores
    python tests/chaos/run.py --only writer --kills 5000
    python tests/chaos/run.py --record               # and keep the figures in results/chaos.json

Ends with status 1 if anything was lost or wrong. A subject and a seed give the same disturbances again, as far as the
machine's own pace allows.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from cores import cores

from chaos.score import Score, Setting
from chaos.warm import Warm

RECORD = Path(__file__).parents[2] / "results" / "chaos.json"
KILLS = 1000
SHARES = {
    "writer": 0.578, "trainer": 0.08, "verify": 0.06, "scan": 0.08, "export": 0.12, "report": 0.04,
    "early": 0.008, "unknown": 0.022, "ray": 0.012,
}  # fmt: skip
"""How the kills are shared out: most go where they are cheap."""
ROUNDS = {
    "disks": 4, "two": 12, "lock": 40, "clock": 8, "memory": 12, "bits": 40,
    "index": 20, "galore": 10, "replaced": 10, "swelling": 2, "stores": 30,
}  # fmt: skip
"""Rounds of what is not a kill, at 1,000 kills."""
SHORT = {
    "writer": 12, "trainer": 2, "verify": 2, "scan": 3, "export": 6, "report": 2,
    "disks": 1, "two": 1, "lock": 3, "clock": 1, "memory": 1, "bits": 2,
    "early": 1, "unknown": 2, "index": 1, "galore": 1, "replaced": 1, "swelling": 1,
    "ray": 3, "stores": 3,
}  # fmt: skip
"""Rounds of the short form, which is a test."""
ORDER = (
    "ray", "verify", "report", "early", "trainer", "disks", "memory", "scan", "clock", "two", "bits", "replaced",
    "swelling", "unknown", "export", "writer", "galore", "index", "lock", "stores",
)  # fmt: skip
"""The slow ones first, so that both cores end together."""


def rounds(subject: str, kills: int) -> int:
    """How much of a subject there is in so many kills in all."""
    if subject in SHARES:
        return max(round(SHARES[subject] * kills), 1)
    return max(round(ROUNDS[subject] * kills / KILLS), 1)


def disturbed(subject: str, warm: Warm, folder: Path, count: int, seed: int, *, short: bool = False) -> Score:
    """One subject, with dice of its own."""
    start = time.perf_counter()
    place = folder / subject
    place.mkdir(parents=True)
    setting = Setting(place, random.Random(f"{seed} {subject}"), warm, count, short)
    try:
        score: Score = import_module(f"chaos.{subject}").disturb(setting)
    except Exception as error:  # the others go on; a process that hangs is one of these
        score = Score(subject)
        score.err(f"the subject broke: {type(error).__name__}: {error}")
    score.seconds = time.perf_counter() - start
    root = f"{RECORD.parents[1]}/"
    score.notes = [note.replace(str(folder), "FOLDER").replace(root, "") for note in score.notes]
    return score


def carried_out(subjects: list[str], kills: int, seed: int, jobs: int, *, short: bool) -> Iterator[Score]:
    """The scores as they come, `jobs` subjects at a time."""
    with tempfile.TemporaryDirectory(prefix="joma-chaos-") as folder, ThreadPoolExecutor(jobs) as pool:
        warm = [Warm(Path(folder) / f"warm-{number}") for number in range(jobs)]

        def one(subject: str) -> Score:
            with _taken(warm) as mine:
                count = SHORT[subject] if short else rounds(subject, kills)
                return disturbed(subject, mine, Path(folder), count, seed, short=short)

        for future in [pool.submit(one, subject) for subject in subjects]:
            score = future.result()
            print(_line(score), flush=True)
            yield score
        for each in warm:
            each.close()


@contextmanager
def _taken(idle: list[Warm]) -> Iterator[Warm]:
    mine = idle.pop()
    try:
        yield mine
    finally:
        idle.append(mine)


def _line(score: Score) -> str:
    counts = ", ".join(f"{what} {number:,}" for what, number in sorted(score.counts.items()))
    skipped = f"; skipped: {score.skipped[0]}" if score.skipped else ""
    return f"{score.subject}: {score.disturbances} disturbances in {score.seconds:.0f} s ({counts}){skipped}"


def table(scores: list[Score]) -> str:
    """One row per subject, and their sum."""
    head = ("subject", "disturbances", "kills", "lost", "wrong", "odd endings", "seconds")
    rows = [(s.subject, s.disturbances, s.kills, s.lost, s.wrong, s.odd, round(s.seconds)) for s in scores]
    rows.append(("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])))
    widths = [max(len(str(row[at])) for row in [head, *rows]) for at in range(len(head))]
    return "\n".join("  ".join(str(c).rjust(w) for c, w in zip(row, widths, strict=True)) for row in [head, *rows])


def record(scores: list[Score], kills: int, seed: int) -> None:
    """Keep the figures, and what was noted with the fixes taken out."""
    from joma.runs.machine import machine, versions

    before = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    content = {
        "command": f"python tests/chaos/run.py --kills {kills} --seed {seed} --record",
        "date": datetime.now(UTC).date().isoformat(),
        "commit": versions()["commit"],
        "machine": machine(),
        "versions": versions(),
        "seed": seed,
        "kills": sum(score.kills for score in scores),
        "disturbances": sum(score.disturbances for score in scores),
        "lost": sum(score.lost for score in scores),
        "wrong": sum(score.wrong for score in scores),
        "odd endings": sum(score.odd for score in scores),
        "subjects": [score.as_json() for score in scores],
        "taken out": before.get("taken out", []),
    }
    RECORD.write_text(json.dumps(content, indent=1) + "\n")
    print(f"recorded: results/{RECORD.name}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Disturb joma as the world does, and compare with an undisturbed run.")
    parser.add_argument("--kills", type=int, default=KILLS, metavar="N", help=f"in all (default: {KILLS})")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=ORDER, metavar="SUBJECT", help=", ".join(ORDER))
    parser.add_argument(
        "--jobs", type=int, default=cores(), metavar="N", help="subjects side by side (default: one per core)"
    )
    parser.add_argument("--short", action="store_true", help="the few rounds that are a test")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument(
        "--record", action="store_true", help=f"write them to results/{RECORD.name}, if they are of all subjects"
    )
    options = parser.parse_args()
    subjects = options.only or list(ORDER)
    scores = list(
        carried_out(subjects, options.kills, options.seed, min(options.jobs, len(subjects)), short=options.short)
    )
    print(table(scores))
    for score in scores:
        for note in dict.fromkeys(score.notes):
            print(f"{score.subject}: {note}")
    if options.json:
        options.json.write_text(json.dumps([score.as_json() for score in scores], indent=1) + "\n")
    if options.record and not options.only and not options.short:
        record(scores, options.kills, options.seed)
    return 0 if all(score.sound for score in scores) else 1


if __name__ == "__main__":
    sys.exit(main())
