"""Theorem 1 for linear, exp and any other pointwise attention: eq. 14 and what follows from it along the flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from joma.claims.contract import Drawing, Progress, Study
from joma.figures.bands import bound
from joma.figures.labels import label_lines
from joma.figures.reading import between, number
from joma.figures.style import CONTROL, CORRECTED, GREEN, INK, ORANGE, panels
from joma.runs import Run
from joma.studies.invariant._blocks import (
    GRADIENTS,
    SMOOTH,
    draw_block,
    draw_start,
    kept,
    moments,
    normal,
    pack,
    side_by_side,
    three_gradients,
    unpack,
)
from joma.studies.invariant._thm1_findings import CLAIMS, FLOW, KINDS, SIGMAS, judge, wrong_integral
from joma.theory.attention import Attention, derivative
from joma.theory.flow import Block, State, identity, integrate_together

COARSE = 1e-6  # the solver's rtol for controls, which drift by far more


@dataclass(frozen=True)
class Config:
    """Random blocks of every activation, gradient and width, with and without the residual connection."""

    tokens: int = 6
    nodes: tuple[int, ...] = (1, 4)
    samples: int = 16
    horizon: float = 0.75
    steps: int = 21
    kink_steps: tuple[int, int] = (20, 80)
    """Runge-Kutta steps through half the horizon of a ReLU flow: a coarse and a fine count."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise ValueError(f"steps must be at least 2, the start and a later moment, got {self.steps}")
        if len(self.kink_steps) != 2 or self.kink_steps[0] >= self.kink_steps[1]:
            raise ValueError(f"kink_steps must be two counts, a coarse and a finer one, got {self.kink_steps}")


def run(config: Config, run: Run, progress: Progress) -> None:
    """Follow every block by an adaptive solver that knows nothing of the invariants, and record z and v."""
    run.keep("t", lambda: moments(config.horizon, config.steps))
    flows = _flows(config)
    for i, (name, compute) in enumerate(flows.items()):
        progress(i / (len(flows) + 1), name)
        run.keep(name, compute)
    progress(0.9, "the pull on the logits")
    run.keep("pull", lambda: torch.stack(_pull(config)))
    without = run.value("exp/no residual")
    run.keep("saliency", lambda: _saliency(config, *unpack(without)))
    run.keep("zero start/ReLU", lambda: _relu_at_zero(config))


def _flows(config: Config) -> dict[str, Callable[[], Tensor]]:
    """Name and computation of every recorded path of z and v, `pack`ed."""
    flows: dict[str, Callable[[], Tensor]]
    flows = {f"{kind}/{n} nodes": partial(_follow, config, kind, n) for kind in KINDS for n in config.nodes}
    flows["sigma"] = partial(_follow, config, "sigma")
    for kind in KINDS:
        flows[f"{kind}/no residual"] = partial(_follow, config, kind, residual=False)
    for steps in config.kink_steps:
        flows[f"ReLU/{steps} steps"] = partial(_through_kinks, config, steps)
    flows["exp/other data"] = partial(_other_data, config)
    flows["exp/overlapping query"] = partial(_overlapping, config)
    flows["exp/two gradients"] = partial(_two_gradients, config)
    return flows


def draw(run: Run) -> list[Drawing]:
    """What the logits do against what V predicts, and the drift of right and wrong invariants."""
    figure, (left, right) = panels(2, width=4.6)
    logits, (drift, least) = _draw_logits(run, left), _draw_drift(run, right)
    caption = (
        f"The logits move as Theorem 1 predicts from the weights: the invariants drift by at most {number(drift)}. "
        f"With a wrong factor the drift is at least {number(least)}. Left: the change of each exp logit against "
        "its prediction, for all tokens, activations and times; the line marks equality. Right: the largest drift of "
        "the invariants over all activations and gradients. The control is an invariant with a wrong factor: z − Σv² "
        "(exp) and z² − Σv²/2 (linear)."
    )
    alt = (
        f"Two panels. {logits} Right, on a log scale: the drift of Theorem 1 reaches {number(drift)} and stays below "
        f"the tolerance of {number(FLOW)}. The drifts with a wrong factor reach {number(least)} or more."
    )
    return [Drawing("first-integral", caption, figure, alt)]


