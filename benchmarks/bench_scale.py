"""What an executor costs per task: `local` and `ray` on this machine, with tasks that do nothing, and with checkpoints.

    python benchmarks/bench_scale.py [--record]

Every executor carries out one task, then many; the difference divided by the further tasks is the cost per task, the
time of one task is what starting costs. Both use as many processes as there are cores. Without the extra `ray` only
`local` is measured. What a scan's checkpoints give must be the same in all of them, bit for bit.
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


def seconds(on, count):
    """The time from the call to the last event."""
    tasks = [Task(str(number), {"n": number}) for number in range(count)]
    start = time.perf_counter()
    events = list(executor_of(on, jobs=cores()).events("joma.scale.worker:echo", tasks))
    assert sum(isinstance(event, Done) for event in events) == count
    return time.perf_counter() - start


def empty_tasks(on):
    one, many = (median(seconds(on, count) for _ in range(REPEATS)) for count in (1, TASKS + 1))
    return {
        "what": "tasks that do nothing",
        "on": on,
        "processes": cores(),
        "start_s": round(one, 2),
        "ms_per_task": round(1000 * (many - one) / TASKS, 2),
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
