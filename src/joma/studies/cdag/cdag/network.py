"""Two hidden layers that learn the classes of a latent tree, and the signals of CDAG Theorem 1 inside them.

A signal is what a node or a latent has on every sample. Latents are 0 or 1 and nodes behind a ReLU are never negative,
so plain products of such signals are positive whatever they mean: signals are centred, correlations are Pearson's.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joma.models.parts import compiled_part

PREMISE = 0.1  # a correlation counts as positive from here on: 3.5 standard errors at 1,200 samples


class LatentMLP(nn.Module):
    """x -> ReLU nodes -> ReLU nodes -> classes, as many networks at once as there are seeds.

    With `residual` the classes also read the first layer. `start` scales the initial weights above the first layer; the
    theorem's are zero. All parameters have the member first.
    """

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
    latents: Tensor
    """All latents below the class, the lowest first."""
    height: Tensor
    """(latents,)."""

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
    """Counts over edges from child k to parent j.

    weight (members, k, j); a = corr(z_alpha, delta_j), (members, j); b = corr(z_beta, f_k), (members, k);
    related (members, classes, latents); pull = corr(z, delta_j), (members, latents, j); rule = corr(f_k, delta_j).
    """
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
