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
from joma.data.hierarchy import HBLT
from joma.data.samples import streams
from joma.figures.style import CONTROL, SERIES, panels
from joma.host.devices import lacking
from joma.runs import Run
from joma.studies.cdag import _cdag_findings as findings
from joma.studies.cdag import _latent_mlp as net
from joma.studies.cdag._cdag_findings import column, share
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
    tree = HBLT.one_per_class(config.classes, config.branching, config.rho).to(config.device)
    x, labels, _ = _draw(config, tree, config.samples, 0)
    fresh = _draw(config, tree, config.held_out, 1)
    heights = torch.cat([torch.full((n,), i + 1) for i, n in enumerate(_widths(config))]).to(config.device)
    data = net.Data(*fresh, heights)

    def batch(step: int, members: Sequence[int]) -> tuple[Tensor, ...]:
        turn = torch.arange(step * config.batch, (step + 1) * config.batch, device=x.device) % config.samples
        some = torch.as_tensor(list(members), device=x.device)[:, None]
        return x[some, turn], labels[some, turn]

    ensembles = {name: _ensemble(config, tree.tokens, options, batch, data) for name, options in NETWORKS.items()}
    train_all(ensembles, run, progress=progress)


def _draw(config: Config, tree: HBLT, count: int, part: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (members, count, tokens), classes, and all latents from the lowest to the highest."""
    sources = streams(config.seed, range(config.members), part, device=config.device)
    sample = tree.sample((config.members, count), generator=sources)
    return sample.on.float(), sample.labels, torch.cat(sample.latents, -1).float()


def _widths(config: Config) -> list[int]:
    """Latents at each height, from 1 on."""
    levels = np.cumprod([config.classes, *config.branching[:-1]])
    return [int(width) for width in levels[::-1]]


def _ensemble(config: Config, tokens: int, options: dict[str, Any], batch: Any, data: net.Data) -> Ensemble:
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
        batch=batch,
        loss=net.loss,
        optimizer=Optimizer("sgd", rate=config.rate),
        steps=config.steps,
        measures={"counts": counts, "loss": held_out_loss},
        measure_at=[0, *points.tolist()],
        device=config.device,
    )


def draw(run: Run) -> list[Drawing]:
    """Shares with a positive outcome, and angles, over training."""
    figure, (left, right) = panels(2, height=3.0)
    for name, colour in zip(NETWORKS, SERIES, strict=False):
        steps = run.steps(f"{name}/counts")[1:]
        left.plot(steps, share(run, name, "children")[1:].mean(1), color=colour, label=name)
        left.plot(steps, share(run, name, "signs")[1:].mean(1), color=colour, ls="--")
        left.plot(steps, share(run, name, "other children")[1:].mean(1), color=CONTROL, lw=1)
    left.plot([], [], color=CONTROL, lw=1, label="another node's latent")  # after the networks, and once
    left.set(xscale="log", xlabel="step", ylabel="share that goes with the latent", title="Gradients sent to a child")
    left.set(ylim=(0.3, 1.5), yticks=(0.4, 0.6, 0.8, 1.0))
    title = "solid: all parents, dashed: one parent"
    left.legend(loc="upper left", title=title, title_fontsize=8.5)
    steps = run.steps("residual/counts")
    for what, label, colour in (("total", "between layers", SERIES[0]), ("direct total", "residual edges", SERIES[1])):
        values = column(run, "residual", what)
        right.plot(1 + steps, values.mean(1), color=colour, label=label)
        right.fill_between(1 + steps, values.min(1), values.max(1), color=colour, alpha=0.2, lw=0)
    right.axhline(90, ls="--", lw=1, color=CONTROL, label="needed: below 90°")
    right.set(xscale="log", xlabel="1 + step", ylabel="a + b + c in degrees", title="Angles of the premises")
    right.set(ylim=(60, 290), yticks=(90, 135, 180, 225))
    right.legend(loc="upper right")
    caption = (
        "Left: how often the gradient that reaches a first-layer node goes with the latent of its activation, from "
        "each parent alone and from all together. Right: the sum of the three angles of the premises, mean over edges "
        "(band: seeds); below 90° the conclusion would be certain."
    )
    return [Drawing("cdag-in-training", caption, figure)]


STUDY = Study(
    name="cdag",
    title="CDAG Theorem 1 in training: do gradients teach a child its latent?",
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
        "Networks of two hidden layers learn the class of a hierarchical latent tree from its tokens. At every "
        "measuring point each node is given the latent that its activation (or, above, the class that its gradient) "
        "goes with best on one half of the held-out samples; on the other half it is counted how often the theorem's "
        "conclusion is true where its premises are. The controls give a node another node's latent, or take the "
        "untrained network; a number must exceed all of its controls, over seeds."
    ),
)
