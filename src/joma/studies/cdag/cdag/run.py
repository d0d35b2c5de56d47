"""Networks of two hidden layers that learn the classes of a latent tree, counted as they learn."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.config import Least, StudyConfig, Within
from joma.claims.contract import Progress
from joma.claims.guards import at_paper_scale, beats_guessing, needs_device
from joma.data.ahead import Ahead, sent, turns
from joma.data.hierarchy import HBLT
from joma.data.samples import streams
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.studies.cdag.cdag import network as net
from joma.studies.cdag.cdag.network import COLUMNS
from joma.training import Ensemble, train_all

SMALL, USUAL, RESIDUALS = "small start", "usual start", "residual"


def sound(run: Run, name: str) -> Any:
    """(members,) whether a network trained to its end: it did not diverge, and its loss is a number throughout."""
    return (run.array(f"{name}/diverged_at")[-1] < 0) & np.isfinite(run.array(f"{name}/loss")).all(0)


def _of_sound(run: Run, name: str, values: Any) -> Any:
    """Values (points, members) of the members that are sound; NaN if there is none, so that there is a picture."""
    kept = sound(run, name)
    return values[:, kept] if kept.any() else np.full(values.shape, np.nan)


def column(run: Run, name: str, what: str) -> Any:
    """One of the counts over training, (points, members)."""
    return _of_sound(run, name, run.array(f"{name}/counts")[:, :, COLUMNS.index(what)])


def share(run: Run, name: str, what: str, of: str = "") -> Any:
    """Of the edges or nodes counted as `of` those counted as `what`, (points, members); NaN where none is counted.

    Without `of`, those of `what` that are positive.
    """
    part, total = (column(run, name, each) for each in ((what, of) if of else (f"{what} positive", what)))
    return np.divide(part, total, out=np.full(total.shape, np.nan), where=total > 0)


def learning(run: Run, name: str) -> Any:
    """Of each member the measuring points with between a tenth and nine tenths of the fall of its loss behind them.

    If there is none, that at which it is nearest to half; if the loss never falls, the last. (points, members) bool.
    """
    loss = _of_sound(run, name, run.array(f"{name}/loss"))
    fall = loss[0] - loss.min(0)
    fallen = (loss[0] - loss) / np.where(fall > 0, fall, 1.0)
    during = (fallen >= 0.1) & (fallen <= 0.9)
    chosen = np.where(fall > 0, np.abs(fallen - 0.5).argmin(0), len(loss) - 1)
    during[chosen, np.arange(loss.shape[1])] |= ~during.any(0)
    return during


def while_learning(run: Run, name: str, values: Any) -> Any:
    """The mean of values (points, members) over those points that have one, (members,)."""
    there = learning(run, name) & np.isfinite(values)
    total = np.where(there, values, 0.0).sum(0)
    return np.divide(total, there.sum(0), out=np.full(total.shape, np.nan), where=there.any(0))


def unlearned(run: Run, name: str) -> str | None:
    """Why nothing can be said of these networks; None if they learned."""
    if not sound(run, name).any():
        return f"all networks of the kind {name!r} diverged"
    loss = _of_sound(run, name, run.array(f"{name}/loss"))
    if not beats_guessing(loss.min(0).mean(), run.config["classes"]):
        return f"networks of the kind {name!r} did not learn the classes"
    return None


MOST_TOKENS = 4096  # every one of them is an input

NETWORKS: dict[str, dict[str, Any]] = {SMALL: {"start": 0.1}, USUAL: {}, RESIDUALS: {"residual": True}}
"""The theorem starts its weights at zero, which nodes that are to differ cannot: a small start comes nearest."""


@dataclass(frozen=True)
class CdagConfig(StudyConfig):
    """Networks of two hidden layers that tell the class from the tokens of a tree."""

    classes: Annotated[int, Least(2)] = 5
    branching: tuple[int, ...] = (2, 4)
    """Children of a node, level by level below the class's latent."""
    rho: Annotated[float, Within(0, 1, open=True)] = 0.8
    members: Annotated[int, Least(2)] = 6
    width: int = 48
    steps: Annotated[int, Least(3)] = 250
    batch: int = 128
    rate: float = 0.5
    """SGD's."""
    samples: int = 8_000
    """Sequences of each member, read again and again."""
    held_out: Annotated[int, Least(100)] = 2_400
    """Sequences on which signals are taken: latents are chosen on one half, counted is on the other."""
    points: int = 18
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (tokens := self.classes * prod(self.branching)) > MOST_TOKENS:
            raise ValueError(f"classes and branching make {tokens} tokens, at most {MOST_TOKENS} can be read")


def run(config: CdagConfig, run: Run, progress: Progress) -> None:
    """Train each kind of network, counting edges and nodes at every measuring point."""
    needs_device(config.device, at_paper_scale("cdag"))
    train_all(ensembles(config), run, progress=progress)


def ensembles(config: CdagConfig) -> dict[str, Ensemble]:
    """One for every kind of network."""
    tree = HBLT.one_per_class(config.classes, config.branching, config.rho).to(config.device)
    x, labels, _ = draw_samples(config, tree, config.samples, 0)
    heights = torch.cat([torch.full((n,), i + 1) for i, n in enumerate(widths(config))]).to(config.device)
    data = net.Data(*draw_samples(config, tree, config.held_out, 1), heights)
    points = np.unique(np.geomspace(3, config.steps, config.points).round().astype(int))

    def batch(steps: range, members: Sequence[int]) -> tuple[Tensor, ...]:
        turn = turns(steps, config.batch, config.samples, x.device)[:, None]
        some = sent(members, x.device)[:, None]
        return x[some, turn], labels[some, turn]

    def held_out_loss(network: net.LatentMLP, members: Sequence[int]) -> Tensor:
        some = data.of(members)
        return net.loss(network, (some.x, some.labels))

    def ensemble(options: dict[str, Any]) -> Ensemble:
        def networks(members: Sequence[int]) -> net.LatentMLP:
            seeds = [1000 * config.seed + member for member in members]
            return net.LatentMLP(seeds, tree.tokens, config.width, config.classes, **options)

        return Ensemble(
            members=config.members,
            networks=networks,
            batch=Ahead(batch, steps=config.steps, device=config.device),
            loss=net.loss,
            optimizer=make_optimizer("sgd", rate=config.rate),
            steps=config.steps,
            measures={"counts": lambda network, members: net.measure(network, data.of(members)), "loss": held_out_loss},
            measure_at=[0, *points.tolist()],
            device=config.device,
            precision="float32",
        )

    return {name: ensemble(options) for name, options in NETWORKS.items()}


def draw_samples(config: CdagConfig, tree: HBLT, count: int, part: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (members, count, tokens), classes, and all latents from the lowest to the highest."""
    sources = streams(config.seed, range(config.members), part, device=config.device)
    sample = tree.sample((config.members, count), generator=sources)
    return sample.on.float(), sample.labels, torch.cat(sample.latents, -1).float()


def widths(config: CdagConfig) -> list[int]:
    """Latents at each height, from 1 on."""
    levels = np.cumprod([config.classes, *config.branching[:-1]])
    return [int(width) for width in levels[::-1]]
