"""Stable rank with its certificate against a full SVD, Gram + eigenvalues and plain power iteration.

"full SVD of each layer" is what WeightWatcher does for every layer; here it is torch.linalg.svdvals, the singular
values alone, which is faster than the SVD with vectors. The floor is one read of the matrix; Lanczos reads it
2 x iterations times, and how far it is from doing only that is the last column.

    python benchmarks/bench_spectrum.py [--device cuda] [--sizes 4096x16384,1024x4096] [--record]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from _record import record

from joma.measure.spectrum import effective_rank, spectrum

REPEATS = 7


def seconds(call: Callable[[], object], device: str, repeats: int = REPEATS) -> float:
    """The fastest of several runs, after one to warm up: other work on the machine only ever adds."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times[1:])


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
    lanczos = seconds(lambda: spectrum(w), device)
    warm = seconds(lambda: spectrum(w, start=found.vectors), device)
    sixteen_bit = seconds(lambda: spectrum(w.bfloat16()), device)
    svd = seconds(lambda: torch.linalg.svdvals(w), device, repeats=2)
    gram = seconds(lambda: torch.linalg.eigvalsh(w @ w.mT), device, repeats=2)
    power = seconds(lambda: power_iteration(w), device, repeats=2)
    effective = seconds(lambda: effective_rank(w), device, repeats=2)
    block = torch.randn(rows, 8, device=device)
    reads = int(found.iterations) * (
        seconds(lambda: block.mT @ w, device) + seconds(lambda: w @ torch.empty(columns, 8, device=device), device)
    )
    floor = seconds(lambda: w.sum(), device)
    row: dict[str, object] = {
        "size": f"{rows}x{columns}",
        "device": torch.cuda.get_device_name() if device == "cuda" else f"cpu, {torch.get_num_threads()} threads",
        "error": abs(float(found.stable_rank / true) - 1),
        "certified": float(found.error[0]),
        "probability": found.probability,
        "iterations": int(found.iterations),
        "spectrum_ms": 1e3 * lanczos,
        "spectrum_warm_ms": 1e3 * warm,
        "spectrum_bf16_ms": 1e3 * sixteen_bit,
        "svdvals_ms": 1e3 * svd,
        "gram_eigvalsh_ms": 1e3 * gram,
        "power_iteration_100_ms": 1e3 * power,
        "effective_rank_ms": 1e3 * effective,
        "one_read_ms": 1e3 * floor,
        "products_alone_ms": 1e3 * reads,
        "times_faster_than_full_svd": svd / lanczos,
        "times_the_products_alone": lanczos / reads,
    }
    for key, value in row.items():
        print(f"  {key:>28}  {value:.4g}" if isinstance(value, float) else f"  {key:>28}  {value}")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", default="1024x4096", help="comma-separated ROWSxCOLUMNS")
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    sizes = [tuple(map(int, size.split("x"))) for size in arguments.sizes.split(",")]
    record("spectrum", [measure(*size, arguments.device) for size in sizes])


if __name__ == "__main__":
    main()
