"""Plant faults, one at a time, and see whether the tests catch them: 300, each room by its length.

python tests/plant_faults.py                      # 300 of a draw that the commit chooses, and those written by hand
python tests/plant_faults.py --seed 1             # another 300
python tests/plant_faults.py --list               # what would be planted
python tests/plant_faults.py --only linear/thm2   # all those of one file; with --sample a draw of --count
python tests/plant_faults.py --again RECORD       # those of a record; with --missed those it missed

A fault is a small change of a kind that engineers make (planting/kinds.py, for pages planting/javascript_kinds.py): an
index one off, a sign, an axis, a control dropped, one seed for all, a state that is not renewed. First the tests of
`make unit` run once and are watched, to know which of them run which function. Then each fault is planted in a copy
of the tree, and the tests that its function selects (planting/selection.py) must fail. What is drawn is left alone:
that is looked at. Faults that change nothing are named, each with its reason, in planting/equivalent.json.

It can be done in pieces, on a machine that lends itself for minutes. The first piece watches the tests, too:

python tests/plant_faults.py --watched watched.json.gz --minutes 8 --out planted.json    # again and again
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cores import cores
from planting.fault import Fault, draw, faults_of, lengths_of_rooms, named, sources
from planting.plant import plant
from planting.selection import ROOT, Selection, gathered

FAULTS, ENOUGH = 300, 0.97
EQUIVALENT: dict[str, str] = json.loads((ROOT / "tests/planting/equivalent.json").read_text(encoding="utf-8"))
QUICK = "not browser and not long"
SEEN = ("caught", "hung")
"""Tests of 40 seconds that do not end in minutes have seen the fault too."""


def watch(folder: Path, options: argparse.Namespace) -> None:
    """Run the tests once, all or those of some rooms, and keep in the folder which functions each of them runs."""
    rooms = list(filter(None, options.rooms.split(",")))
    print(f"watching {', '.join(rooms) or 'all tests'}, {options.jobs} at a time", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "planting.watch", *marked(options),
               "-n", str(options.jobs), "--dist", "worksteal", *(f"tests/{room}" for room in rooms)]  # fmt: skip
    paths = [str(ROOT / "src"), str(ROOT / "tests"), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = os.environ | {"JOMA_WATCH": str(folder), "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run(command, cwd=ROOT, env=environment, check=False)


def marked(options: argparse.Namespace) -> list[str]:
    """Which tests, for pytest."""
    return [] if options.all else ["-m", QUICK]


def watched_tests(options: argparse.Namespace) -> dict[str, Any]:
    """What the tests run: as it is kept, or watched now."""
    if options.watched and options.watched.is_file():
        kept: dict[str, Any] = json.loads(gzip.decompress(options.watched.read_bytes()))
        return kept
    with tempfile.TemporaryDirectory() as folder:
        watch(Path(folder), options)
        content = gathered(Path(folder))
    print(f"{len(content['tests'])} test functions were watched; {len(content['failed'])} tests failed: left out")
    if options.watched:
        options.watched.parent.mkdir(parents=True, exist_ok=True)
        options.watched.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
    return content


def record(faults: list[Fault], found: dict[str, str], options: argparse.Namespace, failed: list[str]) -> None:
    """Keep the result: rooms, kinds, survivors, and what waits."""
    from joma.host.file_kinds import OWN
    from joma.host.files import write_json
    from joma.runs.machine import versions

    done = [fault for fault in faults if fault.key in found]

    def table(of: str) -> dict[str, str]:
        groups: dict[str, list[bool]] = {}
        for fault in done:
            groups.setdefault(getattr(fault, of), []).append(found[fault.key] in SEEN)
        return {name: f"{sum(groups[name])} of {len(groups[name])}" for name in sorted(groups)}

    content = {
        "command": f"python tests/plant_faults.py --seed {options.seed}" + (" --all" if options.all else ""),
        "seed": options.seed,
        "versions": versions(),
        "planted": len(done),
        "caught": sum(found[fault.key] in SEEN for fault in done),
        "rooms": table("room"),
        "kinds": table("kind"),
        "survivors": {fault.key: found[fault.key] for fault in done if found[fault.key] not in SEEN},
        "hung": [fault.key for fault in done if found[fault.key] == "hung"],
        "waiting": [fault.key for fault in faults if fault.key not in found],
        "failed where nothing was wrong": failed,
        "equivalent": EQUIVALENT,
        "faults": [fault.key for fault in faults],
    }
    write_json(options.out, content, OWN)


def outcomes(path: Path | None) -> dict[str, str]:
    """What a record that is not finished has found already."""
    if path is None or not path.is_file():
        return {}
    kept = json.loads(path.read_text(encoding="utf-8"))
    if not kept.get("waiting"):
        return {}
    waiting, hung = set(kept["waiting"]), set(kept["hung"])
    return {
        key: kept["survivors"].get(key, "hung" if key in hung else "caught")
        for key in kept["faults"]
        if key not in waiting
    }


def main() -> int:
    """Plant, print, record; status 1 if more than three in a hundred are missed, 3 if some wait."""
    options, start = asked(), time.monotonic()
    if options.watch_only:
        watched_tests(options)
        return 0
    faults = choose(options)
    if not faults:
        sys.exit("there is no fault to plant: no file of src/joma, or no record, has what was asked for")
    if options.list:
        print(*faults, f"{len(faults)} faults", sep="\n")
        return 0
    selection = Selection(watched_tests(options))
    found = outcomes(options.out)
    left = [fault for fault in faults if fault.key not in found and not (options.leave and options.leave in fault.file)]
    given = [*marked(options), *(f"--deselect={test}" for test in selection.failed)]
    left.sort(key=lambda fault: hashlib.sha256(fault.key.encode()).digest())  # chance decides which rooms must wait
    minutes = options.minutes - (time.monotonic() - start) / 60
    found |= plant(left, lambda one: selection.tests_for(one.file, one.scope), options.jobs, minutes, given)
    done = [fault for fault in faults if fault.key in found]
    caught = sum(found[fault.key] in SEEN for fault in done)
    print(f"{caught} of {len(done)} planted faults were caught ({caught / max(1, len(done)):.1%})")
    print(*(f"{found[fault.key]}  {fault.key}" for fault in done if found[fault.key] not in SEEN), sep="\n")
    if options.out:
        record(faults, found, options, selection.failed)
    if len(done) < len(faults):
        print(f"{len(faults) - len(done)} wait: the same command continues with them, where it has an --out")
        return 3
    return 0 if caught >= ENOUGH * len(faults) else 1


def asked() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="say what would be planted, and plant nothing")
    parser.add_argument("--only", default="", metavar="PART,...", help="faults of files with a part in their path")
    parser.add_argument("--sample", action="store_true", help="with --only: a draw of --count from them")
    parser.add_argument("--leave", default="", metavar="PART", help="let faults of such files wait: .js where neither "
                                                                    "Node nor a browser is")  # fmt: skip
    parser.add_argument("--again", type=Path, metavar="RECORD", help="the faults of a record, where they still stand")
    parser.add_argument("--missed", action="store_true", help="with --again: those alone that no test saw")
    parser.add_argument("--all", action="store_true", help="tests of `make test-all`: in a browser, and long ones")
    parser.add_argument("--seed", type=int, help="another draw; else the commit chooses it")
    parser.add_argument("--count", type=int, default=FAULTS, help="how many beside those written by hand")
    parser.add_argument("--jobs", type=int, default=cores(), help="how many at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so long, watching too")
    parser.add_argument("--watched", type=Path, metavar="FILE", help="where it is kept which test runs what")
    parser.add_argument("--watch-only", action="store_true", help="make that file, and plant nothing")
    parser.add_argument("--rooms", default="", metavar="ROOM,...", help="watch the tests of these rooms alone")
    parser.add_argument("--out", type=Path, help="the record; of one with faults that wait, those are planted. "
                                                 "results/planted_faults.json for a full draw")  # fmt: skip
    options = parser.parse_args()
    if options.watch_only and not options.watched:
        parser.error("--watch-only needs --watched FILE to keep what it sees")
    if options.seed is None:
        options.seed = seed_of_the_commit()
    if not (options.out or options.only or options.again) and options.count == FAULTS:
        options.out = ROOT / "results" / "planted_faults.json"
    return options


def seed_of_the_commit() -> int:
    """A draw that nobody chose: whoever writes a test does not know the commit that it will be part of."""
    said = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if not said:
        sys.exit("there is no commit here that could choose the draw: name one with --seed")
    return int(said[:8], 16)


def choose(options: argparse.Namespace) -> list[Fault]:
    """The faults that the options ask for."""
    parts = list(filter(None, options.only.split(",")))
    files = [path for path in sources() if not parts or any(part in path.as_posix() for part in parts)]
    every = [fault for path in files for fault in faults_of(path)]
    general = [fault for fault in every if fault.key not in EQUIVALENT]
    if not parts:
        unknown = EQUIVALENT.keys() - {fault.key for fault in every}
        print(*(f"named as equivalent, but not found: {key}" for key in sorted(unknown)), sep="\n", file=sys.stderr)
    if options.again:
        kept = json.loads(options.again.read_text(encoding="utf-8"))
        wanted = set(kept["survivors" if options.missed else "faults"])
        faults = [fault for fault in [*named(), *general] if fault.key in wanted]
        print(f"{len(faults)} of the {len(wanted)} faults of {options.again} can still be planted")
        return faults
    if parts:
        return draw(general, lengths_of_rooms(), options.count, options.seed) if options.sample else general
    return [*named(), *draw(general, lengths_of_rooms(), options.count, options.seed)]


if __name__ == "__main__":
    sys.exit(main())
