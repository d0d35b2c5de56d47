"""Decoders that learn facts: what each network of an ensemble reads, how it is trained, recorded and judged."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from joma.claims import guards
from joma.claims.config import Least, StudyConfig
from joma.claims.contract import Claim, Finding, Progress
from joma.claims.evidence import Test
from joma.claims.sentences import show
from joma.claims.verdicts import Compared, Numbers
from joma.data.samples import streams
from joma.measure.intervals import Comparison, compare
from joma.models.decoder import Decoder, DecoderConfig
from joma.recipes.grid import ensemble
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.studies.reversal._examples import RANKS, Examples, Tables, answers, means, order, ranks
from joma.training import Ensemble, answer_loss, train_all
from joma.training.ensemble import Precision

EXTRA = 2
"""Tokens after those of the facts: `is`, of identity statements, and the mask. Where they are not used, they wait."""
LEARNED = 0.95  # of what was taught, a network must answer at least so much rightly
GAP = 0.5  # of a probability: a gap of half of all answers
LITTLE = 0.05  # of a probability above the uniform guess: less than one answer in twenty is no knowledge worth the name


@dataclass(frozen=True)
class Training(StudyConfig):
    """How decoders are trained on facts: GPT-2's block with AdamW, the loss on the last entity alone."""

    seeds: Annotated[int, Least(2, "for an interval")] = 4
    """Networks per condition, each with facts of its own."""
    width: int = 40
    heads: int = 1
    steps: int = 80
    look_at: tuple[int, ...] = (20, 40)
    """Measure after so many steps, besides the beginning and the end."""
    weight_decay: float = 0.01
    batch: int = 32
    """Statements per step; each member goes through its own, epoch after epoch."""
    device: str = "cpu"
    precision: Precision = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not 0 < step < self.steps for step in self.look_at):
            raise ValueError(f"look_at must lie between 0 and {self.steps}, the end, got {self.look_at}")
        gpt2(self, layers=1, vocabulary=8, context=2)  # refuses an impossible width

    def check_depths(self, depths: tuple[int, ...], rates: tuple[float, ...], **studied: tuple[int, ...]) -> None:
        """Every depth has its rate, and what is studied in detail is among them."""
        if len(rates) != len(depths):
            raise ValueError(f"rates must be one per depth, {len(depths)}, got {rates}")
        for name, some in studied.items():
            if not set(some) <= set(depths):
                raise ValueError(f"{name} must be among the depths {depths}, got {some}")


PAPER: dict[str, Any] = {
    "seeds": 4, "width": 768, "heads": 12, "steps": 1500, "look_at": (30, 100, 200, 300, 500, 800),
    "depths": (1, 4, 12, 24), "rates": (0.01, 0.01, 0.01, 0.01), "device": "cuda", "precision": "tf32", "batch": 64,
}  # fmt: skip
"""The size of both studies at paper scale."""


def gpt2(config: Training, **shape: Any) -> DecoderConfig:
    """GPT-2's shape: norms before the branches, GELU, an MLP four times as wide, learned positions, tied embeddings."""
    usual: dict[str, Any] = {"norm": "pre-layer", "activation": "gelu", "positions": "learned", "tied": True}
    return DecoderConfig(width=config.width, heads=config.heads, mlp=4 * config.width, **usual | shape)


def layers_of(count: int) -> str:
    """The name of a case.

    >>> layers_of(1), layers_of(24)
    ('1 layer', '24 layers')
    """
    return "1 layer" if count == 1 else f"{count} layers"


@dataclass(frozen=True)
class Learner:
    """What a network learns, and its shape: a condition of a study."""

    name: str
    layers: int

    @property
    def group(self) -> str:
        """Networks of one group have one shape and are one ensemble."""
        raise NotImplementedError


C = TypeVar("C", bound=Learner)


def grouped(some: Iterable[C]) -> dict[str, list[C]]:
    """By ensemble, each in the order of its members: condition after condition, each with its seeds."""
    groups: dict[str, list[C]] = {}
    for one in some:
        groups.setdefault(one.group, []).append(one)
    return groups


@dataclass(frozen=True)
class Lesson:
    """What one network learns and is asked."""

    seed: int  # networks of one seed begin alike, whatever they learn
    training: Examples
    questions: Mapping[str, Examples]  # by kind
    rivals: Mapping[str, tuple[Examples, Tensor]]
    """By kind: every prompt with every answer, and the relation of every prompt. Answers are rivals within one."""


Measure = Callable[[Decoder, Sequence[int]], Tensor | Mapping[str, Tensor]]


