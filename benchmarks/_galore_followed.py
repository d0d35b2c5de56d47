"""Refreshes that follow the last subspace: how much energy they hold, and GaLore's table with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from _galore_training import RANKS, Row, Training

from joma.claims.contract import silent
from joma.measure.intervals import compare
from joma.optim import GaLore, _update
from joma.optim.projector import follow_projector
from joma.runs import Run
from joma.studies.galore.galore_table import networks
from joma.studies.galore.galore_table.run import Reading, Table, Trainer, Trial, read_text
from joma.studies.galore.galore_table.study import STUDY

KEPT = Path(__file__).resolve().parents[1] / "results" / "galore-table" / "galore-table.sqlite"


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
    with patch.object(_update, "FOLLOWED_ON", ("cpu",)), patch.object(_update, "follow_projector", looked):
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


def table_rows(device: str) -> Iterator[Row]:
    """The methods of galore-table that use GaLore, trained again: all seeds of the record, at the rates it chose.

    Numbers after the first products differ from run to run on a GPU, so a seed says no more than another. Where this
    machine has another text than the record, there is nothing to compare with.
    """
    if device != "cuda":
        return  # the record is of a GPU
    before = Table(Run.open(KEPT))
    config = replace(STUDY.paper, device=device)
    text = read_text(config, silent)
    if bytes(before.run.value("text/sha256")).hex() != text.sha256:
        yield {"part": "table", "absent": "the record of galore-table was made from another text"}
        return
    trainer = Trainer(config, Reading(config, text))
    for method in (networks.GALORE, networks.UNSCALED, networks.RANDOM):
        rate, losses = before.rate(method), before.final(method)
        assert rate is not None
        seeds = [seed for seed, loss in zip(before.seeds, losses, strict=True) if np.isfinite(loss)]
        trials = []
        for seed in seeds:
            print(f"{method}, seed {seed}", flush=True)
            trials.append(trainer.carry_out(Trial(method, rate, seed, config.steps)))
        found = np.array([float(one["held out"][-1].mean()) for one in trials])
        more = compare(found, losses[np.isfinite(losses)])
        yield {
            "part": "table",
            "way": method,
            "rank": config.rank,
            "rate": rate,
            "before": losses[np.isfinite(losses)].tolist(),
            "now": found.tolist(),
            "more": more.difference,
            "half_width": more.half_width,
            "ms": 1e3 * float(np.mean([one["seconds per step"] for one in trials])),
            "ms_before": 1e3 * float(np.nanmean(before.seconds(method))),
        }
