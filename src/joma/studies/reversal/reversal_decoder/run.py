"""The conditions of `reversal-decoder`: which facts are taught how, to networks of which shape, and the record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from joma.claims.config import Values
from joma.data.facts import reversals
from joma.data.statements import Statements
from joma.models.decoder import Decoder
from joma.models.decoder_config import Embeddings
from joma.runs import Run
from joma.studies.reversal import _decoders as decoders
from joma.studies.reversal._decoders import Examples, Objective, Record, asked, crossed, masked, trained

KINDS = ("trained", "one way", "reverse", "shuffled reverse", "unseen", "added reverse", "other end")
"""Statements that are asked. added reverse: of the one-way pairs whose reverse is taught in one condition. other end:
the first entity of a one-way statement, masked; only networks that read both sides are asked for it."""
RANKED = ("one way", "reverse")
MOST = 60  # statements that are ranked against one another: as many as the authors' experiment tests
SHOWN = 16  # pairs whose logits are recorded one by one
BASE = "as published"
LONG = "trained longer"
CURES: dict[str, dict[str, Any]] = {
    BASE: {},
    "no pair both ways": {"both": 0.0},
    "half the reverses": {"added": 0.5},
    "identities": {"identity": "own"},
    "other identities": {"identity": "other"},
    "read backwards": {"backwards": True},
    "any order": {"objective": "any order"},
    "fill the end": {"objective": "fill the end"},
}
"""What is changed in each condition. `fill the end` is the control of `any order`: the same network, reading both
sides, which is asked for the last entity only. `other identities` is that of `identities`: `A is A'` with the name of
another entity, so that every entity is an answer as often, and nothing says that it is itself."""


@dataclass(frozen=True)
class ReversalDecoderConfig(decoders.Training):
    """Facts in both directions, and some in one direction only, taught to decoders of several depths.

    The facts are those of the authors' experiment, in small: 200 pairs of 400 entities there, 70 % of the pairs in
    both directions.
    """

    pairs: int = 24
    both: float = 0.7
    """Share of pairs that train in both directions."""
    depths: Annotated[tuple[int, ...], Values()] = (1, 2)
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
        self.check_depths(self.depths, self.rates, cured=self.cured)
        if 1 not in self.entities or not set(self.entities) <= {1, 2, 3}:
            raise ValueError(f"entities must hold 1, and 2 or 3 at most, got {self.entities}")
        if not 0 < self.both < 1 or round((1 - self.both) * self.pairs) < 4:
            some = f"at least 4 of {self.pairs} pairs with one direction, and some with two"
            raise ValueError(f"both must leave {some}, got {self.both}")


@dataclass(frozen=True)
class Condition(decoders.Learner):
    """What a network learns, and its shape."""

    entity: int = 1
    embeddings: Embeddings = "learned"
    both: float | None = None
    added: float = 0.0
    identity: Literal["none", "own", "other"] = "none"
    tied: bool = True
    backwards: bool = False
    objective: Objective = "next"
    rate: float | None = None  # unless given, that of its depth
    long: bool = False

    @property
    def group(self) -> str:
        changed = {
            f", {self.entity} tokens": self.entity > 1,
            f", {self.embeddings}": self.embeddings != "learned",
            ", untied": not self.tied,
            ", both sides": self.objective != "next",
            ", long": self.long,
        }
        return decoders.layers_of(self.layers) + "".join(name for name, here in changed.items() if here)


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

    def __init__(self, config: ReversalDecoderConfig, condition: Condition, seed: int) -> None:
        both = config.both if condition.both is None else condition.both
        self.condition, self.seed = condition, seed
        self.published = reversals(config.pairs, both=both, entity=condition.entity, seed=1000 * config.seed + seed)
        self.facts = self.published.with_reverses(condition.added)
        self.relation_is, self.mask = self.facts.vocabulary, self.facts.vocabulary + 1

    def statements(self) -> Statements:
        facts = self.facts.train
        if self.condition.identity != "none":
            # `A is A` for every entity, with a relation of its own: `A -> A` would contradict `A -> B`
            every = torch.cat([self.facts.first, self.facts.second])
            relation = torch.full((len(every), 1), self.relation_is)
            said = every if self.condition.identity == "own" else every.roll(1, 0)
            facts = facts + Statements(torch.cat([every, relation, said], 1), self.condition.entity)
        return facts + self.facts.reversed_text() if self.condition.backwards else facts

    def added(self) -> Statements:
        """Reverses that this condition trains and the published one does not."""
        added = (self.facts.both & ~self.published.both)[~self.published.both]
        return Statements(self.published.test.tokens[added], self.facts.entity)

    def lesson(self) -> decoders.Lesson:
        facts, objective = self.facts, self.condition.objective
        questions = {
            "trained": facts.train,
            "one way": facts.one_way,
            "reverse": facts.test,
            "shuffled reverse": facts.shuffled(self.seed),
            "unseen": Statements(facts.unseen.tokens[: len(self.published.test)], facts.entity),
            "added reverse": self.added(),
        }
        examples = {kind: asked(statements, objective, self.mask) for kind, statements in questions.items()}
        # a causal decoder has no other end, and is asked nothing
        nothing = Examples(facts.test.prompt[:0], facts.test.prompt[:0])
        end = nothing if objective == "next" else masked(facts.one_way, self.mask, end=False)
        ranked = {kind: Statements(questions[kind].tokens[:MOST], facts.entity) for kind in RANKED}
        return decoders.Lesson(
            self.seed,
            trained(self.statements(), objective, self.mask),
            examples | {"other end": end},
            {kind: (asked(crossed(one), objective, self.mask), one.prompt[:, -1]) for kind, one in ranked.items()},
        )


class FactNetworks(decoders.Networks):
    """All networks of one group."""

    def __init__(self, config: ReversalDecoderConfig, group: Sequence[Condition]) -> None:
        self.taught = [Taught(config, one, seed) for one in group for seed in range(config.seeds)]
        first, usual = group[0], config.rates[config.depths.index(group[0].layers)]
        shape = decoders.gpt2(
            config, layers=first.layers, vocabulary=self.taught[0].facts.vocabulary + decoders.EXTRA,
            context=2 * first.entity + (first.objective != "next"), embeddings=first.embeddings,
            causal=first.objective == "next", tied=first.tied,
        )  # fmt: skip
        rates = [usual if one.condition.rate is None else one.condition.rate for one in self.taught]
        lessons = [one.lesson() for one in self.taught]
        super().__init__(config, shape, lessons, rates, config.long if first.long else None)
        self.pictured = first.group == "1 layer"

    @property
    def measures(self) -> dict[str, decoders.Measure]:
        return super().measures | ({"matrix": self.matrices} if self.pictured else {})

    def matrices(self, decoder: Decoder, members: Sequence[int]) -> dict[str, Tensor]:
        """Logits between the entities of one-way pairs, (members, 2n, 2n): first the trained subjects, then answers."""
        # pairs that are one way as published, for every condition: only BASE, the first one, is ever looked at
        some = [self.taught[self.taught[member].seed].facts for member in members]
        both = [torch.cat([facts.one_way.tokens[:SHOWN], facts.test.tokens[:SHOWN]]) for facts in some]
        prompts = torch.stack(both).to(self.order.device)[..., :2]  # an entity and the relation that it is asked with
        entities = prompts[..., 0]
        logits = decoder(prompts)[:, :, -1].gather(-1, entities[:, None].expand(-1, entities.shape[1], -1))
        return {"logits": logits, "attention": _attention(decoder, entities)}


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


class Scores(Record[Condition]):
    """Numbers of `reversal-decoder`; networks that did not learn or diverged are NaN."""

    def __init__(self, run: Run) -> None:
        self.cured: list[int] = list(run.config["cured"])
        taught, entities = ("trained", "one way"), 2 * run.config["pairs"]
        super().__init__(run, conditions(run.config), KINDS, taught=taught, ranked=RANKED, entities=entities)

    def loss(self, condition: Condition) -> Any:
        return -self.counting(condition, "facts/log")[-1][:, self.kinds.index("reverse")]

    @property
    def pictured(self) -> bool:
        return 1 in self.depths

    def matrix(self, what: str, point: int) -> Any:
        return self.counting(self.named(BASE, 1), f"matrix/{what}")[point]


def excess(block: Any) -> Any:
    """(seeds,): how far the diagonal of blocks (seeds, n, n) lies above the rest of its rows."""
    own = block.diagonal(axis1=-2, axis2=-1)
    return (own - (block.sum(-1) - own) / (block.shape[-1] - 1)).mean(-1)


def blocks(matrix: Any) -> tuple[Any, Any]:
    """Trained direction and reverse: rows of subjects and columns of answers, and the other way round."""
    half = matrix.shape[-1] // 2
    return matrix[..., :half, half:], matrix[..., half:, :half]


def asymmetry(matrix: Any) -> Any:
    """(seeds,): 0 for a symmetric matrix, 0.5 for one of independent entries, 1 for an antisymmetric one.

    Of what is left without the means of rows and columns, which know nothing of pairs. With them (the first look)
    training made the matrix nearly symmetric, because an entity that many look at also looks at many.
    """
    rows, columns = matrix.mean(-1, keepdims=True), matrix.mean(-2, keepdims=True)
    left = matrix - rows - columns + matrix.mean((-2, -1), keepdims=True)
    return ((left - left.swapaxes(-1, -2)) ** 2).sum((-2, -1)) / (4 * (left**2).sum((-2, -1)))
