"""Facts of two entities and chains of facts: the data of the reversal curse and of chain of thought (Zhu et al. 2024).

A statement is an entity, a relation, an entity. `reversals` gives facts `A -> B` and their reverses `B <- A`, `chains`
facts `A -> B`, `B -> C` and compositions `A ~> C`: some of these are never trained. Entities are one to three tokens.
"""

from dataclasses import dataclass, replace
from math import perm
from typing import Self

import torch
from torch import Tensor

from joma.data.statements import Chance, Statements, column, facts_of, mismatched, seeded
from joma.host.arguments import integer, shown

RELATIONS = 2
"""Every vocabulary of facts ends with two relation tokens."""
LONGEST = 3
"""Tokens of an entity, at most."""
_LARGEST = 2**62
"""Of so many possible entities nobody misses the rest, and their numbers fit into 64 bits."""


def as_share(value: float, name: str) -> float:
    """A number in [0, 1]."""
    try:
        good = not isinstance(value, bool | str) and 0 <= float(value) <= 1
    except (TypeError, ValueError):
        good = False
    if not good:
        raise ValueError(f"{name} must be a share between 0 and 1, got {shown(value)}")
    return float(value)


def entity_length(entity: int) -> int:
    """1, 2 or 3 tokens."""
    if isinstance(entity, bool) or entity not in range(1, LONGEST + 1):
        raise ValueError(f"entity must be 1, 2 or 3 tokens, got {shown(entity)}")
    return int(entity)


def entity_words(vocabulary: int | None, default: int) -> int:
    """How many tokens entities are made of: the vocabulary without its relations."""
    return default if vocabulary is None else integer(vocabulary, "vocabulary", RELATIONS + 1) - RELATIONS


def draw_entities(count: int, spare: int, words: int, entity: int, what: str, generator: torch.Generator) -> Tensor:
    """(count + as many of the spare ones as there are, entity): all different, each of different tokens out of `words`.

    One token per entity gives each entity a token of its own.
    """
    most = min(perm(words, entity), _LARGEST)
    if count > most:
        got = f"{words + RELATIONS}: {words} words without the {RELATIONS} relations, enough for {most}"
        raise ValueError(f"vocabulary must allow {count} different entities for {what}, got {got}")
    count = min(count + spare, most)
    if most <= 4 * count:  # rank: different numbers below `most` in random order
        rank = torch.randperm(most, generator=generator)[:count]
    else:
        found: dict[int, None] = {}
        while len(found) < count:  # at most a quarter of all is taken, so few come up twice
            found.update(dict.fromkeys(torch.randint(most, (count,), generator=generator).tolist()))
        rank = torch.tensor(list(found)[:count])
    tokens: list[Tensor] = []  # of the rank-th sequence of different tokens
    for place in range(entity):
        token = rank % (words - place)  # among the words that are left
        rank = rank // (words - place)
        for taken in torch.stack(tokens, -1).sort(-1).values.unbind(-1) if tokens else ():
            token = token + (token >= taken)
        tokens.append(token)
    return torch.stack(tokens, -1)


class _Facts:
    """What both kinds of data share."""

    words: int

    @property
    def vocabulary(self) -> int:
        return self.words + RELATIONS

    @property
    def relations(self) -> tuple[int, int]:
        """The ids of the relations: of facts `->` and `<-`, of chains `->` (one step) and `~>` (first to last)."""
        return self.words, self.words + 1

    @property
    def test(self) -> Statements:
        """What is tested and never trained."""
        raise NotImplementedError

    def shuffled(self, seed: int = 0) -> Statements:
        """The test prompts, each with the answer to another one: as a control, these must not be likely."""
        return mismatched(self.test, seed)


