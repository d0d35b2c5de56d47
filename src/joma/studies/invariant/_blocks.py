"""Random blocks for the studies on Theorem 1, and how far what they should conserve drifts.

Activations and gradients differ along leading dimensions.
"""

from collections.abc import Callable, Iterable, Sequence
from math import cos, nan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.models import JomaBlock
from joma.theory.attention import Attention, random_orthonormal
from joma.theory.flow import Activation, Backprop, Block, State, identity
from joma.theory.invariant import first_integral

SMOOTH: dict[str, Activation] = {"identity": identity, "SiLU": torch.nn.functional.silu, "tanh": torch.tanh}
GRADIENTS = ("constant", "cross-entropy", "changing in time")
KINDS = ("exp", "linear")
FLOW = 1e-10  # what the solver keeps of a first integral, at rtol 1e-12


def draw_block(
    config: Any, kind: Any, *lead: int, nodes: int = 0, queries: int = 1, **options: Any
) -> tuple[Block, State]:
    """A block of random data, embeddings and gradients with a random start: w (*lead, 3, width, nodes), z beside it."""
    generator = torch.Generator().manual_seed(config.seed)
    tokens, samples, nodes = config.tokens, config.samples, nodes or config.nodes
    embeddings = random_orthonormal(tokens + queries + 1, tokens + queries, generator=generator)
    x = torch.rand(samples, tokens, generator=generator, dtype=torch.float64)
    block = Block(
        x / x.sum(-1, keepdim=True),
        (queries * torch.linspace(0, 1, samples + 1, dtype=torch.float64)[:-1] ** 2).long(),
        embeddings[:, :tokens],
        embeddings[:, tokens:],
        three_gradients(samples, nodes, generator),
        kind if isinstance(kind, Attention) else Attention(kind, norm=1 / tokens),
        **{"activation": SMOOTH["SiLU"]} | options,
    )
    w = 0.8 * nodes**-0.5 * normal(*lead, len(GRADIENTS), len(embeddings), nodes, generator=generator)
    return block, State(w, 0.4 * normal(*lead, len(GRADIENTS), queries, tokens, generator=generator))


def three_gradients(samples: int, nodes: int, generator: torch.Generator) -> Backprop:
    """g for hidden nodes (..., 3, samples, nodes), in the order of GRADIENTS."""
    size = nodes**-0.5
    fixed = 0.8 * size * normal(samples, nodes, generator=generator)
    # One class has no node of its own (its logit is 0), so that a single node has something to learn as well.
    label = torch.randint(nodes + 1, (samples,), generator=generator)
    target = torch.nn.functional.one_hot(label, nodes + 1).double()[:, :-1]
    phase = torch.arange(nodes, dtype=torch.float64)

    def gradient(h: Tensor, time: float) -> Tensor:
        learnt = target - torch.nn.functional.pad(h[..., 1, :, :], (0, 1)).softmax(-1)[..., :-1]
        changing = fixed * torch.cos(phase + 3 * time) + 0.5 * size * cos(5 * time)
        return torch.stack([fixed.expand_as(learnt), learnt, changing.expand_as(learnt)], -3)

    return gradient


def as_module(start: State, *embeddings: Tensor, attention: Attention, activation: Activation) -> JomaBlock:
    """A block that autograd can train, from `start`. embeddings: those of the tokens and of the queries."""
    *members, _, nodes = start.w.shape
    module = JomaBlock(*embeddings, nodes=nodes, attention=attention, activation=activation, members=tuple(members))
    with torch.no_grad():
        module.w.copy_(start.w)
        module.z.copy_(start.z)
    return module


def side_by_side(functions: Sequence[Activation], dim: int) -> Activation:
    """The pointwise function that applies the i-th of `functions` to the i-th slice along `dim`."""
    return lambda x: torch.stack([f(part) for f, part in zip(functions, x.unbind(dim), strict=True)], dim)


def normal(*shape: int, generator: torch.Generator) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def moments(horizon: float, steps: int) -> Tensor:
    """`steps` times from 0 to `horizon`."""
    return torch.linspace(0, horizon, steps, dtype=torch.float64)


def pack(z: Tensor, v: Tensor) -> Tensor:
    """z (..., 1, tokens) and v (..., tokens, nodes) of one query in one array, (..., tokens, 1 + nodes)."""
    return torch.cat([z.mT, v], -1)


def unpack(path: Any) -> tuple[Tensor, Tensor]:
    """z (..., tokens) and v of a recorded `pack`."""
    both = torch.as_tensor(path)
    return both[..., 0], both[..., 1:]


def kept(z: Tensor, v: Tensor, integral: Callable[..., Tensor] = first_integral, **how: Any) -> Tensor:
    """What should be constant along a flow, and no number anywhere where the flow was lost: `integral` refuses that."""
    lost = not (z.isfinite().all() and v.isfinite().all())
    return torch.full_like(z, nan) if lost else integral(z, v, **how)


def drift(c: Tensor) -> float:
    """How far what should be constant along the first dimension moves from its start, at most."""
    return float((c - c[0]).abs().max())


def drift_over_time(c: Tensor) -> Tensor:
    """The same at every moment after the start, to be drawn on a log scale."""
    return (c - c[0]).abs().flatten(1).amax(1)[1:].clamp(min=1e-17)


def largest(values: Iterable[float]) -> float:
    """The largest of some numbers. One that is not a number is never passed over, as the built-in `max` may do."""
    return float(np.max(list(values)))


def smallest(values: Iterable[float]) -> float:
    """The smallest of some numbers, and not a number if one of them is not."""
    return float(np.min(list(values)))
