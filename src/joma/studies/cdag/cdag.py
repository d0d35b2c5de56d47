"""The correlations of CDAG Theorem 1 in networks that learn the classes of a latent tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Drawing, NotRun, Progress, Study, each_claim
from joma.data.ahead import Ahead, Draw, sent, turns
from joma.data.hierarchy import HBLT
from joma.data.samples import streams
from joma.figures.bands import bound, mean_and_band
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import course, number
from joma.figures.style import CONTROL, SERIES, panels
from joma.host.devices import lacking
from joma.runs import Run
from joma.studies.cdag import _cdag_findings as findings
from joma.studies.cdag import _latent_mlp as net
from joma.studies.cdag._cdag_findings import column, share, while_learning
from joma.training import Ensemble, Optimizer, train_all

MOST_TOKENS = 4096  # every one of them is an input

NETWORKS: dict[str, dict[str, Any]] = {
    findings.SMALL: {"start": 0.1},
    findings.USUAL: {},
    findings.RESIDUALS: {"residual": True},
}
"""The theorem starts its weights at zero, which nodes that are to differ cannot: a small start comes nearest."""


@dataclass(frozen=True)
class Config:
    """Networks of two hidden layers that tell the class from the tokens of a tree."""

    classes: int = 5
    branching: tuple[int, ...] = (2, 4)
    """Children of a node, level by level below the class's latent."""
    rho: float = 0.8
    members: int = 6
    width: int = 48
    steps: int = 250
    batch: int = 128
    rate: float = 0.5
    """SGD's."""
    samples: int = 8_000
    """Sequences of each member, read again and again."""
    held_out: int = 2_400
    """Sequences on which signals are taken: latents are chosen on one half, counted is on the other."""
    points: int = 18
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.members < 2 or self.classes < 2:
            raise ValueError(f"members and classes must be at least 2, got {self.members} and {self.classes}")
        if not 0 < self.rho < 1:
            raise ValueError(f"rho must lie between 0 and 1, got {self.rho}")
        if self.held_out < 100 or self.steps < 3:
            raise ValueError(f"held_out must be at least 100 and steps 3, got {self.held_out} and {self.steps}")
        if (tokens := self.classes * prod(self.branching)) > MOST_TOKENS:
            raise ValueError(f"classes and branching make {tokens} tokens, at most {MOST_TOKENS} can be read")


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train each kind of network, counting edges and nodes at every measuring point."""
    if lacks := lacking(config.device):
        raise NotRun(str(lacks), findings.COMMAND)
    train_all(_ensembles(config), run, progress=progress)


def _ensembles(config: Config) -> dict[str, Ensemble]:
    tree = HBLT.one_per_class(config.classes, config.branching, config.rho).to(config.device)
    x, labels, _ = _draw(config, tree, config.samples, 0)
    fresh = _draw(config, tree, config.held_out, 1)
    heights = torch.cat([torch.full((n,), i + 1) for i, n in enumerate(_widths(config))]).to(config.device)
    data = net.Data(*fresh, heights)

    def draw(steps: range, members: Sequence[int]) -> tuple[Tensor, ...]:
        turn = turns(steps, config.batch, config.samples, x.device)[:, None]
        some = sent(members, x.device)[:, None]
        return x[some, turn], labels[some, turn]

    return {name: _ensemble(config, tree.tokens, options, draw, data) for name, options in NETWORKS.items()}


def _draw(config: Config, tree: HBLT, count: int, part: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (members, count, tokens), classes, and all latents from the lowest to the highest."""
    sources = streams(config.seed, range(config.members), part, device=config.device)
    sample = tree.sample((config.members, count), generator=sources)
    return sample.on.float(), sample.labels, torch.cat(sample.latents, -1).float()


def _widths(config: Config) -> list[int]:
    """Latents at each height, from 1 on."""
    levels = np.cumprod([config.classes, *config.branching[:-1]])
    return [int(width) for width in levels[::-1]]


def _ensemble(config: Config, tokens: int, options: dict[str, Any], draw: Draw, data: net.Data) -> Ensemble:
    seeds = [1000 * config.seed + member for member in range(config.members)]

    def networks(members: Sequence[int]) -> net.LatentMLP:
        return net.LatentMLP([seeds[member] for member in members], tokens, config.width, config.classes, **options)

    def counts(network: net.LatentMLP, members: Sequence[int]) -> Tensor:
        return net.measure(network, data.of(members))

    def held_out_loss(network: net.LatentMLP, members: Sequence[int]) -> Tensor:
        some = data.of(members)
        return net.loss(network, (some.x, some.labels))

    points = np.unique(np.geomspace(3, config.steps, config.points).round().astype(int))
    return Ensemble(
        members=config.members,
        networks=networks,
        batch=Ahead(draw, steps=config.steps, device=config.device),
        loss=net.loss,
        optimizer=Optimizer("sgd", rate=config.rate),
        steps=config.steps,
        measures={"counts": counts, "loss": held_out_loss},
        measure_at=[0, *points.tolist()],
        device=config.device,
    )


