"""What the study of eq. 6 computes: Figure 4 by its own recipe, and the same without attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.theory import linear, salience
from joma.theory.flow import integrate

START, TEMPERATURE = 0.05, 3.0
"""Of Figure 4: every component starts at 0.05, and the speed of each is softmax(v²/3)."""
EVERY = 20
"""Steps between two recorded weights of the figure."""


class Path(NamedTuple):
    """Figure 4 over many draws of its targets."""

    entropy: Any  # of softmax(v²/3), (steps + 1, draws)
    v: Any  # of the first draw, (steps + 1, components)
    learned: Any  # the first step at which v ≥ share·μ, infinite if none, (draws, components)


def draw_targets(draws: int, components: int) -> Tensor:
    """μ = 1 + 3u, sorted, a row for each seed 0, 1, ...: seed 0 is the figure's own."""
    rows = [3 * torch.rand(components, generator=torch.Generator().manual_seed(i)).double() + 1 for i in range(draws)]
    return torch.stack(rows).sort(-1).values


def figure_4(mu: Tensor, steps: int, rate: float, *, attention: bool = True, share: float = 0.9) -> Path:
    """v ← v + rate (μ − v) o softmax(v²/3), or with the speed 1/components instead of the softmax."""
    target = mu.numpy()
    v = np.full_like(target, START)
    entropy, path = np.empty((steps + 1, len(v))), np.empty((steps + 1, v.shape[1]))
    learned = np.full_like(target, np.inf)
    uniform = 1 / target.shape[1]
    for step in range(steps + 1):
        weight, entropy[step] = _softmax_and_entropy(v * v / TEMPERATURE)
        path[step] = v[0]
        learned = np.where(v >= share * target, np.minimum(learned, step), learned)
        v = v + rate * (target - v) * (weight if attention else uniform)
    return Path(entropy, path, learned)


def _softmax_and_entropy(logits: Any) -> tuple[Any, Any]:
    shifted = logits - logits.max(-1, keepdims=True)
    weight = np.exp(shifted)
    total = weight.sum(-1, keepdims=True)
    weight /= total
    return weight, np.log(total[..., 0]) - (weight * shifted).sum(-1)


def in_order(learned: Any) -> Any:
    """The share of pairs of components of which the more salient one is learned strictly first. (draws,).

    Pairs of which neither is learned are left out. learned: (draws, components), the targets sorted upwards.
    """
    less, more = np.triu_indices(learned.shape[-1], 1)
    counted = np.isfinite(np.minimum(learned[:, less], learned[:, more]))
    return ((learned[:, more] < learned[:, less]) & counted).sum(-1) / np.maximum(counted.sum(-1), 1)


def lowest_entropy(mu: Tensor) -> Tensor:
    """The smallest entropy on the path of Figure 4, without following it.

    The normaliser of the softmax only changes the clock, so the path is that of eq. 6 in w = v √(2/3). (draws,).
    """
    scale = sqrt(2 / TEMPERATURE)
    t = torch.logspace(-1, 0.7, 100, dtype=torch.float64)
    coarse = salience.entropy_curve(mu * scale, t, v0=START * scale)
    lowest = []
    for target, best in zip(mu * scale, coarse.argmin(-1).tolist(), strict=True):
        fine = t
        for _ in range(2):  # zoom in: every draw has its minimum at its own time
            fine = torch.linspace(fine[max(best - 1, 0)], fine[min(best + 1, len(fine) - 1)], 60, dtype=torch.float64)
            curve = salience.entropy_curve(target, fine, v0=START * scale)
            best = int(curve.argmin())
        lowest.append(curve.min())
    return torch.stack(lowest)


def joint_flow(mu: Tensor, t: Tensor) -> Tensor:
    """v and the logits z side by side, v' = (μ − v) exp(z), z' = v v': knows nothing of z = v²/2. (steps, 2, n)."""

    def field(time: float, y: Tensor) -> Tensor:
        dv = (mu - y[0]) * y[1].exp()
        return torch.stack([dv, y[0] * dv])

    return integrate(field, torch.stack([torch.zeros_like(mu)] * 2), t)


def long_run(targets: Sequence[float], starts: Sequence[float], *, attention: bool) -> Tensor:
    """Where the flow of eq. 6, or of v' = μ − v, is at time 30. (starts, targets)."""
    mu = torch.tensor(targets, dtype=torch.float64)
    v0 = torch.tensor(starts, dtype=torch.float64)[:, None].expand(-1, len(mu))

    def field(time: float, v: Tensor) -> Tensor:
        return (mu - v) * torch.exp(v**2 / 2) if attention else mu - v

    return integrate(field, v0, [0.0, 30.0])[-1]


def entropy(logits: Tensor) -> Tensor:
    """Of the softmax over the last dimension, in nats."""
    log_weight = logits.log_softmax(-1)
    return -(log_weight.exp() * log_weight).sum(-1)


def linear_entropy(delta: Tensor, points: int) -> Tensor:
    """Entropy of softmax(v²/2) under a linear MLP (Theorem 2) up to 1 − 10⁻¹² of the winner's blow-up. (points,)."""
    left = torch.cat([torch.ones(1), torch.logspace(-0.01, -12, points - 1)]).double()
    v = linear.trajectory(delta, linear.blow_up_time(delta).min() * (1 - left))
    return entropy(v**2 / 2)


def random_rows(rows: int, nodes: int, seed: int) -> Tensor:
    """A target matrix whose rows have lengths from 1 to 3: salient and less salient tokens."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, nodes, generator=generator, dtype=torch.float64)
    length = torch.linspace(1, 3, rows, dtype=torch.float64)[:, None]
    scaled: Tensor = matrix / torch.linalg.vector_norm(matrix, dim=-1, keepdim=True) * length
    return scaled
