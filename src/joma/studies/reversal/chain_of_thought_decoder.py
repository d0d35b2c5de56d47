"""Chains in decoders: which are taught how, how their ends are asked for, and what is found.

Effects that matter were stated before the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Study, Values
from joma.claims.declare import Claims
from joma.claims.evidence import at_least
from joma.claims.guards import hardest, mean_known
from joma.claims.sentences import show
from joma.data.facts import Chains, chains
from joma.data.statements import Statements
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, GREEN, ORANGE, RED, panels
from joma.measure.intervals import Comparison, compare
from joma.models.decoder import Decoder
from joma.models.decoder_config import Embeddings
from joma.runs import Run
from joma.studies.reversal import _decoders as decoders
from joma.studies.reversal._decoders import (
    FLOOR,
    GAP,
    LEARNED,
    NOBODY,
    PAPER,
    crossed,
    draw_bars,
    draw_over_training,
    layers_of,
    next_tokens,
    train_conditions,
)

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
    depths: Annotated[tuple[int, ...], Values()] = (1, 2)
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
    """What a network learns, and its shape."""

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
        return np.minimum(*(self.probability(condition, kind) for kind in ("first step", "second step")))

    def answered(self, condition: Condition, way: str) -> Any:
        return self.counting(condition, "answered")[-1][:, WAYS.index(way)]


ORDER = 0.25  # of rivals beaten: half of the way from chance to all
GAIN = 0.05  # of held-out chains: fewer than one in twenty are no cure
CURED = 0.5  # of held-out chains

CLAIMS = Claims(source="Reversal Thm 4", matters=GAP, unit="%")


def judge_unknown(run: Run, claim: Claim, name: str, depths: str) -> Finding:
    """The step that is known less against the composition, and the composition against the uniform guess."""
    scores = Scores(run)
    cases = scores.at(name, run.config[depths])
    found = {case: compare(scores.steps_known(one), scores.probability(one, "held out")) for case, one in cases.items()}
    what = "probability of the answer to a step (control: to the untrained composition)"
    return scores.judged_unknown(claim, found, cases, "held out", known="steps", unknown="composition", what=what)


@CLAIMS.declare("held-out-composition-no-better-than-uniform", uses=("chain-of-thought/composition-is-not-learned",))
def _held_out_composition_no_better_than_uniform(run: Run, claim: Claim) -> Finding:
    """A decoder that answers A -> B and B -> C almost perfectly answers an untrained A ~> C no better than a uniform
    guess.
    """
    return judge_unknown(run, claim, BASE, "depths")


@CLAIMS.declare("no-composition-with-frozen-embeddings")
def _no_composition_with_frozen_embeddings(run: Run, claim: Claim) -> Finding:
    """The theorem takes embeddings as fixed. Tested here: is an untrained composition unknown with frozen
    embeddings?
    """
    return judge_unknown(run, claim, "frozen", "spelled")


@CLAIMS.declare(
    "no-trace-of-the-composition",
    matters=ORDER,
    uses=("chain-of-thought-decoder/held-out-composition-no-better-than-uniform",),
)
def judge_trace(run: Run, claim: Claim) -> Finding:
    """An untrained composition leaves no trace: its right answer is ranked no higher than the ends of other held-out
    chains.

    The gap between trained and held-out compositions, of at most one half: chance is one half, all is one.
    """
    scores = Scores(run)
    cases = scores.at(BASE, scores.depths)
    return scores.judged(
        claim,
        scores.compared(scores.rank, cases, "compositions", "held out"),
        cases.values(),
        what="share of rival ends less likely than the right one, trained compositions (control: held out)",
        expected=(
            f"trained compositions beat at least {show(ORDER, '%')} more of their rivals than held-out ones, which "
            "beat less than 60 % (chance: 50 %)"
        ),
        size=scores.over_half("the held-out share", cases, "held out", 0.1),
    )


@CLAIMS.declare("rollout-answers", uses=("chain-of-thought-decoder/held-out-composition-no-better-than-uniform",))
def judge_rollout(run: Run, claim: Claim) -> Finding:
    """Chain of thought is necessary and enough: step by step, from its own answers, the network reaches C.

    Step by step, against asking at once.
    """
    scores = Scores(run)
    cases = scores.at(BASE, scores.depths)
    found = scores.compared(scores.answered, cases, "rollout", "direct")
    return scores.judged(
        claim,
        found,
        cases.values(),
        what="share of held-out chains whose end is reached step by step (control: asked at once)",
        expected=f"at least {show(LEARNED, '%')} reached, and at least {show(GAP, '%')} more than when asked at once",
        size=[at_least(f"reached step by step ({case})", one, LEARNED, "%") for case, one in found.items()],
    )


@CLAIMS.declare("steps-spelled-out", matters=GAIN, ceiling=1.0)
def judge_written(run: Run, claim: Claim) -> Finding:
    """Compositions need their steps. Tested here: does a network that was taught A ~> B -> C write the steps of chains
    whose composition it was never taught?

    Against asking at once, and against networks taught with the steps of other chains.
    """
    scores = Scores(run)
    own, other, base = (scores.at(name, scores.spelled) for name in (*SPELLED, BASE))
    found: dict[str, Comparison] = {}
    for case, one in own.items():
        controls = {"asked at once": (base[case], "direct"), SPELLED[1]: (other[case], "written")}
        written = scores.answered(one, "written")
        compared = {name: compare(written, scores.answered(*control)) for name, control in controls.items()}
        found |= {f"{case}, against {name}": worst for name, worst in hardest(claim, compared).items()}
    return scores.judged(
        claim,
        found,
        [*own.values(), *other.values(), *base.values()],
        what="share of held-out chains whose end is written after the steps",
        expected=(
            f"at least {show(CURED, '%')} reached, and at least {show(GAIN, '%')} more than when asked at once and "
            "than with steps of other chains"
        ),
        size=[at_least(f"reached ({case})", one, CURED, "%") for case, one in found.items()],
    )


LINES = {
    "first step": (BLUE, "A → B"),
    "compositions": (ORANGE, "trained A ⇝ C"),
    "held out": (RED, "held-out A ⇝ C"),
    "shuffled held out": (GREEN, "shuffled ends"),
    "unseen": (CONTROL, "unseen chains"),
}
ROWS = {
    "asked at once": (BASE, "direct"),
    "step by step": (BASE, "rollout"),
    "steps spelled out": (SPELLED[0], "written"),
    "steps of other chains": (SPELLED[1], "written"),
}
"""Condition and way of each bar."""


def _draw_training(scores: Scores) -> Drawing:
    deepest = scores.named(BASE, max(scores.depths))
    held_out, steps = mean_known(scores.probability(deepest, "held out")), mean_known(scores.steps_known(deepest))
    caption = (
        f"With {layers_of(deepest.layers)}, the steps of held-out chains are answered with probability {number(steps)} "
        f"in the end, and their compositions with {number(held_out)}. The uniform guess is {number(scores.uniform)}. "
        "Green: the same questions with the ends of other chains. Grey: chains of entities that were never seen. Lines "
        f"are means over networks that learned what they were taught. Probabilities below {FLOOR:g} are drawn there."
    )
    figure = draw_over_training(scores, scores.at(BASE, scores.depths[:6]), LINES)
    return Drawing("chain-over-training", caption if np.isfinite(held_out) else NOBODY, figure)


def _draw_ways(scores: Scores) -> Drawing:
    def reached(row: str, depth: int) -> Any:
        name, way = ROWS[row]
        return scores.answered(scores.named(name, depth), way)

    depths = scores.spelled
    figure, (axis,) = panels(1, width=6.4, height=0.34 * len(ROWS) * max(1, len(depths) / 1.5) + 1.1)
    draw_bars(axis, list(ROWS), depths, reached)
    axis.set(xlabel="share of held-out chains whose end is reached", ylabel="way", title="Ways to the end of a chain")
    if len(depths) > 1:
        axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    shares = [mean_known(reached(row, depths[0])) for row in ROWS]
    at_once, steps, written, others = (number(share, "%") for share in shares)
    caption = (
        f"With {layers_of(depths[0])}, {at_once} of the held-out chains are answered at once and {steps} step by step "
        f"from the network's own answers. Networks that were taught compositions with their steps write {written} of "
        f"them rightly, with the steps of other chains {others}. Bars are means over networks that learned what they "
        "were taught, lines their intervals (95 %; 99 % over four or fewer), cut at 0 and 100 %."
    )
    return Drawing("chain-ways", caption if np.isfinite(shares).all() else NOBODY, figure)


STUDY = Study(
    name="chain-of-thought-decoder",
    title="Chain of thought in decoders: compositions at once and step by step",
    version=1,
    claims=CLAIMS,
    # Up to three of ten seeds from 3000 on learned too little: of six enough are left.
    quick=ChainOfThoughtDecoderConfig(seeds=6),
    paper=ChainOfThoughtDecoderConfig(**PAPER, chains=150, spelled=(1, 4)),
    run=partial(train_conditions, conditions, ChainNetworks),
    draw=lambda run: [_draw_training(Scores(run)), _draw_ways(Scores(run))],
    about=(
        "Decoders of GPT-2's shape are taught the steps A -> B and B -> C of every chain, and the composition A ~> C "
        "of 70 % of them. The other compositions are asked. The loss is on the last entity. The end of such a chain is "
        "asked for at once, step by step from the network's own answers, and, of networks that were taught "
        "compositions with their steps, as they write it. Networks that were taught compositions with the steps of "
        "other chains write as much. A network counts if it answers at least 95 % of what it was taught."
    ),
)
