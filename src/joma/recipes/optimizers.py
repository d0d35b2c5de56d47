"""Optimizers of studies, with every option stated: none of their numbers hangs on a default of `joma.training`."""

from typing import Any

from joma.training import Optimizer
from joma.training.optimizers import Kind

STATED: dict[str, Any] = {
    "momentum": 0.0, "betas": (0.9, 0.999), "epsilon": 1e-8, "weight_decay": 0.0, "clip": None, "renew_every": None,
    "decay": 1.0, "decay_every": None, "warm_up": 0,
}  # fmt: skip
"""What a study has that says nothing else. Whoever changes this raises the version of every study."""


def make_optimizer(kind: Kind, rate: float | tuple[float, ...], **options: Any) -> Optimizer:
    """The optimizer of an ensemble: what the paper's Adam has, but for the options that are given.

    - kind, rate, options: as `joma.training.Optimizer` takes them

    >>> make_optimizer("adam", 1e-4, clip=0.5).betas
    (0.9, 0.999)
    """
    return Optimizer(kind=kind, rate=rate, **(STATED | options))