def _draw_logits(run: Run, axis: Any) -> str:
    z, v = (part[:, 0] for part in unpack(run.value(f"exp/{run.config['nodes'][-1]} nodes")))  # from random starts
    predicted = v.square().sum(-1) / 2
    for i, (gradient, colour) in enumerate(zip(GRADIENTS, (CORRECTED, ORANGE, GREEN), strict=True)):
        across, up = ((part - part[0])[:, :, i].flatten() for part in (predicted, z))
        axis.plot(across, up, "o", ms=2.5, mew=0, alpha=0.6, color=colour, label=f"g {gradient}")
    ends = torch.stack([predicted - predicted[0], z - z[0]]).aminmax()
    axis.axline((0, 0), slope=1, lw=1, color=INK, zorder=0, label="equality")
    axis.set(xlim=tuple(map(float, ends)), ylim=tuple(map(float, ends)))
    axis.set(xlabel="change of ½Σv² of a token", ylabel="change of its logit z", title="Exp logits follow the weights")
    label_lines(axis)
    off = (z - z[0] - predicted + predicted[0]).abs().max()
    return (
        f"Left: the dots of all {len(GRADIENTS)} kinds of gradient lie on the line of equality, within "
        f"{number(float(off))}, while the logits change by values {between(z - z[0])}."
    )


def _draw_drift(run: Run, axis: Any) -> tuple[float, float]:
    """The largest drift of Theorem 1, and the smallest of those that a wrong factor reaches."""
    t = run.value("t")
    reached: dict[str, list[float]] = {"Theorem 1": [], "wrong factor": []}
    for kind, style in zip(KINDS, ("-", "--"), strict=True):
        z, v = unpack(run.value(f"{kind}/{run.config['nodes'][-1]} nodes"))
        for c, colour, label in (
            (kept(z, v, kind=kind), CORRECTED, "Theorem 1"),
            (wrong_integral(z, v, kind), CONTROL, "wrong factor"),
        ):
            drift = (c - c[0]).abs().flatten(1).amax(1)[1:].clamp(min=1e-17)
            axis.plot(t[1:], drift, color=colour, ls=style, label=f"{label}, {kind}")
            reached[label].append(float(drift.max()))
    bound(axis, FLOW)
    axis.set(
        yscale="log", ylim=(1e-15, 1e1), xlabel="time", ylabel="largest drift", title="Only Theorem 1 is conserved"
    )
    label_lines(axis)
    return max(reached["Theorem 1"]), min(reached["wrong factor"])


def _block(config: Config, kind: str, nodes: int | None = None, *, residual: bool = True) -> tuple[Block, State]:
    """A block and a start with one member for each smooth activation and gradient, (2, activations, gradients, ...).

    The first dimension holds a random and a zero start; under "sigma" it holds the SIGMAS, from random starts.
    """
    generator = torch.Generator().manual_seed(config.seed)
    nodes = nodes or config.nodes[-1]
    sigma = side_by_side(list(SIGMAS.values()), 0) if kind == "sigma" else kind
    block = draw_block(
        tokens=config.tokens,
        nodes=nodes,
        samples=config.samples,
        generator=generator,
        attention=Attention(sigma, norm=1 / config.tokens),  # type: ignore[arg-type]
        activation=side_by_side(list(SMOOTH.values()), -4),
        residual=residual,
    )
    start = draw_start(block, nodes, generator, 2, len(SMOOTH))
    if kind != "sigma":
        start.w[1], start.z[1] = 0.0, 0.0
    return block, start


def _follow(config: Config, kind: str, nodes: int | None = None, *, residual: bool = True) -> Tensor:
    return _path(*_block(config, kind, nodes, residual=residual), config)


def _path(block: Block, start: State, config: Config, *, rtol: float = 1e-12) -> Tensor:
    w, z = block.solve(*start, moments(config.horizon, config.steps), rtol=rtol)
    return pack(z[..., 0, :], block.project(w))


def _relu_at_zero(config: Config) -> Tensor:
    """v' of exp attention at w = z = 0 when the activation is ReLU, whose slope at 0 counts as 0."""
    block, start = _block(config, "exp")
    return block.project(replace(block, activation=torch.relu).velocity(start.w[1, 0], start.z[1, 0]).w)


