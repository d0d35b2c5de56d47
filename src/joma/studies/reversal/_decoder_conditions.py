"""The conditions of `reversal-decoder`: which facts are taught how, to networks of which shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from joma.data.facts import Reversals, reversals
from joma.data.statements import Statements
from joma.models.decoder import Decoder, DecoderConfig, Embeddings
from joma.studies.reversal._decoder_examples import (
    RANKS,
    Examples,
    Objective,
    answers,
    asked,
    crossed,
    masked,
    means,
    ranks,
    trained,
)
from joma.studies.reversal._decoder_judging import layers_of
from joma.studies.reversal._decoder_networks import (
    EXTRA,
    Lesson,
    Measure,
    Members,
    Training,
    check_depths,
    gpt2,
)
from joma.training import Ensemble

KINDS = ("trained", "one way", "reverse", "shuffled reverse", "unseen", "added reverse", "other end")
"""Statements that are asked. added reverse: of the one-way pairs whose reverse is taught in one condition. other end:
the first entity of a one-way statement, masked; only networks that read both sides are asked for it."""
RANKED = ("one way", "reverse")
SHOWN = 16
"""Pairs whose logits are recorded one by one."""
BASE = "as published"
LONG = "trained longer"
CURES = {
    BASE: {},
    "no pair both ways": {"both": 0.0},
    "half the reverses": {"added": 0.5},
    "identities": {"identity": "own"},
    "other identities": {"identity": "other"},
    "read backwards": {"backwards": True},
    "any order": {"objective": "any order"},
    "fill the end": {"objective": "fill the end"},
}  # type: dict[str, dict[str, Any]]
"""What is changed in each condition. `fill the end` is the control of `any order`: the same network, reading both
sides, which is asked for the last entity only. `other identities` is that of `identities`: `A is A'` with the name of
another entity, so that every entity is an answer as often, and nothing says that it is itself."""


@dataclass(frozen=True)
class Config(Training):
    """Facts in both directions, and some in one direction only, taught to decoders of several depths.

    The facts are those of the authors' experiment, in small: 200 pairs of 400 entities there, 70 % of the pairs in
    both directions.
    """

    pairs: int = 24
    both: float = 0.7
    """Share of pairs that train in both directions."""
    depths: tuple[int, ...] = (1, 2)
    """Layers."""
    rates: tuple[float, ...] = (0.015, 0.015)
    """Learning rate of every depth."""
    cured: tuple[int, ...] = (1,)
    """Depths at which cures, frozen embeddings and long entities are tried."""
    entities: tuple[int, ...] = (1, 2, 3)
    """Tokens per entity."""
    slower: tuple[float, ...] = (0.005,)
    """Smaller learning rates that are tried, too."""
    long: int = 120
    """Steps of the networks that are trained for longer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.long <= self.steps:
            raise ValueError(f"long must be more than {self.steps}, the steps of the others, got {self.long}")
        if max(self.slower, default=0.0) >= min(self.rates, default=1.0):
            raise ValueError(f"slower must be rates below {min(self.rates)}, that of the others, got {self.slower}")
        check_depths(self.depths, self.rates, self.cured, "cured")
        if 1 not in self.entities or not set(self.entities) <= {1, 2, 3}:
            raise ValueError(f"entities must hold 1, and 2 or 3 at most, got {self.entities}")
        if not 0 < self.both < 1 or round((1 - self.both) * self.pairs) < 4:
            raise ValueError(
                f"both must leave at least 4 of {self.pairs} pairs with one direction, and some with two, "
                f"got {self.both}"
            )


@dataclass(frozen=True)
class Condition:
    """What a network learns, and its shape."""

    name: str
    layers: int
    entity: int = 1
    embeddings: Embeddings = "learned"
    both: float | None = None
    added: float = 0.0
    identity: Literal["none", "own", "other"] = "none"
    tied: bool = True
    backwards: bool = False
    objective: Objective = "next"
    rate: float | None = None
    """Unless given, that of its depth."""
    long: bool = False

    @property
    def group(self) -> str:
        """Networks of one group have one shape and are one ensemble."""
        reads = "" if self.objective == "next" else ", both sides"
        words = "" if self.entity == 1 else f", {self.entity} tokens"
        frozen = "" if self.embeddings == "learned" else f", {self.embeddings}"
        untied = "" if self.tied else ", untied"
        long = ", long" if self.long else ""
        return f"{layers_of(self.layers)}{words}{frozen}{untied}{reads}{long}"


