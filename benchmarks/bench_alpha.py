"""Stable rank and power-law exponent of every matrix of a model, against WeightWatcher.

    pip install weightwatcher && python benchmarks/bench_alpha.py [--width 768 --layers 12] [--rounds 3] [--record]

The model is a GPT-2 as transformers saves it, its weights random with correlations, so that spectra have tails; with
JOMA_DATA also the trained stories260K. WeightWatcher's analyze() gets the loaded model and the same matrices, with its
default options. joma opens the file, reads it, checks its weights, measures and records: all of `joma scan` but the
page. Both use all cores, and the best of the rounds counts.
"""

import argparse
import json
import logging
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

import torch
from _record import ROOT, record

from joma.runs import Run
from joma.scan import open_series, plan, sweep

MEASURES = ("stable_rank", "alpha")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    if find_spec("weightwatcher") is None:
        print("bench_alpha: skipped, weightwatcher is not installed (pip install weightwatcher)")
        return
    models = {f"GPT-2, {options.layers} layers of {options.width}": lambda: gpt2(options.width, options.layers)}
    if folder := os.environ.get("JOMA_DATA"):
        models["stories260K, trained"] = lambda: stories(Path(folder))
    rows = []
    for name, make in models.items():
        rows.append({"model": name, **compare(make(), options.rounds)})
        print(json.dumps(rows[-1]), flush=True)
    record("alpha", rows)


def gpt2(width: int, layers: int) -> torch.nn.Module:
    """A Gaussian matrix between two diagonal ones that decay, with rows and columns mixed: it has a tail."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": width, "n_layer": layers, "n_head": width // 64, "vocab_size": 512}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and ".h." in name:
                rows, columns = (torch.randperm(size) + 1 for size in weight.shape)
                decay = 0.2 + 0.3 * torch.rand(2)
                weight.mul_(rows[:, None] ** -decay[0] * columns ** -decay[1])
                weight.mul_(0.02 / weight.std())  # smaller, and WeightWatcher would leave eigenvalues out
    return model


def stories(data: Path) -> torch.nn.Module:
    sys.path.append(str(ROOT / "tests"))
    from llama2c import load_model

    return load_model(data / "stories260K" / "stories260K.bin")


def compare(model: torch.nn.Module, rounds: int) -> dict[str, object]:
    import weightwatcher

    logging.getLogger("weightwatcher").setLevel(logging.ERROR)
    watcher = weightwatcher.WeightWatcher(model=model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(f"{folder}/checkpoint-1")
        ours, _ = scanned(folder)
        layers = [row.layer_id for row in watcher.describe().itertuples() if f"{row.longname}.weight" in ours]
        times = []
        for _ in range(rounds):
            start = perf_counter()
            details = watcher.analyze(layers=layers)
            slow = perf_counter() - start
            ours, fast = scanned(folder)
            times.append((slow, fast))
    theirs = {f"{row.longname}.weight": (row.stable_rank, row.alpha) for row in details.itertuples()}
    assert set(theirs) == set(ours), set(theirs) ^ set(ours)
    slow, fast = map(min, zip(*times, strict=True))
    return {
        "matrices": len(ours),
        "weightwatcher_s": slow,
        "joma_s": fast,
        "ratio": slow / fast,
        "alpha": [f(found[1] for found in ours.values()) for f in (min, max)],
        "alpha_apart": max(abs(theirs[name][1] - ours[name][1]) for name in ours),
        "stable_rank_apart_relative": max(abs(theirs[name][0] / ours[name][0] - 1) for name in ours),
    }


def scanned(folder: str) -> tuple[dict[str, tuple[float, float]], float]:
    """Stable rank and alpha of every matrix by name, and the time from the folder to the record."""
    start = perf_counter()
    settled = plan(open_series(folder, downloads=Path(folder)), measures=MEASURES)
    Run.delete(f"{folder}/scan.sqlite")
    with Run.create(f"{folder}/scan.sqlite", study="scan", config=settled.config()) as run:
        found = sweep(settled, run)
    took = perf_counter() - start
    assert found.complete, found.faults
    curves = [(found.curves[f"stable_rank/{group}"], found.curves[f"alpha/{group}"]) for group in settled.groups]
    return {
        row.name: (float(rank), float(alpha))
        for ranks, alphas in curves
        for row, rank, alpha in zip(ranks.rows, ranks.values[0], alphas.values[0], strict=True)
    }, took


if __name__ == "__main__":
    main()
