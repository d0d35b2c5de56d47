"""What a scan takes of a weight matrix, stable rank and spectral norm, against the plain loops.

The peers are `eigvalsh(W W^T)` on the smaller side and `svdvals(W)` in float32, one matrix after the other; the ratio
is to the faster one. Each takes as many matrices of a shape in a row as make a small model: 16 of width 256, 4 of 512.
Errors are against ARPACK in float64. With one thread the time is that of the processor, which other work on the machine
lengthens less; of every matrix the fastest of some rounds counts. OMP_NUM_THREADS must be the number of threads. Every
row has the load of the machine.

    OMP_NUM_THREADS=1 python benchmarks/bench_leading.py [--widths 256,512] [--rounds 5] [--record]
    OMP_NUM_THREADS=2 python benchmarks/bench_leading.py --threads 2 ...
"""

import argparse
import json
import os
import time

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
    """One shape, Gaussian: no gap at its top, which is the hard case. Times of one matrix, the largest error of all."""
    count = max(1, 1024 // max(256, min(shape))) ** 2
    stack = torch.randn(count, *shape, generator=torch.Generator().manual_seed(0)) / shape[1] ** 0.5
    clock = time.process_time if threads == 1 else time.perf_counter
    ways = {"joma": joma, "eigvalsh": eigvalsh, "svdvals": svdvals}
    found = {name: [0.0] * count for name in ways}
    fastest = {name: [float("inf")] * count for name in ways}
    for turn in range(rounds):
        for name, way in ways.items():
            if name == "svdvals" and turn and fastest[name] > [3 * seconds for seconds in fastest["eigvalsh"]]:
                continue  # it is not the faster one, and takes minutes
            for i, w in enumerate(stack):
                begin = clock()
                found[name][i] = way(w)
                fastest[name][i] = min(fastest[name][i], clock() - begin)
    times = {name: max(sum(seconds) / count, 1e-9) for name, seconds in fastest.items()}  # the clock may be coarse
    true = [exact(w) for w in stack]
    return {
        "shape": f"{shape[0]}x{shape[1]}",
        "matrices": count,
        "threads": threads,
        **{f"{name}_ms": round(1e3 * seconds, 2) for name, seconds in times.items()},
        "ratio": round(times["joma"] / min(times["eigvalsh"], times["svdvals"]), 3),
        "load": round(os.getloadavg()[0], 1),
        **{
            f"{name}_error": float(f"{max(abs(a / b - 1) for a, b in zip(ranks, true, strict=True)):.1e}")
            for name, ranks in found.items()
        },
    }


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