def draw(run: Run) -> list[Drawing]:
    """Shares with a positive outcome, and angles, over training."""
    figure, (left, right) = panels(2, width=4.5, height=3.0)
    seen = [_draw_gradients(run, left), _draw_angles(run, right)]
    own, other = (
        number(float(np.mean(while_learning(run, findings.SMALL, share(run, findings.SMALL, what)))), "%")
        for what in ("children", "other children")
    )
    caption = (
        "While the loss falls, the gradient from all parents together agrees with the latent of a first-layer node at "
        f"{own} of the nodes (small start); with the latent of another node it agrees at {other}. Left: this share "
        "during training, from all parents together and from each parent alone. Right: the sum of the three angles of "
        "the premises, mean over edges and seeds (bands: smallest to largest seed). Below 90° the conclusion would be "
        "certain."
    )
    return [Drawing("cdag-in-training", caption, figure, "Two panels. " + " ".join(seen))]


def _draw_gradients(run: Run, axis: Any) -> str:
    told = []
    for name, colour in zip(NETWORKS, SERIES, strict=False):
        steps = run.steps(f"{name}/counts")[1:]
        together, alone, other = (
            share(run, name, what)[1:].mean(1) for what in ("children", "signs", "other children")
        )
        axis.plot(steps, together, color=colour, label=name)
        axis.plot(steps, alone, color=colour, ls="--")
        axis.plot(steps, other, color=CONTROL, lw=1, label="latent of\nanother node")
        told.append(f"{name} {_peak(steps, together)} (one parent: {_peak(steps, alone)})")
    end_label(axis, "solid: all parents")
    end_label(axis, "dashed: one parent", ls="--")
    axis.set(xscale="log", xlabel="training step", ylabel="share of gradients that agree")
    axis.set_title("Gradients that agree with the latent")
    axis.set(ylim=(0.3, 1.05), yticks=(0.4, 0.6, 0.8, 1.0))
    label_lines(axis)
    return f"Left, the share of gradients that agree with the latent: {'; '.join(told)}."


def _peak(steps: Any, shares: Any) -> str:
    if not np.isfinite(shares).any():
        return "has no values"
    best = int(np.nanargmax(shares))
    return f"peaks at {number(shares[best], '%')} at step {number(steps[best])} and ends at {number(shares[-1], '%')}"


def _draw_angles(run: Run, axis: Any) -> str:
    steps, told = run.steps("residual/counts"), []
    for what, label, colour in (("total", "between layers", SERIES[0]), ("direct total", "residual edges", SERIES[1])):
        values = column(run, "residual", what)
        mean_and_band(axis, 1 + steps, values, color=colour, label=label)
        told.append(f"{label} it {course(steps, values.mean(1), '°')}")
    bound(axis, 90, "needed:\nbelow 90°")
    axis.set(xscale="log", xlabel="1 + training step", ylabel="a + b + c (degrees)")
    axis.set_title("The angles of the premises stay too large")
    axis.set(ylim=(60, 240), yticks=(90, 135, 180, 225))
    label_lines(axis)
    return f"Right, the sum of the three angles, which should be below 90°: {'; on '.join(told)}."


STUDY = Study(
    name="cdag",
    title="CDAG Theorem 1 in training: do gradients teach a node its latent?",
    version=1,
    claims=findings.CLAIMS,
    quick=Config(),
    paper=Config(
        classes=20,
        branching=(3, 5),
        members=20,
        width=512,
        steps=3_000,
        batch=256,
        rate=0.5,
        samples=50_000,
        held_out=8_192,
        points=30,
        device="cuda",
    ),
    run=run,
    judge=each_claim(*findings.JUDGES),
    draw=draw,
    about=(
        "Networks of two hidden layers learn the class of a hierarchical latent tree from its tokens. Two signals "
        "agree if their correlation is positive. At every measuring point each node gets the latent that agrees "
        "best with its activation (or, above, the class that agrees best with its gradient) on one half of the "
        "held-out samples. On the other half the study counts how often the conclusion of the theorem is true where "
        "its premises are. The controls give a node the latent of another node, or use the untrained network. A "
        "number must exceed all of its controls over the seeds."
    ),
)
