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
    commit = os.environ.get("JOMA_COMMIT") or _head()
    record = {
        "benchmark": name,
        "command": " ".join(["python", f"benchmarks/bench_{name}.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit,
        "machine": machine(),
        "versions": versions(),
        "rows": rows,
    }
    path = ROOT / "results" / f"bench_{name}{on and '_'}{on}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"recorded: {path.relative_to(ROOT)}")


def _head() -> str | None:
    """The commit, where this is a git checkout; elsewhere JOMA_COMMIT can say it."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return None
    return head or None
