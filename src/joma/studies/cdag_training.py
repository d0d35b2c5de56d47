"""The correlations of CDAG Theorem 1 in networks that learn the classes of a latent tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.data.hierarchy import HBLT
from joma.data.samples import streams
from joma.runs import Run
from joma.studies import _latent_mlp as net
from joma.studies._tree_findings import Effect, effect, say_who_diverged
from joma.studies.contract import Claim, Drawing, Finding, NotRun, Progress, Study
from joma.studies.drawing import CONTROL, SERIES, panels
from joma.studies.verdicts import by_effect, by_test
from joma.training import Ensemble, Optimizer, train_all

MARGIN = 0.05  # a share, or a correlation, must exceed its control by so much, and by its interval
ALL = 0.99  # of edges or nodes
DEGREES = 5.0
MOST_TOKENS = 4096  # every one of them is an input

NETWORKS: dict[str, dict[str, Any]] = {
    "small start": {"start": 0.1},
    "usual start": {},
    "residual": {"residual": True},
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


def _claim(name: str, source: str, says: str) -> Claim:
    return Claim(name, source, says, empirical=True)


SIGNS = _claim(
    "signs-in-training",
    "CDAG Thm 1",
    "Where a parent's gradient goes with a class, a child's activation with a latent, and the latent with the class, "
    "the gradient that this parent sends the child goes with the latent.",
)
RULE = _claim("gradient-rule", "CDAG Thm 1", "The weight between child and parent has the sign of corr(f, δ).")
CHILD = _claim(
    "all-parents",
    "CDAG Sec. 1.2",
    "What a child receives from all its parents together goes with the latent of its activation.",
)
GATE = _claim(
    "behind-the-gate",
    "CDAG Sec. 1.2",
    "Where activation and gradient of a node go with a latent, the gradient behind its nonlinearity does, too.",
)
ENDS = _claim(
    "both-ends",
    "CDAG Sec. 1.2",
    "Near the loss gradients go with the label, near the input activations go with latents; both meet the premises.",
)
RESIDUAL = _claim(
    "residual",
    "CDAG Sec. 1.2",
    "Residual connections, from nodes near the input to nodes near the loss, make the premises easier to meet.",
)
LEARNED = _claim(
    "task-distributed",
    "CDAG Sec. 1.2",
    "Taught a class from above, the nodes below learn more basic latents.",
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train each kind of network, counting edges and nodes at every measuring point."""
    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise NotRun("torch sees no CUDA GPU here", "joma verify cdag --scale paper")
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


def column(run: Run, name: str, what: str) -> Any:
    """One of the counts over training, (points, members)."""
    return _sound(run, name, run.array(f"{name}/counts")[:, :, net.COLUMNS.index(what)])


def _sound(run: Run, name: str, values: Any) -> Any:
    """Values (points, members) of the members that did not diverge; with fewer than two of them nothing is known."""
    sound = run.array(f"{name}/diverged_at")[-1] < 0
    return values[:, sound] if sound.sum() >= 2 else np.full(values.shape, np.nan)


def share(run: Run, name: str, what: str) -> Any:
    """Of the edges or nodes counted as `what` those with a positive outcome, (points, members)."""
    return column(run, name, f"{what} positive") / np.maximum(column(run, name, what), 1)


def learning(run: Run, name: str) -> Any:
    """Of each member the measuring points with between a tenth and nine tenths of the fall of its loss behind them.

    If there is none, that at which it is nearest to half; if the loss never falls, the last. (points, members) bool.
    """
    loss = _sound(run, name, run.array(f"{name}/loss"))
    whole = loss[0] - loss.min(0)
    fallen = (loss[0] - loss) / np.where(whole > 0, whole, 1.0)
    during = (fallen >= 0.1) & (fallen <= 0.9)
    nearest = np.abs(fallen - 0.5).argmin(0)
    chosen = np.where(whole > 0, nearest, len(loss) - 1)
    during[chosen, np.arange(loss.shape[1])] |= ~during.any(0)
    return during


def while_learning(run: Run, name: str, values: Any) -> Any:
    """The mean of values (points, members) over those points, (members,)."""
    return values.mean(0, where=learning(run, name))


def judge(run: Run) -> list[Finding]:
    """Shares while the networks learn, against other nodes' latents and against the untrained network."""
    found = [
        _judge_share(run, SIGNS, "signs", "others", "edges that meet the premises", 1.0),
        _judge_rule(run),
        _judge_share(run, CHILD, "children", "other children", "nodes", ALL),
        _judge_share(run, GATE, "gated", "other gated", "nodes", ALL),
        _judge_ends(run),
        _judge_residual(run),
        _judge_learned(run),
    ]
    return say_who_diverged(run, NETWORKS, found)


def _judge_share(run: Run, claim: Claim, what: str, other: str, of: str, needed: float) -> Finding:
    """Against the latent of another node and, because that of an untrained network may do as well, against that."""
    seen, untrained = {}, {}
    for name in NETWORKS:
        shares, control = share(run, name, what), share(run, name, other)
        seen[name] = effect(while_learning(run, name, shares), while_learning(run, name, control))
        untrained[name] = effect(while_learning(run, name, shares), shares[0])
    first, since = seen["small start"], untrained["small start"]
    return by_effect(
        claim,
        measured=min(first.difference, since.difference),
        control=0.0,
        margin=max(MARGIN, first.half, since.half),
        expected=f"positive for {'all' if needed == 1 else f'{needed:.0%} of'} {of} while the loss falls",
        quantitative=first.value >= needed,
        shown=f"positive for {_percent(first)} of {of} from a small start, {_percent(seen['usual start'])} from the "
        f"usual one, {_percent(seen['residual'])} with a residual",
        control_shown=f"latents of other nodes: {', '.join(f'{one.control:.0%}' for one in seen.values())}; untrained: "
        f"{', '.join(f'{one.control:.0%}' for one in untrained.values())}",
    )


