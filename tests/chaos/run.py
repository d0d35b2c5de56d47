"""Disturb joma as the world does, and compare with an undisturbed run: `make chaos`.

    python tests/chaos/run.py                        # about 1,000 kills, ten to twenty minutes
    python tests/chaos/run.py --only writer --kills 5000
    python tests/chaos/run.py --record               # and keep the figures in results/chaos.json

Ends with status 1 if anything was lost or wrong. A subject and a seed give the same disturbances again, as far as the
machine's own pace allows. What a test of the suite shows without luck is no subject here.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from chaos import disks, kills, surroundings, writer
from chaos.score import Score, Setting
from chaos.warm import Warm

RECORD = Path(__file__).parents[2] / "results" / "chaos.json"
KILLS = 1000
ROUNDS = {
    "verify": (60, 2), "trainer": (80, 2), "disks": (4, 1), "memory": (12, 1), "scan": (100, 3), "clock": (8, 1),
    "writer": (760, 12),
}  # fmt: skip
"""Of each subject: the kills, or rounds of what is no kill, at 1,000 kills in all, and of the short form, a test."""


SUBJECTS = {
    "verify": partial(kills.disturb, subject="verify", commands=kills.VERIFY),
    "trainer": partial(kills.disturb, subject="trainer", commands=[kills.TRAIN]),
    "scan": partial(kills.disturb, subject="scan", commands=[kills.SCAN]),
    "disks": disks.disturb,
    "memory": surroundings.memory,
    "clock": surroundings.clock,
    "writer": writer.disturb,
}


def disturbed(subject: str, warm: Warm, folder: Path, count: int, seed: int, *, short: bool = False) -> Score:
    """One subject, with dice of its own."""
    start = time.perf_counter()
    place = folder / subject
    place.mkdir(parents=True)
    setting = Setting(place, random.Random(f"{seed} {subject}"), warm, count, short)
    try:
        score: Score = SUBJECTS[subject](setting)
    except Exception as error:  # the others go on; a process that hangs is one of these
        score = Score(subject)
        score.err(f"the subject broke: {type(error).__name__}: {error}")
    score.seconds = time.perf_counter() - start
    root = f"{RECORD.parents[1]}/"
    score.notes = [note.replace(str(folder), "FOLDER").replace(root, "") for note in score.notes]
    return score


def table(scores: list[Score]) -> str:
    head = ("subject", "disturbances", "kills", "lost", "wrong", "odd endings", "seconds")
    rows = [(s.subject, s.disturbances, s.kills, s.lost, s.wrong, s.odd, round(s.seconds)) for s in scores]
    rows.append(("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])))
    widths = [max(len(str(row[at])) for row in [head, *rows]) for at in range(len(head))]
    return "\n".join("  ".join(str(c).rjust(w) for c, w in zip(row, widths, strict=True)) for row in [head, *rows])


def record(scores: list[Score], kills: int, seed: int) -> None:
    from joma.runs.machine import machine, versions

    content = {
        "command": f"python tests/chaos/run.py --kills {kills} --seed {seed} --record",
        "date": datetime.now(UTC).date().isoformat(),
        "commit": versions()["commit"],
        "machine": machine(),
        "versions": versions(),
        "seed": seed,
        **{name: sum(getattr(score, name) for score in scores) for name in ("kills", "disturbances", "lost", "wrong")},
        "odd endings": sum(score.odd for score in scores),
        "subjects": [score.as_json() for score in scores],
    }
    RECORD.write_text(json.dumps(content, indent=1) + "\n")
    print(f"recorded: results/{RECORD.name}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Disturb joma as the world does, and compare with an undisturbed run.")
    parser.add_argument("--kills", type=int, default=KILLS, metavar="N", help=f"in all (default: {KILLS})")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=ROUNDS, metavar="SUBJECT", help=", ".join(ROUNDS))
    parser.add_argument("--record", action="store_true", help=f"write all subjects to results/{RECORD.name}")
    options = parser.parse_args()
    scores = []
    with tempfile.TemporaryDirectory(prefix="joma-chaos-") as folder, Warm(Path(folder) / "warm") as warm:
        for subject in options.only or ROUNDS:
            count = max(round(ROUNDS[subject][0] * options.kills / KILLS), 1)
            scores.append(score := disturbed(subject, warm, Path(folder), count, options.seed))
            skipped = f"; skipped: {score.skipped[0]}" if score.skipped else ""
            print(f"{subject}: {score.disturbances} disturbances {score.counts}{skipped}", flush=True)
    print(table(scores))
    for score in scores:
        for note in dict.fromkeys(score.notes):
            print(f"{score.subject}: {note}")
    if options.record and not options.only:
        record(scores, options.kills, options.seed)
    return 0 if all(score.sound for score in scores) else 1


if __name__ == "__main__":
    sys.exit(main())
