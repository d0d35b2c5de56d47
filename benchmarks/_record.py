"""Keeping what a benchmark measured: results/bench_NAME.json with machine, versions and commit."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from joma.runs.machine import machine, versions

ROOT = Path(__file__).parents[1]


def record(name: str, rows: list[dict[str, object]], *, on: str = "") -> None:
    """Write the rows when the script was called with --record; `on` tells records of several machines apart."""
    if "--record" not in sys.argv[1:]:
        return
    path = _path(name, on)
    path.write_text(json.dumps(_about(name) | {"rows": rows}, indent=1) + "\n")
    print(f"recorded: {path.relative_to(ROOT)}")


def record_in_pieces(name: str, row: dict[str, object], key: tuple[str, ...], *, on: str = "") -> None:
    """Put one row into a record, with --record: for a row with the same entries `key`, in a record of this commit.

    A record of another commit or machine is begun anew.
    """
    if "--record" not in sys.argv[1:]:
        return
    path, about = _path(name, on), _about(name)
    before = json.loads(path.read_text()) if path.is_file() else {}
    same = all(before.get(each) == about[each] for each in ("commit", "machine", "versions"))
    kept = [one for one in before["rows"] if any(one.get(e) != row.get(e) for e in key)] if same else []
    path.write_text(json.dumps(about | {"rows": [*kept, row]}, indent=1) + "\n")


def _path(name: str, on: str) -> Path:
    return ROOT / "results" / f"bench_{name}{on and '_'}{on}.json"


def _about(name: str) -> dict[str, object]:
    return {
        "benchmark": name,
        "command": " ".join(["python", f"benchmarks/bench_{name}.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": os.environ.get("JOMA_COMMIT") or _head(),
        "machine": machine(),
        "versions": versions(),
    }


def _head() -> str | None:
    """The commit, where this is a git checkout; elsewhere JOMA_COMMIT can say it."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return None
    return head or None
