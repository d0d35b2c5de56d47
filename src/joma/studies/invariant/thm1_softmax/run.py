"""The training behind Figures 2 and 3, by explicit gradients: softmax attention, linear nodes, cross-entropy.

The embeddings are rows of the identity, so W falls into V (its rows at the tokens), the bias ξ (its row at the
query) and rows that nothing touches. One step of full-batch SGD on the mean loss over the samples, one per class,

    b_i = softmax(log x_i + z/T),   g = onehot - softmax(b V + ξ),   V += η E[b gᵀ],   ξ += η E[g],
    z += η_z/T ( E[b o u] - E[s b] ),   u = V g,   s = b . u

is what autograd would do (a test compares them), at a third of its cost: whole ensembles fit into seconds.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Progress, StudyConfig
from joma.data.token_classes import token_classes
from joma.measure.correlation import pearson
from joma.runs import Run
from joma.theory.attention import Attention, random_orthonormal
from joma.theory.flow import Block, constant_gradient, integrate_together
from joma.theory.invariant import softmax_estimate

CHUNK = 10  # members trained at once: their whole path is held in memory
Kind = Literal["smooth", "random"]
KINDS: tuple[Kind, ...] = ("smooth", "random")


@dataclass(frozen=True)
class Thm1SoftmaxConfig(StudyConfig):
    """The experiment of Figures 2 and 3: one frequency vector per class, full-batch SGD on the mean loss."""

    tokens: int = 20
    classes: int = 20
    temperature: float = 0.5
    rate: float = 0.1
    steps: int = 2000
    seeds: int = 10
    points: int = 100
    """Moments of training at which everything is recorded."""
    draws: int = 4
    """Independent flows with a single sample, where b and s cannot be correlated."""
    seed: int = 0
    """The first seed of the networks, which have one each, and the seed of the flows with a single sample."""


def three(steps: int) -> list[int]:
    """The three moments at which estimates are judged, in steps: a quarter, half and the end of training."""
    return [steps // 4, steps // 2, steps]


def run(config: Thm1SoftmaxConfig, run: Run, progress: Progress) -> None:
    """Train with moving and with frozen attention; record logits, all estimates and the weights' growth."""
    even = np.linspace(0, config.steps, config.points + 1).round().astype(int)
    at = torch.from_numpy(np.union1d(even, three(config.steps)))
    run.keep("step", lambda: at)
    seeds = range(config.seed, config.seed + config.seeds)
    for i, kind in enumerate(KINDS):
        if f"{kind}/z" not in run:
            chunks = []
            for first in range(0, config.seeds, CHUNK):
                progress((i + first / config.seeds) * 0.45, f"{kind} classes, seeds from {seeds[first]}")
                chunks.append(_train_and_estimate(kind, seeds[first : first + CHUNK], at, config))
            run.record(0, {f"{kind}/{name}": torch.cat([c[name] for c in chunks]) for name in chunks[0]})
    progress(0.9, "one sample")
    if "one/z" not in run:
        run.record(0, {f"one/{name}": value for name, value in one_sample(config.draws, seed=config.seed).items()})


