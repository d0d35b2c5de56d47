"""GaLore's memory: the most bytes of weights, gradients, states and everything else at one time, beside the formula.

A LLaMA of 6.8 million parameters, three training steps on a few tokens (activations are small then), rank a quarter of
the width, bfloat16 and float32. `peak` counts every storage that lives (see _live_memory.py). `formula` is what must be
there: weights, gradients (with per_layer the largest alone), states and projections. AdamW, galore-torch and
galore-torch stepped during backward stand beside. galore-torch is taken from `--peer FOLDER`, or from PYTHONPATH.

    python benchmarks/bench_galore_memory.py [--peer FOLDER] [--record]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from _live_memory import LiveMemory
from _peers import galore_torch, is_block_matrix
from _record import record
from torch import nn

from joma.models.llama import Llama, LlamaConfig
from joma.optim import GaLore, memory

MIB = 2**20
SHAPE = LlamaConfig(vocabulary=4000, width=256, mlp=688, heads=4, layers=6, context=32)
RANK = SHAPE.width // 4
STEPS = 3


def backward(model: nn.Module, tokens: torch.Tensor) -> None:
    logits = model(tokens)[:, :-1].float()
    F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()


def measured(make: Callable[[nn.Module], torch.optim.Optimizer], dtype: torch.dtype) -> dict[str, object]:
    model = Llama(SHAPE, seed=0).to(dtype)
    tokens = torch.randint(SHAPE.vocabulary, (1, 8), generator=torch.Generator().manual_seed(0))
    with LiveMemory(*model.parameters(), *model.buffers(), tokens) as live:
        optimizer = make(model)
        for _ in range(STEPS):
            backward(model, tokens)
            optimizer.step()
            optimizer.zero_grad()
    table = memory(model, optimizer) if isinstance(optimizer, (GaLore, torch.optim.AdamW)) else None
    formula = table.total.formula.total if table is not None and table.total.formula is not None else None
    return {"peak_mib": live.peak / MIB, "formula_mib": None if formula is None else formula / MIB}


def ways(peer: str) -> dict[str, Callable[[nn.Module], torch.optim.Optimizer]]:
    options = {"rank": RANK, "refresh": 2, "lr": 1e-3}
    found: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
        "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
        "GaLore": lambda model: GaLore(model, **options),
        "GaLore per_layer": lambda model: GaLore(model, per_layer=True, **options),
    }
    if theirs := galore_torch(peer):
        found["galore-torch"] = lambda model: theirs.whole(model, RANK, 2)
        found["galore-torch in backward"] = lambda model: theirs.in_backward(model, RANK, 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default="", help="folder with the package galore_torch")
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    model = Llama(SHAPE, seed=0)
    entries = sum(each.numel() for each in model.parameters())
    projected = sum(each.numel() for name, each in model.named_parameters() if is_block_matrix(name, each))
    print(f"{entries:,} parameters, {projected:,} of them projected, rank {RANK}")
    rows: list[dict[str, object]] = []
    for dtype in (torch.bfloat16, torch.float32):
        for name, make in ways(arguments.peer).items():
            row = {"way": name, "dtype": str(dtype).removeprefix("torch."), **measured(make, dtype)}
            rows.append(row)
            formula = f"{row['formula_mib']:9.1f}" if row["formula_mib"] is not None else "        -"
            print(
                f"  {row['dtype']:>8}  {name:<26} peak {row['peak_mib']:7.1f} MiB   formula {formula} MiB", flush=True
            )
    record("galore_memory", rows, on="cpu")


if __name__ == "__main__":
    main()
