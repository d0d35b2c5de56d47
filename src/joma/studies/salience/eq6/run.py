"""Figure 4 by its own recipe and without attention, and the flows and ranks of eq. 6."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.claims.config import Above, Least, Within
from joma.claims.contract import Progress, StudyConfig
from joma.measure import stable_rank
from joma.runs import Run
from joma.theory import linear, salience
from joma.theory.flow import integrate

LEARNED = 0.9  # of its target: when a component counts as learned
TARGETS, STARTS = (0.5, 1.0, 2.0), (-2.0, 0.0, 3.0)  # of the long run


@dataclass(frozen=True)
class Eq6Config(StudyConfig):
    """Figure 4 as it was drawn, over many draws of its targets."""

    components: Annotated[int, Least(2)] = 10
    draws: int = 50
    """Seed 0 is the figure's own."""
    checked: int = 12
    """Draws whose smallest entropy is also computed in closed form."""
    steps: int = 5000
    rate: Annotated[float, Above(0), Within(0, 1, "where Euler steps cannot overshoot")] = 0.02
    rows: Annotated[int, Least(2)] = 24
    nodes: Annotated[int, Least(2)] = 8
    seed: int = 0
    """Of the target matrix of the rank study."""


def run(config: Eq6Config, run: Run, progress: Progress) -> None:
    """Figure 4 with and without attention, the flow of v and z together, and the matrix version."""
    mu = draw_targets(config.draws, config.components)
    run.keep("mu", lambda: mu)
    for i, (name, attention) in enumerate((("attention", True), ("no attention", False))):
        progress(0.3 * i, f"Figure 4, {name}")
        if f"{name}/entropy" not in run:
            run.record(0, _summary(name, mu, config, attention=attention))
    equal = mu.mean(-1, keepdim=True).expand_as(mu)
    run.keep("equal targets/entropy", lambda: figure_4(equal[:1], config.steps, config.rate).entropy[:, 0])
    progress(0.6, "half the step, and the closed form")
    some = mu[: config.checked]
    early = min(2 * config.steps, 4000)  # steps of half the size that surely contain the minimum of entropy
    run.keep("half step/lowest", lambda: figure_4(some, early, config.rate / 2).entropy.min(0))
    run.keep("closed form/lowest", lambda: lowest_entropy(some))
    progress(0.8, "eq. 6 and its logits")
    _record_exponents(run, mu[0])
    progress(0.9, "rank")
    _record_rank(run, config)


def _summary(name: str, mu: torch.Tensor, config: Eq6Config, *, attention: bool) -> dict[str, Any]:
    path = figure_4(mu, config.steps, config.rate, attention=attention, share=LEARNED)
    return {
        f"{name}/entropy": path.entropy[:, 0],
        f"{name}/v": path.v[::EVERY],
        f"{name}/start": path.entropy[0],
        f"{name}/lowest": path.entropy.min(0),
        f"{name}/at": path.entropy.argmin(0),
        f"{name}/end": path.entropy[-1],
        f"{name}/in order": in_order(path.learned),
    }


def _record_exponents(run: Run, mu: torch.Tensor) -> None:
    """v and z of the figure's targets as one flow, the long run of eq. 6, and its entropies."""
    t = torch.linspace(0, 0.6, 61, dtype=torch.float64)  # past the minimum of entropy; later the flow is only stiff
    run.keep("flow/t", lambda: t)
    run.keep("flow", lambda: joint_flow(mu, t))
    run.keep("long run", lambda: torch.stack([long_run(TARGETS, STARTS, attention=a) for a in (True, False)]))
    long = torch.logspace(-1, 1.7, 500, dtype=torch.float64)
    run.keep("eq. 6/t", lambda: long)
    run.keep(
        "eq. 6/entropy", lambda: torch.stack([salience.entropy_curve(mu, long, scale=s) for s in (1.0, 0.5, 1 / 3)])
    )
    run.keep("linear MLP/entropy", lambda: linear_entropy(mu, 400))


def _record_rank(run: Run, config: Eq6Config) -> None:
    mu = random_rows(config.rows, config.nodes, config.seed)
    t = torch.cat([torch.zeros(1), torch.logspace(-2, 1.5, 120)]).double()
    run.keep("rank/t", lambda: t)
    run.keep("rank/stable", lambda: salience.stable_rank_curve(mu, t))
    run.keep("rank/exact", lambda: torch.linalg.matrix_rank(salience.matrix_trajectory(mu, t[1:])))
    plain = -torch.expm1(-t[1:, None, None]) * mu  # V' = Mu − V
    run.keep("rank/stable without attention", lambda: stable_rank(plain))


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
    return entropy(linear.trajectory(delta, linear.blow_up_time(delta).min() * (1 - left)) ** 2 / 2)


def random_rows(rows: int, nodes: int, seed: int) -> Tensor:
    """A target matrix whose rows have lengths from 1 to 3: salient and less salient tokens."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, nodes, generator=generator, dtype=torch.float64)
    length = torch.linspace(1, 3, rows, dtype=torch.float64)[:, None]
    scaled: Tensor = matrix / torch.linalg.vector_norm(matrix, dim=-1, keepdim=True) * length
    return scaled
