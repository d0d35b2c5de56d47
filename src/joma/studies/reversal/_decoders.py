"""Decoders that learn facts: what they read and must say, how they are trained, recorded, judged and drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from joma.claims import guards
from joma.claims.contract import Claim, Finding, Least, Progress, StudyConfig
from joma.claims.guards import mean_known
from joma.claims.sentences import show
from joma.claims.verdicts import Compared, Numbers, Test
from joma.data.samples import streams
from joma.data.statements import Statements
from joma.figures.bands import bound, share_errors
from joma.figures.labels import label_lines
from joma.figures.style import INK, Axes, Figure, depth_colours, panels
from joma.measure.intervals import Comparison, compare
from joma.models.decoder import Decoder, DecoderConfig
from joma.recipes.grid import ensemble
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.training import Ensemble, answer_loss, train_all
from joma.training.ensemble import Precision

Objective = Literal["next", "any order", "fill the end"]
"""next: a causal decoder says the answer token by token. The other two read both sides of a masked entity: either
entity of a statement is masked in training, or always the last one."""

NOTHING = -1  # the target of a position that is not asked


@dataclass(frozen=True)
class Examples:
    """Rows that are read, (n, length) each: tokens, and targets that are NOTHING where nothing is asked."""

    tokens: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def __add__(self, more: Examples) -> Examples:
        length = max(self.tokens.shape[1], more.tokens.shape[1])
        one, other = self.widened(length), more.widened(length)
        return Examples(torch.cat([one.tokens, other.tokens]), torch.cat([one.targets, other.targets]))

    def widened(self, length: int) -> Examples:
        more = (0, length - self.tokens.shape[1])
        return Examples(F.pad(self.tokens, more), F.pad(self.targets, more, value=NOTHING))


def next_tokens(statements: Statements) -> Examples:
    """Statements for a causal decoder: each token of the answer is asked at the position before it."""
    tokens = statements.tokens
    targets = tokens[:, 1:].clone()
    targets[:, : -statements.answer] = NOTHING
    return Examples(tokens[:, :-1], targets)


def masked(statements: Statements, mask: int, *, end: bool = True) -> Examples:
    """Statements with their last (or first) entity masked, which is asked where it stood."""
    tokens, targets = statements.tokens.clone(), torch.full_like(statements.tokens, NOTHING)
    where = slice(-statements.answer, None) if end else slice(0, statements.answer)
    targets[:, where] = tokens[:, where]
    tokens[:, where] = mask
    return Examples(tokens, targets)


def asked(statements: Statements, objective: Objective, mask: int) -> Examples:
    """Statements with their answers asked."""
    return next_tokens(statements) if objective == "next" else masked(statements, mask)


def trained(statements: Statements, objective: Objective, mask: int) -> Examples:
    """Statements as they are trained on."""
    rows = asked(statements, objective, mask)
    return rows + masked(statements, mask, end=False) if objective == "any order" else rows


def crossed(statements: Statements) -> Statements:
    """Every prompt with every answer, the answers of the first prompt first."""
    count = len(statements)
    prompts, answers = statements.prompt.repeat_interleave(count, 0), statements.target.repeat(count, 1)
    return Statements(torch.cat([prompts, answers], 1), statements.answer)


@dataclass(frozen=True)
class Tables:
    """Examples of every member, padded to one size: (members, n, length)."""

    tokens: Tensor
    targets: Tensor

    @staticmethod
    def of(examples: Sequence[Examples], length: int, device: str) -> Tables:
        rows = max(1, *(len(one) for one in examples))
        wide = [one.widened(length) for one in examples]
        tokens = torch.stack([F.pad(one.tokens, (0, 0, 0, rows - len(one))) for one in wide])
        targets = torch.stack([F.pad(one.targets, (0, 0, 0, rows - len(one)), value=NOTHING) for one in wide])
        return Tables(tokens.to(device), targets.to(device))

    def of_members(self, members: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.tokens[list(members)], self.targets[list(members)]


def order(counts: Sequence[int], numbers: Sequence[int], *, seed: int, steps: int, batch: int, device: str) -> Tensor:
    """(members, steps, batch): which of its examples a member reads, epoch after epoch in a new order each.

    It depends on nothing but the numbers given, so a resumed run reads what it would have read.
    """
    rows = []
    for count, source in zip(counts, streams(seed, numbers, step=-2), strict=True):
        luck = torch.rand((-(-steps * batch // count)), count, generator=source)
        rows.append(luck.argsort(-1).flatten()[: steps * batch].view(steps, batch))
    return torch.stack(rows).to(device)


AT_ONCE = 2**17  # tokens that all members together read at once while they are measured


def answers(decoder: Decoder, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Of every row the log probability of its whole answer, and whether it is the most likely, (members, n) each."""
    found = []
    size = max(1, AT_ONCE // (decoder.members * tokens.shape[-1]))
    for some, wanted in zip(tokens.split(size, 1), targets.split(size, 1), strict=True):
        scores = decoder(some).log_softmax(-1)
        said = scores.gather(-1, wanted.clamp(min=0)[..., None]).squeeze(-1)
        there = wanted != NOTHING
        right = ((scores.argmax(-1) == wanted) | ~there).all(-1)
        empty = torch.where(there.any(-1), 0.0, torch.nan)
        found.append((torch.where(there, said, 0.0).sum(-1) + empty, right + empty))
    return torch.cat([log for log, _ in found], 1), torch.cat([right for _, right in found], 1)


def means(decoder: Decoder, tables: Mapping[str, Tables], members: Sequence[int]) -> dict[str, Tensor]:
    """Of every kind of statement the mean probability, accuracy and log probability, (members, kinds) each."""
    parts = {"probability": [], "accuracy": [], "log": []}  # type: dict[str, list[Tensor]]
    for table in tables.values():
        log, right = answers(decoder, *table.of_members(members))
        for name, values in (("probability", log.exp()), ("accuracy", right), ("log", log)):
            parts[name].append(values.nanmean(-1))
    return {name: torch.stack(values, -1).float() for name, values in parts.items()}


RANKS = ("beaten", "chosen")


def ranks(log: Tensor, alike: Tensor) -> tuple[Tensor, Tensor]:
    """How many of its rivals a right answer beats, and how often it beats all of them, (members,) each."""
    own = log.diagonal(dim1=-2, dim2=-1)[..., None]
    rivals = alike & ~torch.eye(log.shape[-1], dtype=torch.bool, device=log.device)
    won = torch.where(rivals, (own > log).double() + 0.5 * (own == log), 0.0)
    asked = alike.diagonal(dim1=-2, dim2=-1)
    all_of_them = ((won.sum(-1) == rivals.sum(-1)) & asked).sum(-1) / asked.sum(-1)
    return won.sum((-2, -1)) / rivals.sum((-2, -1)), all_of_them


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
    """The name of a case."""
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
        return {layers_of(depth): self.conditions[name, depth] for depth in depths}

    def array(self, condition: C, series: str) -> Any:
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
        return self.counting(condition, "facts/probability")[..., self.kinds.index(kind)]

    def probability(self, condition: C, kind: str) -> Any:
        return self.over_training(condition, kind)[-1]

    def rank(self, condition: C, kind: str, what: str = "beaten") -> Any:
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
        lost = float(sum(np.sum(~self.learned(one)) for one in some))
        reason = (
            f"no network, or none of one case, answers {LEARNED:.0%} of what it was taught: there is nothing to judge"
        )
        evidence["details"] = dict(details or {}) | ({"networks left out": {"did not learn": lost}} if lost else {})
        return guards.of_learned(claim, found, reason=reason, command=guards.at_paper_scale(self.run.study), **evidence)


FLOOR = 1e-5  # probabilities below it are drawn at it
NOBODY = "Too few networks learned what they were taught to show anything."  # what a caption says then


def draw_over_training(scores: Record[C], shown: Mapping[str, C], lines: Mapping[str, tuple[str, str]]) -> Figure:
    """One panel per condition that is shown; of every kind of statement a line, with its colour and label."""
    columns = 2 if len(shown) in (2, 4) else min(3, len(shown))
    figure, axes = panels(columns, -(-len(shown) // columns), width=9.6 / columns, height=2.5)
    for index, (axis, (title, condition)) in enumerate(zip(axes, shown.items(), strict=False)):
        for kind, (colour, label) in lines.items():
            mean = [mean_known(seeds) for seeds in scores.over_training(condition, kind)]
            axis.plot(np.maximum(scores.steps, 1), np.maximum(mean, FLOOR), "o-", ms=2.5, color=colour, label=label)
        bound(axis, scores.uniform, "uniform guess")
        axis.set_xlim(0.8, 1.4 * float(np.max(scores.steps)))
        axis.set(xscale="log", yscale="log", ylim=(FLOOR / 2, 2), title=title, ylabel="probability of the answer")
        axis.set_xlabel("training step (0 is drawn at 1)")
        if index % columns == columns - 1 or index == len(shown) - 1:
            label_lines(axis)
    for axis in axes[len(shown) :]:
        axis.remove()
    return figure


def draw_bars(axis: Axes, names: Sequence[str], depths: Sequence[int], values: Callable[[str, int], Any]) -> None:
    """The mean of (seeds,) `values` of every name and depth, with its interval."""
    for place, (depth, colour) in enumerate(zip(depths, depth_colours(len(depths)), strict=True)):
        rows = np.arange(len(names)) + (place - (len(depths) - 1) / 2) * 0.36
        found = [compare(values(name, depth)) for name in names]
        means = [one.value for one in found]
        axis.barh(rows, means, height=0.7 / len(depths), color=colour, alpha=0.75, label=layers_of(depth))
        axis.errorbar(means, rows, xerr=share_errors(found), fmt="none", ecolor=INK, elinewidth=0.9, capsize=2)
    axis.set_yticks(range(len(names)), names)
    axis.set_xlim(0, 1.05)
    axis.invert_yaxis()
