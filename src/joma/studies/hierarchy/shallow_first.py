"""Section 5: are tokens with a low common ancestor learned first? Attention and weights by height, over training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Progress, Study
from joma.data.ahead import Ahead
from joma.data.samples import streams
from joma.models import Decoder
from joma.runs import Run
from joma.studies.hierarchy import _tree_networks as net
from joma.studies.hierarchy._judging import check_device
from joma.studies.hierarchy._tree_claims import CLAIMS, DECODER, DEPTH, NETWORKS, SHARED
from joma.studies.hierarchy._tree_figures import draw
from joma.studies.hierarchy._tree_findings import judge
from joma.training import Ensemble, Optimizer, class_loss, train_all

PERMUTED = 8  # trees with permuted leaves, beside that of each member


@dataclass(frozen=True)
class Config:
    """Trees with ten tokens per class, read by blocks and by a decoder."""

    classes: int = 3
    rho: float = 0.9
    """Uncertainty of every edge, from the class down."""
    members: int = 6
    """Seeds: each with its own sequences and its own start."""
    samples: int = 6_000
    """Sequences of each member, read again and again."""
    block_steps: int = 150
    block_batch: int = 8
    """Sequences of each query in a step."""
    block_rate: float = 3.0
    """SGD's rate of blocks with one query; a block that all queries share has a tenth of it."""
    decoder_steps: int = 300
    decoder_batch: int = 24
    decoder_rate: float = 4e-3
    """Adam's."""
    context: int = 6
    """Tokens that a decoder reads beside its query."""
    layers: int = 1
    width: int = 32
    points: int = 16
    """Measuring points, evenly spaced in the logarithm of the step."""
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.classes < 2 or self.members < 2:
            raise ValueError(f"classes and members must be at least 2, got {self.classes} and {self.members}")
        if not 0 < self.rho < 1:
            raise ValueError(f"rho must lie between 0 and 1, got {self.rho}")
        if self.context > 10 * self.classes - 2:
            raise ValueError(f"context must leave two of the {10 * self.classes} tokens, got {self.context}")
        if self.samples < 100:
            raise ValueError(f"samples must be at least 100, for every token to appear, got {self.samples}")


