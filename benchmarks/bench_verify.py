"""`joma verify` at quick scale: all studies one after another and side by side, on every core there is.

    python benchmarks/bench_verify.py [--record]

The floor is the processor time of all studies divided by the cores. Verdicts and numbers of both must be the same.
Memory is the most that all processes together held, read from /proc five times a second (shared pages counted in each).
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _record import record

from joma.host.threads import cores

PAGE = os.sysconf("SC_PAGE_SIZE")


def tree_memory(root):
    """Bytes in memory of a process and all that come from it."""
    parents, held = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                held[int(entry.name)] = int((entry / "statm").read_text().split()[1]) * PAGE
            except (OSError, IndexError):  # it ended meanwhile
                continue
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(held.get(pid, 0) for pid in family)


def verify(jobs, out):
    before, start = os.times(), time.perf_counter()
    command = [sys.executable, "-m", "joma", "verify", "-j", str(jobs), "--out", str(out)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    most = 0
    while running.poll() is None:
        most = max(most, tree_memory(running.pid))
        time.sleep(0.2)
    seconds, after = time.perf_counter() - start, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert running.returncode == 0
    return {
        "jobs": jobs,
        "seconds": round(seconds, 1),
        "processor_seconds": round(spent, 1),
        "times_the_floor": round(seconds / (spent / jobs), 3),
        "memory_GB": round(most / 1e9, 2),
    }


def evidence(out):
    studies = json.loads((out / "findings.json").read_text())["studies"]
    return {finding["id"]: finding["evidence"] for study in studies for finding in study["findings"]}


def main():
    rows, found = [], []
    with tempfile.TemporaryDirectory() as folder:
        for jobs in dict.fromkeys((1, cores())):
            rows.append(verify(jobs, Path(folder) / str(jobs)))
            found.append(evidence(Path(folder) / str(jobs)))
            print(rows[-1], flush=True)
    same = sum(found[0][name] == found[-1][name] for name in found[0])
    rows.append({"what": "findings with the same numbers to the bit", "count": same, "of": len(found[0])})
    print(rows[-1])
    record("verify", rows)


if __name__ == "__main__":
    main()
