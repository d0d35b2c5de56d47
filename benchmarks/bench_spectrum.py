"""Stable rank with its certificate against a full SVD, Gram + eigenvalues and plain power iteration.

"full SVD of each layer" is what WeightWatcher does for every layer; here it is torch.linalg.svdvals, the singular
values alone, which is faster than the SVD with vectors. The floor is one read of the matrix; up to a smaller side of
1280 on a CPU and 16384 elsewhere the Gram matrix is formed, and one product w w^T is what that costs at most.

    python benchmarks/bench_spectrum.py [--sizes 1024x4096] [--cores 2] [--cuda-sizes 4096x16384,1024x4096] [--record]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch
from _record import record

from joma.measure.spectrum import effective_rank, spectrum

ROUNDS = 7


def fastest(ways: dict[str, Callable[[], object]], device: str) -> dict[str, float]:
    """The fastest of several rounds in milliseconds, each way once a round.

    Other work on the machine only ever adds, and comes and goes: ways measured one after the other would meet it
    unequally.
    """
    best = dict.fromkeys(ways, float("inf"))
    for turn in range(ROUNDS + 1):
        for name, call in ways.items():
            begin = time.perf_counter()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn:  # the first round warms up
                best[name] = min(best[name], 1e3 * (time.perf_counter() - begin))
    return best


def power_iteration(w: torch.Tensor, steps: int = 100) -> torch.Tensor:
    """Without an error bound; 100 steps are 0.07 % off on a Gaussian matrix."""
    v = torch.randn(w.shape[-1], 1, device=w.device, generator=torch.Generator(w.device).manual_seed(0))
    for _ in range(steps):
        u = w @ v
        v = w.mT @ (u / u.norm())
        sigma = v.norm()
        v = v / sigma
    return (torch.linalg.matrix_norm(w) / sigma) ** 2


def measure(rows: int, columns: int, device: str) -> dict[str, object]:
    w = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)).to(device)
    found = spectrum(w)
    true = (torch.linalg.matrix_norm(w.double()) / torch.linalg.svdvals(w.double())[0]) ** 2
    narrow = w.bfloat16()
    times = fastest(
        {
            "spectrum": lambda: spectrum(w),
            "spectrum_warm": lambda: spectrum(w, start=found.vectors),
            "spectrum_bf16": lambda: spectrum(narrow),
            "svdvals": lambda: torch.linalg.svdvals(w),
            "gram_eigvalsh": lambda: torch.linalg.eigvalsh(w @ w.mT),
            "power_iteration_100": lambda: power_iteration(w),
            "effective_rank": lambda: effective_rank(w),
            "one_read": lambda: w.sum(),
            "gram": lambda: w @ w.mT,
        },
        device,
    )
    row: dict[str, object] = {
        "size": f"{rows}x{columns}",
        "device": torch.cuda.get_device_name() if device == "cuda" else f"cpu, {torch.get_num_threads()} threads",
        "error": abs(float(found.stable_rank / true) - 1),
        "certified": float(found.error[0]),
        "failure": 1 - found.probability,
        "iterations": int(found.iterations),
        **{f"{name}_ms": value for name, value in times.items()},
        "times_faster_than_full_svd": times["svdvals"] / times["spectrum"],
        "times_one_gram": times["spectrum"] / times["gram"],
    }
    for key, value in row.items():
        print(f"  {key:>28}  {value:.4g}" if isinstance(value, float) else f"  {key:>28}  {value}")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1024x4096", help="comma-separated ROWSxCOLUMNS, on the CPU; '' for none")
    parser.add_argument("--cores", type=int, default=2, help="of the CPU that are used")
    parser.add_argument("--cuda-sizes", default="", help="the same on a GPU")
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    every, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, sorted(every)[: arguments.cores])  # before torch starts its threads
    torch.set_num_threads(min(arguments.cores, len(every)))
    results = [measure(*size, "cpu") for size in sizes(arguments.sizes)]
    os.sched_setaffinity(0, every)
    torch.set_num_threads(threads)
    results += [measure(*size, "cuda") for size in sizes(arguments.cuda_sizes)]
    record("spectrum", results)


def sizes(words: str) -> list[tuple[int, int]]:
    return [(int(rows), int(columns)) for rows, columns in (word.split("x") for word in words.split(",") if word)]


if __name__ == "__main__":
    main()
