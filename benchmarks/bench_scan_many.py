"""A scan of many tiny checkpoints, where what is done per checkpoint counts and not what is read.

    python benchmarks/bench_scan_many.py [--checkpoints 500 --layers 4 --width 64] [--jobs 1 2] [--record]

Each checkpoint is a small GPT-2 as transformers saves it: a folder with config.json and model.safetensors. All matrices
of the MLPs and of attention are measured. The time is that of the whole command in a process of its own, page included.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import torch
from _record import record
from safetensors.torch import save_file

SHAPES = {"mlp.c_fc": (1, 4), "mlp.c_proj": (4, 1), "attn.c_attn": (1, 3), "attn.c_proj": (1, 1)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", type=int, default=500)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1])
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        series = Path(folder) / "series"
        write(series, options)
        for jobs in options.jobs:
            row = {key: getattr(options, key) for key in ("checkpoints", "layers", "width")}
            row |= {"jobs": jobs, "matrices": options.checkpoints * options.layers * len(SHAPES)}
            row |= {"seconds": timed(series, Path(folder) / f"out{jobs}", jobs)}
            row |= {"seconds_without_page": timed(series, Path(folder) / f"bare{jobs}", jobs, "--no-page")}
            rows.append(row)
            print(json.dumps(row), flush=True)
    record("scan_many", rows)


def write(series: Path, options: argparse.Namespace) -> None:
    """On a straight way from one set of weights to another: no step is like another."""
    generator, width = torch.Generator().manual_seed(0), options.width

    def model() -> dict[str, torch.Tensor]:
        return {
            f"transformer.h.{layer}.{name}.weight": torch.randn(rows * width, columns * width, generator=generator)
            for layer in range(options.layers)
            for name, (rows, columns) in SHAPES.items()
        }

    start, goal = model(), model()
    for step in range(options.checkpoints):
        folder = series / f"checkpoint-{10 * step}"
        folder.mkdir(parents=True)
        share = step / options.checkpoints
        weights = {name: torch.lerp(start[name], goal[name], share) / width**0.5 for name in start}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))


def timed(series: Path, out: Path, jobs: int, *more: str) -> float:
    command = [sys.executable, "-m", "joma", "scan", str(series), "--out", str(out), "--jobs", str(jobs), *more]
    start = perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"the scan ended with status {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}")
    return round(perf_counter() - start, 1)


if __name__ == "__main__":
    main()
