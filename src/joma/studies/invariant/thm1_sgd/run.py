"""Real training of JoMA blocks by several optimizers, and the drift of the invariant beside its sum over steps."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.claims.config import Above, Several
from joma.claims.contract import Progress, StudyConfig
from joma.models import JomaBlock
from joma.runs import Run
from joma.studies.invariant._blocks import as_module
from joma.theory.attention import Attention, random_orthonormal
from joma.theory.flow import State
from joma.theory.invariant import first_integral, sgd_drift

Kind = Literal["exp", "linear"]
KINDS: tuple[Kind, ...] = ("exp", "linear")
RECIPES = ("full batch", "minibatch", "momentum", "Adam", "weight decay")
KNOWN = ("full batch", "minibatch", "weight decay")
"""Recipes whose drift is an exact sum over steps."""


@dataclass(frozen=True)
class Thm1SgdConfig(StudyConfig):
    """A JoMA block trained with the same data and start at several rates, up to one training time."""

    tokens: int = 10
    nodes: int = 4
    samples: int = 24
    batch: int = 6
    members: int = 6
    """Independent starts and data sets, trained at once."""
    rates: Annotated[tuple[float, ...], Several(2, "for an order"), Above(0)] = (0.2, 0.1, 0.05, 0.025)
    horizon: float = 4.0
    """Training time: rate times steps."""
    kappa: float = 0.5
    """Rate of z over rate of W."""
    temperature: float = 0.8
    momentum: float = 0.9
    decay_w: float = 0.1
    decay_z: float = 0.05
    seed: int = 0

    def form(self, kind: Kind) -> dict[str, Any]:
        """What the invariant of an attention depends on."""
        return {"kind": kind, "kappa": self.kappa, "temperature": self.heat(kind)}

    def heat(self, kind: Kind) -> float:
        """The temperature of an attention: linear attention does not feel it."""
        return self.temperature if kind == "exp" else 1.0


class Data(NamedTuple):
    """Members x samples: token frequencies, labels; and a start for every member."""

    x: Tensor
    label: Tensor
    start: State
    embeddings: Tensor


def run(config: Thm1SgdConfig, run: Run, progress: Progress) -> None:
    """Train every recipe at every rate and record how far the first integral went, and how far it should have."""
    generator = torch.Generator().manual_seed(config.seed)
    m, n, t = config.members, config.samples, config.tokens
    x = torch.rand(m, n, t, generator=generator, dtype=torch.float64)
    label = torch.randint(config.nodes, (m, n), generator=generator)
    embeddings = random_orthonormal(t + 2, t + 1, generator=generator)
    w = 0.3 * torch.randn(m, t + 2, config.nodes, generator=generator, dtype=torch.float64)
    z = 0.5 * torch.randn(m, 1, t, generator=generator, dtype=torch.float64)
    data = Data(x / x.sum(-1, keepdim=True) * 4, label, State(w, z), embeddings)
    run.keep("rates", lambda: np.array(config.rates))
    cases = [(kind, recipe) for kind in KINDS for recipe in RECIPES]
    for i, (kind, recipe) in enumerate(cases):
        progress(i / len(cases), f"{kind} attention, {recipe}")
        if f"{kind}/{recipe}/drift" not in run:
            record = _train_at_all_rates(kind, recipe, data, config)
            run.record(0, {f"{kind}/{recipe}/{name}": value for name, value in record.items()})


def _train_at_all_rates(kind: Kind, recipe: str, data: Data, config: Thm1SgdConfig) -> dict[str, Tensor]:
    """Drifts at the end of training, (rates, members, tokens), and over training for one member at the last rate."""
    ends: dict[str, list[Tensor]] = {"drift": [], "predicted": [], "moved": []}
    paths = {}
    for rate in config.rates:
        z, v = _train(kind, recipe, rate, data, config)
        invariant = first_integral(z, v, **config.form(kind))
        paths["drift"] = invariant - invariant[:, :1]
        if recipe in KNOWN:
            paths["predicted"] = _predicted(z, v, kind, recipe, rate, config)
        moving = z if kind == "exp" else z.square()  # what the drift is measured against
        ends["moved"].append(moving[:, -1] - moving[:, 0])
        for name, path in paths.items():
            ends[name].append(path[:, -1])
    record = {name: torch.stack(end) for name, end in ends.items() if end}
    return record | {f"{name} path": path[0] for name, path in paths.items()}


def _train(kind: Kind, recipe: str, rate: float, data: Data, config: Thm1SgdConfig) -> tuple[Tensor, Tensor]:
    """z (members, steps + 1, tokens) and V (members, steps + 1, tokens, nodes) along real training of the module."""
    attention = Attention(kind, temperature=config.heat(kind))
    embeddings = data.embeddings[:, :-1], data.embeddings[:, -1:]
    block = as_module(data.start, *embeddings, attention=attention, activation=torch.tanh)
    optimizer = _optimizer(block, recipe, rate, config)
    size = config.batch if recipe == "minibatch" else config.samples
    generator = torch.Generator().manual_seed(config.seed + 1)
    query = torch.zeros(size, dtype=torch.long)
    z, w = [data.start.z[:, 0]], [data.start.w]
    for _ in range(round(config.horizon / rate)):
        x, label = data.x, data.label
        if recipe == "minibatch":
            chosen = torch.rand(label.shape, generator=generator).argsort(-1)[:, :size]
            x, label = x.take_along_dim(chosen[..., None], 1), label.take_along_dim(chosen, 1)
        optimizer.zero_grad()
        likelihood = block(x, query).log_softmax(-1).take_along_dim(label[..., None], -1)
        loss = -likelihood.mean((-2, -1)).sum()  # the mean over samples; members do not touch each other
        loss.backward()
        optimizer.step()
        z.append(block.z.detach()[:, 0].clone())
        w.append(block.w.detach().clone())
    return torch.stack(z, 1), block.tokens.mT @ torch.stack(w, 1)


def _optimizer(block: JomaBlock, recipe: str, rate: float, config: Thm1SgdConfig) -> torch.optim.Optimizer:
    rate_w, rate_z = rate, rate * config.kappa
    if recipe == "momentum":
        still = 1 - config.momentum  # so that the effective rate is `rate`
        return block.sgd(rate_w=rate_w * still, rate_z=rate_z * still, momentum=config.momentum)
    if recipe == "Adam":
        return torch.optim.Adam([{"params": [block.w], "lr": rate_w}, {"params": [block.z], "lr": rate_z}])
    optimizer = block.sgd(rate_w=rate_w, rate_z=rate_z)
    if recipe == "weight decay":
        for group, decay in zip(optimizer.param_groups, (config.decay_w, config.decay_z), strict=True):
            group["weight_decay"] = decay
    return optimizer


def _predicted(z: Tensor, v: Tensor, kind: Kind, recipe: str, rate: float, config: Thm1SgdConfig) -> Tensor:
    """The drift that plain SGD has on this path, plus what weight decay adds. (members, steps + 1, tokens)."""
    drift = sgd_drift(z, v, **config.form(kind))
    if recipe != "weight decay":
        return drift
    squares = v.square().sum(-1)
    if kind == "exp":
        added = config.decay_w * squares / config.temperature - config.decay_z * z
    else:
        added = 2 * (config.decay_w * squares - config.decay_z * z.square())
    sums = rate * config.kappa * added[:, :-1].cumsum(1)
    return drift + torch.cat([torch.zeros_like(sums[:, :1]), sums], 1)
