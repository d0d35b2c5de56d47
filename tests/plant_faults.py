"""Plant faults, one at a time, and see whether the tests catch them: 300, from every room in proportion to its lines.

python tests/plant_faults.py                      # 300 of a fixed draw, and those written by hand; records results/
python tests/plant_faults.py --seed 1             # another 300
python tests/plant_faults.py --list               # what would be planted
python tests/plant_faults.py --only linear/thm2   # all those of one file
python tests/plant_faults.py --again RECORD       # those of a record; with --missed those it missed

A fault is a small change of a kind that engineers make (planting/kinds.py): an index one off, a sign, an axis, a
control dropped, one seed for all, a state that is not renewed. First all tests of `make unit` run once and are watched,
to know which of them run which function; --watched FOLDER keeps that, or takes what is there. Then each fault is
planted in a copy of the tree, and the tests that its function selects (planting/selection.py) must fail. Faults that
change nothing are named, each with its reason, in planting/equivalent.py; they are neither planted nor counted. What is
drawn is left alone: that is looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from cores import cores
from planting.equivalent import EQUIVALENT
from planting.fault import Fault, draw, faults_of, lines_of_rooms, named
from planting.plant import plant
from planting.selection import ROOT, SOURCE, Selection

FAULTS, SEED, ENOUGH = 300, 0, 0.97


def watch(folder: Path, jobs: int) -> None:
    """Run all tests once and keep in the folder which functions each of them runs."""
    print(f"watching all tests, {jobs} at a time", flush=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "planting.watch",
        "-m",
        "not browser and not long",
    ]
    paths = [str(ROOT / "src"), str(ROOT / "tests"), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = os.environ | {"JOMA_WATCH": str(folder), "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([*command, "-n", str(jobs), "--dist", "worksteal"], cwd=ROOT, env=environment, check=False)


def record(faults: list[Fault], found: dict[str, str], seed: int, path: Path) -> None:
    """Keep the result: rooms, kinds, survivors."""
    from joma.host.files import write_json
    from joma.runs.machine import versions

    def table(of: str) -> dict[str, str]:
        names = sorted({getattr(fault, of) for fault in faults})
        groups = {name: [found[fault.key] for fault in faults if getattr(fault, of) == name] for name in names}
        return {
            name: f"{group.count('caught') + group.count('hung')} of {len(group)}" for name, group in groups.items()
        }

    outcomes = Counter(found.values())
    content = {
        "command": f"python tests/plant_faults.py --seed {seed}",
        "versions": versions(),
        "planted": len(faults),
        "caught": outcomes["caught"] + outcomes["hung"],
        "rooms": table("room"),
        "kinds": table("kind"),
        "survivors": {fault.key: found[fault.key] for fault in faults if found[fault.key] not in ("caught", "hung")},
        "hung": [fault.key for fault in faults if found[fault.key] == "hung"],
        "equivalent": EQUIVALENT,
        "faults": [fault.key for fault in faults],
    }
    write_json(path, content)


def main() -> int:
    """Plant, print, record; status 1 if more than three in a hundred are missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="say what would be planted, and plant nothing")
    parser.add_argument("--only", default="", metavar="PART", help="all faults of the files whose path has this in it")
    parser.add_argument("--sample", action="store_true", help="with --only: a draw of --count from them")
    parser.add_argument("--again", type=Path, metavar="RECORD", help="the faults of a record, where they still stand")
    parser.add_argument("--missed", action="store_true", help="with --again: those alone that no test saw")
    parser.add_argument("--seed", type=int, default=SEED, help="another draw")
    parser.add_argument("--count", type=int, default=FAULTS, help="how many beside those written by hand")
    parser.add_argument("--jobs", type=int, default=cores(), help="how many at a time")
    parser.add_argument("--watched", type=Path, metavar="FOLDER", help="where it is kept which test runs what")
    parser.add_argument("--out", type=Path, help="where the record goes; results/planted_faults.json for a full draw")
    options = parser.parse_args()
    faults = choose(options)
    if not faults:
        sys.exit("there is no fault to plant: no file of src/joma, or no record, has what was asked for")
    if options.list:
        print(*faults, f"{len(faults)} faults", sep="\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        watched = options.watched or Path(folder)
        if not any(watched.glob("*.json")):
            watch(watched, options.jobs)
        selection = Selection(watched)
    found = plant(faults, lambda fault: selection.tests_for(fault.file, fault.scope), options.jobs)
    # Tests of 40 seconds that do not end in minutes have seen the fault too.
    caught = sum(outcome in ("caught", "hung") for outcome in found.values())
    print(f"{caught} of {len(faults)} planted faults were caught ({caught / max(1, len(faults)):.1%})")
    print(
        *(f"{found[fault.key]}  {fault.key}" for fault in faults if found[fault.key] not in ("caught", "hung")),
        sep="\n",
    )
    full = not (options.only or options.again) and options.count == FAULTS
    if options.out or full:
        record(faults, found, options.seed, options.out or ROOT / "results" / "planted_faults.json")
    return 0 if caught >= ENOUGH * len(faults) else 1


def choose(options: argparse.Namespace) -> list[Fault]:
    """The faults that the options ask for."""
    every = [fault for path in sorted(SOURCE.rglob("*.py")) for fault in faults_of(path)]
    unknown = EQUIVALENT.keys() - {fault.key for fault in every}
    if unknown:
        sys.exit("named as equivalent, but not found:\n" + "\n".join(sorted(unknown)))
    general = [fault for fault in every if fault.key not in EQUIVALENT]
    if options.again:
        kept = json.loads(options.again.read_text(encoding="utf-8"))
        wanted = set(kept["survivors" if options.missed else "faults"])
        faults = [fault for fault in [*named(), *general] if fault.key in wanted]
        print(f"{len(faults)} of the {len(wanted)} faults of {options.again} can still be planted")
        return faults
    if options.only:
        those = [fault for fault in general if options.only in fault.file]
        return draw(those, lines_of_rooms(), options.count, options.seed) if options.sample else those
    return [*named(), *draw(general, lines_of_rooms(), options.count, options.seed)]


if __name__ == "__main__":
    sys.exit(main())