class _Setting:
    """What all networks of one config share: a tree, its control, and the sequences."""

    def __init__(self, config: Config) -> None:
        check_device(config.device, "shallow-first")
        self.config = config
        self.tree = net.uneven_tree(config.classes, config.rho)
        self.tokens = self.tree.tokens
        everyone = range(config.members)
        self.seeds = [1000 * config.seed + member for member in everyone]
        heights = self.tree.ancestor_heights().expand(config.members, 1, -1, -1)
        permuted = self.tree.permuted(streams(config.seed, range(config.members * PERMUTED), 2)).ancestor_heights()
        permuted = permuted.unflatten(0, (config.members, PERMUTED))
        self.trees = [net.Pairs(h.to(config.device), DEPTH) for h in (heights, permuted)]

    @cached_property
    def pool(self) -> net.Pool:
        """What is trained on; of each token an eighth of the sequences, which it is in more often than that."""
        config = self.config
        sources = streams(config.seed, range(config.members), device=config.device)
        return net.draw_pool(self.tree, config.samples, config.samples // 8, config.context, sources)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train every network and record, at each measuring point, what lies between pairs of tokens by height."""
    setting = _Setting(config)
    if "data/co-occurrence" not in run:
        progress(0.0, "drawing sequences")
        run.record(0, {f"data/{name}": value for name, value in _pulls(setting).items()})
    train_all({name: _ensemble(setting, name) for name in NETWORKS}, run, progress=progress)


def _pulls(setting: _Setting) -> dict[str, Tensor]:
    """Of the data alone, by height: P(l|m), and the first pull on the weight of l given m, E[g x_l | m].

    The class's is that on the node of m's class, g = 1[class] - 1/D. A left-out token k has a node of its own, g = 1[k]
    - 1/M; there the length over k counts.
    """
    pool, (true, permuted) = setting.pool, setting.trees
    on = pool.on.double()
    times = on.sum(1)[..., None]
    of_class = torch.arange(setting.tokens, device=on.device) // 10
    agree = (pool.labels[..., None] == of_class).double() - 1 / setting.config.classes  # (members, samples, m)
    to_class = (on * agree).mT @ on / times
    others = on.sum(-1, keepdim=True) - 1
    to_token = torch.stack([_pull_to_tokens(one, other) for one, other in zip(on, others, strict=True)])
    found = {"co-occurrence": true.by_height(on.mT @ on / times)}
    for name, pull in (("class", to_class), ("token", to_token)):
        found[f"{name} pull"] = true.by_height(pull)
        found[f"{name} pull permuted"] = permuted.by_height(pull)
    return found


def _pull_to_tokens(on: Tensor, others: Tensor) -> Tensor:
    """(m, l) of one member; every token beside the query is as likely to be the one left out."""
    tokens, found = on.shape[-1], []
    for m in range(tokens):
        rows = on[:, m : m + 1]
        targets = (on * rows / others).mT @ on  # (k, l): k left out
        targets[m] = 0.0  # the query is not left out
        targets.fill_diagonal_(0.0)  # and what is left out is not in the context
        there = targets.sum(0)
        pull = (targets - there / tokens) / rows.sum()
        found.append(pull.norm(dim=0))
    return torch.stack(found)


class _Kind(NamedTuple):
    """How a kind of network is made, fed and measured."""

    make: Callable[..., Any]
    batches: Callable[[net.Pool, int, range, Sequence[int]], tuple[Tensor, ...]]
    loss: Callable[..., Tensor]
    optimizer: Optimizer
    steps: int
    size: int
    logits: net.Matrix
    others: dict[str, net.Matrix]


def _kind(setting: _Setting, name: str) -> _Kind:
    config, tokens = setting.config, setting.tokens
    if name == DECODER:
        return _Kind(
            partial(Decoder, net.decoder_config(tokens, config.context, config.layers, config.width)),
            net.decoder_batches,
            class_loss,
            Optimizer("adam", rate=config.decoder_rate),
            config.decoder_steps,
            config.decoder_batch,
            partial(net.decoder_logits, tokens=tokens),
            {
                "weights": partial(net.decoder_strengths, tokens=tokens),
                "says": partial(net.decoder_predictions, tokens=tokens, context=config.context),
            },
        )
    of_class = name.endswith("class")
    nodes = config.classes if of_class else tokens
    own = partial(net.QueryBlocks, tokens=tokens, nodes=nodes, residual=name.startswith("residual"))
    return _Kind(
        partial(net.SharedBlock, tokens=tokens) if name == SHARED else own,
        net.class_batches if of_class else net.token_batches,
        net.block_loss,
        Optimizer("sgd", rate=config.block_rate / (10 if name == SHARED else 1)),
        config.block_steps,
        config.block_batch,
        net.block_logits,
        {} if name == SHARED else {"weights": net.block_strengths},
    )


def _ensemble(setting: _Setting, name: str) -> Ensemble:
    config, kind = setting.config, _kind(setting, name)

    def networks(members: Sequence[int]) -> Any:
        return kind.make([setting.seeds[member] for member in members])

    def draw(steps: range, members: Sequence[int]) -> tuple[Tensor, ...]:
        return kind.batches(setting.pool, kind.size, steps, members)

    # made now: the measures compare with them, and may be asked for any of the members
    untrained = networks(range(config.members)).to(config.device)
    measures: dict[str, Callable[[Any, Sequence[int]], Tensor]] = {}
    with torch.no_grad():
        measures["attention"] = net.between(
            kind.logits, kind.logits(untrained), setting.trees, shown=net.attention_ratio
        )
        for what, matrix in kind.others.items():
            measures[what] = net.between(matrix, matrix(untrained), setting.trees)
    points = np.unique(np.geomspace(1, kind.steps, config.points).round().astype(int))
    return Ensemble(
        members=config.members,
        networks=networks,
        batch=Ahead(draw, steps=kind.steps, device=config.device),
        loss=kind.loss,
        optimizer=kind.optimizer,
        steps=kind.steps,
        measures=measures,
        measure_at=[0, *points.tolist()],
        device=config.device,
    )


STUDY = Study(
    name="shallow-first",
    title="Section 5: are tokens with a low common ancestor learned first?",
    version=2,
    claims=CLAIMS,
    quick=Config(),
    paper=Config(
        classes=10,
        members=20,
        samples=40_000,
        block_steps=3_000,
        block_batch=32,
        block_rate=1.0,
        decoder_steps=10_000,
        decoder_batch=256,
        decoder_rate=3e-4,
        context=12,
        layers=2,
        width=256,
        points=60,
        device="cuda",
    ),
    run=run,
    judge=judge,
    draw=draw,
    about=(
        "Sequences are drawn from a hierarchical binary latent tree. Three kinds of network read them: the block of "
        "eq. 1 with one copy per query, as eq. 2 trains it (with and without its residual), one block for all queries, "
        "and a small decoder. They predict a token that was left out, or the class. Over training, attention and MLP "
        "weights between two tokens are sorted by the height of their lowest common ancestor. A verdict comes from the "
        "interval over seeds: the number in the true tree minus the same number in a tree with permuted leaves. The "
        "first point of every curve is the untrained network. A network whose loss ends as high as that of even "
        "guesses did not learn and does not count."
    ),
)
