"""One training run: a method, a rate, a seed, a horizon. Losses, time per step and memory come out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from joma.models.llama import Llama
from joma.optim.memory import memory
from joma.studies.galore._table_config import Config
from joma.studies.galore._table_layers import merge_and_restart, start
from joma.studies.galore._table_methods import (
    OF,
    Method,
    network_of,
    rate_share,
    restarts_at,
    rewarmed,
    set_rates,
    trained,
)
from joma.studies.galore._table_text import Reading

CLIP = 1.0
"""Of the gradient's norm, for every method."""
UNTIMED = 10
"""Steps at the beginning that are not timed: kernels are compiled and memory is found."""


class Trial(NamedTuple):
    """Which training run."""

    method: str
    rate: float
    seed: int
    steps: int

    @property
    def name(self) -> str:
        """In the record."""
        return f"{self.method}/{self.rate:g}/seed {self.seed}"


class Trainer:
    """Keeps one network of each kind and its compiled code; a trial begins by giving it new weights."""

    def __init__(self, config: Config, reading: Reading) -> None:
        self.config, self.reading = config, reading
        self.networks: dict[str, Llama] = {}
        self.loss: Callable[[Llama, Tensor], Tensor] = _loss
        if config.device != "cpu":
            torch.set_float32_matmul_precision("high")
            self.loss = torch.compile(_loss, dynamic=False)

    def carry_out(self, trial: Trial) -> dict[str, Any]:
        """What is recorded of a trial; the losses from where it diverged on are NaN."""
        method = OF[trial.method]
        network = self._network(method.network)
        start(network, trial.seed)
        before = self._begin_peak(network)
        optimizers = method.optimizers(network, self.config, trial.rate, trial.seed)
        losses, held_out, clock = self._train(network, method, optimizers, trial)
        states = _states(network, optimizers)
        peak = torch.cuda.max_memory_allocated() - before if self.config.device != "cpu" else 0
        for weight in network.parameters():
            weight.grad = None
        return {
            "losses": losses,
            "held out": held_out,
            "seconds per step": clock.mean,
            "bytes": np.array([_size(network), 4 * sum(w.numel() for w in trained(network)), states, peak]),
        }

    def _network(self, kind: str) -> Llama:
        if kind not in self.networks:
            self.networks[kind] = network_of(kind, self.config)
        return self.networks[kind]

    def _begin_peak(self, network: Llama) -> int:
        """Bytes that are no part of this trial: the text and the other networks."""
        if self.config.device == "cpu":
            return 0
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() - _size(network)

    def _train(
        self, network: Llama, method: Method, optimizers: list[Optimizer], trial: Trial
    ) -> tuple[np.ndarray, np.ndarray, _Clock]:
        looks = self.config.look_at(trial.steps)
        found: list[list[float]] = []
        losses: list[Tensor] = []
        clock = _Clock(self.config.device)
        restarts = restarts_at(trial.steps, self.config.restarts) if method.restarts else set()
        for step in range(trial.steps):
            if step in restarts:
                self._restart(network, optimizers, trial, step)
            if step >= UNTIMED:
                clock.go_on()
            set_rates(optimizers, trial.rate * self._share(method, step, trial.steps))
            losses.append(self._step(network, optimizers, trial, step))
            if step + 1 in looks:
                clock.pause(step + 1 - UNTIMED)
                found.append([self.held_out(network, tokens) for tokens in self.reading.held_out.values()])
                if not np.isfinite(found[-1]).all():
                    break
        lacking = len(looks) - len(found)
        curve = torch.stack(losses).float().cpu().numpy()
        curve = np.pad(curve, (0, trial.steps - len(curve)), constant_values=np.nan)
        return curve, np.array(found + [[np.nan] * len(found[0])] * lacking), clock

    def _share(self, method: Method, step: int, steps: int) -> float:
        return rewarmed(step, steps, self.config.restarts) if method.restarts else rate_share(step, steps)

    def _step(self, network: Llama, optimizers: list[Optimizer], trial: Trial, step: int) -> Tensor:
        parts = self.reading.batch(trial.seed, step).split(self.config.at_once)
        total = torch.zeros((), device=self.config.device)
        for part in parts:
            with self._precision():
                loss = self.loss(network, part) / len(parts)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(trained(network), CLIP)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return total

    def _restart(self, network: Llama, optimizers: list[Optimizer], trial: Trial, step: int) -> None:
        merge_and_restart(network, torch.Generator().manual_seed(1000 * trial.seed + step))
        for optimizer in optimizers:
            optimizer.state.clear()

    def held_out(self, network: Llama, tokens: Tensor) -> float:
        """Mean loss per token. On a GPU with gradients allowed: the compiled code for training is then used again."""
        on_gpu = self.config.device != "cpu"
        with torch.set_grad_enabled(on_gpu), self._precision():
            parts = tokens.split(self.config.at_once if on_gpu else len(tokens))
            losses = [self.loss(network, part).detach() for part in parts]
        return float(torch.stack(losses).double().mean())

    def _precision(self) -> AbstractContextManager[Any]:
        """bf16 products with float32 weights on a GPU, float32 elsewhere."""
        return torch.autocast("cuda", torch.bfloat16) if self.config.device != "cpu" else nullcontext()


class _Clock:
    """Seconds per step, without those in which something else was done."""

    def __init__(self, device: str) -> None:
        self.device, self.seconds, self.steps, self.since = device, 0.0, 0, -1.0

    def go_on(self) -> None:
        if self.since < 0:
            self.since = self._now()

    def pause(self, steps: int) -> None:
        """steps: that were timed since the first."""
        if self.since >= 0:
            self.seconds, self.steps, self.since = self.seconds + self._now() - self.since, steps, -1.0

    @property
    def mean(self) -> float:
        return self.seconds / self.steps if self.steps > 0 else float("nan")

    def _now(self) -> float:
        if self.device != "cpu":
            torch.cuda.synchronize()
        return perf_counter()


def _loss(network: Llama, tokens: Tensor) -> Tensor:
    logits = network(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def _size(network: Llama) -> int:
    return sum(weight.numel() * weight.element_size() for weight in network.parameters())


def _states(network: Llama, optimizers: list[Optimizer]) -> int:
    """Bytes that the optimizers keep between steps, bases of subspaces included."""
    found = [memory(network, optimizer).total.measured for optimizer in optimizers]
    return sum(one.states + one.projections for one in found)
