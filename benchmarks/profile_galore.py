"""Where the time of GaLore goes on a GPU: kernels and operations of a plain step, of a refresh step, of one search.

python benchmarks/profile_galore.py [--size 60M] [--dtype bfloat16] [--parts step,refresh,search] [--rows 18]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from _galore_training import RANKS, Training, makers, timed
from torch.profiler import ProfilerActivity, profile

from joma.optim import GaLore, find_projector


def show(name: str, call: Callable[[], object], rows: int) -> None:
    """Milliseconds of three calls, then the table of a fourth."""
    call()
    times = [timed(call, "cuda") for _ in range(3)]
    print(f"{name}: {min(times):.2f} ms", flush=True)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    for sort in ("self_cuda_time_total", "self_cpu_time_total"):
        print(found.key_averages().table(sort_by=sort, row_limit=rows, max_name_column_width=48), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="60M")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--parts", default="step,refresh,search")
    parser.add_argument("--rows", type=int, default=18)
    arguments = parser.parse_args()
    begin, parts = time.perf_counter(), arguments.parts.split(",")
    training = Training(makers(arguments.size, "")["galore"], arguments.size, "cuda", getattr(torch, arguments.dtype))
    optimizer = training.optimizer
    assert isinstance(optimizer, GaLore)
    training.train(2)
    training.backward()
    if "step" in parts:
        show("a plain step of the optimizer", training.step, arguments.rows)
    if "refresh" in parts:
        for group in optimizer.param_groups:  # one turn of the refreshes in every step
            group["refresh"] = optimizer.matrices[0].turn[1]
        show("a step of the optimizer with a refresh", training.step, arguments.rows)
    if "search" in parts:
        matrix = optimizer.matrices[0]
        gradient = torch.stack([matrix.parameter.grad.float()] * 4)
        start = torch.stack([matrix.basis.float()] * 4)
        rank = RANKS[arguments.size]
        show("four subspaces, warm", lambda: find_projector(gradient, rank, start=start), arguments.rows)
        for dtype in (torch.float32, torch.float64):
            for count in (1, 4):
                gram = torch.randn(count, rank + 16, 2 * rank, device="cuda", dtype=dtype)
                gram = gram @ gram.mT
                torch.linalg.eigh(gram)
                best = min(timed(lambda gram=gram: torch.linalg.eigh(gram), "cuda") for _ in range(3))
                there = min(timed(lambda gram=gram: torch.linalg.eigh(gram.cpu())[1].cuda(), "cuda") for _ in range(3))
                print(f"eigh of {count} x {rank + 16}, {dtype}: {best:.2f} ms, on the CPU {there:.2f} ms", flush=True)
    print(f"{time.perf_counter() - begin:.1f} seconds")


if __name__ == "__main__":
    main()
