"""Two hidden layers that learn the classes of a latent tree, and the signals of CDAG Theorem 1 inside them.

A signal is what a node or a latent has on every sample. Latents are 0 or 1 and nodes behind a ReLU are never negative,
so plain products of such signals are positive whatever they mean: signals are centred, correlations are Pearson's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import pi, prod, sqrt
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joma.claims.contract import Least, Progress, StudyConfig, Within
from joma.claims.guards import at_paper_scale, beats_guessing, needs_device
from joma.data.ahead import Ahead, sent, turns
from joma.data.hierarchy import HBLT
from joma.data.samples import streams
from joma.models.parts import compiled_part
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.training import Ensemble, train_all

PREMISE = 0.1  # a correlation counts as positive from here on: 3.5 standard errors at 1,200 samples


class LatentMLP(nn.Module):
    """x -> ReLU nodes -> ReLU nodes -> classes, as many networks at once as there are seeds."""

    def __init__(
        self, seeds: Sequence[int], inputs: int, width: int, classes: int, *, start: float = 1.0, residual: bool = False
    ) -> None:
        super().__init__()
        sources = [torch.Generator().manual_seed(seed) for seed in seeds]

        def uniform(rows: int, columns: int) -> nn.Parameter:
            draws = [torch.empty(rows, columns).uniform_(-1, 1, generator=source) for source in sources]
            return nn.Parameter(torch.stack(draws) / sqrt(rows))

        self.first, self.second, self.out = uniform(inputs, width), uniform(width, width), uniform(width, classes)
        for upper in (self.second, self.out):
            upper.data *= start
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(len(seeds), 1, n)) for n in (width, width, classes)])
        self.residual = residual
        self.register_buffer("seeds", torch.tensor([seed & 0x7FFFFFFF for seed in seeds], dtype=torch.int32))

    def layers(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Both layers of nodes and the logits, (members, samples, ...) each. x (members, samples, inputs)."""
        one = torch.relu(x @ self.first + self.biases[0])
        two = torch.relu(one @ self.second + self.biases[1])
        return one, two, (one + two if self.residual else two) @ self.out + self.biases[2]


