"""What a scan takes of weight matrices, stable rank and spectral norm, against the plain loops.

The peers are `eigvalsh(W W^T)` on the smaller side and `svdvals(W)` in float32, one matrix after the other; the ratio
is to the faster one. Of a shape there are as many matrices as make a small model: 16 of width 256, 4 of 512, else one.
joma gets those of width 256 as one stack, as in a scan, and else one after the other. All ways run once before they are
timed, with the same threads, in turns; the fastest of some rounds counts. Errors are against ARPACK in float64. With
one thread the time is that of the processor, which other work on the machine lengthens less. OMP_NUM_THREADS must be
the number of threads. Every row has the load of the machine, and is recorded as soon as it is there.

    OMP_NUM_THREADS=1 python benchmarks/bench_leading.py [--widths 256,512] [--seconds 3] [--record]
    OMP_NUM_THREADS=2 taskset -c 0,1 python benchmarks/bench_leading.py --threads 2 ...
"""

import argparse
import json
import os
import time

import torch
from _record import record_in_pieces
from scipy.sparse.linalg import LinearOperator, eigsh

from joma.measure.registry import MEASURES, WeightMeasure, leading_spectrum

STACKED = 256  # The largest width of which a scan takes stacks.
BY_SVD = 1024  # Beyond, svdvals is never the faster peer, and takes minutes.


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--widths", default="256,512,1024,2048,4096")
    parser.add_argument("--seconds", type=float, default=3, help="for the rounds of a shape; there are two at least")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for width in map(int, options.widths.split(",")):
        for shape in ((4 * width, width), (width, width)):
            row = measure(shape, options.threads, options.seconds)
            print(json.dumps(row), flush=True)
            on = "" if options.threads == 1 else f"{options.threads}_threads"
            record_in_pieces("leading", row, ("shape",), on=on)


def measure(shape: tuple[int, int], threads: int, seconds: float) -> dict[str, object]:
    """One shape, Gaussian: no gap at its top, which is the hard case. Times of one matrix, the largest error of all."""
    count = max(1, 1024 // max(256, min(shape))) ** 2
    stack = torch.randn(count, *shape, generator=torch.Generator().manual_seed(0)) / shape[1] ** 0.5
    clock = time.process_time if threads == 1 else time.perf_counter
    ways = {"joma": joma, "eigvalsh": eigvalsh, "svdvals": svdvals}
    if shape[1] > BY_SVD:
        del ways["svdvals"]
    found = {name: way(stack) for name, way in ways.items()}
    fastest = dict.fromkeys(ways, float("inf"))
    begin, rounds = time.perf_counter(), 0
    while rounds < 2 or (time.perf_counter() - begin < seconds and rounds < 20):
        rounds += 1
        for name, way in ways.items():
            if name == "svdvals" and rounds > 2 and fastest[name] > 2 * fastest["eigvalsh"]:
                continue
            start = clock()
            way(stack)
            fastest[name] = min(fastest[name], clock() - start)
    times = {name: max(each / count, 1e-9) for name, each in fastest.items()}  # the clock may be coarse
    true = [exact(w) for w in stack]
    return {
        "shape": f"{shape[0]}x{shape[1]}",
        "matrices": count,
        "threads": threads,
        "rounds": rounds,
        **{f"{name}_ms": round(1e3 * each, 2) for name, each in times.items()},
        "ratio": round(times["joma"] / min(each for name, each in times.items() if name != "joma"), 3),
        "load": round(os.getloadavg()[0], 1),
        **{
            f"{name}_error": float(f"{max(abs(a / b - 1) for a, b in zip(ranks, true, strict=True)):.1e}")
            for name, ranks in found.items()
        },
    }


def joma(stack: torch.Tensor) -> list[float]:
    measure = MEASURES["stable_rank"]
    if isinstance(measure, WeightMeasure) and measure.stacked and min(stack.shape[1:]) <= STACKED:
        return [rank for rank, _ in measure.stacked(stack)]
    return [leading_spectrum(w, torch.Generator().manual_seed(0))[0] for w in stack]


def eigvalsh(stack: torch.Tensor) -> list[float]:
    def one(w: torch.Tensor) -> float:
        squares = torch.linalg.eigvalsh(w @ w.mT if w.shape[0] < w.shape[1] else w.mT @ w)
        return float(squares.sum() / squares[-1])

    return [one(w) for w in stack]


def svdvals(stack: torch.Tensor) -> list[float]:
    def one(w: torch.Tensor) -> float:
        squares = torch.linalg.svdvals(w).square()
        return float(squares.sum() / squares[0])

    return [one(w) for w in stack]


def exact(w: torch.Tensor) -> float:
    wide = w.double().numpy()
    times = LinearOperator((w.shape[1],) * 2, matvec=lambda x: wide.T @ (wide @ x), dtype=wide.dtype)
    # A residual of 1e-6 is an error of the value near 1e-11.
    return float((wide**2).sum() / eigsh(times, k=1, tol=1e-6, return_eigenvectors=False)[0])


if __name__ == "__main__":
    main()
