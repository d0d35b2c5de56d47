"""The block and its training: eq. 1, 2, 9, 11 and 60, the implicit bias, pattern superposition, footnote 1."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, StudyConfig
from joma.claims.declare import Claims
from joma.claims.verdicts import by_residual
from joma.figures.reading import number
from joma.figures.style import BLUE, CORRECTED, INK, ORANGE, PRINTED, panels
from joma.models import JomaBlock
from joma.runs import Run
from joma.studies.invariant._blocks import GRADIENTS, SMOOTH, as_module, draw_block, moments, normal
from joma.theory.attention import Attention, Kind, derivative
from joma.theory.flow import Block, State, cross_entropy_gradient, integrate_together

EXACT = 1e-12  # gradients against autograd, and the decomposition of w along a flow
KINDS: tuple[Kind, ...] = ("linear", "exp", "softmax")


@dataclass(frozen=True)
class BlockConfig(StudyConfig):
    """Random blocks: every attention and activation for the gradients, one of two queries for the flows."""

    tokens: int = 6
    nodes: int = 3
    samples: int = 24
    length: int = 12
    """Tokens per sequence, where sequences are counted to get x."""
    horizon: float = 1.0
    steps: int = 31
    seed: int = 0


CLAIMS = Claims()


def run(config: BlockConfig, run: Run, progress: Progress) -> None:
    """Record velocities beside autograd, flows beside their decomposition, and saliencies counted two ways."""
    progress(0.0, "gradients")
    run.keep("sequences", lambda: _sequences(config, slope=0.0))
    run.keep("sequences/with a position bias", lambda: _sequences(config, slope=0.1))
    run.keep("ascent", lambda: _ascent(config))
    run.keep("loss", lambda: _loss(config))
    run.keep("projected", lambda: _projected(config, overlap=0.0))
    run.keep("projected/overlapping query", lambda: _projected(config, overlap=0.5))
    run.keep("t", lambda: moments(config.horizon, config.steps))
    for queries, name in ((1, "one query"), (2, "two queries")):
        progress(0.3 * queries, f"flow of {name}")
        if f"{name}/v b" not in run:
            run.record(0, {f"{name}/{part}": value for part, value in _flow(config, queries).items()})
    progress(0.9, "saliency")
    run.keep("saliency", lambda: _saliency(config, spread=0))
    run.keep("saliency/unequal lengths", lambda: _saliency(config, spread=config.length // 2))


def _equal(claim: Claim, rows: Any, control: str, wrong: Any) -> Finding:
    off, other = (np.abs(first - second).max() for first, second in (rows, wrong))
    return by_residual(claim, printed=off, tolerance=EXACT, what="largest difference", control={control: other})


def _expanded(run: Run, claim: Claim, name: str, control: str, **signs: int) -> Finding:
    """What is left of w − w(0) without U (v − v(0)) + sign Σ u ξ, for the sign of each form."""
    w, v, xi = (run.value(f"{name}/{part}") for part in ("w", "v", "xi"))
    tokens, queries = np.split(run.value(f"{name}/embeddings"), [run.config["tokens"]], axis=1)
    left = {sign: np.abs(w - w[0] - (tokens @ (v - v[0]) + sign * queries @ xi)).max() for sign in (-1, 0, 1)}
    forms = {form: left[sign] for form, sign in signs.items()}
    return by_residual(claim, tolerance=EXACT, what="largest part left over", control={control: left[0]}, **forms)


@CLAIMS.declare("sequence-as-frequencies", "JoMA eq. 1")
def _frequencies(run: Run, claim: Claim) -> Finding:
    """A block with attention over a sequence depends only on how often each token occurs: b = exp(z) ∘ x / A.

    Expected: The hidden values equal those of softmax attention over the positions.
    """
    wrong = run.value("sequences/with a position bias")
    return _equal(claim, run.value("sequences"), "logits that also depend on the position", wrong)


@CLAIMS.declare("gradient-ascent", "JoMA eq. 9")
def _ascends(run: Run, claim: Claim) -> Finding:
    """Training is gradient ascent on E[Σ g h] with g held fixed; eq. 2 is its velocity.

    Expected: The velocity equals the gradient that autograd computes.
    """
    rows = run.value("ascent")
    return _equal(claim, rows[1:], "gradient that also flows through g", rows[::2])


@CLAIMS.declare("back-propagation", "JoMA eq. 2", uses=("block/gradient-ascent",))
def _descends(run: Run, claim: Claim) -> Finding:
    """With g = onehot − softmax(h), eq. 2 is gradient descent on the cross-entropy loss.

    Expected: The velocity equals minus the gradient of the loss that autograd computes.
    """
    rows = run.value("loss")
    return _equal(claim, rows, "ascent on the loss instead of descent", rows * [[-1], [1]])


@CLAIMS.declare("projected-velocity", "JoMA eq. 11", uses=("block/gradient-ascent",))
def _projects(run: Run, claim: Claim) -> Finding:
    """The projected weights move by v′ = E[g h′ b]. The embedding of the query plays no part.

    Expected: The projected velocity equals E[g h′ b].
    """
    wrong = run.value("projected/overlapping query")
    return _equal(claim, run.value("projected"), "a query that overlaps with a token", wrong)


@CLAIMS.declare("weight-expansion", "JoMA eq. 60", uses=("block/gradient-ascent",))
def _expands(run: Run, claim: Claim) -> Finding:
    """Weights grow only along the token and query embeddings: w − w(0) = U(v − v(0)) + u ξ.

    Expected: The embeddings explain all of w − w(0); nothing is left.
    """
    return _expanded(run, claim, "one query", "without the query's embedding", printed=1)


@CLAIMS.declare("implicit-bias", "JoMA App. A.4", uses=("block/weight-expansion",))
def _bias(run: Run, claim: Claim) -> Finding:
    """The output of a node is φ(v·b + ξ). Its bias ξ is the integral of E[g h′] over time.

    Corrected: The bias is u·w(0) plus that integral. It starts at zero only if w starts at zero.
    Expected: The pre-activation minus v·b equals the bias at every sample.
    """
    before, felt, xi = (run.value(f"one query/{part}") for part in ("before", "v b", "xi"))
    bias = before - felt  # (steps, members, samples, nodes), the same at every sample
    return by_residual(
        claim,
        printed=np.abs(bias - xi).max(),
        corrected=np.abs(bias - bias[0] - xi).max(),
        tolerance=EXACT,
        what="largest difference",
        control={"the start alone, without the integral": np.abs(bias - bias[0]).max()},
    )


@CLAIMS.declare("superposition-sign", "JoMA App. A.4", uses=("block/weight-expansion",))
def _superposes(run: Run, claim: Claim) -> Finding:
    """A weight shared by several queries is the sum Σ (v − ξ u) over the queries.

    Corrected: It is Σ (v + ξ u), in agreement with eq. 60.
    Expected: The sum explains all that two queries add to w; nothing is left.
    """
    return _expanded(run, claim, "two queries", "without the queries' embeddings", printed=-1, corrected=1)


@CLAIMS.declare("saliency", "JoMA footnote 1")
def _saliencies(run: Run, claim: Claim) -> Finding:
    """E[g x] is the mean of g over all occurrences of a token, times the frequency of the token.

    Expected: Both ways of counting give the same numbers.
    """
    control = "sequences of unequal length, where every occurrence counts the same"
    return _equal(claim, run.value("saliency"), control, run.value("saliency/unequal lengths"))


def draw(run: Run) -> list[Drawing]:
    """The bias that a node feels, and what two queries leave in one weight."""
    figure, (left, right) = panels(2, width=4.6)
    before, felt, xi = (run.value(f"one query/{part}")[:, 1, 0] for part in ("before", "v b", "xi"))  # cross-entropy
    t, bias = run.value("t"), before - felt  # (steps, nodes)
    for node in range(bias.shape[-1]):
        left.plot(t, xi[:, node], color=PRINTED, ls="--", lw=1.2, label="printed: ∫E[g h′]")
        left.plot(t, bias[0, node] + xi[:, node], color=CORRECTED, label="corrected:\nu·w(0) + ∫E[g h′]")
        left.plot(t[::5], bias[::5, node], "o", ms=4, mfc="none", color=INK, label="felt: w·f − v·b")
    left.set(xlabel="time", ylabel="bias of each node", title="The bias starts at u·w(0)")
    w, queries = run.value("two queries/w"), run.value("two queries/embeddings")[:, run.config["tokens"] :]
    along = np.swapaxes(queries, 0, 1) @ (w - w[0])
    for query, (colour, marker) in enumerate(((BLUE, "o"), (ORANGE, "s"))):
        across, up = (part[::3, :, query].ravel() for part in (run.value("two queries/xi"), along))
        right.plot(across, up, marker, ms=3, mew=0, color=colour, alpha=0.7, label=f"query {query + 1}")
    right.axline((0, 0), slope=1, color=CORRECTED, lw=1, label="corrected:\nw = v + ξu")
    right.axline((0, 0), slope=-1, color=PRINTED, ls="--", lw=1, label="printed:\nw = v − ξu")
    right.set(xlabel="ξ of a query", ylabel="u·(w − w(0))", title="Two queries add up with plus signs")
    right.locator_params(axis="x", nbins=5)
    caption = (
        "The bias of a node needs its start value, and a shared weight is a sum with plus signs. The printed bias is "
        f"wrong by up to {number(np.abs(bias - xi).max())}, the corrected one by "
        f"{number(np.abs(bias - bias[0] - xi).max())}. Left: the bias of each node during training, the printed "
        "integral, and the integral plus the start value. Right: what two queries add to a weight along their own "
        "embeddings, against their ξ."
    )
    return [Drawing("implicit-bias", caption, figure)]


def _module(block: Block, start: State) -> JomaBlock:
    return as_module(start, block.tokens, block.queries, attention=block.attention, activation=block.activation)


def _sequences(config: BlockConfig, *, slope: float) -> Tensor:
    """Two rows: h from softmax attention over the positions of sequences, and from eq. 1 with their frequencies."""
    block, start = draw_block(config, Attention("softmax"), queries=2)
    generator = torch.Generator().manual_seed(config.seed)
    sequence = torch.randint(config.tokens, (config.samples, config.length), generator=generator)
    logits = start.z[..., block.query[:, None], sequence] + slope * torch.arange(config.length)
    f = logits.softmax(-1)[..., None, :] @ block.tokens.mT[sequence]  # (members, samples, 1, width)
    h = block.activation((f[..., 0, :] + block.queries.mT[block.query]) @ start.w)
    counts = torch.nn.functional.one_hot(sequence, config.tokens).sum(-2).double()
    return torch.stack([h, _module(block, start)(counts / config.length, block.query).detach()]).flatten(1)


def _gradient(objective: Any, module: JomaBlock) -> Tensor:
    return _flat(torch.autograd.grad(objective, (module.w, module.z), retain_graph=True))


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def _ascent(config: BlockConfig) -> Tensor:
    """Three rows: autograd with g differentiated as well, autograd with g held fixed, eq. 2."""
    rows = []
    for kind in KINDS:
        for activation in SMOOTH.values():
            block, start = draw_block(config, Attention(kind), queries=2, activation=activation)
            module = _module(block, start)
            h = module(block.x, block.query)
            g = block.backprop(h, 0.3)
            both = [_gradient((factor * h).mean(-2).sum(), module) for factor in (g, g.detach())]
            rows.append(torch.stack([*both, _flat(block.velocity(*start, 0.3))]))
    return torch.cat(rows, -1)


def _loss(config: BlockConfig) -> Tensor:
    """Two rows: minus the gradient of the cross-entropy loss by autograd, and eq. 2 with g = onehot − softmax."""
    rows = []
    label = torch.arange(config.samples) % config.nodes
    for kind in KINDS:
        block, start = draw_block(config, Attention(kind), queries=2)
        module = _module(block, start)
        loss = sum(torch.nn.functional.cross_entropy(member, label) for member in module(block.x, block.query))
        block = replace(block, backprop=cross_entropy_gradient(label))
        rows.append(torch.stack([_gradient(-loss, module), _flat(block.velocity(*start))]))
    return torch.cat(rows, -1)


def _projected(config: BlockConfig, *, overlap: float) -> Tensor:
    """Two rows: U_C^T W′ and E[g h′ b]; `overlap` mixes a token's embedding into the query's."""
    block, start = draw_block(config, "exp")
    block = replace(block, queries=(1 - overlap**2) ** 0.5 * block.queries + overlap * block.tokens[:, :1])
    by_token = block.attend(start.z).mT @ _push(block, *start, 0.0) / config.samples
    return torch.stack([block.project(block.velocity(*start).w), by_token]).flatten(1)


def _push(block: Block, w: Tensor, z: Tensor, time: float) -> Tensor:
    before = _before(block, w, z)
    return block.backprop(block.activation(before), time) * derivative(block.activation, before)


def _before(block: Block, w: Tensor, z: Tensor) -> Tensor:
    """w·f of every sample, what the activation receives."""
    return (block.attend(z) @ block.tokens.mT + block.queries.mT[block.query]) @ w


def _flow(config: BlockConfig, queries: int) -> dict[str, Tensor]:
    """A flow from a random start, with the integral ξ of E[g h′] of each query carried along."""
    block, start = draw_block(config, "exp", queries=queries)
    share = torch.nn.functional.one_hot(block.query, queries).mT.double() / config.samples

    def field(time: float, w: Tensor, z: Tensor, xi: Tensor) -> tuple[Tensor, ...]:
        return *block.velocity(w, z, time), share @ _push(block, w, z, time)

    nothing = torch.zeros(len(GRADIENTS), queries, config.nodes, dtype=torch.float64)
    # The identities are linear in w and ξ, so they do not depend on how tightly the flow is solved.
    w, z, xi = integrate_together(field, (*start, nothing), moments(config.horizon, config.steps), rtol=1e-8)
    v, embeddings = block.project(w), torch.cat([block.tokens, block.queries], 1)
    felt = block.attend(z) @ v
    return {"embeddings": embeddings, "w": w, "v": v, "xi": xi, "before": _before(block, w, z), "v b": felt}


def _saliency(config: BlockConfig, *, spread: int) -> Tensor:
    """Two rows: E[g x] over sequences, and mean g over occurrences times frequency, token by token."""
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
    quick=BlockConfig(),
    paper=BlockConfig(tokens=20, nodes=20, samples=100, length=30, steps=61),
    run=run,
    draw=draw,
    about=(
        "Eq. 1 is compared with attention over the positions of sequences. The velocities of eq. 2 are compared with "
        "the gradients that autograd computes for the same block. A solver follows gradient flows with one and with "
        "two queries and integrates E[g h′] along the way. The change of the weights is then split into its parts "
        "along the embeddings."
    ),
)
