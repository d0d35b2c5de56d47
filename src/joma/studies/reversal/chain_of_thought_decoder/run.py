"""`chain-of-thought-decoder`: which chains are taught how, how their ends are asked for, and what is recorded of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from joma.claims.config import Several
from joma.data.facts import Chains, chains
from joma.data.statements import Statements
from joma.models.decoder import Decoder, Embeddings
from joma.runs import Run
from joma.studies.reversal import _decoders as decoders
from joma.studies.reversal._examples import crossed, next_tokens

KINDS = ("first step", "second step", "compositions", "held out", "shuffled held out", "unseen")
"""Statements that are asked. The steps are those of the held-out chains. Compositions are asked as they are trained."""
RANKED = ("compositions", "held out")
WAYS = ("direct", "rollout", "written")
"""To the end of a held-out chain: A ~> C at once; A -> B and then B -> C, from its own answer; A ~> B -> C."""
BASE = "direct"
SPELLED = ("spelled out", "other steps")


@dataclass(frozen=True)
class ChainOfThoughtDecoderConfig(decoders.Training):
    """Chains A -> B -> C whose steps are all taught, and compositions A ~> C of which some are not."""

    steps: int = 120
    chains: int = 24
    held_out: float = 0.3
    """Share of chains whose composition is not taught."""
    entity: int = 1
    """Tokens per entity."""
    depths: Annotated[tuple[int, ...], Several()] = (1, 2)
    """Layers."""
    rates: tuple[float, ...] = (0.012, 0.012)
    """Learning rate of every depth."""
    spelled: tuple[int, ...] = (1,)
    """Depths at which compositions are also taught with their steps, and embeddings are frozen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_depths(self.depths, self.rates, spelled=self.spelled)
        if not 0 < self.held_out < 1 or round(self.held_out * self.chains) < 4:
            some = f"at least 4 of {self.chains} chains, and not all"
            raise ValueError(f"held_out must hold out {some}, got {self.held_out}")


@dataclass(frozen=True)
class Condition(decoders.Learner):
    """What a network learns, and its shape.

    steps: none, or those that a composition is spelled out with: the chain's own, or those of another chain, as a
    control that writes as much and says nothing.
    """

    embeddings: Embeddings = "learned"
    steps: Literal["none", "own", "other"] = "none"

    @property
    def group(self) -> str:
        frozen = "" if self.embeddings == "learned" else f", {self.embeddings}"
        return f"{decoders.layers_of(self.layers)}{frozen}{'' if self.steps == 'none' else ', with steps'}"


def conditions(config: Mapping[str, Any]) -> list[Condition]:
    """All of a config, as a record has it."""
    some = [Condition(BASE, layers) for layers in config["depths"]]
    for layers in config["spelled"]:
        some += [Condition(SPELLED[0], layers, steps="own"), Condition(SPELLED[1], layers, steps="other")]
        some += [Condition("frozen", layers, embeddings="frozen")]
    return some


class Taught:
    """The chains of one seed under one condition."""

    def __init__(self, config: ChainOfThoughtDecoderConfig, condition: Condition, seed: int) -> None:
        self.condition, self.seed = condition, seed
        number = 1000 * config.seed + seed
        self.facts: Chains = chains(config.chains, held_out=config.held_out, entity=config.entity, seed=number)

    @property
    def compositions(self) -> Statements:
        if self.condition.steps == "none":
            return self.facts.compositions
        spelled = self.facts.with_steps()
        if self.condition.steps == "own":
            return spelled
        tokens, entity = spelled.tokens.clone(), self.facts.entity
        middle = slice(entity + 1, 2 * entity + 1)
        tokens[:, middle] = tokens[:, middle].roll(1, 0)
        return Statements(tokens, spelled.answer)

    def lesson(self) -> decoders.Lesson:
        facts = self.facts
        questions = {
            "first step": facts.steps[0],
            "second step": facts.steps[1],
            "compositions": self.compositions,
            "held out": facts.test,
            "shuffled held out": facts.shuffled(self.seed),
            "unseen": Statements(facts.unseen.tokens[: len(facts.test)], facts.entity),
        }
        steps = Statements(facts.train.tokens[: -len(facts.compositions)], facts.entity)
        # as many are ranked of one kind as of the other
        ranked = [Statements(some.tokens[: len(facts.test)], some.answer) for some in (facts.compositions, facts.test)]
        return decoders.Lesson(
            self.seed,
            next_tokens(steps) + next_tokens(self.compositions),
            {kind: next_tokens(statements) for kind, statements in questions.items()},
            {kind: (next_tokens(crossed(one)), one.prompt[:, -1]) for kind, one in zip(RANKED, ranked, strict=True)},
        )