@compiled_part
def loss(network: LatentMLP, batch: tuple[Tensor, ...], noise: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of the class, (members,)."""
    x, labels = batch
    logits = network.layers(x)[2]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape).mean(-1)


class Signals(NamedTuple):
    """Of three layers, from below: activations f, the gradients g that reach them, and delta = sigma' g."""

    f: tuple[Tensor, Tensor, Tensor]
    g: tuple[Tensor, Tensor, Tensor]
    delta: tuple[Tensor, Tensor, Tensor]


def signals(network: LatentMLP, x: Tensor, labels: Tensor) -> Signals:
    """Gradients are those of ascent, as in the note: minus the derivative of each sample's own loss."""
    with torch.enable_grad():
        one, two, logits = network.layers(x)
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        gradients = torch.autograd.grad(total, (one, two, logits))
    f = (one.detach(), two.detach(), logits.detach())
    g = tuple(-gradient for gradient in gradients)
    delta = (g[0] * (f[0] > 0), g[1] * (f[1] > 0), g[2])
    return Signals(f, (g[0], g[1], g[2]), delta)


class Data(NamedTuple):
    """Held-out samples with their latents, (members, samples, ...)."""

    x: Tensor
    labels: Tensor
    latents: Tensor  # all latents below the class, the lowest first
    height: Tensor  # (latents,)

    def of(self, members: Sequence[int]) -> Data:
        some = list(members)
        return Data(self.x[some], self.labels[some], self.latents[some], self.height)


COLUMNS = (
    "signs", "signs positive", "others", "others positive",
    "angles", "angles violated",
    "edges", "edges with the rule",
    "children", "children positive", "other children", "other children positive",
    "gated", "gated positive", "other gated", "other gated positive",
    "C1 first", "C1 second", "C1 out", "C2 input", "C2 first", "C2 second", "C2 first shuffled", "C1 out shuffled",
    "height first", "height second", "total", "direct total", "direct angles",
)  # fmt: skip
"""What `measure` counts in one network: counts of edges and nodes, mean correlations, heights, angles in degrees."""


def measure(network: LatentMLP, data: Data) -> Tensor:
    """(members, columns). The latent of a node is chosen on one half of the samples, all is counted on the other."""
    half = data.x.shape[1] // 2
    classes = F.one_hot(data.labels, network.out.shape[-1]).to(data.x.dtype)
    seen = signals(network, data.x, data.labels)
    choose, score = slice(None, half), slice(half, None)

    def pick(latents: Tensor, values: Tensor) -> Tensor:
        """The latent that correlates best with each node, (members, nodes)."""
        return _correlations(latents[:, choose], values[:, choose]).argmax(1)

    teach = [pick(classes, delta) for delta in seen.delta]  # alpha of each node
    learn = [pick(data.latents, f) for f in (data.x, *seen.f[:2])]  # beta of each input and node
    z, top = data.latents[:, score], classes[:, score]
    f, g, delta = ([signal[:, score] for signal in group] for group in seen)
    c1 = [_of_own(_correlations(top, d), own) for d, own in zip(delta, teach, strict=True)]
    c2 = [_of_own(_correlations(z, v), own) for v, own in zip((data.x[:, score], *f[:2]), learn, strict=True)]
    related = _correlations(top, z).abs()  # (members, classes, latents)
    other = [own.roll(1, 1) for own in learn]  # the latents of other nodes

    def edge(j: int, k: int, weight: Tensor) -> dict[str, Tensor]:
        return _edges(
            weight, c1[j], c2[k + 1], related, teach[j], learn[k + 1], other[k + 1],
            _correlations(z, delta[j]), _correlations(f[k], delta[j]),
        )  # fmt: skip

    found = edge(1, 0, network.second)
    direct = edge(2, 0, network.out)  # there with a residual; without one, what it would be
    found |= {f"direct {name}": direct[name] for name in ("angles", "total")}
    found |= _children(c2[1], _correlations(z, g[0]), _correlations(z, delta[0]), learn[1], other[1])
    shuffled = z.roll(1, 1)
    found |= {f"C1 {name}": value.mean(1) for name, value in zip(("first", "second", "out"), c1, strict=True)}
    found |= {f"C2 {name}": value.mean(1) for name, value in zip(("input", "first", "second"), c2, strict=True)}
    found["C2 first shuffled"] = _of_own(_correlations(shuffled, f[0]), learn[1]).mean(1)
    found["C1 out shuffled"] = _of_own(_correlations(top.roll(1, 1), delta[2]), teach[2]).mean(1)
    for name, layer in (("first", 1), ("second", 2)):
        found[f"height {name}"] = data.height[learn[layer]].to(data.x.dtype).mean(1)
    return torch.stack([found[column].to(data.x.dtype) for column in COLUMNS], -1)


def _edges(
    weight: Tensor, a: Tensor, b: Tensor, related: Tensor, alpha: Tensor, beta: Tensor, other: Tensor,
    pull: Tensor, rule: Tensor,
) -> dict[str, Tensor]:  # fmt: skip
    """Counts over edges from child k to parent j."""
    alive = (b != 0)[..., None] & (a != 0)[:, None]

    def joined(own: Tensor) -> tuple[Tensor, Tensor]:
        """corr(z_alpha, z_beta) and corr(z_beta, delta_j) of every edge, (members, k, j)."""
        c = related.gather(1, alpha[..., None].expand(-1, -1, related.shape[-1])).mT
        index = own[..., None].expand(-1, -1, weight.shape[-1])
        return c.gather(1, index), pull.gather(1, index)

    c, toward = joined(beta)
    c_other, toward_other = joined(other)
    signs = (a > PREMISE)[:, None] & (b > PREMISE)[..., None] & (c > PREMISE)
    others = (a > PREMISE)[:, None] & alive & (c_other > PREMISE)
    total = a.clamp(-1, 1).acos()[:, None] + b.clamp(-1, 1).acos()[..., None] + c.clamp(-1, 1).acos()
    inside = signs & (total < pi / 2)
    counts = {
        "signs": signs,
        "signs positive": signs & (weight * toward > 0),
        "others": others,
        "others positive": others & (weight * toward_other > 0),
        "angles": inside,
        "angles violated": inside & (rule * toward <= 0),
        "edges": alive,
        "edges with the rule": alive & (weight * rule > 0),
    }
    mean = (total * alive).sum((1, 2)) / alive.sum((1, 2)) * (180 / pi)
    return {name: mask.sum((1, 2)) for name, mask in counts.items()} | {"total": mean}


def _children(b: Tensor, reached: Tensor, gated: Tensor, beta: Tensor, other: Tensor) -> dict[str, Tensor]:
    """Counts over nodes k: reached = corr(z, g_k) and gated = corr(z, sigma' g_k), (members, latents, k)."""
    premise = b > PREMISE
    counts = {}
    for name, own in (("", beta), ("other ", other)):
        arrives, behind = _of_own(reached, own), _of_own(gated, own)
        counts[f"{name}children"] = premise
        counts[f"{name}children positive"] = premise & (arrives > 0)
        counts[f"{name}gated"] = premise & (arrives > 0)
        counts[f"{name}gated positive"] = premise & (arrives > 0) & (behind > 0)
    return {name: mask.sum(1) for name, mask in counts.items()}


def _correlations(x: Tensor, y: Tensor) -> Tensor:
    """Pearson's between all columns, (members, columns of x, columns of y); 0 where a column is constant."""
    return _standard(x).mT @ _standard(y)


def _standard(x: Tensor) -> Tensor:
    x = x - x.mean(1, keepdim=True)
    length = x.norm(dim=1, keepdim=True)
    return torch.where(length > 0, x / length, 0.0)


def _of_own(table: Tensor, own: Tensor) -> Tensor:
    """The entry of each node's own latent: table (members, latents, nodes), own (members, nodes)."""
    return table.gather(1, own[:, None])[:, 0]


SMALL, USUAL, RESIDUALS = "small start", "usual start", "residual"


def sound(run: Run, name: str) -> Any:
    """(members,) whether a network trained to its end: it did not diverge, and its loss is a number throughout."""
    return (run.array(f"{name}/diverged_at")[-1] < 0) & np.isfinite(run.array(f"{name}/loss")).all(0)


def _of_sound(run: Run, name: str, values: Any) -> Any:
    kept = sound(run, name)
    return values[:, kept] if kept.any() else np.full(values.shape, np.nan)


def column(run: Run, name: str, what: str) -> Any:
    """One of the counts over training, (points, members)."""
    return _of_sound(run, name, run.array(f"{name}/counts")[:, :, COLUMNS.index(what)])


def share(run: Run, name: str, what: str, of: str = "") -> Any:
    """Of the edges or nodes counted as `of` those counted as `what`, (points, members); NaN where none is counted."""
    part, total = (column(run, name, each) for each in ((what, of) if of else (f"{what} positive", what)))
    return np.divide(part, total, out=np.full(total.shape, np.nan), where=total > 0)


def learning(run: Run, name: str) -> Any:
    """Of each member the measuring points with between a tenth and nine tenths of the fall of its loss behind them."""
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
    data = Data(*draw_samples(config, tree, config.held_out, 1), heights)
    points = np.unique(np.geomspace(3, config.steps, config.points).round().astype(int))

    def batch(steps: range, members: Sequence[int]) -> tuple[Tensor, ...]:
        turn = turns(steps, config.batch, config.samples, x.device)[:, None]
        some = sent(members, x.device)[:, None]
        return x[some, turn], labels[some, turn]

    def held_out_loss(network: LatentMLP, members: Sequence[int]) -> Tensor:
        some = data.of(members)
        return loss(network, (some.x, some.labels))

    def ensemble(options: dict[str, Any]) -> Ensemble:
        def networks(members: Sequence[int]) -> LatentMLP:
            seeds = [1000 * config.seed + member for member in members]
            return LatentMLP(seeds, tree.tokens, config.width, config.classes, **options)

        return Ensemble(
            members=config.members,
            networks=networks,
            batch=Ahead(batch, steps=config.steps, device=config.device),
            loss=loss,
            optimizer=make_optimizer("sgd", rate=config.rate),
            steps=config.steps,
            measures={"counts": lambda network, members: measure(network, data.of(members)), "loss": held_out_loss},
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