class Networks:
    """Networks of one shape, each with its lesson and its learning rate."""

    def __init__(
        self, config: Training, shape: DecoderConfig, lessons: Sequence[Lesson], rates: Sequence[float],
        steps: int | None = None,
    ) -> None:  # fmt: skip
        self.config, self.shape, self.lessons, self.rates = config, shape, lessons, rates
        self.steps = steps or config.steps
        self.numbers = [lesson.seed for lesson in lessons]

        def tables(examples: Iterable[Examples]) -> Tables:
            return Tables.of(list(examples), shape.context, config.device)

        first = lessons[0]
        self.training = tables(lesson.training for lesson in lessons)
        self.questions = {kind: tables(one.questions[kind] for one in lessons) for kind in first.questions}
        self.rivals = {kind: tables(one.rivals[kind][0] for one in lessons) for kind in first.rivals}
        self.alike = {}  # (members, n, n), padded: which prompts have the relation of which
        for kind in first.rivals:
            every = [lesson.rivals[kind][1] for lesson in lessons]
            size = max(map(len, every))
            alike = torch.zeros(len(every), size, size, dtype=torch.bool)
            for mine, relations in zip(alike, every, strict=True):
                mine[: len(relations), : len(relations)] = relations[:, None] == relations
            self.alike[kind] = alike.to(config.device)
        counts = [len(lesson.training) for lesson in lessons]
        options: Any = {"seed": config.seed, "steps": self.steps, "batch": config.batch, "device": config.device}
        self.order = order(counts, self.numbers, **options)

    def networks(self, members: Sequence[int]) -> Decoder:
        own = streams(self.config.seed, [self.numbers[m] for m in members], step=-1)
        return Decoder(self.shape, [source.initial_seed() for source in own])

    def batch(self, step: int, members: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Tokens and targets, (members, batch, length) each."""
        if len(members) < len(self.lessons):
            who = torch.tensor(list(members), device=self.order.device)
        else:
            who = torch.arange(len(self.lessons), device=self.order.device)
        rows = self.order[who, step]
        return self.training.tokens[who[:, None], rows], self.training.targets[who[:, None], rows]

    @property
    def measures(self) -> dict[str, Measure]:
        return {"facts": self.facts, "rank": self.rank}

    @property
    def ensemble(self) -> Ensemble:
        return ensemble(
            self.config, len(self.lessons), networks=self.networks, batch=self.batch, loss=answer_loss,
            optimizer=make_optimizer("adamw", rate=tuple(self.rates), weight_decay=self.config.weight_decay),
            steps=self.steps, measures=self.measures, measure_at=(0, *self.config.look_at, self.config.steps),
        )  # fmt: skip

    def facts(self, decoder: Decoder, members: Sequence[int]) -> dict[str, Tensor]:
        """Mean probability, accuracy and log probability of every kind, (members, kinds) each."""
        return means(decoder, self.questions, members)

    def rank(self, decoder: Decoder, members: Sequence[int]) -> dict[str, Tensor]:
        """Shares of rivals beaten and of prompts whose right answer beats all, (members, kinds that are ranked)."""
        found = []
        for kind, table in self.rivals.items():
            log, _ = answers(decoder, *table.of_members(members))
            alike = self.alike[kind][list(members)]
            square = log.new_zeros(alike.shape)  # members have more or fewer prompts
            for mine, row, member in zip(square, log, members, strict=True):
                own = len(self.lessons[member].rivals[kind][1])
                mine[:own, :own] = row[: own * own].view(own, own)
            found.append(ranks(square, alike))
        return {name: torch.stack(part, -1).float() for name, part in zip(RANKS, zip(*found, strict=True), strict=True)}


def train_conditions(
    conditions: Callable[[Mapping[str, Any]], list[C]], made: Callable[[Any, list[C]], Networks], config: Training,
    run: Run, progress: Progress,
) -> None:  # fmt: skip
    """Train all conditions of a config; those of one shape are one ensemble."""
    guards.needs_device(config.device, guards.at_paper_scale(run.study))
    groups = grouped(conditions(vars(config)))
    train_all({name: made(config, group).ensemble for name, group in groups.items()}, run, progress=progress)


class Record(Generic[C]):
    """What a run recorded, by condition, measuring point and seed.

    Networks that diverged, or that do not know at the end what they were `taught`, are NaN. ranked: the kinds whose
    ranks are recorded. entities: of how many a uniform guess chooses one.
    """

    def __init__(
        self, run: Run, conditions: Sequence[C], kinds: Sequence[str], *, taught: Sequence[str], ranked: Sequence[str],
        entities: int,
    ) -> None:  # fmt: skip
        self.run, self.kinds, self.ranked, self.uniform = run, list(kinds), list(ranked), 1 / entities
        self.seeds = int(run.config["seeds"])
        self.depths: list[int] = list(run.config["depths"])
        self.conditions: dict[tuple[str, int], C] = {(one.name, one.layers): one for one in conditions}
        self.steps = run.steps(f"{conditions[0].group}/rank/beaten")
        self._taught = [self.kinds.index(kind) for kind in taught]
        self._read: dict[str, Any] = {}
        self._place = {
            one: (group, slice(place * self.seeds, (place + 1) * self.seeds))
            for group, members in grouped(conditions).items()
            for place, one in enumerate(members)
        }

    def named(self, name: str, layers: int) -> C:
        return self.conditions[name, layers]

    def at(self, name: str, depths: Iterable[int]) -> dict[str, C]:
        """One condition at several depths, by the name of the case."""
        return {layers_of(depth): self.conditions[name, depth] for depth in depths}

    def array(self, condition: C, series: str) -> Any:
        """(points, seeds, ...) as recorded, of all networks."""
        group, members = self._place[condition]
        name = f"{group}/{series}"
        if name not in self._read:
            self._read[name] = self.run.array(name)
        return self._read[name][:, members]

    def learned(self, condition: C) -> Any:
        """(seeds,) bool: which networks answer what they were taught, at the end."""
        taught = self.array(condition, "facts/accuracy")[-1][:, self._taught]
        return (taught >= LEARNED).all(-1) & (self.array(condition, "diverged_at")[-1] < 0)

    def counting(self, condition: C, series: str) -> Any:
        """(points, seeds, ...): NaN for networks that do not count."""
        values = self.array(condition, series)
        return np.where(self.learned(condition).reshape(1, -1, *[1] * (values.ndim - 2)), values, np.nan)

    def over_training(self, condition: C, kind: str) -> Any:
        """(points, seeds): the probability of the right answer."""
        return self.counting(condition, "facts/probability")[..., self.kinds.index(kind)]

    def probability(self, condition: C, kind: str) -> Any:
        """(seeds,) at the end."""
        return self.over_training(condition, kind)[-1]

    def rank(self, condition: C, kind: str, what: str = "beaten") -> Any:
        """(seeds,) at the end: the share of rivals that the right answer beats, or how often it is `chosen` of all."""
        return self.counting(condition, f"rank/{what}")[-1][:, self.ranked.index(kind)]

    def guesses(self, cases: Mapping[str, C], *kinds: str) -> Numbers:
        return {
            f"guesses, {case}": {kind: guards.mean_known(self.probability(one, kind)) for kind in kinds}
            for case, one in cases.items()
        }

    def compared(
        self, values: Callable[[C, str], Any], cases: Mapping[str, C], kind: str, control: str
    ) -> dict[str, Comparison]:
        return {case: compare(values(one, kind), values(one, control)) for case, one in cases.items()}

    def over_half(self, what: str, cases: Mapping[str, C], kind: str, most: float) -> list[Test]:
        """The tests that the right answer beats half of its rivals, as chance does, and no more than `most` above."""
        names = {f"{what} minus 50 % ({case})": compare(self.rank(one, kind), 0.5) for case, one in cases.items()}
        return [guards.no_more(name, one, most, "%") for name, one in names.items() if one.seeds]

    def over_uniform(self, what: str, cases: Mapping[str, C], kind: str) -> list[Test]:
        """The tests that a probability is no better than the uniform guess: no interval leaves room for LITTLE more."""
        found = {case: compare(self.probability(one, kind), self.uniform) for case, one in cases.items()}
        names = {f"{what} ({case}) minus the uniform guess": one for case, one in found.items() if one.seeds}
        return [guards.no_more(name, one, LITTLE, "%") for name, one in names.items()]

    def judged_unknown(self, claim: Claim, found: Compared, cases: Mapping[str, C], kind: str, **words: str) -> Finding:
        """What was taught must lie GAP above `kind`, which must be a guess. words: `known`, `unknown` and `what`."""
        known, unknown, what = (words[name] for name in ("known", "unknown", "what"))
        expected = (
            f"{known} at least {show(GAP, '%')} more likely than the {unknown}, and a {unknown} that is less than "
            f"{show(LITTLE, '%')} above the uniform guess of {show(self.uniform, '%')}, beyond chance"
        )
        size, details = (
            self.over_uniform(f"the {unknown}", cases, kind),
            self.guesses(cases, kind, f"shuffled {kind}", "unseen"),
        )
        return self.judged(claim, found, cases.values(), what=what, expected=expected, size=size, details=details)

    def judged(
        self, claim: Claim, found: Compared, some: Iterable[C], *, details: Numbers | None = None, **evidence: Any
    ) -> Finding:
        """`by_effect` of networks that learned. some: the conditions that it is about."""
        lost = float(sum(np.sum(~self.learned(one)) for one in some))
        reason = (
            f"no network, or none of one case, answers {LEARNED:.0%} of what it was taught: there is nothing to judge"
        )
        evidence["details"] = dict(details or {}) | ({"networks left out": {"did not learn": lost}} if lost else {})
        return guards.of_learned(claim, found, reason=reason, command=guards.at_paper_scale(self.run.study), **evidence)
