"""A scan of a synthetic series from cold files, against the time of reading the needed bytes.

    python benchmarks/bench_scan.py [--device cuda] [--steps 10 --layers 24 --width 1024] [--jobs 1 2] [--record]

The sizes above are those of a model with 400M parameters; all of them are written, the MLPs' lower matrices are read
(and only they are random).
"""

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from _record import record
from safetensors.torch import save_file

from joma.cli.main import scan as scan_command

LOWER = "gpt_neox.layers.{}.mlp.dense_h_to_4h.weight"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--folder", type=Path, help="where to put the series (default: a temporary folder)")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        series = Path(folder) / "series"
        for step in range(options.steps):
            write(series / f"step{step}", step, options)
        needed = options.steps * options.layers * 4 * options.width**2 * getattr(torch, options.dtype).itemsize
        scan(series, Path(folder) / "warm-up", options, 1)  # imports, CUDA, kernels
        rows = []
        for jobs in options.jobs:
            forget(series)
            reading = timed(partial(read_needed, series))
            forget(series)
            out = Path(folder) / f"out{jobs}"
            scanning = timed(partial(scan, series, out, options, jobs))
            row = {
                **{key: getattr(options, key) for key in ("steps", "layers", "width", "device", "dtype")},
                "jobs": jobs,
                "needed_bytes": needed,
                "reading_s": round(reading, 3),
                "scan_s": round(scanning, 3),
                "ratio": round(scanning / reading, 2),
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
    record("scan", rows)


def write(folder: Path, step: int, options: argparse.Namespace) -> None:
    """Weights of a GPT-NeoX of this size, in transformers' names and layout."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(step)
    width, dtype = options.width, getattr(torch, options.dtype)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) / columns**0.5).to(dtype)

    tensors = {"gpt_neox.embed_in.weight": torch.zeros(50304, width, dtype=dtype)}
    for i in range(options.layers):
        tensors[LOWER.format(i)] = matrix(4 * width, width)
        tensors[LOWER.format(i).replace("h_to_4h", "4h_to_h")] = torch.zeros(width, 4 * width, dtype=dtype)
        tensors[f"gpt_neox.layers.{i}.attention.query_key_value.weight"] = torch.zeros(3 * width, width, dtype=dtype)
        tensors[f"gpt_neox.layers.{i}.attention.dense.weight"] = torch.zeros(width, width, dtype=dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt_neox"}))
    with (folder / "model.safetensors").open("rb") as file:
        os.fsync(file.fileno())


def forget(series: Path) -> None:
    """Drop the files from the page cache, so that they are read from the disk."""
    for path in series.glob("*/*"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_needed(series: Path) -> None:
    """The needed bytes and nothing else: one read a tensor, into memory that is used again."""
    for path in sorted(series.glob("*/model.safetensors")):
        with path.open("rb", buffering=0) as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
            buffer = bytearray()
            for name, entry in header.items():
                if name.endswith("dense_h_to_4h.weight"):
                    start, stop = entry["data_offsets"]
                    buffer = buffer if len(buffer) == stop - start else bytearray(stop - start)
                    file.seek(8 + length + start)
                    done = 0
                    while done < len(buffer):
                        done += file.readinto(memoryview(buffer)[done:])


def scan(series: Path, out: Path, options: argparse.Namespace, jobs: int) -> None:
    parser = argparse.ArgumentParser()
    scan_command.add_parser(parser.add_subparsers())
    words = ["scan", str(series), "--out", str(out), "--device", options.device, "--jobs", str(jobs), "--no-page"]
    chosen = parser.parse_args(words)
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        status = chosen.call(chosen)
    if status != 0:
        sys.exit(f"the scan ended with status {status}:\n{shown.getvalue()}")


def timed(call) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


if __name__ == "__main__":
    main()
