"""What the study `shallow-first` trains and records: networks that read sequences of one latent tree.

From the paper's analysis to a Transformer: a block for every query (eq. 2: inputs always end with the same token m),
one block for all queries (eq. 1), and a decoder. They are asked for a token left out, or for the class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from joma.claims.contract import Least, Progress, StudyConfig, Within
from joma.claims.guards import at_paper_scale, needs_device
from joma.data.ahead import Ahead, sent, turns
from joma.data.hierarchy import HBLT
from joma.data.samples import streams
from joma.measure.correlation import pearson
from joma.models import Decoder, DecoderConfig, JomaBlock
from joma.models.parts import compiled_part
from joma.recipes.grid import ensemble
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.theory.attention import Attention
from joma.training import Ensemble, class_loss, train_all

DEPTH = 4
SHARED, DECODER = "shared", "decoder"
NETWORKS = ("bare token", "residual token", "bare class", "residual class", SHARED, DECODER)
"""One block per query, without and with the residual, asked for a left-out token or the class; others for a token."""
SHALLOW = "shallow token"
"""As "residual token", but one latent alone ties tokens to a query: each appears as often beside it as in the tree."""
START_W, START_Z = 1e-2, 1e-3  # spreads of the blocks' initial weights: the paper starts from zero, where ReLU is stuck
FEWEST = 3  # tokens in a sequence: a query, one to leave out, one to look at


def uneven_tree(classes: int, rho: float) -> HBLT:
    """Each class turns on one latent of its own; 2 latents below it, 6 below these, the lowest of 2, 2 and 1 tokens."""
    copy = torch.full((classes, classes), (1 + rho) / 2, dtype=torch.float64)
    p_zero = torch.where(torch.eye(classes, dtype=torch.bool), 1 - copy, copy)
    p0 = torch.full((classes,), 1 / classes, dtype=torch.float64)
    return HBLT(4, [classes, 2, 3, [2, 2, 1] * (2 * classes)], rho, p0, p_zero)


class Pool(NamedTuple):
    """Sequences of every member, drawn beforehand; steps take their turns in it."""

    on: Tensor  # (members, samples, tokens) bool
    labels: Tensor  # (members, samples)
    with_query: Tensor  # (members, tokens, chosen): samples in which this token is on
    reading: Tensor
    """(members, samples, context + 1): tokens that are on, in random order; short ones begin with the pad, `tokens`."""
    left_out: Tensor  # (members, samples): one more token that is on, not among those read


def draw_pool(tree: HBLT, samples: int, chosen: int, context: int, streams: Sequence[torch.Generator]) -> Pool:
    """Sequences of at least three tokens, and for each token `chosen` of those it appears in."""
    device = streams[0].device
    tree = tree.to(device)
    # drawn a few too many, the first that are long enough taken
    drawn = [tree.sample(samples + samples // 4, generator=stream) for stream in streams]
    enough = torch.stack([one.on.sum(-1) >= FEWEST for one in drawn])
    if int(enough.sum(1).min()) < samples:
        raise ValueError(f"rho leaves too many sequences with fewer than {FEWEST} tokens: lower it")
    kept = (~enough).to(torch.int8).argsort(dim=1, stable=True)[:, :samples]
    on = torch.stack([one.on for one in drawn]).gather(1, kept[..., None].expand(-1, -1, tree.tokens))
    labels = torch.stack([one.labels for one in drawn]).gather(1, kept)
    luck = torch.stack([torch.rand(samples, tree.tokens, generator=stream, device=device) for stream in streams])
    luck = torch.where(on, luck, -1.0)
    if int(on.sum(1).min()) < chosen:
        raise ValueError(f"a token appears in {int(on.sum(1).min())} of {samples} sequences, {chosen} are asked for")
    with_query = luck.mT.topk(chosen, dim=-1).indices
    score, order = luck.topk(context + 2, dim=-1)
    order = torch.where(score >= 0, order, tree.tokens)
    left_out, reading = order[..., 0], order[..., 1:].flip(-1)  # flipped: pads first, a token at the end
    return Pool(on, labels, with_query, reading, left_out)


def token_batches(pool: Pool, size: int, steps: range, members: Sequence[int]) -> tuple[Tensor, Tensor]:
    """For every query as many sequences it is in, one more token left out of each."""
    x, member, sample = _with_query(pool, size, steps, members)
    token = torch.arange(x.shape[-1], device=x.device)
    first, second = pool.left_out[member, sample], pool.reading[member, sample][..., -1]
    target = torch.where(first == token[:, None], second, first)  # a query is not left out
    return (x & (target[..., None] != token)).float(), target


def class_batches(pool: Pool, size: int, steps: range, members: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The same with nothing left out, and the class to be told."""
    x, member, sample = _with_query(pool, size, steps, members)
    return x.float(), pool.labels[member, sample]


