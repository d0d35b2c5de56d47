"""Ensembles that processes of `train_spread` build by name."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from small_ensembles import batch, ensemble, layers

from joma.training import Origin
from joma.training.optimizers import Optimizer


def small(device, **changes):
    return {"": layers(device=device, **changes)}


def decoders(device, **changes):
    return {"deep": ensemble(device=device, **changes)}


def several(device):
    """A base with a branch, one of fewer members than shares may be, and one whose name begins as another's."""
    base = layers(device=device, keep_at=(5,), measure_at=(0, 5))
    return {
        "base": base,
        "base/more": layers(device=device, steps=6, dims={"weights": ("weight",)}),
        "twin": layers(device=device, origin=Origin("base", at=5), measure_at=(5,), frozen=("bias",)),
        "one": layers(device=device, members=1, steps=6, optimizer=Optimizer("adam", rate=0.01, warm_up=4)),
    }


def numbered(device):
    """Every measure says whose it is, and every member warms up in its own time."""

    def moved(layer, before, members):
        far = (layer.matrix.detach() - before["matrix"]).flatten(1).norm(dim=1)
        return torch.stack([far, torch.tensor(members, dtype=far.dtype)], 1)

    whose = {"whose": lambda layer, members: torch.tensor(members, dtype=torch.float64)}
    optimizer = Optimizer("adam", rate=0.01, warm_up=(9, 2, 7, 0, 4))
    return {"": layers(device=device, measures=whose, between={"moved": moved}, optimizer=optimizer)}


def branch_alone(device):
    return {"twin": layers(device=device, origin=Origin("base", at=5), measure_at=(5,))}


def deadly(device, log, times, dies_at=11):
    """As `small`; the process with member 3 is killed before step `dies_at`, so many times. The log has its steps."""

    def logging(step, members):
        if 3 in members:
            died = Path(log).read_text().count("died") if Path(log).exists() else 0
            dies = step == dies_at and died < times
            with Path(log).open("a") as stream:
                stream.write("died\n" if dies else f"{step}\n")
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
        return batch(step, members)

    return {"": layers(device=device, batch=logging)}


def broken(device):
    raise ValueError("there is no such text")
