"""What a scan takes of a weight matrix, stable rank and spectral norm, against the plain loops.

The peers are `eigvalsh(W W^T)` on the smaller side and `svdvals(W)` in float32, one matrix after the other; the ratio
is to the faster one. Errors are against ARPACK in float64. With one thread the time is that of the processor, which
other work on the machine lengthens less; with several it is the fastest of some rounds, and OMP_NUM_THREADS must be as
many. Every row has the load of the machine.

    OMP_NUM_THREADS=1 python benchmarks/bench_leading.py [--widths 256,512] [--rounds 5] [--record]
    OMP_NUM_THREADS=2 python benchmarks/bench_leading.py --threads 2 ...
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial

import torch
from _record import record
from scipy.sparse.linalg import LinearOperator, eigsh

from joma.measure.registry import leading_spectrum


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--widths", default="256,512,1024,2048,4096")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    rows = []
    torch.set_num_threads(options.threads)
    for width in map(int, options.widths.split(",")):
        for shape in ((4 * width, width), (width, width)):
            rows.append(measure(shape, options.threads, options.rounds))
            print(json.dumps(rows[-1]), flush=True)
    record("leading", rows, on="" if options.threads == 1 else f"{options.threads}_threads")


def measure(shape: tuple[int, int], threads: int, rounds: int) -> dict[str, object]:
    """One shape, Gaussian: no gap at its top, which is the hard case."""
    w = torch.randn(*shape, generator=torch.Generator().manual_seed(0)) / shape[1] ** 0.5
    clock = time.process_time if threads == 1 else time.perf_counter
    ways = {"joma": partial(joma, w), "eigvalsh": partial(eigvalsh, w), "svdvals": partial(svdvals, w)}
    times, found = dict.fromkeys(ways, float("inf")), {}
    for turn in range(rounds * max(1, 1024 // min(shape)) ** 2):  # small ones take no time
        for name, way in ways.items():
            if name == "svdvals" and turn and times[name] > 3 * times["eigvalsh"]:
                continue  # it is not the faster one, and takes minutes
            times[name], found[name] = faster(times[name], way, clock)
    true = exact(w)
    return {
        "shape": f"{shape[0]}x{shape[1]}",
        "threads": threads,
        **{f"{name}_ms": round(1e3 * seconds, 2) for name, seconds in times.items()},
        "ratio": round(times["joma"] / min(times["eigvalsh"], times["svdvals"]), 3),
        "load": round(os.getloadavg()[0], 1),
        **{f"{name}_error": float(f"{abs(rank / true - 1):.1e}") for name, rank in found.items()},
    }


def faster(best: float, way: Callable[[], float], clock: Callable[[], float]) -> tuple[float, float]:
    begin = clock()
    found = way()
    return min(best, max(clock() - begin, 1e-9)), found  # a clock of processes may be too coarse for a tiny one


def joma(w: torch.Tensor) -> float:
    return leading_spectrum(w, torch.Generator().manual_seed(0))[0]


def eigvalsh(w: torch.Tensor) -> float:
    gram = w @ w.mT if w.shape[0] < w.shape[1] else w.mT @ w
    squares = torch.linalg.eigvalsh(gram)
    return float(squares.sum() / squares[-1])


def svdvals(w: torch.Tensor) -> float:
    squares = torch.linalg.svdvals(w).square()
    return float(squares.sum() / squares[0])


def exact(w: torch.Tensor) -> float:
    wide = w.double().numpy()
    times = LinearOperator((w.shape[1],) * 2, matvec=lambda x: wide.T @ (wide @ x), dtype=wide.dtype)
    return float((wide**2).sum() / eigsh(times, k=1, tol=1e-10, return_eigenvectors=False)[0])


if __name__ == "__main__":
    main()