def _percent(one: Effect) -> str:
    return f"{one.value:.0%} ± {100 * one.half:.0f}"


def _judge_rule(run: Run) -> Finding:
    seen = {}
    for name in NETWORKS:
        agree = column(run, name, "edges with the rule") / np.maximum(column(run, name, "edges"), 1)
        seen[name] = effect(while_learning(run, name, agree), agree[0])
    first = seen["small start"]
    return by_effect(
        RULE,
        measured=first.difference,
        control=0.0,
        margin=max(MARGIN, first.half),
        expected=f"the same sign in {ALL:.0%} of edges while the loss falls",
        quantitative=first.value >= ALL,
        shown=f"{_percent(first)} of edges from a small start, {_percent(seen['usual start'])} from the usual one, "
        f"{_percent(seen['residual'])} with a residual",
        control_shown=f"untrained: {', '.join(f'{one.control:.0%}' for one in seen.values())}",
    )


def _judge_ends(run: Run) -> Finding:
    name = "small start"
    c1 = [while_learning(run, name, column(run, name, f"C1 {layer}")) for layer in ("out", "second", "first")]
    c2 = [while_learning(run, name, column(run, name, f"C2 {layer}")) for layer in ("input", "first", "second")]
    falls = [effect(near[0], near[-1]).above(MARGIN) for near in (c1, c2)]
    inside = column(run, name, "angles").sum(1)
    untrained = [column(run, name, what)[0].mean() for what in ("C1 out", "C1 first", "C2 input", "C2 second")]
    return by_test(
        ENDS,
        measured=f"corr(z_α, δ) is {_listed(c1)} from the classes down, corr(z_β, f) {_listed(c2)} from the tokens up; "
        f"edges whose angles add up to less than 90°: {inside.max():.0f} at any step (the mean is "
        f"{while_learning(run, name, column(run, name, 'total')).mean():.0f}°)",
        expected="both falling away from their end, and edges that meet the premises as they have to be, by angles",
        as_printed=all(falls) and inside[-1] > inside[0],
        in_direction=all(falls),
        tolerance=MARGIN,
        control=f"latents of other samples: {column(run, name, 'C1 out shuffled')[-1].mean():.2f} and "
        f"{column(run, name, 'C2 first shuffled')[-1].mean():.2f}; untrained: {untrained[0]:.2f} to {untrained[1]:.2f} "
        f"and {untrained[2]:.2f} to {untrained[3]:.2f}",
    )


def _judge_residual(run: Run) -> Finding:
    name = "residual"
    direct, through = (while_learning(run, name, column(run, name, what)) for what in ("direct total", "total"))
    closer = effect(through, direct)
    inside = column(run, name, "direct angles").sum(1)
    start = column(run, name, "total")[0] - column(run, name, "direct total")[0]
    return by_test(
        RESIDUAL,
        measured=f"the angles add up to {direct.mean():.0f}° on residual edges and to {through.mean():.0f}° between "
        f"layers (difference {closer.difference:.0f} ± {closer.half:.0f}°); {inside.max():.0f} edges are below 90°",
        expected="smaller sums on residual edges, some of them below 90°",
        as_printed=closer.above(DEGREES) and inside[-1] > inside[0],
        in_direction=closer.above(DEGREES),
        tolerance=DEGREES,
        control=f"untrained, the difference is {start.mean():.0f}°",
    )


def _judge_learned(run: Run) -> Finding:
    name = "small start"
    learned = column(run, name, "C2 first")
    seen = effect(learned[-1], learned[0])
    height = effect(*(column(run, name, f"height {layer}")[-1] for layer in ("second", "first")))
    return by_effect(
        LEARNED,
        measured=seen.difference,
        control=0.0,
        margin=max(MARGIN, seen.half),
        expected="first-layer nodes closer to a latent than untrained, and to a lower one than the second layer's",
        quantitative=height.above(0.0),
        shown=f"corr(z_β, f) {seen} in the first layer, in the end; mean height of z_β {height.control:.2f} in the "
        f"first layer and {height} in the second",
        control_shown=f"untrained: {seen.control:.2f}; latents of other samples: "
        f"{column(run, name, 'C2 first shuffled')[-1].mean():.2f}",
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


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(f"{np.mean(value):.2f}" for value in values)


STUDY = Study(
    name="cdag",
    title="CDAG Theorem 1 in training: do gradients teach a child its latent?",
    version=1,
    claims=(SIGNS, RULE, CHILD, GATE, ENDS, RESIDUAL, LEARNED),
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
    judge=judge,
    draw=draw,
    about=(
        "Networks of two hidden layers learn the class of a hierarchical latent tree from its tokens. At every "
        "measuring point each node is given the latent that its activation (or, above, the class that its gradient) "
        "goes with best on one half of the held-out samples; on the other half it is counted how often the theorem's "
        "conclusion is true where its premises are. The controls give a node another node's latent, or take the "
        "untrained network."
    ),
)
