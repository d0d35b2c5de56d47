"""HBLT, the hierarchical binary latent tree of Section 5, sampled: a class, the latents below it, the tokens last.

The root y_0 is a class with D values and stands at height L, the depth of the tree. Its children are binary latents,
at height L - 1, and below each edge a child copies its parent with probability (1 + rho)/2. The tokens stand at height
0; y = 1 means that the token appears. `joma.theory.hierarchy` has the probabilities of the same tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

import torch
from torch import Tensor

from joma.data.ahead import sent
from joma.data.samples import Generators, Sample, each, rows, sample_shape, uniform, with_ones_between, write_sequences
from joma.host.arguments import Number, at_least_dims, integer, within
from joma.host.words import counted

Branching = int | Sequence[int | Sequence[int]]
"""Children of a node: one number; one per level from the root down; or, on a level, one per node."""

MOST_NODES = 2**20
"""On one level of a tree: 128 samples of it draw 1 GiB of random numbers."""


class HBLT:
    """The tree as the paper defines it (Definition 2), or an ensemble of trees of one shape.

    depth: L. branching: see `Branching`. rho in [-1, 1]: a number, or (..., n) with n = 1, one for each of the L - 1
    levels below the root's children, or one for each edge there, from the top down and from left to right.
    p0: (..., classes), the probability of each class. p_zero: P[y_1 = 0 | y_0 = k] as (classes,) for all children of
    the root, or (..., children, classes) with one row for each. The leading dimensions are the members of an ensemble.
    The parameters are those of `joma.theory.hierarchy.enumerate_tree`; the tree lives where p0 does.

    Sequences have `length` places, by default one for each token. Ids 0 to tokens - 1 are the tokens, the last id of
    the `vocabulary` pads.

    >>> tree = HBLT(3, 2, 0.9, p0=[0.5, 0.5], p_zero=[1.0, 0.2])
    >>> tree.tokens, tree.pad, tree.level_names
    (8, 8, ('height 1', 'height 2'))
    >>> sample = tree.sample((4, 5), generator=torch.Generator().manual_seed(0))
    >>> sample.tokens.shape, sample.labels.shape, [latents.shape[-1] for latents in sample.latents]
    (torch.Size([4, 5, 8]), torch.Size([4, 5]), [4, 2])
    """

    members: tuple[int, ...]
    """Leading dimensions of the parameters; () for a single tree."""

    def __init__(
        self,
        depth: int,
        branching: Branching,
        rho: Number,
        p0: Number,
        p_zero: Number,
        *,
        length: int | None = None,
        vocabulary: int | None = None,
    ) -> None:
        """A tree, or an ensemble of trees; the arguments are described above, with the class."""
        parents = _parents(depth, branching)
        self.depth, self.tokens = len(parents), len(parents[-1])
        self.vocabulary = integer(self.tokens + 1 if vocabulary is None else vocabulary, "vocabulary", 1)
        if self.vocabulary <= self.tokens:
            least = f"{self.tokens + 1}, for {self.tokens} tokens and a pad"
            raise ValueError(f"vocabulary must be at least {least}, got {vocabulary}")
        self.length = integer(self.tokens if length is None else length, "length", 1)
        prior = at_least_dims(within(p0, "p0", 0, 1), "p0", 1, "(..., classes)").double()
        if prior.shape[-1] < 1:
            raise ValueError("p0 must have at least one class, got none")
        if ((total := prior.sum(-1)) - 1).abs().gt(1e-6).any():
            raise ValueError(f"p0 must sum to 1 over classes, got {total.flatten()[0].item():g}")
        children, classes = len(parents[0]), prior.shape[-1]
        zero = within(p_zero, "p_zero", 0, 1)
        zero = zero.expand(children, -1) if zero.ndim == 1 else zero  # P[y_1 = 0 | k] as (..., children, classes)
        if zero.ndim < 2 or zero.shape[-2:] != (children, classes):
            wanted = f"({classes},) or (..., {children}, {classes})"
            raise ValueError(f"p_zero must have shape {wanted}, got {tuple(zero.shape)}")
        one = 1 - zero.to(prior)
        flip = (1 - _edges(rho, [len(level) for level in parents[1:]]).to(prior)) / 2
        try:
            self.members = tuple(torch.broadcast_shapes(prior.shape[:-1], one.shape[:-2], flip.shape[:-1]))
        except RuntimeError:
            shapes = f"p0 {tuple(prior.shape)}, p_zero {tuple(one.shape)} and rho {tuple(flip.shape)}"
            raise ValueError(f"the members of {shapes} do not fit together") from None
        reach = prior.cumsum(-1)
        # Divided by its own end, so that the last class with p0 > 0 ends at exactly 1 and none beyond it is drawn.
        self._reach = (reach / reach[..., -1:]).expand(*self.members, -1).contiguous()
        self._one = one.mT.expand(*self.members, -1, -1).contiguous()  # (*members, classes, children)
        self._flip = flip.expand(*self.members, -1)
        self._parents = [level.to(prior.device) for level in parents]
        self._leaf = torch.arange(self.tokens, device=prior.device).expand(*self.members, -1)  # of each token

    @classmethod
    def one_per_class(
        cls,
        classes: int,
        branching: int | Sequence[int],
        rho: Number,
        *,
        length: int | None = None,
        vocabulary: int | None = None,
    ) -> HBLT:
        """Each of D equally likely classes turns on one latent of its own, as in the remark on Theorem 5.

        branching: children of a node, one number for each level below these latents (a single number: one level).
        rho: a number, for every edge, or (..., n) with one for each level. Here the edge from the class to its latent
        counts, and comes first: latent k copies "the class is k" with probability (1 + rho)/2, at rho = 1 always.

        >>> tree = HBLT.one_per_class(10, (2, 5), 0.8)  # 10 latents, 20 below them, 100 tokens
        >>> tree.depth, tree.tokens, tree.level_names
        (3, 100, ('height 1', 'height 2'))
        """
        count = integer(classes, "classes", 1)
        below = list(branching) if isinstance(branching, Sequence) else [branching]
        edges = within(rho, "rho", -1, 1).double()
        edges = edges[None] if edges.ndim == 0 else edges
        edges = edges.expand(*edges.shape[:-1], len(below) + 1) if edges.shape[-1] == 1 else edges
        if edges.shape[-1] != len(below) + 1:
            wanted = f"a number or one for each of the {len(below) + 1} levels of edges"
            raise ValueError(f"rho must be {wanted}, got {edges.shape[-1]}")
        copies = (1 + edges[..., :1, None]) / 2  # P[y_1 = 0 | another class]
        own = torch.eye(count, dtype=torch.bool, device=edges.device)
        p0 = torch.full((count,), 1 / count, dtype=torch.float64, device=edges.device)
        p_zero = torch.where(own, 1 - copies, copies)
        lower = edges[..., 1:] if below else edges  # a tree without edges below its latents still wants a rho
        return cls(len(below) + 1, [count, *below], lower, p0, p_zero, length=length, vocabulary=vocabulary)

    def __repr__(self) -> str:
        members = f", members {self.members}" if self.members else ""
        return f"HBLT(depth {self.depth}, {self.tokens:,} tokens, {counted(self.classes, 'class', 'classes')}{members})"

    @property
    def pad(self) -> int:
        """The id that fills the front of a sequence."""
        return self.vocabulary - 1

    @property
    def classes(self) -> int:
        """D, the values of the root."""
        return self._one.shape[-2]

    @property
    def level_names(self) -> tuple[str, ...]:
        """One for each tensor of `Sample.latents`: 'height 1' stands right above the tokens."""
        return tuple(f"height {height}" for height in range(1, self.depth))

    def sample(self, shape: int | Sequence[int], *, generator: Generators) -> Sample:
        """Draw `shape` sequences, independent of each other. An ensemble wants a shape that begins with its members.

        A list of generators gives each member (the first dimension of `shape`) a stream of its own: it then draws what
        it would draw alone. Nothing waits for the device unless `length` is below the number of tokens.
        """
        sizes = sample_shape(shape, self.members)
        device = self._one.device
        luck = uniform(sizes, generator, device).reshape(*self.members, -1)
        labels = torch.searchsorted(self._reach, luck, right=True).reshape(sizes)
        levels = [uniform((*sizes, self._one.shape[-1]), generator, device) < rows(self._one, labels)]
        flips = self._flip.split([len(parent) for parent in self._parents[1:]], -1)
        for parent, flip in zip(self._parents[1:], flips, strict=True):
            turned = uniform((*sizes, len(parent)), generator, device) < with_ones_between(flip, len(sizes) + 1, keep=1)
            levels.append(levels[-1].index_select(-1, parent) ^ turned)
        *latents, leaves = levels
        on = leaves.gather(-1, with_ones_between(self._leaf, leaves.ndim, keep=1).expand_as(leaves))
        return Sample(write_sequences(on, length=self.length, pad=self.pad), labels, tuple(reversed(latents)), on)

    def ancestor_heights(self) -> Tensor:
        """(*members, tokens, tokens): the height of the lowest common ancestor of two tokens, L where it is the root.

        >>> HBLT(2, 2, 0.9, [1.0], [0.5]).ancestor_heights()
        tensor([[0, 1, 2, 2],
                [1, 0, 2, 2],
                [2, 2, 0, 1],
                [2, 2, 1, 0]])
        """
        node = torch.arange(self.tokens, device=self._leaf.device)
        height = torch.zeros(self.tokens, self.tokens, dtype=torch.int64, device=node.device)
        for parent in reversed(self._parents):
            height += node[:, None] != node  # they had not met below this level
            node = parent[node]
        return height[self._leaf[..., :, None], self._leaf[..., None, :]]

    def permuted(self, generator: Generators) -> HBLT:
        """The same tree with its leaves permuted: the control that breaks what tokens have to do with the hierarchy.

        Latents and classes stay; from equal seeds both trees draw the same leaves under different names. A list of
        generators makes an ensemble of as many trees, each permuted in its own way.
        """
        order = each(generator, lambda one: torch.randperm(self.tokens, generator=one, device=one.device))
        if order.ndim > 1 and self.members not in ((), (len(order),)):
            raise ValueError(f"generator must be one or as many as the members {self.members}, got {len(order)}")
        grows = order.ndim > 1 and not self.members
        tree = self._changed(lambda one: one.expand(len(order), *one.shape).contiguous()) if grows else copy(self)
        tree._leaf = tree._leaf.gather(-1, order.to(self._leaf.device).expand_as(tree._leaf))
        return tree

    def select(self, members: Sequence[int]) -> HBLT:
        """These trees of an ensemble, as an ensemble."""
        if not self.members:
            raise ValueError("select takes members out of an ensemble, this is a single tree")
        index = sent(members, self._leaf.device)
        return self._changed(lambda table: table[index])

    def to(self, device: torch.device | str) -> HBLT:
        """The same tree on another device."""
        tree = self._changed(lambda table: table.to(device))
        tree._parents = [parent.to(device) for parent in self._parents]
        return tree

    def _changed(self, change: Callable[[Tensor], Tensor]) -> HBLT:
        tree = copy(self)
        tree._reach, tree._one, tree._flip, tree._leaf = map(change, (self._reach, self._one, self._flip, self._leaf))
        tree.members = tuple(tree._leaf.shape[:-1])
        return tree


def _parents(depth: int, branching: Branching) -> list[Tensor]:
    levels = integer(depth, "depth", 1)
    given = list(branching) if isinstance(branching, Sequence) else [branching] * levels
    if len(given) != levels:
        raise ValueError(f"branching must be a number or one for each of the {levels} levels, got {len(given)}")
    parents: list[Tensor] = []
    above = 1
    for level in given:
        children = [integer(count, "branching", 1) for count in (level if isinstance(level, Sequence) else [level])]
        if isinstance(level, Sequence) and len(children) != above:
            raise ValueError(f"branching must be a number or one for each of {above} nodes, got {len(children)}")
        width = sum(children) * (above // len(children))
        if width > MOST_NODES:
            raise ValueError(f"branching makes {width} nodes on level {len(parents) + 1}, at most 2^20 fit")
        parents.append(torch.arange(above).repeat_interleave(torch.tensor(children).expand(above)))
        above = width
    return parents


def _edges(rho: Number, widths: list[int]) -> Tensor:
    """One uncertainty for each edge below the root's children, (..., edges)."""
    given = within(rho, "rho", -1, 1)
    given = given[None] if given.ndim == 0 else given
    count = given.shape[-1]
    if count == sum(widths):
        return given
    if count == len(widths):
        return given.repeat_interleave(torch.tensor(widths, device=given.device), -1)
    if count == 1:
        return given.expand(*given.shape[:-1], sum(widths))
    wanted = f"a number or one for each of the {len(widths)} levels or {sum(widths)} edges"
    raise ValueError(f"rho must be {wanted}, got {count} of them")
