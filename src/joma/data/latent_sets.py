"""The generator of Table 1: latents are sets, a class switches on everything below it.

Three levels. Each of N0 lowest latents is a set of N_ch tokens, each of N1 latents above them a set of N_ch lowest
ones, each of C classes a set of N_ch of these. Given its class a sample has no randomness: a class table says it all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import comb
from typing import NamedTuple

import torch
from torch import Tensor

from joma.data.ahead import sent
from joma.data.samples import Generators, Sample, each, rows, sample_shape, uniform, write_sequences
from joma.host.arguments import integer
from joma.host.words import brief_repr


class Published(NamedTuple):
    """A number of the paper's Table 1, over 5 seeds.

    >>> TABLE1[0].ncorr[1]
    Published(mean=0.81, spread=0.05)
    """

    mean: float
    spread: float


@brief_repr
class Table1Column(NamedTuple):
    """One column of the paper's Table 1.

    >>> TABLE1[0].classes, TABLE1[0].children, TABLE1[0].latents
    (20, 2, (10, 20))
    """

    classes: int
    """C"""
    children: int
    """N_ch"""
    latents: tuple[int, int]
    """(N0, N1)"""
    ncorr: tuple[Published, Published]
    """Normalised correlation at s = 0 and s = 1, as published."""


def _column(classes: int, children: int, n0: int, n1: int, *published: float) -> Table1Column:
    return Table1Column(classes, children, (n0, n1), (Published(*published[:2]), Published(*published[2:])))


TABLE1 = (
    #       C  N_ch N0  N1   s = 0       s = 1
    _column(20, 2, 10, 20, 0.99, 0.01, 0.81, 0.05),
    _column(20, 2, 20, 30, 0.97, 0.02, 0.80, 0.05),
    _column(20, 3, 10, 20, 1.00, 0.00, 0.69, 0.05),
    _column(20, 3, 20, 30, 0.96, 0.02, 0.68, 0.04),
    _column(30, 2, 10, 20, 0.99, 0.01, 0.73, 0.08),
    _column(30, 2, 20, 30, 0.94, 0.04, 0.74, 0.03),
    _column(30, 3, 10, 20, 0.99, 0.01, 0.72, 0.04),
    _column(30, 3, 20, 30, 0.95, 0.03, 0.66, 0.02),
    _column(50, 2, 10, 20, 0.99, 0.01, 0.58, 0.02),
    _column(50, 2, 20, 30, 0.95, 0.03, 0.55, 0.01),
    _column(50, 3, 10, 20, 0.99, 0.01, 0.64, 0.02),
    _column(50, 3, 20, 30, 0.95, 0.03, 0.61, 0.04),
)
"""The 12 configurations of the paper's Table 1 with what it reports, mean and spread over 5 seeds."""


