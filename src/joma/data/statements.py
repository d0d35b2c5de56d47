"""Statements of facts: short sequences of tokens that end with an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, described, integer, not_negative
from joma.host.words import brief_repr


@brief_repr
@dataclass(frozen=True, eq=False)
class Statements:
    """Statements of one length, and how much of each is the answer.

    - tokens: (n, length) int64
    - answer: how many tokens at the end are to be predicted, for a plain fact those of the last entity

    >>> facts = Statements(torch.tensor([[0, 8, 1], [2, 8, 3]]), answer=1)
    >>> len(facts), facts.prompt.tolist(), facts.target.tolist()
    (2, [[0, 8], [2, 8]], [[1], [3]])
    """

    tokens: Tensor
    answer: int

    def __post_init__(self) -> None:
        if self.tokens.ndim != 2 or self.tokens.dtype != torch.int64:
            raise ValueError(f"tokens must be int64 of shape (n, length), got {described(self.tokens)}")
        if not 0 < integer(self.answer, "answer", 1) < self.tokens.shape[1]:
            raise ValueError(f"answer must be below {self.tokens.shape[1]}, the length, got {self.answer}")

    def __len__(self) -> int:
        return len(self.tokens)

    def __add__(self, more: Statements) -> Statements:
        """These statements and then the others, of the same length."""
        if (self.tokens.shape[1], self.answer) != (more.tokens.shape[1], more.answer):
            raise ValueError(f"statements must have one length and answer to be joined, got {self} and {more}")
        return Statements(torch.cat([self.tokens, more.tokens]), self.answer)

    @property
    def prompt(self) -> Tensor:
        """(n, length - answer): what is given."""
        return self.tokens[:, : -self.answer]

    @property
    def target(self) -> Tensor:
        """(n, answer): what is to be said."""
        return self.tokens[:, -self.answer :]

    def to(self, device: torch.device | str) -> Statements:
        """The same statements on another device."""
        return Statements(self.tokens.to(device), self.answer)

    def draw(self, count: int, *, frequencies: Number | None = None, seed: int = 0) -> Tensor:
        """(count,) int64: which statement comes at each step, drawn with replacement.

        frequencies: (n,) the probability of each statement, together one; all equal unless given.

        >>> Statements(torch.tensor([[0, 8, 1], [2, 8, 3]]), 1).draw(5, frequencies=[0.0, 1.0]).tolist()
        [1, 1, 1, 1, 1]
        """
        size, generator = (integer(count, "count", 0),), seeded(seed)
        if not len(self):
            raise ValueError("there must be a statement to draw from, got none")
        if frequencies is None:
            return torch.randint(len(self), size, generator=generator)
        shares = not_negative(frequencies, "frequencies").double()
        if shares.shape != (len(self),):
            wanted = f"shape ({len(self)},), one per statement"
            raise ValueError(f"frequencies must have {wanted}, got {tuple(shares.shape)}")
        if abs(float(shares.sum()) - 1) > 1e-6:
            raise ValueError(f"frequencies must sum to one, got {shares.sum().item():g}")
        ends = shares.cumsum(0)
        drawn = torch.rand(size, generator=generator, dtype=torch.float64) * ends[-1]
        return torch.searchsorted(ends, drawn, right=True)


@brief_repr
class Chance(NamedTuple):
    """How often a guess that knows nothing is right.

    >>> from joma.data.facts import reversals
    >>> reversals(200).uniform
    Chance(entity=0.0025, vocabulary=0.001247)
    """

    entity: float
    """1 / number of entities: a guess among the entities of the facts."""
    vocabulary: float
    """1 / number of tokens, per token of the answer: what an untrained, uniform network says."""


def seeded(seed: int) -> torch.Generator:
    """The stream of random numbers of a seed."""
    if integer(seed, "seed", 0) >= 2**63:
        raise ValueError(f"seed must be below 2^63, got {seed}")
    return torch.Generator().manual_seed(int(seed))


def column(relation: int | Tensor, like: Tensor) -> Tensor:
    """(n, 1): a relation, once per statement."""
    return relation if isinstance(relation, Tensor) else torch.full((len(like), 1), relation)


def facts_of(subject: Tensor, relation: int | Tensor, thing: Tensor) -> Statements:
    """`subject relation thing`, one per row; the answer is the thing."""
    return Statements(torch.cat([subject, column(relation, subject), thing], 1), thing.shape[1])


def mismatched(statements: Statements, seed: int) -> Statements:
    """The prompts, each with the answer to another one: shuffled in one great circle, so none keeps its own."""
    if len(statements) < 2:
        raise ValueError(f"there must be two tested statements to exchange their answers, got {len(statements)}")
    order = torch.randperm(len(statements), generator=seeded(seed))
    target = torch.empty_like(statements.target)
    target[order] = statements.target[order.roll(1)]
    return Statements(torch.cat([statements.prompt, target], 1), statements.answer)
