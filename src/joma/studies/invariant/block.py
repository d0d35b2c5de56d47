"""The block and its training: eq. 1, 2, 9, 11 and 60, the implicit bias, pattern superposition, footnote 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Drawing, Progress, Study
from joma.figures.labels import label_lines
from joma.figures.reading import between, number
from joma.figures.style import BLUE, CORRECTED, INK, ORANGE, PRINTED, panels
from joma.models import JomaBlock
from joma.runs import Run
from joma.studies.invariant._block_findings import CLAIMS, judge, moved
from joma.studies.invariant._blocks import GRADIENTS, SMOOTH, draw_block, draw_start, moments, normal
from joma.theory.attention import Attention, derivative
from joma.theory.flow import Block, State, cross_entropy_gradient, integrate_together

KINDS = ("linear", "exp", "softmax")


@dataclass(frozen=True)
class Config:
    """Random blocks: every attention and activation for the gradients, one of two queries for the flows."""

    tokens: int = 6
    nodes: int = 3
    samples: int = 24
    length: int = 12
    """Tokens per sequence, where sequences are counted to get x."""
    horizon: float = 1.0
    steps: int = 31
    seed: int = 0


def run(config: Config, run: Run, progress: Progress) -> None:
    """Record velocities beside autograd, flows beside their decomposition, and saliencies counted two ways."""
    progress(0.0, "gradients")
    run.keep("sequences", lambda: _sequences(config, slope=0.0))
    run.keep("sequences/with a position bias", lambda: _sequences(config, slope=0.1))
    run.keep("ascent", lambda: _ascent(config))
    run.keep("loss", lambda: _loss(config))
    run.keep("projected", lambda: _projected(config, overlap=0.0))
    run.keep("projected/overlapping query", lambda: _projected(config, overlap=0.5))
    progress(0.3, "flow of one query")
    run.keep("t", lambda: moments(config.horizon, config.steps))
    _record_flow(run, "one query", config, queries=1)
    progress(0.6, "flow of two queries")
    _record_flow(run, "two queries", config, queries=2)
    progress(0.9, "saliency")
    run.keep("saliency", lambda: _saliency(config, spread=0))
    run.keep("saliency/unequal lengths", lambda: _saliency(config, spread=config.length // 2))


def _record_flow(run: Run, name: str, config: Config, *, queries: int) -> None:
    @cache
    def flow() -> dict[str, Tensor]:
        return _flow(config, queries)

    for part in ("embeddings", "w", "v", "xi", "before", "v b"):

        def compute(part: str = part) -> Tensor:
            return flow()[part]

        run.keep(f"{name}/{part}", compute)


def draw(run: Run) -> list[Drawing]:
    """The bias that a node feels, and what two queries leave in one weight."""
    figure, (left, right) = panels(2, width=4.6)
    seen = [_draw_bias(run, left), _draw_two_queries(run, right)]
    bias, xi = _biases(run)
    caption = (
        "The bias of a node needs its start value, and a shared weight is a sum with plus signs. The printed bias is "
        f"wrong by up to {number(np.abs(bias - xi).max())}, the corrected one by "
        f"{number(np.abs(bias - bias[0] - xi).max())}. Left: the bias of each node during training, the printed "
        "integral, and the integral plus the start value. Right: what two queries add to a weight along their own "
        "embeddings, against their ξ."
    )
    return [Drawing("implicit-bias", caption, figure, "Two panels. " + " ".join(seen))]


def _biases(run: Run) -> tuple[Any, Any]:
    """What the nodes feel and what is printed, (steps, nodes), of the cross-entropy member."""
    before, felt, xi = (run.value(f"one query/{part}")[:, 1] for part in ("before", "v b", "xi"))
    return (before - felt)[:, 0], xi[:, 0]


def _draw_bias(run: Run, axis: Any) -> str:
    t, (bias, xi) = run.value("t"), _biases(run)
    for node in range(bias.shape[-1]):
        once = "_" * (node > 0)  # each kind of line is named once
        axis.plot(t, xi[:, node], color=PRINTED, ls="--", lw=1.2, label=f"{once}printed: ∫E[g h′]")
        axis.plot(t, bias[0, node] + xi[:, node], color=CORRECTED, label=f"{once}corrected:\nu·w(0) + ∫E[g h′]")
        axis.plot(t[::5], bias[::5, node], "o", ms=4, mfc="none", color=INK, label=f"{once}felt: w·f − v·b")
    axis.set(xlabel="time", ylabel="bias of each node", title="The bias starts at u·w(0)")
    label_lines(axis)
    return (
        f"Left: the biases of {bias.shape[-1]} nodes start {between(bias[0])} and end {between(bias[-1])}. "
        f"The corrected lines pass through all circles, within {number(np.abs(bias - bias[0] - xi).max())}. "
        f"The printed lines start at 0 and miss the circles by up to {number(np.abs(bias - xi).max())}."
    )


def _draw_two_queries(run: Run, axis: Any) -> str:
    queries = run.value("two queries/embeddings")[:, run.config["tokens"] :]
    along = np.swapaxes(queries, 0, 1) @ moved(run, "two queries")
    xi = run.value("two queries/xi")
    for query, (colour, marker) in enumerate(((BLUE, "o"), (ORANGE, "s"))):
        across, up = (part[::3, :, query].ravel() for part in (xi, along))
        axis.plot(across, up, marker, ms=3, mew=0, color=colour, alpha=0.7, label=f"query {query + 1}")
    axis.axline((0, 0), slope=1, color=CORRECTED, lw=1, label="corrected:\nw = v + ξu")
    axis.axline((0, 0), slope=-1, color=PRINTED, ls="--", lw=1, label="printed:\nw = v − ξu")
    axis.set(xlabel="ξ of a query", ylabel="u·(w − w(0))", title="Two queries add up with plus signs")
    axis.locator_params(axis="x", nbins=5)
    label_lines(axis)
    return (
        f"Right: the dots of both queries have ξ {between(xi)} and lie on the rising line of the corrected formula, "
        f"within {number(np.abs(along - xi).max())}. The falling line of the printed formula misses them by up to "
        f"{number(np.abs(along + xi).max())}."
    )


def _block(config: Config, queries: int, **options: Any) -> tuple[Block, State]:
    generator = torch.Generator().manual_seed(config.seed)
    options.setdefault("attention", Attention("exp", norm=1 / config.tokens))
    options.setdefault("activation", SMOOTH["SiLU"])
    sizes = {"tokens": config.tokens, "nodes": config.nodes, "samples": config.samples, "queries": queries}
    block = draw_block(**sizes, generator=generator, **options)
    return block, draw_start(block, config.nodes, generator)


def _module(block: Block, start: State) -> JomaBlock:
    """The same block as a module, for autograd."""
    module = JomaBlock(
        block.tokens,
        block.queries,
        nodes=start.w.shape[-1],
        attention=block.attention,
        activation=block.activation,
        members=tuple(start.w.shape[:-2]),
    )
    with torch.no_grad():
        module.w.copy_(start.w)
        module.z.copy_(start.z)
    return module


def _sequences(config: Config, *, slope: float) -> Tensor:
    """Two rows: h from softmax attention over the positions of sequences, and from eq. 1 with their frequencies.

    `slope` is what a logit gains from one position to the next; eq. 1 knows of no positions.
    """
    block, start = _block(config, 2, attention=Attention("softmax"))
    generator = torch.Generator().manual_seed(config.seed)
    sequence = torch.randint(config.tokens, (config.samples, config.length), generator=generator)
    logits = start.z[..., block.query[:, None], sequence] + slope * torch.arange(config.length)
    f = logits.softmax(-1)[..., None, :] @ block.tokens.mT[sequence]  # (members, samples, 1, width)
    h = block.activation((f[..., 0, :] + block.queries.mT[block.query]) @ start.w)
    counts = torch.nn.functional.one_hot(sequence, config.tokens).sum(-2).double()
    return torch.stack([h, _module(block, start)(counts / config.length, block.query).detach()]).flatten(1)


def _gradient(objective: Tensor, module: JomaBlock) -> Tensor:
    return _flat(torch.autograd.grad(objective, (module.w, module.z), retain_graph=True))


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def _ascent(config: Config) -> Tensor:
    """Three rows: autograd with g differentiated as well, autograd with g held fixed, eq. 2."""
    rows = []
    for kind in KINDS:
        for activation in SMOOTH.values():
            block, start = _block(config, 2, attention=Attention(kind), activation=activation)  # type: ignore[arg-type]
            module = _module(block, start)
            h = module(block.x, block.query)
            g = block.backprop(h, 0.3)
            both = [_gradient((factor * h).mean(-2).sum(), module) for factor in (g, g.detach())]
            rows.append(torch.stack([*both, _flat(block.velocity(*start, 0.3))]))
    return torch.cat(rows, -1)


def _loss(config: Config) -> Tensor:
    """Two rows: minus the gradient of the cross-entropy loss by autograd, and eq. 2 with g = onehot − softmax."""
    rows = []
    label = torch.arange(config.samples) % config.nodes
    for kind in KINDS:
        block, start = _block(config, 2, attention=Attention(kind))  # type: ignore[arg-type]
        module = _module(block, start)
        h = module(block.x, block.query)
        loss = sum(torch.nn.functional.cross_entropy(member, label) for member in h)
        block = replace(block, backprop=cross_entropy_gradient(label))
        rows.append(torch.stack([_gradient(-torch.as_tensor(loss), module), _flat(block.velocity(*start))]))
    return torch.cat(rows, -1)


def _projected(config: Config, *, overlap: float) -> Tensor:
    """Two rows: U_C^T W′ and E[g h′ b]; `overlap` mixes a token's embedding into the query's."""
    block, start = _block(config, 1)
    query = (1 - overlap**2) ** 0.5 * block.queries + overlap * block.tokens[:, :1]
    block = replace(block, queries=query)
    by_token = block.attend(start.z).mT @ _push(block, *start, 0.0) / config.samples
    return torch.stack([block.project(block.velocity(*start).w), by_token]).flatten(1)


def _push(block: Block, w: Tensor, z: Tensor, time: float) -> Tensor:
    """g h′ of every sample."""
    before = _before(block, w, z)
    return block.backprop(block.activation(before), time) * derivative(block.activation, before)


def _before(block: Block, w: Tensor, z: Tensor) -> Tensor:
    """w·f of every sample, what the activation receives."""
    return (block.attend(z) @ block.tokens.mT + block.queries.mT[block.query]) @ w


def _flow(config: Config, queries: int) -> dict[str, Tensor]:
    """A flow from a random start, with the integral ξ of E[g h′] of each query carried along."""
    block, start = _block(config, queries)
    share = torch.nn.functional.one_hot(block.query, queries).mT.double() / config.samples

    def field(time: float, w: Tensor, z: Tensor, xi: Tensor) -> tuple[Tensor, ...]:
        return *block.velocity(w, z, time), share @ _push(block, w, z, time)

    nothing = torch.zeros(len(GRADIENTS), queries, config.nodes, dtype=torch.float64)
    # The identities are linear in w and ξ, so they do not depend on how tightly the flow is solved.
    w, z, xi = integrate_together(field, (*start, nothing), moments(config.horizon, config.steps), rtol=1e-8)
    v = block.project(w)
    embeddings = torch.cat([block.tokens, block.queries], 1)
    before = _before(block, w, z)
    return {"embeddings": embeddings, "w": w, "v": v, "xi": xi, "before": before, "v b": block.attend(z) @ v}


def _saliency(config: Config, *, spread: int) -> Tensor:
    """Two rows: E[g x] over sequences, and mean g over occurrences times frequency, token by token.

    `spread` lets the lengths of the sequences differ by up to that much.
    """
    generator = torch.Generator().manual_seed(config.seed)
    lengths = config.length + torch.randint(-spread, spread + 1, (config.samples,), generator=generator)
    g = normal(config.samples, generator=generator)
    sequences = [torch.randint(config.tokens, (int(n),), generator=generator) for n in lengths]
    x = torch.stack([torch.bincount(s, minlength=config.tokens).double() / len(s) for s in sequences])
    where, token = torch.repeat_interleave(torch.arange(config.samples), lengths), torch.cat(sequences)
    found = [where[token == one] for one in range(config.tokens)]  # the sequences a token occurs in, with repetition
    counted = [g[samples].mean() * len(samples) / len(token) for samples in found]
    return torch.stack([(g[:, None] * x).mean(0), torch.stack(counted)])


STUDY = Study(
    name="block",
    title="The block: what one training step does to its weights",
    version=2,
    claims=CLAIMS,
    quick=Config(),
    paper=Config(tokens=20, nodes=20, samples=100, length=30, steps=61),
    run=run,
    judge=judge,
    draw=draw,
    about=(
        "Eq. 1 is compared with attention over the positions of sequences. The velocities of eq. 2 are compared with "
        "the gradients that autograd computes for the same block. A solver follows gradient flows with one and with "
        "two queries and integrates E[g h′] along the way. The change of the weights is then split into its parts "
        "along the embeddings."
    ),
)
