"""What does it cost to record one step (24 x 16 x 8 float32, 12 kB) so that a kill loses nothing?

Run against three ways of doing it by hand, side by side on the same disk (that of TMPDIR): one .npy file a step,
torch.save of the whole history at every step (which grows with it), and plain SQLite in autocommit with
synchronous=FULL, which promises more: it also survives a power cut.

    python benchmarks/bench_runs.py [--record]
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from _record import record

from joma.runs import Run

STEP = np.random.default_rng(0).standard_normal((24, 16, 8)).astype(np.float32)

Recorder = Callable[[int, np.ndarray], object]


def with_run(folder: Path) -> Recorder:
    run = Run.create(folder / "a.joma", study="bench", config={})
    return lambda step, value: run.append("x", step, value)


def with_npy_files(folder: Path) -> Recorder:
    def write(step: int, value: np.ndarray) -> None:
        np.save(folder / "new.npy", value)
        os.replace(folder / "new.npy", folder / f"{step}.npy")

    return write


def with_plain_sqlite(folder: Path) -> Recorder:
    connection = sqlite3.connect(folder / "a.sqlite", isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE x (step INTEGER PRIMARY KEY, data BLOB)")
    return lambda step, value: connection.execute("INSERT INTO x VALUES (?, ?)", (step, value.tobytes()))


def with_torch_save(folder: Path) -> Recorder:
    history: dict[int, torch.Tensor] = {}

    def write(step: int, value: np.ndarray) -> None:
        history[step] = torch.from_numpy(value)
        torch.save(history, folder / "a.new")
        os.replace(folder / "a.new", folder / "a.pt")

    return write


WAYS: dict[str, tuple[Callable[[Path], Recorder], str, int]] = {
    "joma.runs.Run.append": (with_run, "kill", 2000),
    "numpy .npy file a step": (with_npy_files, "kill", 2000),
    "torch.save of the whole history": (with_torch_save, "kill", 80),
    "sqlite3 autocommit, synchronous=FULL": (with_plain_sqlite, "power cut", 100),
}


def measure(name: str, start: Callable[[Path], Recorder], survives: str, steps: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        write, times = start(Path(folder)), []
        for step in range(steps):
            value = STEP + step  # a copy, as a training loop would make
            begin = time.perf_counter()
            write(step, value)
            times.append(1000 * (time.perf_counter() - begin))
    times = times[10:]
    return {
        "way": name,
        "survives": survives,
        "steps": steps,
        "mean_ms": round(statistics.fmean(times), 4),
        "median_ms": round(statistics.median(times), 4),
        "p99_ms": round(statistics.quantiles(times, n=100)[-1], 4),
    }


def main() -> None:
    rows = []
    print(f"{'ms for one step of 12 kB':<38} {'survives':<10} {'mean':>9} {'median':>9} {'p99':>9}")
    for name, (start, survives, steps) in WAYS.items():
        row = measure(name, start, survives, steps)
        rows.append(row)
        numbers = " ".join(f"{row[key]:>9.3f}" for key in ("mean_ms", "median_ms", "p99_ms"))
        print(f"{name:<38} {survives:<10} {numbers}", flush=True)
    record("runs", rows)


if __name__ == "__main__":
    main()
