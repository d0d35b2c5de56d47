"""Theorem 1 under softmax attention, eq. 17, eq. 18, Figures 2 and 3."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Drawing, Progress, Study, each_claim
from joma.runs import Run
from joma.studies.invariant import _softmax_equations as equations
from joma.studies.invariant import _softmax_findings as findings
from joma.studies.invariant._softmax_figures import figure_2, figure_3
from joma.studies.invariant._softmax_findings import CLOSE, three
from joma.studies.invariant._softmax_training import (
    KINDS,
    Condition,
    Kind,
    Path,
    Start,
    condition,
    draw_start,
    estimates,
    look,
    one_sample,
    published,
    train,
    train_with_frozen_attention,
)

CHUNK = 10  # members trained at once: their whole path is held in memory


@dataclass(frozen=True)
class Config:
    """The experiment of Figures 2 and 3: one frequency vector per class, full-batch SGD on the mean loss."""

    tokens: int = 20
    classes: int = 20
    temperature: float = 0.5
    rate: float = 0.1
    steps: int = 2000
    seeds: int = 10
    points: int = 100
    """Moments of training at which everything is recorded."""
    draws: int = 4
    """Independent flows with a single sample, where b and s cannot be correlated."""
    seed: int = 0
    """The first seed of the networks, which have one each, and the seed of the flows with a single sample."""


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train with moving and with frozen attention; record logits, all estimates and the weights' growth."""
    run.keep("step", lambda: torch.from_numpy(_points(config)))
    seeds = range(config.seed, config.seed + config.seeds)
    for i, kind in enumerate(KINDS):
        if f"{kind}/z" not in run:
            chunks = []
            for first in range(0, config.seeds, CHUNK):
                progress((i + first / config.seeds) * 0.45, f"{kind} classes, seeds from {seeds[first]}")
                chunks.append(_train_and_estimate(kind, seeds[first : first + CHUNK], config))
            run.record(0, {f"{kind}/{name}": torch.cat([c[name] for c in chunks]) for name in chunks[0]})
    progress(0.9, "one sample")
    if "one/z" not in run:
        run.record(0, {f"one/{name}": value for name, value in one_sample(config.draws, seed=config.seed).items()})


def draw(run: Run) -> list[Drawing]:
    """Figures 2 and 3 with their controls, and the relative errors that a correlation hides."""
    return [figure_2(run, tolerance=CLOSE), figure_3(run)]


def _train_and_estimate(kind: Kind, seeds: range, config: Config) -> dict[str, Tensor]:
    """Everything recorded about one kind of data, members first."""
    start = draw_start(kind, seeds, classes=config.classes, tokens=config.tokens)
    at, late = (torch.from_numpy(steps) for steps in (_points(config), _late(config)))
    path = train(start, steps=config.steps, rate=config.rate, temperature=config.temperature)
    frozen = train_with_frozen_attention(start, at, rate=config.rate, temperature=config.temperature)
    ways = estimates(path, start, rate=config.rate, temperature=config.temperature)
    conditions = [_condition_at(step, path, start, config) for step in three(config.steps)]
    return {
        "z": path.z[:, at],
        "v": path.v[:, late],
        "frozen/v": frozen[:, torch.isin(at, late)],
        "v of node 0": path.v[:, at, :, 0],
        "frozen/v of node 0": frozen[..., 0],
        "frozen/published": published(frozen, start, config.temperature),
        "mean attention": path.mean_attention[:, at],
        **{name: way[:, at] for name, way in ways.items()},
        **{f"condition/{side}": torch.stack([getattr(c, side) for c in conditions], 1) for side in Condition._fields},
    }


def _condition_at(step: int, path: Path, start: Start, config: Config) -> Condition:
    v, bias, z = path.v[:, step], path.bias[:, step, None], path.z[:, step, None]
    return condition(look(start.x, v, bias, z, config.temperature))


def _points(config: Config) -> Any:
    """Recorded steps; a quarter, half and the end of training are always among them."""
    even = np.linspace(0, config.steps, config.points + 1).round().astype(int)
    return np.union1d(even, three(config.steps))


def _late(config: Config) -> Any:
    return np.array([0, config.steps // 2, config.steps])


STUDY = Study(
    name="thm1-softmax",
    title="Theorem 1 under softmax attention: Figures 2 and 3",
    version=1,
    claims=(
        findings.PUBLISHED,
        *findings.CORRELATES.values(),
        findings.PARTS,
        equations.SUMS,
        equations.COVARIANCE,
        equations.CONSTANT,
        findings.CURRENT,
        findings.REBUILT,
        equations.CONDITION,
        equations.MEAN,
        *findings.GROWTH.values(),
    ),
    quick=Config(),
    paper=Config(seeds=100),
    run=run,
    judge=each_claim(
        findings.published,
        *(partial(findings.figure_2, kind=kind) for kind in KINDS),
        findings.components,
        equations.sums,
        equations.covariance,
        equations.constant,
        findings.current,
        findings.rebuilt,
        equations.condition,
        equations.mean,
        *(partial(findings.figure_3, kind=kind) for kind in KINDS),
    ),
    draw=draw,
    about=(
        "The networks of Figures 2 and 3 (20 tokens, 20 classes, linear nodes, softmax attention at T = 0.5) are "
        "trained by full-batch SGD on the mean cross-entropy from several seeds, and once more with frozen attention. "
        "The logits are compared with every estimate from V: the published one, its two terms, and the path integrals "
        "that replace it. The comparison is made for each seed at three moments: a quarter, half and the end of "
        "training. Each estimate has a control that knows less: the estimate of another seed, the estimate with frozen "
        "attention, or the guess that z never moves."
    ),
)
