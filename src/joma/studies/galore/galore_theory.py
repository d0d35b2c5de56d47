"""The statements behind GaLore: gradients that become low rank, fixed projections, memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Drawing, Progress, Study, each_claim
from joma.runs import Run
from joma.studies.galore import _theory_findings as findings
from joma.studies.galore import _theory_networks as networks
from joma.studies.galore import _theory_projection as projection
from joma.studies.galore import _theory_tables as tables
from joma.studies.galore._theory_descent import lemma, rank_one
from joma.studies.galore._theory_figures import draw_bounds, draw_half, draw_memory, draw_projection
from joma.studies.galore._theory_half import half
from joma.studies.galore._theory_memory import count
from joma.studies.galore._theory_rows import rows

RATES = (0.01, 0.03, 0.1, 0.3)
"""Of the two problems of Theorem 3.8 that were made by hand."""


@dataclass(frozen=True)
class Config:
    """Small random problems, followed exactly."""

    height: int = 3
    width: int = 4
    """Of the gradients of Lemma 3.3 and Theorem 3.8."""
    draws: int = 12
    """Random problems per family of Lemma 3.3."""
    steps: int = 60
    inputs: int = 16
    """Dimensions of Corollary 3.4, with one input less."""
    networks: int = 5
    """Random networks per kind of activation."""
    classes: tuple[int, ...] = (10, 100, 10_000)
    """Of the softmax loss."""
    searches: int = 500
    """Random problems per family of Theorem 3.8."""
    settled: int = 10
    """Problems that are followed to their end."""
    tokens: int = 5
    nodes: int = 3
    blocks: int = 1
    """Of Lemma B.6."""
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.height, self.width) < 2:
            raise ValueError(
                f"height and width must be at least 2, for a rank to fall, got {self.height}, {self.width}"
            )
        if self.inputs < 5:
            raise ValueError(f"inputs must be at least 5, so that one less is well above half, got {self.inputs}")
        if self.nodes < 2:
            raise ValueError(f"nodes must be at least 2, for one the equations are the same, got {self.nodes}")
        if min(self.classes, default=0) < 2:
            raise ValueError(f"classes must hold numbers of at least 2, got {self.classes}")


def run(config: Config, run: Run, progress: Progress) -> None:
    """Each part is recorded once, as a whole."""
    c, seed = config, config.seed
    parts: tuple[tuple[str, Callable[[], dict[str, Tensor]]], ...] = (
        ("lemma", lambda: lemma(c.height, c.width, c.draws, c.steps, seed)),
        ("half", lambda: half(c.inputs, 40, seed)),
        ("rank one", lambda: rank_one(c.height, c.width, c.draws, 300, seed)),
        ("network", lambda: {kind: networks.errors(kind, c.networks, seed) for kind in networks.ACTIVATIONS}),
        ("softmax", lambda: _softmax(c)),
        ("projection", lambda: _projections(c)),
        ("rows", lambda: rows(c.tokens, c.nodes, c.blocks, 20, seed)),
        ("memory", count),
    )
    for i, (name, compute) in enumerate(parts):
        progress(i / len(parts), name)
        if f"{name}/done" not in run:
            found = {f"{name}/{key}": value for key, value in compute().items()}
            run.record(0, {**found, f"{name}/done": np.array(1)})


def _softmax(config: Config) -> dict[str, Tensor]:
    sizes = torch.logspace(-4, -1, 4, dtype=torch.float64)
    found = {"sizes": sizes, "classes": torch.tensor(config.classes)}
    for k in config.classes:
        for name, at in (
            ("small", sizes),
            ("printed", torch.tensor([findings.LOGIT * k**0.5])),
            ("corrected", torch.tensor([findings.LOGIT])),
        ):
            found[f"{k}/{name}"] = networks.softmax_errors(k, at, config.networks, config.seed)
    return found


def _projections(config: Config) -> dict[str, Tensor]:
    rates = torch.tensor(RATES, dtype=torch.float64)
    found = projection.search(config.searches, config.height, config.width, config.seed)
    for name, part in (
        ("peak", projection.peak(rates)),
        ("constant C", projection.constant_c(rates)),
        ("high rate", projection.high_rate(torch.tensor([1.85, 1.9, 1.95], dtype=torch.float64))),
        ("cycle", projection.cycle(400)),
        ("settle", projection.settle(config.settled, config.height, config.width, 150, config.seed)),
    ):
        found |= {f"{name}/{key}": value for key, value in part.items()}
    return found


def draw(run: Run) -> list[Drawing]:
    """Stable ranks and bounds; the counterexample to Corollary 3.4; fixed projections; memory."""
    return [draw_bounds(run), draw_half(run), draw_projection(run), draw_memory(run)]


STUDY = Study(
    name="galore-theory",
    title="GaLore's theory: which gradients become low rank, and what the printed bounds leave out",
    version=1,
    claims=(
        findings.REVERSIBLE,
        findings.POLYNOMIAL,
        findings.REMAINDER,
        findings.LOGITS,
        findings.BOUND,
        findings.HALF,
        findings.RANK_ONE,
        findings.CONTRACTS,
        findings.CONSTANT,
        findings.CONVERGES,
        tables.DYNAMICS,
        tables.GROWTH,
        tables.STATES,
        tables.TOTAL,
    ),
    quick=Config(),
    paper=Config(
        height=5,
        width=6,
        draws=200,
        steps=100,
        inputs=24,
        networks=30,
        classes=(10, 100, 1000, 10_000, 100_000),
        searches=40_000,
        settled=200,
        tokens=10,
        nodes=8,
        blocks=3,
    ),
    run=run,
    judge=each_claim(
        findings.reversible,
        findings.polynomial,
        findings.remainder,
        findings.logits,
        findings.bounded,
        findings.half,
        findings.rank_one,
        findings.contracts,
        findings.constant,
        findings.converges,
        tables.dynamics,
        tables.growth,
        tables.memory_states,
        tables.memory_total,
    ),
    draw=draw,
    about=(
        "Every statement is computed on small problems in float64 and compared with autograd, with the exact path of "
        "gradient descent, or with the flow of a real block. Lemma 3.3 is followed in four families: one pair (B, C) "
        "at a small rate, and then with several pairs, with a high rate, or with a G_0 that is not the gradient at t₀. "
        "The families say which premise each part of the printed bound needs. Corollary 3.4 is followed with n − 1 "
        "inputs in n dimensions. Theorem 3.8 is searched over random problems and over two problems with one number in "
        "place of matrices, where its terms can be seen. Memory is computed from the configurations of the models. "
        "This study says nothing about trained networks: there A, B and C move at every step."
    ),
)