def _train_and_estimate(kind: Kind, seeds: range, at: Tensor, config: Thm1SoftmaxConfig) -> dict[str, Tensor]:
    start = draw_start(kind, seeds, classes=config.classes, tokens=config.tokens)
    late = torch.tensor([0, config.steps // 2, config.steps])
    how: Any = {"rate": config.rate, "temperature": config.temperature}
    path = train(start, steps=config.steps, **how)
    frozen = train_with_frozen_attention(start, at, **how)
    seen = [(path.v[:, i], path.bias[:, i, None], path.z[:, i, None]) for i in three(config.steps)]
    conditions = [condition(look(start.x, *state, config.temperature)) for state in seen]
    return {
        "z": path.z[:, at],
        "v": path.v[:, late],
        "frozen/v": frozen[:, torch.isin(at, late)],
        "v of node 0": path.v[:, at, :, 0],
        "frozen/v of node 0": frozen[..., 0],
        "frozen/published": published(frozen, start, config.temperature),
        "mean attention": path.mean_attention[:, at],
        **{name: way[:, at] for name, way in estimates(path, start, **how).items()},
        **{f"condition/{side}": torch.stack([each[side] for each in conditions], 1) for side in conditions[0]},
    }


class Start(NamedTuple):
    """Data and weights of an ensemble, members first."""

    x: Tensor  # (members, samples, tokens)
    v: Tensor  # (members, tokens, nodes)
    bias: Tensor  # (members, 1, nodes)
    z: Tensor  # (members, 1, tokens)


class Path(NamedTuple):
    """What training went through, steps second."""

    v: Tensor  # (members, steps + 1, tokens, nodes)
    bias: Tensor  # (members, steps + 1, nodes)
    z: Tensor  # (members, steps + 1, tokens)
    mean_attention: Tensor  # b̄, like z
    covariance: Tensor  # Cov(s, b), like z


def draw_start(kind: Kind, seeds: range, *, classes: int, tokens: int) -> Start:
    """One member a seed: half of the tokens distinct, half common, weights and logits N(0, 1)/100."""
    members = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        half = tokens // 2
        x = token_classes(kind, classes=classes, distinct=tokens - half, common=half, generator=generator)
        w = torch.randn(tokens + 1, classes, generator=generator, dtype=torch.float64) / 100
        z = torch.randn(1, tokens, generator=generator, dtype=torch.float64) / 100
        members.append(Start(x, w[:-1], w[-1:], z))
    return Start(*(torch.stack(part) for part in zip(*members, strict=True)))


class Moment(NamedTuple):
    """Attention b, back-propagated gradient g and their consequences at one moment of training."""

    b: Tensor  # (members, samples, tokens)
    g: Tensor  # (members, samples, nodes)
    pulled: Tensor  # b o u, like b
    s: Tensor  # (members, samples, 1)


def look(x: Tensor, v: Tensor, bias: Tensor, z: Tensor, temperature: float) -> Moment:
    """One forward and backward pass."""
    weight = x * (z / temperature).exp()
    b = weight / weight.sum(-1, keepdim=True)
    g = torch.eye(v.shape[-1], dtype=v.dtype) - torch.baddbmm(bias, b, v).softmax(-1)
    pulled = b * (g @ v.mT)
    return Moment(b, g, pulled, pulled.sum(-1, keepdim=True))


def train(start: Start, *, steps: int, rate: float, temperature: float) -> Path:
    """Full-batch SGD from `start`, one rate for W and z."""
    x, v, bias, z = start
    samples = x.shape[-2]
    seen: list[tuple[Tensor, ...]] = []
    for _ in range(steps + 1):
        now = look(x, v, bias, z, temperature)
        mean, both = now.b.mean(-2), (now.s * now.b).mean(-2)  # E[b], E[s b]
        seen.append((v, bias[:, 0], z[:, 0], mean, both, now.s.mean(-2)))
        v = v + rate / samples * (now.b.mT @ now.g)
        bias = bias + rate * now.g.mean(-2, keepdim=True)
        z = z + rate / temperature * (now.pulled.mean(-2) - both)[:, None]
    vs, biases, zs, mean, both, s = (torch.stack(part, 1) for part in zip(*seen, strict=True))
    return Path(vs, biases, zs, mean, both - mean * s)


def train_with_frozen_attention(start: Start, at: Tensor, *, rate: float, temperature: float) -> Tensor:
    """V at the steps `at` if z never moves: logistic regression on b(0). (members, len(at), tokens, nodes)."""
    v, bias = start.v, start.bias
    b = look(start.x, v, bias, start.z, temperature).b
    label = torch.eye(v.shape[-1], dtype=v.dtype)
    wanted, seen = set(at.tolist()), []
    for step in range(int(at[-1]) + 1):
        if step in wanted:
            seen.append(v)
        g = label - torch.baddbmm(bias, b, v).softmax(-1)
        v = v + rate / b.shape[-2] * (b.mT @ g)
        bias = bias + rate * g.mean(-2, keepdim=True)
    return torch.stack(seen, 1)


def condition(now: Moment) -> dict[str, Tensor]:
    """Both sides of the softmax condition of Theorem 1, with the sum over nodes inside as printed: their sizes."""
    samples = now.b.shape[-2]
    left = torch.einsum("msk,msi,msj->mkij", now.g, now.b, now.b) / samples
    right = torch.einsum("mi,msk,msj->mkij", now.b.mean(-2), now.g, now.b) / samples
    sizes = {name: side.sum(1).flatten(1).norm(dim=-1) for name, side in (("left", left), ("right", right))}
    return sizes | {"each": ((left - right).flatten(2).norm(dim=-1) / left.flatten(2).norm(dim=-1)).mean(-1)}


def published(v: Tensor, start: Start, temperature: float) -> Tensor:
    """The published recipe: b̄ is the mean of x, which is the mean attention of uniform logits."""
    return softmax_estimate(
        v, method="published", z0=start.z[:, 0], mean_attention=start.x.mean(-2), temperature=temperature
    )


def estimates(path: Path, start: Start, *, rate: float, temperature: float) -> dict[str, Tensor]:
    """Every way to get z from V, (members, steps + 1, tokens). Only `self-consistent` needs nothing but V and x."""
    heat, bbar = temperature, path.mean_attention
    squares = path.v.square().sum(-1)
    total = squares.sum(-1, keepdim=True)
    known: Any = {"z0": start.z[:, 0], "temperature": heat}
    covariance = rate * path.covariance
    return {
        "published": published(path.v, start, temperature),
        "first term": squares / (2 * heat),
        "second term": -total * start.x.mean(-2)[:, None] / (2 * heat),
        "current mean": (squares - total * bbar) / (2 * heat),
        "integrated": softmax_estimate(path.v, method="integrated", mean_attention=bbar, **known),
        "self-consistent": softmax_estimate(path.v, x=start.x, **known),
        "identity": softmax_estimate(path.v, method="identity", mean_attention=bbar, covariance=covariance, **known),
    }


def one_sample(draws: int, *, seed: int) -> dict[str, Tensor]:
    """Flows on a single sample, where Cov(s, b) = 0 and eq. 17 must be exact, with eq. 17 and 18 along them."""
    block, w0, z0 = _single_blocks(draws, torch.Generator().manual_seed(seed))

    def field(time: float, w: Tensor, z: Tensor, estimate: Tensor) -> tuple[Tensor, ...]:
        dw, dz = block.velocity(w, z)
        pull, mean = _two_terms(block, w, z, dw)
        return dw, dz, (pull - mean).sum(-1)[..., None, :]

    w, z, estimate = integrate_together(field, (w0, z0, z0), torch.linspace(0, 4, 21, dtype=torch.float64))
    dw, dz = block.velocity(w, z)
    pull, mean = _two_terms(block, w, z, dw)
    truth = dz.mT  # (steps, draws, tokens, 1)
    one_node = (pull.sum(-1, keepdim=True) - mean - truth).norm(dim=-2).amin(-1)  # the best choice of that node
    size = truth[..., 0].norm(dim=-1)
    return {
        "velocity, one node": one_node / size,
        "velocity, all nodes": ((pull - mean).sum(-1) - truth[..., 0]).norm(dim=-1) / size,
        "z": z[..., 0, :].movedim(0, 1),
        "z integrated": estimate[..., 0, :].movedim(0, 1),
        "z closed": softmax_estimate(
            block.project(w).movedim(0, 1), method="published", z0=z0[:, 0], mean_attention=block.attend(z0)[:, 0]
        ),
    }


def _single_blocks(draws: int, generator: torch.Generator) -> tuple[Block, Tensor, Tensor]:
    tokens, nodes = 6, 3
    embeddings = random_orthonormal(tokens + 1, tokens + 1, generator=generator)
    x = torch.rand(draws, 1, tokens, generator=generator, dtype=torch.float64)
    block = Block(
        x / x.sum(-1, keepdim=True), torch.zeros(1, dtype=torch.long), embeddings[:, :-1], embeddings[:, -1:],
        constant_gradient(torch.randn(draws, 1, nodes, generator=generator, dtype=torch.float64)), Attention("softmax"),
    )  # fmt: skip
    w = 0.5 * torch.randn(draws, tokens + 1, nodes, generator=generator, dtype=torch.float64)
    z = 0.5 * torch.randn(draws, 1, tokens, generator=generator, dtype=torch.float64)
    return block, w, z


def _two_terms(block: Block, w: Tensor, z: Tensor, dw: Tensor) -> tuple[Tensor, Tensor]:
    """v_k∘v_k′ and b̄ v_k·v_k′ of eq. 17, each (..., tokens, nodes)."""
    pull = block.project(w) * block.project(dw)
    return pull, block.attend(z).mean(-2)[..., None] * pull.sum(-2, keepdim=True)


TOP = 0.2  # the fastest fifth of the components
MOVED = 0.5  # of the final logits: a network whose logits moved by less has not learned to attend


def relative(estimate: Any, truth: Any) -> Any:
    """Relative error, norms over the last axis."""
    return np.linalg.norm(estimate - truth, axis=-1) / np.linalg.norm(truth, axis=-1)


class Networks:
    """The networks of one kind of classes that learned: their logits are finite and moved."""

    def __init__(self, run: Run, kind: Kind) -> None:
        self._run, self._kind = run, kind
        z, step = run.value(f"{kind}/z"), run.value("step")
        self.learned = relative(z[:, 0], z[:, -1]) > MOVED  # (seeds,)
        self._moments = np.searchsorted(step, three(int(step[-1])))
        self._z, self._start = self.at_three("z"), self.series("z")[:, :1]

    def series(self, name: str) -> Any:
        return self._run.value(f"{self._kind}/{name}")[self.learned]

    def at_three(self, name: str) -> Any:
        """The series at the three moments. (networks, 3, tokens)."""
        return self.series(name)[:, self._moments]

    def correlation(self, method: str, *, roll: int = 0) -> Any:
        """With z of the same seed or, for `roll` = 1, of the next one. (networks, 3)."""
        return pearson(np.roll(self.at_three(method), roll, 0), self._z)

    def error(self, method: str, *, roll: int = 0) -> Any:
        return relative(np.roll(self.at_three(method), roll, 0), self._z)

    @property
    def never_moves(self) -> tuple[Any, Any]:
        """Correlation and relative error of the guess that z stays where it was. (networks, 3) each."""
        return pearson(self._start, self._z), relative(self._start, self._z)


def concentration(v: Any) -> Any:
    """v (networks, [start, half, end], tokens, nodes) -> the share of the late movement that the fastest fifth of the
    tokens holds, mean over nodes. (networks,).
    """
    late = np.sort(np.abs(v[:, 2] - v[:, 1]), axis=1)
    fastest = max(round(TOP * late.shape[1]), 1)
    return (late[:, -fastest:].sum(1) / late.sum(1)).mean(-1)
