"""How often the alarms of attention ring in healthy runs, and in runs whose rate is too high.

    python benchmarks/bench_alarms.py [--out RUN] [--record]

A decoder with norms before learns to repeat (eight tokens and the same again, where entropy falls steeply when it
succeeds) or reads Python source. It trains for two minutes on one core; with --out it goes on where it was stopped.
A run is healthy where its loss falls and never stands more than half a nat above its lowest. Entropy and the largest
logit are kept at every second step, so that one run shows what a monitor with a larger interval would have seen.
Defaults were chosen on the seeds of `CHOSEN_ON`, in networks of three layers and width 48, and are judged on those of
`JUDGED`: 152 runs. Where none of 149 rings, an alarm is false in less than 2 % of them at 95 %: 0.98^149 = 0.05.
"""

import argparse
import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
import torch
from _record import record

from joma.data.text import python_corpus
from joma.models import Decoder, DecoderConfig
from joma.monitor import EntropyFall, EntropyFloor, LargestLogit
from joma.monitor.tables import Rows, Table
from joma.runs import Run
from joma.studies.stability.collapse.measures import attention_and_loss
from joma.training import Ensemble, Optimizer, next_token_loss, train_all

STEPS, EVERY, LENGTH = 240, 2, 16
SHAPES = {"2 x 24": {"layers": 2, "width": 24, "heads": 2}}
TASKS = {"repeat": (16, 16), "text": (48, 8)}
"""Words and rows of a batch."""
RATES, TOO_HIGH = (1e-3, 3e-3), (0.1, 0.3)
CHOSEN_ON, JUDGED = range(100, 103), range(38)
INTERVALS = (2, 4, 6)
"""Steps between two measurings of a monitor; each has at least twice the 20 that calibrate."""
ALARMS = {
    "EntropyFall()": EntropyFall,
    "EntropyFall(least=0.1)": lambda: EntropyFall(least=0.1),
    "EntropyFall(least=0.2)": lambda: EntropyFall(least=0.2),
    "EntropyFall(least=0.4)": lambda: EntropyFall(least=0.4),
    "EntropyFloor()": EntropyFloor,
    "LargestLogit()": LargestLogit,
}


def batches(task, seed):
    """(steps + 1, rows, length) of tokens; the last one is the probe batch."""
    drawn = torch.Generator().manual_seed(seed)
    words, rows = TASKS[task]
    if task == "repeat":
        return torch.randint(words, (STEPS + 1, rows, LENGTH // 2), generator=drawn).repeat(1, 1, 2)
    text = python_corpus(words).tokens["train"].long()
    starts = torch.randint(len(text) - LENGTH, (STEPS + 1, rows), generator=drawn)
    return text[starts[..., None] + torch.arange(LENGTH)]


def ensemble(shape, task, members):
    """members: (rate, seed) of each."""
    config = DecoderConfig(
        TASKS[task][0],
        mlp=4 * shape["width"],
        context=LENGTH,
        norm="pre-layer",
        activation="gelu",
        positions="learned",
        **shape,
    )
    read = {seed: batches(task, seed) for _, seed in members}

    def batch(step, some):
        rows = torch.stack([read[members[one][1]][step] for one in some])
        return rows[..., :-1], rows[..., 1:]

    probe = batches(task, 10**6)[-1]
    return Ensemble(
        members=len(members),
        networks=lambda some: Decoder(config, [members[one][1] for one in some]),
        batch=batch,
        loss=next_token_loss,
        optimizer=Optimizer("adam", rate=tuple(rate for rate, _ in members), clip=1.0),
        steps=STEPS,
        measures={"probe": attention_and_loss(probe[:, :-1], probe[:, 1:])},
        measure_at=tuple(range(0, STEPS, EVERY)),
    )


def healthy(loss):
    """(members,): which of (points, members) learn and never stand far above their lowest loss."""
    above = loss - np.fmin.accumulate(loss, axis=0)
    return np.isfinite(loss).all(0) & (np.nan_to_num(above, nan=np.inf).max(0) < 0.5) & (loss[-1] < loss[0] - 0.05)


def rings(make, found, every):
    """(members,): in which runs an alarm rings that looks every so many steps."""
    _, members, layers, heads = found["entropy"].shape
    names = tuple(str(member) for member in range(members) for _ in range(layers))
    rows = Rows(names, (heads,) * len(names), (LENGTH - 1,) * len(names))
    alarm, told = make(), np.zeros(members, bool)
    for point in range(0, len(found["entropy"]), every // EVERY):
        tables = {name: Table(found[name][point].reshape(-1, heads).astype(float), rows) for name in found}
        told[[int(alert.layer) for alert in alarm.look(point * EVERY, tables)]] = True
    return told


def _opened(path):
    return Run.open(path, write=True) if path.exists() else Run.create(path, study="alarms", config={})


def rows(out):
    """One row for every alarm, interval and kind of runs: over all shapes, tasks and rates. out: the run; or none."""
    told, ensembles = {}, {}
    kinds = {"healthy": (RATES, JUDGED), "too high a rate": (TOO_HIGH, CHOSEN_ON)}
    for (name, shape), task, (kind, (rates, seeds)) in product(SHAPES.items(), TASKS, kinds.items()):
        ensembles[f"{kind}, {name}, {task}"] = ensemble(shape, task, list(product(rates, seeds)))
    with tempfile.TemporaryDirectory() as folder, _opened(Path(out or f"{folder}/a.sqlite")) as run:
        train_all(ensembles, run, progress=lambda share, doing: print(f"{share:4.0%} {doing}", file=sys.stderr))
        for name in ensembles:
            found = {one: run.array(f"{name}/probe/{one}") for one in ("entropy", "largest_logit")}
            kind, well = name.split(",")[0], healthy(run.array(f"{name}/probe/loss").astype(float))
            counted = ~well if kind == "too high a rate" else well
            for (alarm, make), every in product(ALARMS.items(), INTERVALS):
                told.setdefault((kind, alarm, every), []).extend(rings(make, found, every)[counted].tolist())
    return [
        {"runs": kind, "alarm": alarm, "every": every, "of": len(one), "ring": sum(one)}
        for (kind, alarm, every), one in told.items()
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--record", action="store_true")
    found = rows(parser.parse_args().out)
    for row in found:
        print(f"{row['runs']:<16} {row['alarm']:<24} every {row['every']:>2}: {row['ring']:>4} of {row['of']}")
    record("alarms", found)


if __name__ == "__main__":
    main()