@dataclass(frozen=True, eq=False)
class Reversals(_Facts):
    """Facts `A -> B` and their reverses `B <- A`. Made by `reversals`.

    - first, second: (pairs, entity) int64: A and B of every pair
    - both: (pairs,) bool: whether the pair trains in both directions
    - forward: (pairs,) bool: of the others, whether `A -> B` trains (else `B <- A`)
    - fresh: (pairs, 2, entity) int64: entities that no training statement contains as such
    - words: tokens that entities are made of; the relations are the two ids after them
    - identity: whether `A -> A` and `A <- A` are trained, too

    >>> facts = reversals(200)
    >>> facts
    Reversals(pairs=200, both=140, entity=1, vocabulary=802)
    >>> len(facts.train), len(facts.test), len(facts.one_way), len(facts.unseen)
    (340, 60, 60, 200)
    """

    first: Tensor
    second: Tensor
    both: Tensor
    forward: Tensor
    fresh: Tensor
    words: int
    identity: bool = False

    def __repr__(self) -> str:
        return (
            f"Reversals(pairs={len(self.first)}, both={int(self.both.sum())}, entity={self.entity}, "
            f"vocabulary={self.vocabulary}{', identity=True' if self.identity else ''})"
        )

    @property
    def entity(self) -> int:
        """Tokens per entity."""
        return self.first.shape[1]

    @property
    def uniform(self) -> Chance:
        """How often a guess is right: among the entities of the facts, and among all tokens."""
        return Chance(1 / max(1, 2 * len(self.first)), 1 / self.vocabulary)

    @property
    def train(self) -> Statements:
        """What trains: both directions of some pairs, one of the others, and identities where they were asked for."""
        trained = self._facts(self.both, True) + self._facts(self.both, False) + self.one_way
        return trained + self.identities() if self.identity else trained

    @property
    def one_way(self) -> Statements:
        """The trained direction of every pair of which one direction trains, in the order of `test`."""
        return self._directed(self.forward)

    @property
    def test(self) -> Statements:
        """The reverse of every statement of `one_way`: never trained."""
        return self._directed(~self.forward)

    @property
    def unseen(self) -> Statements:
        """`A -> B` of pairs of fresh entities: a control that nothing in training tells about.

        There are as many as there are facts, or as the vocabulary leaves, which may be none.
        """
        return facts_of(self.fresh[:, 0], self.relations[0], self.fresh[:, 1])

    def identities(self) -> Statements:
        """`A -> A` and `A <- A` for both entities of every pair."""
        every = torch.cat([self.first, self.second])
        return facts_of(every, self.relations[0], every) + facts_of(every, self.relations[1], every)

    def reversed_text(self) -> Statements:
        """The training statements read backwards, entity by entity; to be trained beside them.

        `A -> B` gives `B -> A`. The tokens of an entity keep their order and the relation stays what it is. The true
        reverse of a fact has the other relation, `B <- A`, so no tested statement is among these. But they do put `A`
        after `B`, which is why reading backwards is a cure.
        """
        tokens, entity = self.train.tokens, self.entity
        return facts_of(tokens[:, entity + 1 :], tokens[:, entity : entity + 1], tokens[:, :entity])

    def with_reverses(self, share: float) -> Self:
        """The same facts, where a share of the one-way pairs trains in both directions.

        These pairs leave `test` and `one_way`. The pairs that are still tested have no reverse in training. A larger
        share keeps what a smaller one added. At share 1 nothing is left to test.
        """
        alone = (~self.both).nonzero().flatten()
        added = alone[: round(as_share(share, "share") * len(alone))]
        return replace(self, both=self.both.index_fill(0, added, True))

    def _facts(self, which: Tensor, forward: bool) -> Statements:
        first, second = (self.first, self.second) if forward else (self.second, self.first)
        return facts_of(first[which], self.relations[0 if forward else 1], second[which])

    def _directed(self, forward: Tensor) -> Statements:
        ahead, back = self._facts(~self.both, True), self._facts(~self.both, False)
        return Statements(torch.where(forward[~self.both, None], ahead.tokens, back.tokens), self.entity)