class ChainNetworks(decoders.Networks):
    """All networks of one group."""

    def __init__(self, config: ChainOfThoughtDecoderConfig, group: Sequence[Condition]) -> None:
        taught = [Taught(config, one, seed) for one in group for seed in range(config.seeds)]
        first, self.chains, self.spelled = group[0], taught[0].facts, group[0].steps != "none"
        shape = decoders.gpt2(
            config, layers=first.layers, vocabulary=self.chains.vocabulary + decoders.EXTRA,
            context=(2 + self.spelled) * config.entity + self.spelled, embeddings=first.embeddings,
        )  # fmt: skip
        rates = [config.rates[config.depths.index(first.layers)]] * len(taught)
        super().__init__(config, shape, [one.lesson() for one in taught], rates)
        self.held_out = torch.stack([one.facts.test.tokens for one in taught]).to(config.device)

    @property
    def measures(self) -> dict[str, decoders.Measure]:
        return super().measures | {"answered": self.answered}

    def answered(self, decoder: Decoder, members: Sequence[int]) -> Tensor:
        """(members, ways): the share of held-out chains whose end is reached, saying what is most likely."""
        statements, entity = self.held_out[list(members)], self.chains.entity
        asked, end = statements[..., : entity + 1], statements[..., -entity:]
        at = asked[..., :entity]
        for _ in range(self.chains.length - 1):  # step by step, each from the answer to the one before
            at = continued(decoder, torch.cat([at, torch.full_like(at[..., :1], self.chains.relations[0])], -1), entity)
        reached = {"direct": continued(decoder, asked, entity), "rollout": at}
        if self.spelled:
            reached["written"] = continued(decoder, asked, 2 * entity + 1)[..., -entity:]
        right = {way: (said == end).all(-1).float().mean(-1) for way, said in reached.items()}
        nothing = torch.full((len(members),), torch.nan, device=end.device)
        return torch.stack([right.get(way, nothing) for way in WAYS], -1)


def continued(decoder: Decoder, tokens: Tensor, count: int) -> Tensor:
    """The most likely next `count` tokens, one after the other, (members, n, count)."""
    for _ in range(count):
        tokens = torch.cat([tokens, decoder(tokens)[:, :, -1].argmax(-1, keepdim=True)], -1)
    return tokens[..., -count:]


class Scores(decoders.Record[Condition]):
    """Numbers of `chain-of-thought-decoder`; networks that did not learn or diverged are NaN."""

    def __init__(self, run: Run) -> None:
        self.spelled: list[int] = list(run.config["spelled"])
        taught, entities = ("first step", "second step", "compositions"), 3 * run.config["chains"]
        super().__init__(run, conditions(run.config), KINDS, taught=taught, ranked=RANKED, entities=entities)

    def steps_known(self, condition: Condition) -> Any:
        """(seeds,) at the end: the probability of the step that is known less."""
        return np.minimum(*(self.probability(condition, kind) for kind in ("first step", "second step")))

    def answered(self, condition: Condition, way: str) -> Any:
        """(seeds,) at the end: the share of held-out chains whose end is reached."""
        return self.counting(condition, "answered")[-1][:, WAYS.index(way)]
