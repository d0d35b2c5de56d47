"""What the study `shallow-first` trains and records: blocks and a decoder that read sequences of one latent tree."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.config import Least, StudyConfig, Within
from joma.claims.contract import Progress
from joma.claims.guards import at_paper_scale, needs_device
from joma.data.ahead import Ahead
from joma.data.samples import streams
from joma.models import Decoder, DecoderConfig
from joma.recipes.grid import ensemble
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.studies.hierarchy.shallow_first import networks as net
from joma.studies.hierarchy.shallow_first.claims import DECODER, DEPTH, NETWORKS, SHARED, STUDY
from joma.training import Ensemble, class_loss, train_all

PERMUTED = 8  # trees with permuted leaves, beside that of each member


@dataclass(frozen=True)
class ShallowFirstConfig(StudyConfig):
    """Trees with ten tokens per class, read by blocks and by a decoder."""

    classes: Annotated[int, Least(2)] = 3
    rho: Annotated[float, Within(0, 1, open=True)] = 0.9
    """Uncertainty of every edge, from the class down."""
    members: Annotated[int, Least(2)] = 6
    """Seeds: each with its own sequences and its own start."""
    samples: Annotated[int, Least(100, "for every token to appear")] = 6_000
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
        super().__post_init__()
        if self.context > 10 * self.classes - 2:
            raise ValueError(f"context must leave two of the {10 * self.classes} tokens, got {self.context}")


class Setting:
    """What all networks of one config share: a tree, its control, and the sequences."""

    def __init__(self, config: ShallowFirstConfig) -> None:
        needs_device(config.device, at_paper_scale(STUDY))
        self.config = config
        self.tree = net.uneven_tree(config.classes, config.rho)
        self.tokens = self.tree.tokens
        self.seeds = [1000 * config.seed + member for member in range(config.members)]
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


def run(config: ShallowFirstConfig, run: Run, progress: Progress) -> None:
    """Train every network and record, at each measuring point, what lies between pairs of tokens by height."""
    setting = Setting(config)
    if "data/co-occurrence" not in run:
        progress(0.0, "drawing sequences")
        run.record(0, {f"data/{name}": value for name, value in pulls(setting).items()})
    train_all({name: ensemble_of(setting, name) for name in NETWORKS}, run, progress=progress)


def pulls(setting: Setting) -> dict[str, Tensor]:
    """Of the data alone, by height: P(l|m), and the first pull on the weight of l given m, E[g x_l | m].

    The class's is that on the node of m's class, g = 1[class] - 1/D. A left-out token k has a node of its own, g = 1[k]
    - 1/M; there the length over k counts.
    """
    pool, (true, permuted) = setting.pool, setting.trees
    on = pool.on.double()
    times = on.sum(1)[..., None]
    of_class = torch.arange(setting.tokens, device=on.device) // 10
    agree = (pool.labels[..., None] == of_class).double() - 1 / setting.config.classes  # (members, samples, m)
    others = on.sum(-1, keepdim=True) - 1
    to_token = torch.stack([pull_to_tokens(one, other) for one, other in zip(on, others, strict=True)])
    found = {"co-occurrence": true.by_height(on.mT @ on / times)}
    for name, pull in (("class", ((on * agree).mT @ on / times)), ("token", to_token)):
        found[f"{name} pull"] = true.by_height(pull)
        found[f"{name} pull permuted"] = permuted.by_height(pull)
    return found


def pull_to_tokens(on: Tensor, others: Tensor) -> Tensor:
    """(m, l) of one member; every token beside the query is as likely to be the one left out."""
    tokens, found = on.shape[-1], []
    for m in range(tokens):
        rows = on[:, m : m + 1]
        targets = (on * rows / others).mT @ on  # (k, l): k left out
        targets[m] = 0.0  # the query is not left out
        targets.fill_diagonal_(0.0)  # and what is left out is not in the context
        found.append(((targets - targets.sum(0) / tokens) / rows.sum()).norm(dim=0))
    return torch.stack(found)


def ensemble_of(setting: Setting, name: str) -> Ensemble:
    """The members of one kind of network: how they are made, fed and measured."""
    config, tokens = setting.config, setting.tokens
    make: Callable[..., Any]
    loss: Callable[..., Tensor]
    batches: Callable[[net.Pool, int, range, Sequence[int]], tuple[Tensor, ...]]
    if name == DECODER:
        # no mask, no positions: a sequence is a set of tokens, and the first layer's logits depend on tokens alone
        shape = DecoderConfig(
            vocabulary=tokens + 1, outputs=tokens, layers=config.layers, width=config.width, mlp=2 * config.width,
            context=max(tokens, config.context + 1), causal=False, positions="none",
        )  # fmt: skip
        make = partial(Decoder, shape)
        batches, loss, optimizer = net.decoder_batches, class_loss, make_optimizer("adam", rate=config.decoder_rate)
        steps, size = config.decoder_steps, config.decoder_batch
        matrices: dict[str, net.Matrix] = {
            "attention": partial(net.decoder_logits, tokens=tokens),
            "weights": partial(net.decoder_strengths, tokens=tokens),
            "says": partial(net.decoder_predictions, tokens=tokens, context=config.context),
        }
    else:
        of_class, own = name.endswith("class"), name != SHARED
        nodes = config.classes if of_class else tokens
        make = partial(net.QueryBlocks, tokens=tokens, nodes=nodes, residual=name.startswith("residual"))
        make = make if own else partial(net.SharedBlock, tokens=tokens)
        batches, loss = net.class_batches if of_class else net.token_batches, net.block_loss
        optimizer = make_optimizer("sgd", rate=config.block_rate / (1 if own else 10))
        steps, size = config.block_steps, config.block_batch
        matrices = {"attention": lambda block: block.z[:, :, 0] if own else block.z}
        # how strongly token l acts on the nodes of query m: the length of V's row
        matrices |= {"weights": lambda block: block.w[..., :-1, :].norm(dim=-1)} if own else {}

    def networks(members: Sequence[int]) -> Any:
        return make([setting.seeds[member] for member in members])

    def draw(steps: range, members: Sequence[int]) -> tuple[Tensor, ...]:
        return batches(setting.pool, size, steps, members)

    # made now: the measures compare with them, and may be asked for any of the members
    untrained = networks(range(config.members)).to(config.device)
    with torch.no_grad():
        measures = {
            what: net.between(
                matrix,
                matrix(untrained),
                setting.trees,
                shown=net.attention_ratio if what == "attention" else lambda values: values,
            )
            for what, matrix in matrices.items()
        }
    return ensemble(
        config, config.members, networks=networks, batch=Ahead(draw, steps=steps, device=config.device), loss=loss,
        optimizer=optimizer, steps=steps, measures=measures,
        measure_at=[0, *np.unique(np.geomspace(1, steps, config.points).round().astype(int)).tolist()],
    )  # fmt: skip
