"""The optimizers of `joma.optim` on one LLaMA: bytes of state, time of a training step, held-out loss.

- steps: whole training steps in turns, between refreshes (the median over rounds of the ratio to fused AdamW), and
  the bytes of states and projections.
- losses: the network, text, schedule and batches of the study galore-table, in fewer tokens. Each optimizer tries all
  rates at a short horizon with a seed that is then left out, and the best one at a longer horizon with others. Scales
  are the defaults of joma. It needs JOMA_DATA, and the source of all installed packages is a part of the text.

    JOMA_DATA=FOLDER python benchmarks/bench_family.py [--device cuda] [--parts steps,losses] [--small] [--record]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import mean, median, stdev
from unittest.mock import patch

import torch
from _galore_training import NEVER, RANKS, Row, Training, in_turns
from _record import record_in_pieces
from torch import nn
from torch.optim import AdamW, Optimizer

from joma.optim import APOLLO, Fira, GaLore, Muon, memory
from joma.studies.galore.galore_table import networks
from joma.studies.galore.galore_table.networks import GaloreTableConfig
from joma.studies.galore.galore_table.run import Reading, Trainer, Trial, read_text
from joma.studies.galore.galore_table.study import STUDY

Maker = Callable[[nn.Module, float, int, int], Optimizer]  # of a network, with a rate, a rank and a refresh
PLAIN = {"weight_decay": 0.0, "fused": True}
MAKERS: dict[str, Maker] = {
    "AdamW": lambda model, rate, rank, refresh: AdamW(model.parameters(), lr=rate, **PLAIN),
    "Muon": lambda model, rate, rank, refresh: Muon(model, rate, others=AdamW, **PLAIN),
    "GaLore": lambda model, rate, rank, refresh: GaLore(model, AdamW, rank=rank, refresh=refresh, lr=rate, **PLAIN),
    "Fira": lambda model, rate, rank, refresh: Fira(model, AdamW, rank=rank, refresh=refresh, lr=rate, **PLAIN),
    "APOLLO": lambda model, rate, rank, refresh: APOLLO(model, AdamW, rank=rank, refresh=refresh, lr=rate, **PLAIN),
    "APOLLO, rank 1": lambda model, rate, rank, refresh: APOLLO(
        model, AdamW, rank=1, scaling="tensor", refresh=refresh, lr=rate, **PLAIN
    ),
}
RATES = (0.02, 0.01, 0.005, 0.002, 0.001)
SHORT, LONG, LEFT_OUT, SEEDS = 80, 512, 99, (1, 2, 3)
SMALL = GaloreTableConfig(steps=4, sweep_steps=2, rank=4)
AT_SIZE = replace(STUDY.paper, batch=64, at_once=64, source=40_000_000, steps=LONG, sweep_steps=SHORT, looks=1)


def steps(size: str, device: str, rounds: int) -> Iterator[Row]:
    """Ratios to AdamW of the same round, so that what slows the machine slows both."""
    trainings = {
        name: Training(lambda model, make=make: make(model, 1e-3, RANKS[size], NEVER), size, device, torch.float32)
        for name, make in MAKERS.items()
    }
    for training in trainings.values():
        training.train(3)
    times = in_turns({name: one.train for name, one in trainings.items()}, device, rounds)
    for name, one in trainings.items():
        kept = memory(one.model, one.optimizer).total.measured
        ratios = [mine / plain for mine, plain in zip(times[name], times["AdamW"], strict=True)]
        yield {
            "part": "steps",
            "size": size,
            "optimizer": name,
            "rank": RANKS[size],
            "ms": median(times[name]),
            "over_adamw": median(ratios),
            "state_bytes": kept.states + kept.projections,
            "weight_bytes": kept.weights,
        }


def losses(config: GaloreTableConfig, seeds: tuple[int, ...]) -> Iterator[Row]:
    """Nats per held-out token, both texts together."""
    trainer = Trainer(config, Reading(config, read_text(config, lambda share, doing: None)))

    def end(method: str, rate: float, seed: int, count: int) -> float:
        return float(trainer.carry_out(Trial(method, rate, seed, count))["held out"][-1].mean())

    def chosen(method: str, network: nn.Module, config: GaloreTableConfig, rate: float, seed: int) -> list[Optimizer]:
        return [MAKERS[method](network, rate, config.rank, config.refresh)]

    with patch.object(networks, "optimizers_of", chosen):
        for name in MAKERS:
            tried = {rate: end(name, rate, LEFT_OUT, config.sweep_steps) for rate in RATES}
            best = min(tried, key=lambda rate: (tried[rate] != tried[rate], tried[rate]))  # NaN is last
            found = [end(name, best, seed, config.steps) for seed in seeds]
            yield {
                "part": "losses",
                "size": f"width {config.width}",
                "optimizer": name,
                "rank": config.rank,
                "rate": best,
                "short": {f"{rate:g}": loss for rate, loss in tried.items()},
                "losses": found,
                "loss": mean(found),
                "spread_of_seeds": stdev(found),
                "tokens": config.batch * config.context * config.steps,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parts", default="steps,losses")
    parser.add_argument("--rounds", type=int, default=32)
    parser.add_argument("--small", action="store_true", help="a small network and few steps: seconds on a CPU")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    small = given.small or given.device == "cpu"
    rows: dict[str, Callable[[], Iterator[Row]]] = {
        "steps": lambda: steps("tiny" if small else "60M", given.device, given.rounds),
        "losses": lambda: losses(SMALL if small else AT_SIZE, SEEDS[:2] if small else SEEDS),
    }
    for part in given.parts.split(","):
        for row in rows[part]():
            print(row, flush=True)
            record_in_pieces("family", row, ("part", "size", "optimizer"))


if __name__ == "__main__":
    main()
