"""Blocks of every kind, followed by a solver that knows nothing of the invariants."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor

from joma.claims.config import Least, Several
from joma.claims.contract import Progress, StudyConfig
from joma.host.seeds import stream
from joma.runs import Run
from joma.studies.invariant import _blocks as blocks
from joma.studies.invariant._blocks import KINDS, SMOOTH, moments, pack, unpack
from joma.theory.attention import Attention, Sigma, derivative
from joma.theory.flow import Block, State, identity, integrate_together

COARSE = 1e-6  # the solver's rtol for controls, which drift by far more
SIGMAS: dict[str, Sigma] = {"sinh z": torch.sinh, "z³ + z": lambda z: z**3 + z}
BOTH_SIGMAS = blocks.side_by_side(list(SIGMAS.values()), 0)


@dataclass(frozen=True)
class Thm1Config(StudyConfig):
    """Random blocks of every activation, gradient and width, with and without the residual connection."""

    tokens: int = 6
    nodes: tuple[int, ...] = (1, 4)
    samples: int = 16
    horizon: float = 0.75
    steps: Annotated[int, Least(2, "the start and a later moment")] = 21
    kink_steps: Annotated[tuple[int, int], Several(2, "a coarse and a finer one", exactly=True, rising=True)] = (20, 80)
    """Runge-Kutta steps through half the horizon of a ReLU flow: a coarse and a fine count."""
    seed: int = 0


def run(config: Thm1Config, run: Run, progress: Progress) -> None:
    """Follow every block by an adaptive solver that knows nothing of the invariants, and record z and v."""
    run.keep("t", lambda: moments(config.horizon, config.steps))
    flows: dict[str, Callable[[], Tensor]] = {
        **{f"{kind}/{n} nodes": partial(_follow, config, kind, nodes=n) for kind in KINDS for n in config.nodes},
        "sigma": partial(_follow, config, "sigma"),
        **{f"{kind}/no residual": partial(_follow, config, kind, residual=False) for kind in KINDS},
        **{f"ReLU/{steps} steps": partial(_through_kinks, config, steps) for steps in config.kink_steps},
        "exp/other data": partial(_other_data, config),
        "exp/overlapping query": partial(_overlapping, config),
        "exp/two gradients": partial(_two_gradients, config),
    }
    for i, (name, compute) in enumerate(flows.items()):
        progress(i / (len(flows) + 1), name)
        run.keep(name, compute)
    progress(0.9, "the pull on the logits")
    run.keep("pull", lambda: _pull(config))
    run.keep("saliency", lambda: _saliency(config, *unpack(run.value("exp/no residual"))))
    run.keep("zero start/ReLU", lambda: _relu_at_zero(config))


def _block(config: Thm1Config, kind: str, *, nodes: int = 0, residual: bool = True) -> tuple[Block, State]:
    """A block and a start with one member for each smooth activation and gradient, (2, activations, gradients, ...).

    The first dimension holds a random and a zero start; under "sigma" it holds the SIGMAS, from random starts.
    """
    sigma: Any = BOTH_SIGMAS if kind == "sigma" else kind
    activation = blocks.side_by_side(list(SMOOTH.values()), -4)
    sizes: dict[str, Any] = {"nodes": nodes or config.nodes[-1], "activation": activation, "residual": residual}
    block, start = blocks.draw_block(config, sigma, 2, len(SMOOTH), **sizes)
    if kind != "sigma":
        start.w[1], start.z[1] = 0.0, 0.0
    return block, start


def _follow(config: Thm1Config, kind: str, **sizes: Any) -> Tensor:
    return _path(*_block(config, kind, **sizes), config)


def _path(block: Block, start: State, config: Thm1Config, *, rtol: float = 1e-12) -> Tensor:
    w, z = block.solve(*start, moments(config.horizon, config.steps), rtol=rtol)
    return pack(z, block.project(w))


def _through_kinks(config: Thm1Config, steps: int) -> Tensor:
    """ReLU flows of both KINDS side by side, (steps + 1, kinds, gradients, tokens, 1 + nodes).

    Classical Runge-Kutta with a fixed step: an adaptive solver stalls where a sample slides along its kink.
    """
    block, start = _block(config, "exp")
    sigma = blocks.side_by_side([torch.exp, identity], 0)
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
    return pack(logits, block.project(weights))


def _other_data(config: Thm1Config) -> Tensor:
    """One token per sample, heavy tails, and samples that are all alike: (steps, 3, gradients, tokens, 1 + nodes)."""
    block, start = _block(config, "exp")
    generator = torch.Generator().manual_seed(stream(config.seed, "other data"))
    one_hot = torch.eye(config.tokens, dtype=torch.float64)[torch.arange(config.samples) % config.tokens]
    heavy = (3 * blocks.normal(config.samples, config.tokens, generator=generator)).softmax(-1)
    x = torch.stack([one_hot, heavy, block.x[:1].expand_as(heavy)])[:, None]  # beside the gradients
    return _path(replace(block, x=x, activation=SMOOTH["SiLU"]), State(start.w[0], start.z[0]), config)


def _overlapping(config: Thm1Config) -> Tensor:
    """The control: a query whose embedding is not orthogonal to those of the tokens."""
    block, start = _block(config, "exp")
    towards = 0.8 * block.queries + 0.6 * block.tokens.mean(-1, keepdim=True) * config.tokens**0.5
    return _path(replace(block, queries=towards), start, config, rtol=COARSE)


def _two_gradients(config: Thm1Config) -> Tensor:
    """The control: W and z each receive a gradient of their own."""
    block, start = _block(config, "exp")
    generator = torch.Generator().manual_seed(stream(config.seed, "two gradients"))
    other = replace(block, backprop=blocks.three_gradients(config.samples, start.w.shape[-1], generator))

    def field(time: float, w: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        return block.velocity(w, z, time).w, other.velocity(w, z, time).z

    w, z = integrate_together(field, start, moments(config.horizon, config.steps), rtol=COARSE)
    return pack(z, block.project(w))


def _pull(config: Thm1Config) -> Tensor:
    block, start = _block(config, "sigma")
    velocity = block.velocity(*start)
    left = (BOTH_SIGMAS(start.z) / derivative(BOTH_SIGMAS, start.z) * velocity.z)[..., 0, :]
    return torch.stack([left, (block.project(start.w) * block.project(velocity.w)).sum(-1)])


def _saliency(config: Thm1Config, z: Tensor, v: Tensor) -> Tensor:
    """E[g x] along the exp flow without residual, (steps, starts, activations, gradients, tokens, nodes)."""
    block, _ = _block(config, "exp", residual=False)
    states = zip(block.tokens @ v, z[..., None, :], moments(config.horizon, config.steps), strict=True)
    gradients = [block.backprop(block.hidden(w, z), float(time)) for w, z, time in states]
    return block.x.mT @ torch.stack(gradients) / config.samples


def _relu_at_zero(config: Thm1Config) -> Tensor:
    """v' of exp attention at w = z = 0 when the activation is ReLU, whose slope at 0 counts as 0."""
    block, start = _block(config, "exp")
    return block.project(replace(block, activation=torch.relu).velocity(start.w[1, 0], start.z[1, 0]).w)