def _with_query(pool: Pool, size: int, steps: range, members: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """What is on beside each query, (steps, members, queries, size, tokens) bool, and where in the pool that is."""
    token = torch.arange(pool.on.shape[-1], device=pool.on.device)
    turn = turns(steps, size, pool.with_query.shape[-1], pool.on.device)[:, None, None]
    member = sent(members, pool.on.device)[:, None, None]
    sample = pool.with_query[member, token[:, None], turn]
    return pool.on[member, sample] & (token[:, None, None] != token), member, sample


def shallow_batches(
    often: Tensor, source: Callable[[int, int], torch.Generator], size: int, steps: range, members: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """As `token_batches` gives it, of tokens that are independent given the query.

    often: P(l|m), (members, queries, tokens), 0 for the query itself. source: the random numbers of a step and member.
    The two tokens that come nearest are there even if chance has none.
    """
    found = []
    for step in steps:
        draws = [torch.rand(2, len(often[m]), size, often.shape[-1], generator=source(step, m), device=often.device)
                 for m in members]  # fmt: skip
        luck, which = torch.stack(draws, 1)
        itself = torch.eye(often.shape[-1], dtype=torch.bool, device=often.device)[:, None]
        margin = (often[sent(members, often.device), :, None] - luck).masked_fill(itself, -2.0)
        on = margin >= margin.topk(2).values[..., 1:].clamp(max=0.0)
        found.append((on, torch.where(on, which, -1.0).argmax(-1)))
    x, target = (torch.stack(part) for part in zip(*found, strict=True))
    return (x & (target[..., None] != torch.arange(x.shape[-1], device=x.device))).float(), target


def decoder_batches(pool: Pool, size: int, steps: range, members: Sequence[int]) -> tuple[Tensor, Tensor]:
    """What the decoder reads, (steps, members, size, context + 1), and the token left out."""
    turn = turns(steps, size, pool.on.shape[1], pool.on.device)[:, None]
    member = sent(members, pool.on.device)[:, None]
    return pool.reading[member, turn], pool.left_out[member, turn]


class _Blocks(JomaBlock):
    """Embeddings are rows of the identity; the first dimension of `members` has a start of its own for every seed."""

    def __init__(
        self, seeds: Sequence[int], tokens: int, queries: int, *, members: tuple[int, ...], **how: Any
    ) -> None:
        embeddings = torch.eye(tokens + queries).split([tokens, queries], dim=1)
        super().__init__(*embeddings, attention=Attention("softmax"), activation=torch.relu, members=members, **how)
        for member, seed in enumerate(seeds):
            source = torch.Generator().manual_seed(seed)
            self.w.data[member].normal_(0, START_W, generator=source)
            self.z.data[member].normal_(0, START_Z, generator=source)
        self.register_buffer("seeds", torch.tensor([seed & 0x7FFFFFFF for seed in seeds], dtype=torch.int32))


class QueryBlocks(_Blocks):
    """A block for each query, trained on sequences that end with it: JomaBlock with members (members, queries)."""

    def __init__(self, seeds: Sequence[int], tokens: int, nodes: int, *, residual: bool) -> None:
        super().__init__(seeds, tokens, 1, members=(len(seeds), tokens), nodes=nodes, residual=residual)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """x (members, queries, samples, tokens) -> nodes (members, queries, samples, nodes)."""
        v, bias = self.w.split([x.shape[-1], 1], dim=-2)
        h = self.attention.weights_unchecked(self.z, x) @ v
        return torch.relu(h + bias if self.residual else h)


class SharedBlock(_Blocks):
    """One block for all queries (eq. 1): they share W, and the residual hands the query on."""

    def __init__(self, seeds: Sequence[int], tokens: int) -> None:
        super().__init__(seeds, tokens, tokens, members=(len(seeds),), nodes=tokens)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """x (members, queries, samples, tokens) -> nodes (members, queries, samples, nodes)."""
        v, bias = self.w.chunk(2, dim=-2)  # of the context and of the query
        return torch.relu((self.attention.weights_unchecked(self.z[:, :, None], x) @ v[:, None]) + bias[:, :, None])


@compiled_part
def block_loss(block: Any, batch: tuple[Tensor, ...], noise: Tensor | None = None) -> Tensor:
    """Cross-entropy with the nodes as logits, averaged over the samples of each query and summed over queries."""
    x, target = batch
    each = F.cross_entropy(block(x).flatten(0, 2), target.flatten(), reduction="none")
    return each.view(target.shape).mean(-1).sum(-1)


def decoder_logits(decoder: Decoder, tokens: int) -> Tensor:
    """Logits of the first layer between all tokens, the mean over heads: (members, queries, tokens)."""
    seen: list[Tensor] = []

    def look(layer: int, name: str, value: Tensor) -> None:
        if layer == 0 and name == "logits":
            seen.append(value)

    decoder.features(torch.arange(tokens, device=decoder.embedding.device)[None], look=look)
    return seen[0][:, 0].mean(1)


def decoder_strengths(decoder: Decoder, tokens: int) -> Tensor:
    """How alike context token l and query m are to the nodes of the first MLP: cosine of what either sends them."""
    values, projection, up = (
        getattr(decoder, name).unbind(1)[0][..., first:]
        for name, first in (("qkv", 2 * decoder.config.width), ("projection", 0), ("up", 0))
    )
    own = decoder.embedding[:, :tokens]
    own, sent = (F.normalize(x - x.mean(1, keepdim=True), dim=-1) for x in (own @ up, own @ values @ projection @ up))
    return own @ sent.mT


def decoder_predictions(decoder: Decoder, tokens: int, context: int) -> Tensor:
    """ln p(k) after reading nothing but m, (members, m, k)."""
    query = torch.arange(tokens, device=decoder.embedding.device)[:, None]
    reading = torch.cat([torch.full((tokens, context), tokens, device=query.device), query], 1)
    return decoder.read(decoder.features(reading)[:, :, -1]).log_softmax(-1)


class Pairs(NamedTuple):
    """Pairs of a query m and another token l, by the height of their lowest common ancestor, in one or more trees."""

    heights: Tensor  # (members, trees, tokens, tokens): 0 on the diagonal, L where they meet in the root
    depth: int

    def of(self, members: Sequence[int]) -> Pairs:
        return Pairs(self.heights[list(members)], self.depth)

    def by_height(self, values: Tensor) -> Tensor:
        both = self._sibling[..., :, None] & self._sibling[..., None, :]  # so that heights differ in nothing else
        groups = [(self.heights == height) & both for height in range(1, self.depth + 1)]
        return torch.stack([_mean(values, group) for group in groups], -1)

    def alone(self, values: Tensor) -> Tensor:
        """By how much tokens l without a sibling exceed those with one, at heights 2 .. L - 1: (members,)."""
        gaps = []
        for height in range(2, self.depth):
            at = (self.heights == height) & self._sibling[..., :, None]
            lone = ~self._sibling[..., None, :]
            gaps.append(_mean(values, at & lone) - _mean(values, at & ~lone))
        return torch.stack(gaps).mean(0)

    def order(self, values: Tensor) -> Tensor:
        """Spearman's correlation of values with lowness (-H), over pairs below one latent, H < L: (members,)."""
        both = self._sibling[..., :, None] & self._sibling[..., None, :]
        below = (self.heights > 0) & (self.heights < self.depth) & both
        lead = below.shape[:2]
        chosen, low = (
            x[below].view(*lead, -1).double() for x in (values[:, None].expand_as(below), -self.heights)
        )  # trees of one shape have as many such pairs, however their leaves are permuted
        ordered: Tensor = pearson(_ranks(chosen), _ranks(low), constant=0.0)  # ties order nothing
        return ordered.mean(1)

    @property
    def _sibling(self) -> Tensor:
        return (self.heights == 1).any(-1)


def _mean(values: Tensor, group: Tensor) -> Tensor:
    """Of values (members, tokens, tokens) over groups (members, trees, tokens, tokens): (members,)."""
    return ((values[:, None] * group).sum((-2, -1)) / group.sum((-2, -1))).mean(1)


def _ranks(values: Tensor) -> Tensor:
    ordered = values.sort(-1).values.contiguous()
    left, right = (torch.searchsorted(ordered, values.contiguous(), right=side) for side in (False, True))
    return (left + right).double() / 2


def attention_ratio(logits: Tensor) -> Tensor:
    """Attention of each query on a sequence of all other tokens, as a multiple of an even share."""
    tokens = logits.shape[-1]
    itself = torch.eye(tokens, dtype=torch.bool, device=logits.device)
    return logits.masked_fill(itself, -torch.inf).softmax(-1) * (tokens - 1)  # 0 on the diagonal


Matrix = Callable[[Any], Tensor]  # of a network: (members, queries, tokens)


def between(
    value: Matrix, start: Tensor, trees: Sequence[Pairs], *, shown: Callable[[Tensor], Tensor] = lambda matrix: matrix
) -> Callable[[Any, Sequence[int]], Tensor]:
    """A measure of a matrix between tokens, (members, trees, L + 3): what `Pairs` finds in each tree, and the movement.

    Those are means by height, the gap of tokens without siblings, the order by height of the change since `start`, and
    the root mean square of that change over all pairs (the same in every tree). `shown` gives the matrix a scale.
    """

    def measure(network: Any, members: Sequence[int]) -> Tensor:
        now = shown(value(network))
        change = now - shown(start[list(members)])
        rows = change.flatten(1)[:, 1:].unflatten(1, (change.shape[1] - 1, -1))  # each ends with a diagonal entry
        moved = rows[..., :-1].flatten(1).square().mean(-1).sqrt()
        found = []
        for tree in (pairs.of(members) for pairs in trees):
            columns = (tree.alone(now), tree.order(change), moved)
            found.append(torch.cat([tree.by_height(now), torch.stack(columns, -1)], dim=-1))
        return torch.stack(found, dim=1)

    return measure


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
        needs_device(config.device, at_paper_scale("shallow-first"))
        self.config = config
        self.tree = uneven_tree(config.classes, config.rho)
        self.tokens = self.tree.tokens
        self.seeds = [1000 * config.seed + member for member in range(config.members)]
        heights = self.tree.ancestor_heights().expand(config.members, 1, -1, -1)
        permuted = self.tree.permuted(streams(config.seed, range(config.members * PERMUTED), 2)).ancestor_heights()
        permuted = permuted.unflatten(0, (config.members, PERMUTED))
        self.trees = [Pairs(h.to(config.device), DEPTH) for h in (heights, permuted)]

    @cached_property
    def often(self) -> Tensor:
        """P(l|m) of the sequences, (members, m, l), 0 for m itself."""
        on = self.pool.on.float()
        return (on.mT @ on / on.sum(1)[..., None]) * (1 - torch.eye(self.tokens, device=on.device))

    def luck(self, step: int, member: int) -> torch.Generator:
        """Of a member at a step, for what is drawn while it trains."""
        return streams(self.config.seed, [member], 10 + step, device=self.config.device)[0]

    @cached_property
    def pool(self) -> Pool:
        """What is trained on; of each token an eighth of the sequences, which it is in more often than that."""
        config = self.config
        sources = streams(config.seed, range(config.members), device=config.device)
        return draw_pool(self.tree, config.samples, config.samples // 8, config.context, sources)


def run(config: ShallowFirstConfig, run: Run, progress: Progress) -> None:
    """Train every network and record, at each measuring point, what lies between pairs of tokens by height."""
    setting = Setting(config)
    if "data/co-occurrence" not in run:
        progress(0.0, "drawing sequences")
        run.record(0, {f"data/{name}": value for name, value in pulls(setting).items()})
    train_all({name: ensemble_of(setting, name) for name in (*NETWORKS, SHALLOW)}, run, progress=progress)


def pulls(setting: Setting) -> dict[str, Tensor]:
    """Of the data alone, by height: P(l|m), and the first pull on the weight of l given m, E[g x_l | m]."""
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
    batches: Callable[[Pool, int, range, Sequence[int]], tuple[Tensor, ...]]
    if name == DECODER:
        # no mask, no positions: a sequence is a set of tokens, and the first layer's logits depend on tokens alone
        shape = DecoderConfig(
            vocabulary=tokens + 1, outputs=tokens, layers=config.layers, width=config.width, mlp=2 * config.width,
            context=max(tokens, config.context + 1), causal=False, positions="none",
        )  # fmt: skip
        make = partial(Decoder, shape)
        batches, loss, optimizer = decoder_batches, class_loss, make_optimizer("adam", rate=config.decoder_rate)
        steps, size = config.decoder_steps, config.decoder_batch
        matrices: dict[str, Matrix] = {
            "attention": partial(decoder_logits, tokens=tokens),
            "weights": partial(decoder_strengths, tokens=tokens),
            "says": partial(decoder_predictions, tokens=tokens, context=config.context),
        }
    else:
        of_class, own = name.endswith("class"), name != SHARED
        nodes = config.classes if of_class else tokens
        make = partial(QueryBlocks, tokens=tokens, nodes=nodes, residual=not name.startswith("bare"))
        make = make if own else partial(SharedBlock, tokens=tokens)
        batches, loss = class_batches if of_class else token_batches, block_loss
        if name == SHALLOW:
            batches = lambda _, *which: shallow_batches(setting.often, setting.luck, *which)
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
            what: between(
                matrix,
                matrix(untrained),
                setting.trees,
                shown=attention_ratio if what == "attention" else lambda values: values,
            )
            for what, matrix in matrices.items()
        }
    return ensemble(
        config, config.members, networks=networks, batch=Ahead(draw, steps=steps, device=config.device), loss=loss,
        optimizer=optimizer, steps=steps, measures=measures,
        measure_at=[0, *np.unique(np.geomspace(1, steps, config.points).round().astype(int)).tolist()],
    )  # fmt: skip
