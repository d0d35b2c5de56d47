"""What an executor costs per task: `local` and `ray` on this machine, with tasks that do nothing, and with checkpoints.

    python benchmarks/bench_scale.py [--record]

Starting costs what passes until the first of 200 tasks ends; a task costs what passes from there to the last, divided
by their number. Both use as many processes as there are cores, and the medians of three sessions count. Without the
extra `ray` only `local` is measured. What a scan's checkpoints give must be the same in all of them, bit for bit.
"""

import hashlib
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch
from _record import record
from safetensors.torch import save_file

from joma.host.threads import cores
from joma.runs import Run
from joma.scale.choosing import executor_of
from joma.scale.task import Done, Task
from joma.scan import scan

TASKS, CHECKPOINTS, REPEATS = 200, 24, 3
SIZES = (512, 2048)


def places():
    return ["local", "ray"] if find_spec("ray") else ["local"]


def ends(on):
    """Seconds from the call to the end of each task, as this process hears of it."""
    tasks = [Task(str(number), {"n": number}) for number in range(TASKS)]
    start = time.perf_counter()
    events = executor_of(on, jobs=cores()).events("joma.scale.worker:echo", tasks)
    return [time.perf_counter() - start for event in events if isinstance(event, Done)]


def empty_tasks(on):
    several = [ends(on) for _ in range(REPEATS)]
    assert all(len(one) == TASKS for one in several)
    return {
        "what": "tasks that do nothing",
        "on": on,
        "processes": cores(),
        "seconds_until_the_first_ends": round(median(one[0] for one in several), 2),
        "ms_per_task": round(1000 * median((one[-1] - one[0]) / (TASKS - 1) for one in several), 2),
    }


def checkpoints(on, source, folder):
    start = time.perf_counter()
    found = scan(source, on=on, jobs=cores() if on else 1, out=Path(folder) / (on or "here"))
    spent = time.perf_counter() - start
    return {
        "what": f"scan of {CHECKPOINTS} checkpoints, {SIZES[0]} x {SIZES[1]}, 4 layers, stable ranks",
        "on": on or "this process, one at a time",
        "processes": cores() if on else 1,
        "seconds": round(spent, 2),
        "record": digest(found.run),
    }


def digest(path):
    """A hash of every number of a record; not of the summary, which holds the time."""
    with Run.open(path) as run:
        arrays = [run.array(name).tobytes() for name in sorted(run.names()) if name != "about"]
    return hashlib.sha256(b"".join(arrays)).hexdigest()[:12]


def make(folder):
    for step in range(CHECKPOINTS):
        generator = torch.Generator().manual_seed(step)
        tensors = {f"h.{n}.mlp.c_fc.weight": torch.randn(*SIZES, generator=generator) for n in range(4)}
        save_file(tensors, f"{folder}/step{step}.safetensors")


def main():
    rows = [empty_tasks(on) for on in places()]
    torch.set_num_threads(1)  # as in the processes of an executor
    with tempfile.TemporaryDirectory() as source, tempfile.TemporaryDirectory() as folder:
        make(source)
        rows += [checkpoints(on, source, folder) for on in (None, *places())]
    for row in rows:
        print(row, flush=True)
    assert len({row["record"] for row in rows if "record" in row}) == 1, "the records differ"
    record("scale", rows)


if __name__ == "__main__":
    sys.exit(main())
