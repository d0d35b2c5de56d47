"""The networks of the study `shallow-first`, the sequences they read, and what is measured between two tokens.

From the paper's analysis to a Transformer: a block for every query (eq. 2: inputs always end with the same token m),
one block for all queries (eq. 1), and a decoder. They are asked for a token left out, or for the class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from joma.data.ahead import sent, turns
from joma.data.hierarchy import HBLT
from joma.measure.correlation import pearson
from joma.models import Decoder, JomaBlock
from joma.models.parts import compiled_part
from joma.theory.attention import Attention

START_W, START_Z = 1e-2, 1e-3  # spreads of the blocks' initial weights: the paper starts from zero, where ReLU is stuck
FEWEST = 3  # tokens in a sequence: a query, one to leave out, one to look at


def uneven_tree(classes: int, rho: float) -> HBLT:
    """Each class turns on one latent of its own; below it 2 latents, 6 below these, the lowest with 2, 2 and 1 tokens.

    So a class has ten tokens at L = 4, and every fifth token is alone below its latent: no other token picks it up.
    """
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
    """For every query as many sequences it is in, one more token left out of each.

    x (steps, members, queries, size, tokens) is what else is on, (steps, members, queries, size) the token left out.
    """
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
        """x (members, queries, samples, tokens) -> nodes (members, queries, samples, nodes).

        What JomaBlock does, without multiplying by an identity.
        """
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
    """How alike context token l and query m are to the nodes of the first MLP: cosine of what either sends them.

    l arrives through values and projection, m through the residual; common to all tokens is taken off.
    """
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
    """Pairs of a query m and another token l, by the height of their lowest common ancestor, in one or several trees.

    What is measured in several trees is averaged over them.
    """

    heights: Tensor  # (members, trees, tokens, tokens): 0 on the diagonal, L where they meet in the root
    depth: int

    def of(self, members: Sequence[int]) -> Pairs:
        return Pairs(self.heights[list(members)], self.depth)

    def by_height(self, values: Tensor) -> Tensor:
        """Means of values (members, tokens, tokens) over pairs at each height 1 .. L, (members, L)."""
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
    """Mean ranks: ties share theirs. (..., n)."""
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
