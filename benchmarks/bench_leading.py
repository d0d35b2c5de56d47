"""What a scan takes of a weight matrix, stable rank and spectral norm, against the plain loop.

The peer is `eigvalsh(W W^T)` on the smaller side in float32, one matrix after the other. Errors are against ARPACK in
float64. With one thread the time is that of the processor, which other work on the machine does not lengthen much; with
several it is the fastest of some rounds, and OMP_NUM_THREADS must be as many.

    OMP_NUM_THREADS=1 python benchmarks/bench_leading.py [--widths 256,512,1024,2048,4096] [--rounds 5] [--record]
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial

import torch
from _record import record
from scipy.sparse.linalg import LinearOperator, eigsh

from joma.measure.registry import leading_spectrum


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--widths", default="256,512,1024")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    rows = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        for width in map(int, options.widths.split(",")):
            rows += [measure(shape, threads, options.rounds) for shape in ((4 * width, width), (width, width))]
            for row in rows[-2:]:
                print(json.dumps(row), flush=True)
    record("leading", rows)


def measure(shape: tuple[int, int], threads: int, rounds: int) -> dict[str, object]:
    """One shape, Gaussian: no gap at its top, which is the hard case."""
    w = torch.randn(*shape, generator=torch.Generator().manual_seed(0)) / shape[1] ** 0.5
    clock = time.process_time if threads == 1 else time.perf_counter
    ways = {"joma": partial(joma, w), "plain": partial(plain, w)}
    times, found = dict.fromkeys(ways, float("inf")), {}
    for _ in range(rounds):
        for name, way in ways.items():
            times[name], found[name] = faster(times[name], way, clock)
    true = exact(w)
    return {
        "shape": f"{shape[0]}x{shape[1]}",
        "threads": threads,
        **{f"{name}_ms": round(1e3 * seconds, 2) for name, seconds in times.items()},
        "ratio": round(times["joma"] / times["plain"], 3),
        **{f"{name}_error": float(f"{abs(rank / true - 1):.1e}") for name, rank in found.items()},
    }


def faster(best: float, way: Callable[[], float], clock: Callable[[], float]) -> tuple[float, float]:
    begin = clock()
    found = way()
    return min(best, clock() - begin), found


def joma(w: torch.Tensor) -> float:
    return leading_spectrum(w, torch.Generator().manual_seed(0))[0]


def plain(w: torch.Tensor) -> float:
    gram = w @ w.mT if w.shape[0] < w.shape[1] else w.mT @ w
    squares = torch.linalg.eigvalsh(gram)
    return float(squares.sum() / squares[-1])


def exact(w: torch.Tensor) -> float:
    wide = w.double().numpy()
    times = LinearOperator((w.shape[1],) * 2, matvec=lambda x: wide.T @ (wide @ x), dtype=wide.dtype)
    return float((wide**2).sum() / eigsh(times, k=1, tol=1e-10, return_eigenvectors=False)[0])


if __name__ == "__main__":
    main()
