"""GaLore: a step, the memory at peak, finding the subspace, and galore-torch 1.0 step for step.

- optimizer: the optimizer's step alone, GaLore with fused AdamW inside against fused AdamW; `_tf32` where float32
  products may be TF32.
- training: whole training steps, autocast to bfloat16; `per_layer` updates during backward.
- refreshes: each turn of the refreshes in a training step of its own, plain ones between them, and the cost in all;
  the same with per_layer.
- graph: the optimizer's step as a CUDA graph; `_tf32` as above, `_unpadded` where products of an odd side are not
  padded, `_addmm` where only their small factor is on the way back.
- graph_training: whole training steps as a CUDA graph, with `per_layer` too: what is left where the host costs nothing.
- host: how long the host is busy with gradients, with each optimizer and with a refresh, while the device has other
  work. Where that is longer than the device needs, the host decides.
- peak: the most bytes that the allocator had given out, beside the formula; `requested`: those that it was asked for,
  without what it rounds up, which depends on what came before.
- memory: bytes of projections and states of the projected matrices against m r + 2 n r numbers.
- projector: `find_projector` against torch.linalg.svd(full_matrices=False), for a matrix with a falling spectrum (rank
  r plus noise) and a Gaussian one; `energy_ratio` is the captured energy over that of the SVD. `warm` starts from the
  basis of a gradient that differs by a tenth.
- peer: GaLore in the conventions of galore-torch (exact SVD, epsilon before the bias correction, decay after the
  update) against galore-torch itself, largest difference of any weight relative to the largest change; and the time
  of its refresh. galore-torch is taken from `--peer FOLDER` or from PYTHONPATH; without it what needs it is left out.
- lowbit: bases in 8 bits: bytes, the most bytes of tensors at one time, the optimizer's step; beside bases in the
  parameter's precision (`own`).
- lowbit_loss: how much more the loss of a small LLaMA is with them, and how far P^T P is from one (spectral norm).
- finite: NaN and infinity anywhere in a gradient are seen.
- followed: how many refreshes settle that follow the last subspace, and how much energy they hold; on a CPU.
- table: held-out losses of the rows of galore-table that use GaLore, trained again, beside those of its record. It
  needs JOMA_DATA and the text of the record, which has the source of all installed packages.

    python benchmarks/bench_galore.py --parts graph,training,refreshes --sizes 60M,330M:bfloat16,340M:bfloat16
    python benchmarks/bench_galore.py [--device cuda] [--parts optimizer,training] [--sizes 60M] [--dtypes bfloat16]

A row is printed as soon as it is there. `--record` keeps it at once: rows of the same part, size and kind of numbers
are replaced, so that a record can be made in pieces. `--small` takes small matrices and a small model, as a CPU does.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch
from _galore_steps import graph_steps, graph_training_steps, optimizer_steps, refresh_steps, training_steps
from _galore_training import Row
from _record import record_in_pieces

PARTS = (
    "optimizer", "graph", "graph_training", "host", "training", "refreshes", "peak", "memory", "lowbit", "lowbit_loss",
    "projector", "peer", "finite", "followed", "table",
)  # fmt: skip
KEY = ("part", "size", "dtype", "way", "rank", "matrix")  # rows with the same of these are one


def rows_of(part: str, sizes: list[str], dtypes: list[torch.dtype], arguments: argparse.Namespace) -> Iterator[Row]:
    """What a part measures, as it comes. Steps need torch and numpy alone; other parts are loaded where asked for."""
    device, rounds, folder = arguments.device, arguments.rounds, arguments.peer
    small = arguments.small
    of_size: dict[str, Callable[[str, torch.dtype], list[Iterator[Row]]]] = {
        "optimizer": lambda size, dtype: [optimizer_steps(size, dtype, device, rounds, folder)],
        "graph": lambda size, dtype: [graph_steps(size, dtype, device, rounds)],
        "graph_training": lambda size, dtype: [graph_training_steps(size, dtype, device, rounds)],
        "host": lambda size, dtype: [load("host").host_times(size, dtype, device)],
        "training": lambda size, dtype: [training_steps(size, dtype, device, rounds, folder)],
        "refreshes": lambda size, dtype: [refresh_steps(size, dtype, device, name) for name in ("galore", "per_layer")],
        "peak": lambda size, dtype: [load("peaks").peaks(size, dtype, device, folder)],
        "memory": lambda size, dtype: [load("peaks").state_memory(size, dtype, device)],
        "lowbit": lambda size, dtype: [load("lowbit").low_bits(size, dtype, device, rounds)],
    }
    if part in of_size:
        for size, _, one in (given.partition(":") for given in sizes):
            for dtype in [getattr(torch, one)] if one else dtypes:
                for rows in of_size[part](size, dtype):
                    yield from rows
    elif part == "projector":
        sides = (512, 1376, [16, 128]) if small else (4096, 11008, [128, 1024])
        yield from load("subspaces").projectors(*sides, device, rounds)
    elif part == "lowbit_loss":
        yield from load("lowbit").low_bit_losses()
    elif part == "followed":
        yield from load("followed").followed_energies()
    elif part == "table":
        yield from load("followed").table_rows(device)
    elif part == "peer":
        yield from load("subspaces").peer(folder, small, device, rounds)
    else:
        yield from load("subspaces").finite_check(device)


def load(name: str) -> Any:
    """A module of this benchmark."""
    return import_module(f"_galore_{name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument(
        "--sizes",
        default="",
        help="of tiny, 20M, 60M, 330M, 340M; tiny on a CPU, the others elsewhere; 60M:float32 has dtypes of its own",
    )
    parser.add_argument("--dtypes", default="", help="of float32, bfloat16; float32 alone on a CPU")
    parser.add_argument("--small", action="store_true", help="small matrices and a small model: seconds on a CPU")
    parser.add_argument("--peer", default="", help="folder with the package galore_torch")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    arguments.small = arguments.small or arguments.device == "cpu"
    sizes = (arguments.sizes or ("tiny" if arguments.small else "60M,330M")).split(",")
    dtypes = (arguments.dtypes or ("float32" if arguments.small else "bfloat16,float32")).split(",")
    parts = arguments.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"--parts has {unknown[0]}, which is none of {', '.join(PARTS)}")
    for part in parts:
        begin = time.perf_counter()
        for row in rows_of(part, sizes, [getattr(torch, name) for name in dtypes], arguments):
            for key, value in row.items():
                print(f"  {key:>34}  {value:.5g}" if isinstance(value, float) else f"  {key:>34}  {value}")
            print(f"  {'seconds':>34}  {time.perf_counter() - begin:.1f}\n", flush=True)
            record_in_pieces("galore", row, KEY, on="" if arguments.device == "cuda" else "cpu")
            begin = time.perf_counter()


if __name__ == "__main__":
    main()
