"""The conditions of `chain-of-thought-decoder`: which chains are taught how, and how their ends are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from joma.data.facts import Chains, chains
from joma.data.statements import Statements
from joma.models.decoder import Decoder, Embeddings
from joma.studies.reversal._decoder_examples import RANKS, answers, crossed, means, next_tokens, ranks
from joma.studies.reversal._decoder_judging import layers_of
from joma.studies.reversal._decoder_networks import EXTRA, Lesson, Measure, Members, Training, check_depths, gpt2
from joma.training import Ensemble

KINDS = ("first step", "second step", "compositions", "held out", "shuffled held out", "unseen")
"""Statements that are asked. The steps are those of the held-out chains. Compositions are asked as they are trained."""
RANKED = ("compositions", "held out")
WAYS = ("direct", "rollout", "written")
"""To the end of a held-out chain: A ~> C at once; A -> B and then B -> C, from its own answer; A ~> B -> C."""
BASE = "direct"
SPELLED = ("spelled out", "other steps")


@dataclass(frozen=True)
class Config(Training):
    """Chains A -> B -> C whose steps are all taught, and compositions A ~> C of which some are not."""

    steps: int = 120
    chains: int = 24
    held_out: float = 0.3
    """Share of chains whose composition is not taught."""
    entity: int = 1
    """Tokens per entity."""
    depths: tuple[int, ...] = (1, 2)
    """Layers."""
    rates: tuple[float, ...] = (0.012, 0.012)
    """Learning rate of every depth."""
    spelled: tuple[int, ...] = (1,)
    """Depths at which compositions are also taught with their steps, and embeddings are frozen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_depths(self.depths, self.rates, self.spelled, "spelled")
        if not 0 < self.held_out < 1 or round(self.held_out * self.chains) < 4:
            raise ValueError(
                f"held_out must hold out at least 4 of {self.chains} chains, and not all, got {self.held_out}"
            )


@dataclass(frozen=True)
class Condition:
    """What a network learns, and its shape.

    steps: none, or those that a composition is spelled out with: the chain's own, or those of another chain, as a
    control that writes as much and says nothing.
    """

    name: str
    layers: int
    embeddings: Embeddings = "learned"
    steps: Literal["none", "own", "other"] = "none"

    @property
    def group(self) -> str:
        """Networks of one group have one shape and are one ensemble."""
        frozen = "" if self.embeddings == "learned" else f", {self.embeddings}"
        return f"{layers_of(self.layers)}{frozen}{'' if self.steps == 'none' else ', with steps'}"


def conditions(config: Mapping[str, Any]) -> list[Condition]:
    """All of a config, as a record has it."""
    some = [Condition(BASE, layers) for layers in config["depths"]]
    for layers in config["spelled"]:
        some += [Condition(SPELLED[0], layers, steps="own"), Condition(SPELLED[1], layers, steps="other")]
        some += [Condition("frozen", layers, embeddings="frozen")]
    return some


class Taught:
    """The chains of one seed under one condition."""

    def __init__(self, config: Config, condition: Condition, seed: int) -> None:
        self.condition, self.seed = condition, seed
        number = 1000 * config.seed + seed
        self.facts: Chains = chains(config.chains, held_out=config.held_out, entity=config.entity, seed=number)

    @property
    def length(self) -> int:
        """Of what is read."""
        return (2 if self.condition.steps == "none" else 3) * self.facts.entity + (self.condition.steps != "none")

    @property
    def compositions(self) -> Statements:
        """Those that train, as they do."""
        if self.condition.steps == "none":
            return self.facts.compositions
        spelled = self.facts.with_steps()
        if self.condition.steps == "own":
            return spelled
        tokens, entity = spelled.tokens.clone(), self.facts.entity
        middle = slice(entity + 1, 2 * entity + 1)
        tokens[:, middle] = tokens[:, middle].roll(1, 0)
        return Statements(tokens, spelled.answer)

    def lesson(self) -> Lesson:
        facts = self.facts
        first, second = facts.steps
        questions = {
            "first step": first,
            "second step": second,
            "compositions": self.compositions,
            "held out": facts.test,
            "shuffled held out": facts.shuffled(self.seed),
            "unseen": Statements(facts.unseen.tokens[: len(facts.test)], facts.entity),
        }
        rivals = {f"rank {kind}": next_tokens(crossed(self.ranked(kind))) for kind in RANKED}
        steps = Statements(facts.train.tokens[: -len(facts.compositions)], facts.entity)
        asked = {kind: next_tokens(statements) for kind, statements in questions.items()}
        return Lesson(self.seed, next_tokens(steps) + next_tokens(self.compositions), asked | rivals)

    def ranked(self, kind: str) -> Statements:
        """Statements of which every prompt is asked for every answer, as many of one kind as of the other."""
        statements = self.facts.compositions if kind == "compositions" else self.facts.test
        return Statements(statements.tokens[: len(self.facts.test)], statements.answer)


class Networks:
    """All networks of one group."""

    def __init__(self, config: Config, group: Sequence[Condition]) -> None:
        self.taught = [Taught(config, one, seed) for one in group for seed in range(config.seeds)]
        self.rates = [config.rates[config.depths.index(group[0].layers)]] * len(self.taught)
        shape = gpt2(
            config,
            layers=group[0].layers,
            vocabulary=self.taught[0].facts.vocabulary + EXTRA,
            context=self.taught[0].length,
            embeddings=group[0].embeddings,
        )
        self.members = Members(config, shape, [one.lesson() for one in self.taught])
        self.held_out = torch.stack([one.facts.test.tokens for one in self.taught]).to(config.device)
        self.spelled = group[0].steps != "none"

    @property
    def measures(self) -> dict[str, Measure]:
        return {"facts": self.facts, "rank": self.rank, "answered": self.answered}

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
            count = round(log.shape[1] ** 0.5)
            alike = torch.ones(len(log), count, count, dtype=torch.bool, device=log.device)  # there is one relation
            found.append(ranks(log.view(len(log), count, count), alike))
        return {name: torch.stack(part, -1).float() for name, part in zip(RANKS, zip(*found, strict=True), strict=True)}

    def answered(self, decoder: Decoder, members: Sequence[int]) -> Tensor:
        """(members, ways): the share of held-out chains whose end is reached, saying what is most likely."""
        facts = self.taught[0].facts
        statements, entity = self.held_out[list(members)], facts.entity
        asked, end = statements[..., : entity + 1], statements[..., -entity:]
        reached = {"direct": continued(decoder, asked, entity), "rollout": self._rollout(decoder, asked[..., :entity])}
        if self.spelled:
            reached["written"] = continued(decoder, asked, 2 * entity + 1)[..., -entity:]
        right = {way: (said == end).all(-1).float().mean(-1) for way, said in reached.items()}
        nothing = torch.full((len(members),), torch.nan, device=end.device)
        return torch.stack([right.get(way, nothing) for way in WAYS], -1)

    def _rollout(self, decoder: Decoder, entity: Tensor) -> Tensor:
        """Step by step, each from the answer to the one before."""
        facts = self.taught[0].facts
        relation = torch.full_like(entity[..., :1], facts.relations[0])
        for _ in range(facts.length - 1):
            entity = continued(decoder, torch.cat([entity, relation], -1), facts.entity)
        return entity


def continued(decoder: Decoder, tokens: Tensor, count: int) -> Tensor:
    """The most likely next `count` tokens, one after the other, (members, n, count)."""
    for _ in range(count):
        tokens = torch.cat([tokens, decoder(tokens)[:, :, -1].argmax(-1, keepdim=True)], -1)
    return tokens[..., -count:]