def conditions(config: Mapping[str, Any]) -> list[Condition]:
    """All of a config, as a record has it."""
    base = [Condition(BASE, layers) for layers in config["depths"]]
    for layers in config["cured"]:
        base += [Condition(name, layers, **changes) for name, changes in CURES.items() if name != BASE]
        base += [Condition(f"rate {rate:g}", layers, rate=rate) for rate in config["slower"]]
        base += [Condition("frozen", layers, embeddings="frozen"), Condition("untied", layers, tied=False)]
        base += [Condition(f"{n} tokens", layers, entity=n) for n in config["entities"] if n > 1]
    return [*base, Condition(LONG, config["cured"][0], long=True)]


class Taught:
    """The facts of one seed under one condition."""

    def __init__(self, config: Config, condition: Condition, seed: int) -> None:
        both = config.both if condition.both is None else condition.both
        self.condition, self.seed = condition, seed
        self.published = reversals(config.pairs, both=both, entity=condition.entity, seed=1000 * config.seed + seed)
        self.facts = self.published.with_reverses(condition.added)
        self.relation_is, self.mask = self.facts.vocabulary, self.facts.vocabulary + 1

    @property
    def vocabulary(self) -> int:
        """With the tokens that are not of the facts."""
        return self.facts.vocabulary + EXTRA

    @property
    def length(self) -> int:
        """Of what is read."""
        return 2 * self.condition.entity + (0 if self.condition.objective == "next" else 1)

    def statements(self) -> Statements:
        """All that trains."""
        facts = self.facts.train
        if self.condition.identity != "none":
            facts = facts + self._identities()
        return facts + self.facts.reversed_text() if self.condition.backwards else facts

    def _identities(self) -> Statements:
        """`A is A` for every entity of the facts, with a relation of its own: `A -> A` would contradict `A -> B`."""
        every = torch.cat([self.facts.first, self.facts.second])
        relation = torch.full((len(every), 1), self.relation_is)
        said = every if self.condition.identity == "own" else every.roll(1, 0)
        return Statements(torch.cat([every, relation, said], 1), self.condition.entity)

    def asked(self, statements: Statements) -> Examples:
        return asked(statements, self.condition.objective, self.mask)

    def lesson(self) -> Lesson:
        facts = self.facts
        count = len(self.published.test)
        questions = {
            "trained": facts.train,
            "one way": facts.one_way,
            "reverse": facts.test,
            "shuffled reverse": facts.shuffled(self.seed),
            "unseen": Statements(facts.unseen.tokens[:count], facts.entity),
            "added reverse": self._added(),
        }
        examples = {kind: self.asked(statements) for kind, statements in questions.items()}
        return Lesson(
            self.seed,
            trained(self.statements(), self.condition.objective, self.mask),
            examples | {"other end": self._other_end()} | {f"rank {kind}": self._crossed(kind) for kind in RANKED},
        )

    def _added(self) -> Statements:
        """Reverses that this condition trains and the published one does not."""
        added = (self.facts.both & ~self.published.both)[~self.published.both]
        return Statements(self.published.test.tokens[added], self.facts.entity)

    def _other_end(self) -> Examples:
        """Of a causal decoder, which has no other end, nothing."""
        if self.condition.objective == "next":
            return Examples(*(part[:0] for part in (self.facts.test.prompt, self.facts.test.prompt)))
        return masked(self.facts.one_way, self.mask, end=False)

    def _crossed(self, kind: str) -> Examples:
        return self.asked(crossed(ranked(self.facts, kind)))


def ranked(facts: Reversals, kind: str) -> Statements:
    """Statements of which every prompt is asked for every answer."""
    statements = facts.one_way if kind == "one way" else facts.test
    return Statements(statements.tokens[:MOST], statements.answer)


MOST = 60
"""Statements that are ranked against one another: as many as the authors' experiment tests."""


