"""What a run of `kv-cache` recorded of the networks that learned."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np

from joma.runs import Run
from joma.studies.sparsity.kv_cache.run import prefix

FIFTH = 0.2  # of the cache, as H2O says
FALLEN = 0.1  # of the loss of guessing: networks that end less below it have not learned


class Series:
    """What a run recorded of the networks that learned, over checkpoints."""

    def __init__(self, run: Run) -> None:
        self.run, config = run, run.config
        self.policies, self.keeps = list(config["policies"]), [float(keep) for keep in config["keeps"]]
        self.steps = run.steps("seed 0/loss")
        bound = (1 - FALLEN) * log(config["vocabulary"])
        numbers = range(int(config["seeds"]))
        self.kept = [n for n in numbers if run.array(f"{prefix(n)}loss")[-1].mean() <= bound]
        lost = float(len(numbers) - len(self.kept))
        self.left_out = {"left out because they did not learn": {"networks": lost}} if lost else {}
        """For the reader; empty where all count."""

    def of(self, name: str) -> Any:
        """(seeds, checkpoints, ...) of the networks that learned."""
        return np.stack([self.run.array(f"{prefix(number)}{name}") for number in self.kept])

    def mean(self, name: str, checkpoint: int = -1) -> Any:
        """(seeds,) at a checkpoint, mean over all else."""
        found = self.of(name)[:, checkpoint]
        return found.reshape(len(found), -1).mean(1)

    def costs(self, policy: str, keep: float = FIFTH) -> Any:
        """(seeds, checkpoints, sequences): what the policy adds to the loss, in nats per token."""
        cut = self.of("cut")[:, :, self.policies.index(policy), self.keeps.index(keep)]
        return cut - self.of("loss")

    def cost(self, policy: str, keep: float = FIFTH, checkpoint: int = -1) -> Any:
        """(seeds,), mean over sequences."""
        return self.costs(policy, keep)[:, checkpoint].mean(-1)