@brief_repr
@dataclass(frozen=True, eq=False)
class LatentSets:
    """What each class looks like. Leading dimensions are the members of an ensemble, each with sets of its own.

    - tokens: (*members, classes, length) int64: the sequence of each class, pads in front
    - latents: (*members, classes, N0) and (*members, classes, N1), bool: what each class switches on, the lowest first
    - on: (*members, classes, vocabulary - 1) bool: which tokens it shows
    - sets: (*members, N0 | N1 | classes, N_ch) int64: the children of each latent and class, in increasing order

    >>> sets = LatentSets.draw(20, (10, 20), 2, generator=torch.Generator().manual_seed(0))
    >>> sets.tokens.shape, sets.pad, int(sets.distinct)
    (torch.Size([20, 30]), 99, 20)
    >>> sample = sets.sample((4, 5), generator=torch.Generator().manual_seed(1))
    >>> bool((sample.tokens == sets.tokens[sample.labels]).all())
    True
    """

    tokens: Tensor
    latents: tuple[Tensor, Tensor]
    on: Tensor
    sets: tuple[Tensor, Tensor, Tensor]

    level_names = ("s = 0", "s = 1")

    @classmethod
    def draw(
        cls,
        classes: int,
        latents: tuple[int, int],
        children: int,
        *,
        vocabulary: int = 100,
        length: int = 30,
        generator: Generators,
    ) -> "LatentSets":
        """Random sets, no two on a level the same; they may share members. The last id of the vocabulary pads.

        classes: C. latents: (N0, N1). children: N_ch. From a list of generators: an ensemble, each with its own sets.
        """
        lower, upper_count = (integer(count, "latents", 1) for count in latents[:2])
        sizes = (integer(vocabulary, "vocabulary", 2) - 1, lower, upper_count, integer(classes, "classes", 1))
        integer(children, "children", 1)
        levels = list(pairwise(sizes))
        made_of = (("latents", "tokens"), ("latents", "lowest latents"), ("classes", "latents"))
        for (below, count), (name, parts) in zip(levels, made_of, strict=True):
            if children > below:
                raise ValueError(f"children must be at most {below}, all the {parts} there are, got {children}")
            if count > (most := comb(below, children)):
                wanted = f"at most {most}, the distinct sets of {children} out of {below} {parts}"
                raise ValueError(f"{name} must be {wanted}, got {count}")
        lowest, upper, top = (
            each(generator, partial(_distinct_sets, count, children, below)) for below, count in levels
        )
        on1 = _members(top, sizes[2])
        on0 = (on1.float() @ _members(upper, sizes[1]).float()) > 0  # what is in any of the sets that are on
        on = (on0.float() @ _members(lowest, sizes[0]).float()) > 0
        tokens = write_sequences(on, length=length, pad=vocabulary - 1)
        return cls(tokens, (on0, on1), on, (lowest, upper, top))

    @property
    def classes(self) -> int:
        """C."""
        return self.tokens.shape[-2]

    @property
    def vocabulary(self) -> int:
        """Ids of tokens, and the pad."""
        return self.on.shape[-1] + 1

    @property
    def pad(self) -> int:
        """The id that fills the front of a sequence: the last of the vocabulary."""
        return self.vocabulary - 1

    @property
    def members(self) -> tuple[int, ...]:
        """The shape of the ensemble; () for one generator."""
        return tuple(self.tokens.shape[:-2])

    @property
    def distinct(self) -> Tensor:
        """(*members,): how many classes look different. Different sets can have the same union of tokens.

        No network tells such classes apart, so accuracy ends at distinct / classes.
        """
        same = (self.on[..., :, None, :] == self.on[..., None, :, :]).all(-1)
        return self.classes - same.tril(-1).any(-1).sum(-1)

    def sample(self, shape: int | Sequence[int], *, generator: Generators) -> Sample:
        """Draw `shape` classes, all equally likely, and look them up.

        An ensemble wants a shape that begins with its members. A list of generators gives each member (the first
        dimension of `shape`) a stream of its own. Nothing waits for the device.
        """
        sizes = sample_shape(shape, self.members)
        labels = (uniform(sizes, generator, self.tokens.device) * self.classes).long()
        tokens, on, *latents = (rows(table, labels) for table in (self.tokens, self.on, *self.latents))
        return Sample(tokens, labels, tuple(latents), on)

    def select(self, members: Sequence[int]) -> "LatentSets":
        """These members of an ensemble, as an ensemble."""
        if not self.members:
            raise ValueError("select takes members out of an ensemble, this is a single generator")
        index = sent(members, self.tokens.device)
        return self._changed(lambda table: table[index])

    def to(self, device: torch.device | str) -> "LatentSets":
        """The same tables on another device."""
        return self._changed(lambda table: table.to(device))

    def _changed(self, change: Callable[[Tensor], Tensor]) -> "LatentSets":
        on0, on1 = map(change, self.latents)
        lowest, upper, top = map(change, self.sets)
        return LatentSets(change(self.tokens), (on0, on1), change(self.on), (lowest, upper, top))


def _distinct_sets(count: int, children: int, below: int, generator: torch.Generator) -> Tensor:
    """(count, children): random sets out of `below`, drawn again where one came up before."""
    found: dict[tuple[int, ...], None] = {}
    while len(found) < count:
        drawn = torch.rand(count, below, generator=generator, device=generator.device).argsort(-1)[:, :children]
        found.update(dict.fromkeys(map(tuple, drawn.sort(-1).values.tolist())))
    return torch.tensor(list(found)[:count], device=generator.device)


def _members(sets: Tensor, below: int) -> Tensor:
    """(..., sets, below) bool: what is in each set."""
    return torch.zeros(*sets.shape[:-1], below, dtype=torch.bool, device=sets.device).scatter(-1, sets, True)