class Networks:
    """All networks of one group."""

    def __init__(self, config: Config, group: Sequence[Condition]) -> None:
        self.taught = [Taught(config, one, seed) for one in group for seed in range(config.seeds)]
        first = self.taught[0]
        usual = config.rates[config.depths.index(group[0].layers)]
        self.rates = [usual if one.condition.rate is None else one.condition.rate for one in self.taught]
        lessons = [one.lesson() for one in self.taught]
        self.members = Members(config, self._shape(config, first), lessons, config.long if group[0].long else 0)
        self.alike = {kind: self._same_relation(kind).to(config.device) for kind in RANKED}
        self.pictured = group[0].group == "1 layer"

    @staticmethod
    def _shape(config: Config, first: Taught) -> DecoderConfig:
        condition = first.condition
        return gpt2(
            config,
            layers=condition.layers,
            vocabulary=first.vocabulary,
            context=first.length,
            embeddings=condition.embeddings,
            causal=condition.objective == "next",
            tied=condition.tied,
        )

    def _same_relation(self, kind: str) -> Tensor:
        """(members, n, n), padded: which prompts have the relation of which."""
        all_of_them = [ranked(one.facts, kind).tokens[:, one.condition.entity] for one in self.taught]
        size = max(map(len, all_of_them))
        alike = torch.zeros(len(all_of_them), size, size, dtype=torch.bool)
        for mine, relations in zip(alike, all_of_them, strict=True):
            mine[: len(relations), : len(relations)] = relations[:, None] == relations
        return alike

    @property
    def measures(self) -> dict[str, Measure]:
        found: dict[str, Measure] = {"facts": self.facts, "rank": self.rank}
        return found | {"matrix": self.matrices} if self.pictured else found

    @property
    def ensemble(self) -> Ensemble:
        return self.members.ensemble(self.rates, self.measures)

    def facts(self, decoder: Decoder, members: Sequence[int]) -> dict[str, Tensor]:
        """Mean probability, accuracy and log probability of every kind, (members, kinds) each."""
        return means(decoder, {kind: self.members.questions[kind] for kind in KINDS}, members)

    def rank(self, decoder: Decoder, members: Sequence[int]) -> dict[str, Tensor]:
        """Shares of rivals beaten and of prompts whose right answer beats all, (members, kinds that are ranked)."""
        found = []
        for kind in RANKED:
            log, _ = answers(decoder, *self.members.questions[f"rank {kind}"].of_members(members))
            found.append(ranks(self._square(log, kind, members), self.alike[kind][list(members)]))
        return {name: torch.stack(part, -1).float() for name, part in zip(RANKS, zip(*found, strict=True), strict=True)}

    def _square(self, log: Tensor, kind: str, members: Sequence[int]) -> Tensor:
        """(members, n, n) of rows that follow one another, where members have more or fewer of them."""
        size = self.alike[kind].shape[-1]
        square = log.new_zeros(len(members), size, size)
        for mine, row, member in zip(square, log, members, strict=True):
            own = len(ranked(self.taught[member].facts, kind))
            mine[:own, :own] = row[: own * own].view(own, own)
        return square

    def matrices(self, decoder: Decoder, members: Sequence[int]) -> dict[str, Tensor]:
        """Logits between the entities of one-way pairs, (members, 2n, 2n): first the trained subjects, then answers.

        logits: of the entity in the column, after the entity in the row with its relation. attention: of the entity
        in the row, which looks at that in the column, which stands before it; mean over heads.
        """
        # pairs that are one way as published, for every condition: only BASE, the first one, is ever looked at
        sides = [self._sides(self.taught[self.taught[member].seed]) for member in members]
        entities, relations = (torch.stack(part).to(self.members.order.device) for part in zip(*sides, strict=True))
        said = decoder(torch.stack([entities, relations], -1))[:, :, -1]
        logits = said.gather(-1, entities[:, None].expand(-1, entities.shape[1], -1))
        return {"logits": logits, "attention": _attention(decoder, entities)}

    @staticmethod
    def _sides(taught: Taught) -> tuple[Tensor, Tensor]:
        """Entities and the relation that each is asked with: subjects of one-way statements, then their answers."""
        facts = taught.facts
        both = torch.cat([facts.one_way.tokens[:SHOWN], facts.test.tokens[:SHOWN]])
        return both[:, 0], both[:, 1]


def _attention(decoder: Decoder, entities: Tensor) -> Tensor:
    """(members, query, key) in the first layer."""
    count = entities.shape[1]
    keys, queries = entities[:, None].expand(-1, count, -1), entities[:, :, None].expand(-1, -1, count)
    seen: list[Tensor] = []

    def look(layer: int, name: str, value: Tensor) -> None:
        if layer == 0 and name == "logits":
            seen.append(value[..., 1, 0].mean(-1))

    decoder.features(torch.stack([keys, queries], -1).flatten(1, 2), look=look)
    return seen[0].view(-1, count, count)