def _through_kinks(config: Config, steps: int) -> Tensor:
    """ReLU flows of both KINDS side by side, (steps + 1, kinds, gradients, tokens, 1 + nodes).

    Classical Runge-Kutta with a fixed step: an adaptive solver stalls where a sample slides along its kink.
    """
    block, start = _block(config, "exp")
    sigma = side_by_side([torch.exp, identity], 0)
    block = replace(block, activation=torch.relu, attention=Attention(sigma, norm=block.attention.norm))
    (w, z), h = (part[0, : len(KINDS)] for part in start), config.horizon / 2 / steps
    path = [(z, w)]
    for time in torch.arange(steps, dtype=torch.float64).mul(h).tolist():
        k1 = block.velocity(w, z, time)
        k2 = block.velocity(w + h / 2 * k1.w, z + h / 2 * k1.z, time + h / 2)
        k3 = block.velocity(w + h / 2 * k2.w, z + h / 2 * k2.z, time + h / 2)
        k4 = block.velocity(w + h * k3.w, z + h * k3.z, time + h)
        w = w + h / 6 * (k1.w + 2 * k2.w + 2 * k3.w + k4.w)
        z = z + h / 6 * (k1.z + 2 * k2.z + 2 * k3.z + k4.z)
        path.append((z, w))
    logits, weights = (torch.stack(part) for part in zip(*path, strict=True))
    return pack(logits[..., 0, :], block.project(weights))


def _other_data(config: Config) -> Tensor:
    """One token per sample, heavy tails, and samples that are all alike: (steps, 3, gradients, tokens, 1 + nodes)."""
    block, start = _block(config, "exp")
    generator = torch.Generator().manual_seed(config.seed + 1)
    one_hot = torch.eye(config.tokens, dtype=torch.float64)[torch.arange(config.samples) % config.tokens]
    heavy = (3 * normal(config.samples, config.tokens, generator=generator)).softmax(-1)
    x = torch.stack([one_hot, heavy, block.x[:1].expand_as(heavy)])[:, None]  # beside the gradients
    block = replace(block, x=x, activation=SMOOTH["SiLU"])
    return _path(block, State(start.w[0], start.z[0]), config)


def _overlapping(config: Config) -> Tensor:
    """The control: a query whose embedding is not orthogonal to those of the tokens."""
    block, start = _block(config, "exp")
    towards = 0.8 * block.queries + 0.6 * block.tokens.mean(-1, keepdim=True) * config.tokens**0.5
    return _path(replace(block, queries=towards), start, config, rtol=COARSE)


def _two_gradients(config: Config) -> Tensor:
    """The control: W and z each receive a gradient of their own."""
    block, start = _block(config, "exp")
    generator = torch.Generator().manual_seed(config.seed + 1)
    other = replace(block, backprop=three_gradients(config.samples, start.w.shape[-1], generator))
    w, z = integrate_together(
        lambda time, w, z: (block.velocity(w, z, time).w, other.velocity(w, z, time).z),
        start,
        moments(config.horizon, config.steps),
        rtol=COARSE,
    )
    return pack(z[..., 0, :], block.project(w))


def _pull(config: Config) -> tuple[Tensor, Tensor]:
    """Both sides of eq. 14 at a random state of every member."""
    block, start = _block(config, "sigma")
    sigma = side_by_side(list(SIGMAS.values()), 0)
    velocity = block.velocity(*start)
    left = (sigma(start.z) / derivative(sigma, start.z) * velocity.z)[..., 0, :]
    return left, (block.project(start.w) * block.project(velocity.w)).sum(-1)


def _saliency(config: Config, z: Tensor, v: Tensor) -> Tensor:
    """E[g x] along the exp flow without residual, (steps, starts, activations, gradients, tokens, nodes)."""
    block, _ = _block(config, "exp", residual=False)
    states = zip(block.tokens @ v, z[..., None, :], moments(config.horizon, config.steps), strict=True)
    gradients = [block.backprop(block.hidden(w, z), float(time)) for w, z, time in states]
    return block.x.mT @ torch.stack(gradients) / config.samples


STUDY = Study(
    name="thm1",
    title="Theorem 1: what attention and MLP conserve together",
    version=1,
    claims=CLAIMS,
    quick=Config(),
    paper=Config(tokens=20, nodes=(1, 4, 20), samples=64, steps=41, kink_steps=(100, 400)),
    run=run,
    judge=judge,
    draw=draw,
    about=(
        "One block with random data is trained by gradient flow. The runs cover linear, SiLU and tanh activations, "
        "three kinds of gradient (constant, cross-entropy, changing in time), one and several nodes, and the block "
        "with and without a residual connection. The solver does not use Theorem 1. The invariants are computed "
        "afterwards from the recorded z and V."
    ),
)