def reversals(
    pairs: int,
    *,
    both: float = 0.7,
    entity: int = 1,
    vocabulary: int | None = None,
    identity: bool = False,
    seed: int = 0,
) -> Reversals:
    """Random facts of `pairs` disjoint pairs of entities.

    both: share of pairs that train in both directions. Of the others, one direction trains: for half of them, chosen
    at random, `A -> B`, for the rest `B <- A`. entity: 1, 2 or 3 different tokens per entity. identity: train
    `A -> A` and `A <- A`, too.

    vocabulary: ids in all, with the two relations at the end. By default 4 words per pair and the relations: with one
    token per entity, half of the words are left for `unseen`. 200 pairs have 800 words, as with the authors.

    >>> facts = reversals(4, both=0.5, seed=1)
    >>> facts.one_way.tokens.tolist(), facts.test.tokens.tolist()
    ([[11, 16, 2], [12, 17, 7]], [[2, 17, 11], [7, 16, 12]])
    """
    pairs, entity = integer(pairs, "pairs", 1), entity_length(entity)
    words = entity_words(vocabulary, 4 * pairs)
    generator = seeded(seed)
    drawn = draw_entities(2 * pairs, 2 * pairs, words, entity, f"{pairs} pairs", generator)
    couples = drawn[: len(drawn) // 2 * 2].reshape(-1, 2, entity)
    return _assigned(couples[:pairs], couples[pairs:], words, both, identity, generator)


@dataclass(frozen=True, eq=False)
class Chains(_Facts):
    """Chains of entities A, B, C (or longer): steps `A -> B`, `B -> C`, and compositions `A ~> C` of first and last.

    All steps train. Compositions train for the chains that are not held out. Made by `chains`.

    - entities: (chains, length, entity) int64
    - held_out: (chains,) bool: whose composition is tested
    - fresh: (chains, length, entity) int64: chains of entities that are never trained
    - words: tokens that entities are made of; the relations are the two ids after them

    >>> facts = chains(100)
    >>> facts
    Chains(chains=100, held_out=30, length=3, entity=1, vocabulary=602)
    >>> len(facts.train), len(facts.test), [len(step) for step in facts.steps], facts.with_steps()
    (270, 30, [30, 30], Statements(tokens=int64[70, 5], answer=3))
    """

    entities: Tensor
    held_out: Tensor
    fresh: Tensor
    words: int

    def __repr__(self) -> str:
        count, length, entity = self.entities.shape
        return (
            f"Chains(chains={count}, held_out={int(self.held_out.sum())}, length={length}, entity={entity}, "
            f"vocabulary={self.vocabulary})"
        )

    @property
    def entity(self) -> int:
        """Tokens per entity."""
        return self.entities.shape[2]

    @property
    def length(self) -> int:
        """Entities per chain."""
        return self.entities.shape[1]

    @property
    def uniform(self) -> Chance:
        """How often a guess is right: among the entities of the chains, and among all tokens."""
        return Chance(1 / (self.entities.shape[0] * self.length), 1 / self.vocabulary)

    @property
    def train(self) -> Statements:
        """Every step of every chain, and the compositions that are not held out."""
        first, *rest = self._steps(self.entities)
        return sum([*rest, self.compositions], first)

    @property
    def compositions(self) -> Statements:
        """The compositions that train."""
        return self._ends(self.entities[~self.held_out])

    @property
    def test(self) -> Statements:
        """The compositions that are held out: never trained, though all their steps are."""
        return self._ends(self.entities[self.held_out])

    @property
    def steps(self) -> tuple[Statements, ...]:
        """The steps of the held-out chains, one after the other: row i of each belongs to row i of `test`.

        Answering the first, then the second from that answer, and so on, reaches the answer of `test`.
        """
        return self._steps(self.entities[self.held_out])

    @property
    def unseen(self) -> Statements:
        """Compositions of chains of fresh entities, of which not even the steps are trained: a control."""
        return self._ends(self.fresh)

    def with_steps(self, *, held_out: bool = False) -> Statements:
        """The compositions spelled out: `A ~> B -> C`. The prompt is `A ~>`, the answer all that follows.

        These are the chains whose compositions train, to train on beside `train`; with `held_out` the others, to test.
        """
        chains = self.entities[self.held_out if held_out else ~self.held_out]
        first, *rest = chains.unbind(1)
        parts = [first, column(self.relations[1], first)]
        for entity in rest:
            parts += [entity, column(self.relations[0], entity)]
        return Statements(torch.cat(parts[:-1], 1), (self.length - 1) * (self.entity + 1) - 1)

    def _steps(self, chains: Tensor) -> tuple[Statements, ...]:
        return tuple(
            facts_of(chains[:, place], self.relations[0], chains[:, place + 1]) for place in range(self.length - 1)
        )

    def _ends(self, chains: Tensor) -> Statements:
        return facts_of(chains[:, 0], self.relations[1], chains[:, -1])


def chains(
    count: int, *, held_out: float = 0.3, entity: int = 1, length: int = 3, vocabulary: int | None = None, seed: int = 0
) -> Chains:
    """Random chains of `length` different entities; no entity is in two chains.

    held_out: share of chains, chosen at random, whose composition `A ~> C` is tested and never trained. The vocabulary
    has by default twice as many words as the chains have entities, so that as many are left for `unseen`.

    >>> facts = chains(2, held_out=0.5)
    >>> facts.test.tokens.tolist(), [step.tokens.tolist() for step in facts.steps]
    ([[8, 13, 5]], [[[8, 12, 0]], [[0, 12, 5]]])
    """
    count, entity = integer(count, "count", 1), entity_length(entity)
    if integer(length, "length", 1) < 3:
        raise ValueError(f"length must be at least 3: a shorter chain has nothing to compose, got {length}")
    number = count * length
    words = entity_words(vocabulary, 2 * number)
    generator = seeded(seed)
    drawn = draw_entities(number, number, words, entity, f"{count} chains of {length}", generator)
    grouped = drawn[: len(drawn) // length * length].reshape(-1, length, entity)
    tested = _some(count, round(as_share(held_out, "held_out") * count), generator)
    return Chains(grouped[:count], tested, grouped[count:], words)


def _assigned(
    facts: Tensor, fresh: Tensor, words: int, both: float, identity: bool, generator: torch.Generator
) -> Reversals:
    count = len(facts)
    twice = round(as_share(both, "both") * count)
    both_ways = _some(count, twice, generator)
    forward = torch.zeros(count, dtype=torch.bool)
    alone = (~both_ways).nonzero().flatten()
    forward[alone[_some(count - twice, (count - twice) // 2, generator)]] = True
    return Reversals(facts[:, 0], facts[:, 1], both_ways, forward, fresh, words, bool(identity))


def _some(count: int, chosen: int, generator: torch.Generator) -> Tensor:
    """(count,) bool: `chosen` of them at random."""
    return torch.zeros(count, dtype=torch.bool).index_fill(0, torch.randperm(count, generator=generator)[:chosen], True)
