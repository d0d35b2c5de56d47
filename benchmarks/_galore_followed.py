"""Refreshes that follow the last subspace: how much energy they hold, and what they cost the loss of GaLore's table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from _galore_training import RANKS, Row, Training

from joma.claims.contract import silent
from joma.measure.intervals import compare
from joma.optim import GaLore, _refresh
from joma.optim.projector import follow_projector
from joma.runs import Run
from joma.studies.galore.galore_table import networks
from joma.studies.galore.galore_table.run import Reading, Table, Trainer, Trial, read_text
from joma.studies.galore.galore_table.study import STUDY

KEPT = Path(__file__).resolve().parents[1] / "results" / "galore-table" / "galore-table.sqlite"
SOURCE = 40_000_000  # bytes of Python source: a third of the table's, so that reading takes no minute


def followed_energies(size: str = "20M", refresh: int = 4, steps: int = 20) -> Iterator[Row]:
    """Of each refresh of a LLaMA on random tokens, on a CPU: whether it settled, and its energy over that of an SVD."""
    settled: list[bool] = []
    ratios: list[float] = []

    def looked(gradient: torch.Tensor, rank: int, start: torch.Tensor, **options: float) -> object:
        found = follow_projector(gradient, rank, start, **options)  # type: ignore[arg-type]
        squares = torch.linalg.svdvals(gradient.double()).square()
        settled.extend(found.settled.flatten().tolist())
        best = squares[..., :rank].sum(-1) / squares.sum(-1)
        ratios.extend((found.energies.double().sum(-1) / best).flatten().tolist())
        return found

    def make(model: torch.nn.Module) -> GaLore:
        return GaLore(model, torch.optim.AdamW, rank=RANKS[size], refresh=refresh, lr=1e-3)

    training = Training(make, size, "cpu", torch.float32, sequences=16)
    with patch.object(_refresh, "FOLLOWED_ON", ("cpu",)), patch.object(_refresh, "follow_projector", looked):
        training.train(steps)
    yield {
        "part": "followed",
        "size": size,
        "rank": RANKS[size],
        "refresh": refresh,
        "steps": steps,
        "refreshes": len(ratios),
        "settled": sum(settled),
        "energy_ratio": sum(ratios) / len(ratios),
        "least_energy_ratio": min(ratios),
    }


def followed_losses(device: str, seeds: int = 6) -> Iterator[Row]:
    """The table's own LLaMA, rate and steps, on a part of its text; each seed in both ways, with the same batches."""
    if device != "cuda":
        return  # there a refresh searches
    rate = Table(Run.open(KEPT)).rate(networks.GALORE)
    assert rate is not None
    config = replace(STUDY.paper, source=SOURCE, device=device)
    trainer = Trainer(config, Reading(config, read_text(config, silent)))
    found: dict[str, list[float]] = {"followed": [], "searched": []}
    begun = time.perf_counter()
    for seed in range(seeds):
        for way, places in (("followed", ("cuda",)), ("searched", ())):
            with patch.object(_refresh, "FOLLOWED_ON", places):
                one = trainer.carry_out(Trial(networks.GALORE, rate, seed, config.steps))
            found[way].append(float(one["held out"][-1].mean()))
            print(way, seed, found[way][-1], f"{time.perf_counter() - begun:.0f} s", flush=True)
        if seed:
            more = compare(np.array(found["followed"]), np.array(found["searched"]))
            yield {
                "part": "followed_loss",
                "size": "60M",
                "rank": config.rank,
                "rate": rate,
                "steps": config.steps,
                **found,
                "more": more.difference,
                "half_width": more.half_width,
            }
