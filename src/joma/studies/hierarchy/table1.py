"""The networks of Table 1: who is in the ensemble, what each one reads, how it is scored, and what is found."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Least, Progress, Study, StudyConfig, Values, Within
from joma.claims.declare import Claims
from joma.claims.evidence import at_most
from joma.claims.guards import at_paper_scale, clears, needs_device
from joma.data.latent_sets import TABLE1, LatentSets
from joma.data.samples import rows, streams, uniform
from joma.figures.labels import end_label
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PRINTED, panels, step_axis
from joma.measure.alignment import best_neuron_correlation, held_out_correlation
from joma.measure.intervals import Comparison
from joma.models.decoder import Decoder
from joma.recipes.grid import Grid
from joma.runs import Run
from joma.studies.hierarchy import _networks as nets
from joma.studies.hierarchy._networks import mean_over, over_seeds
from joma.training import train
from joma.training.ensemble import Precision

VOCABULARY, LENGTH = 100, 30
KINDS = ("best neuron", "permuted latents", "held out", "held out, permuted latents")
"""Scores that are recorded: Table 1's own, and with the neuron chosen on one half of the classes, scored on the other;
each for the true latents and for latents permuted between classes."""
SIMPLE, COMPLEX = (2, (10, 20)), (3, (20, 30))  # N_ch and (N0, N1) at the two ends of the table
ABSENT = -1e4
"""The bias of a class that a member does not have: exp of it is 0, so it has no part in the loss and no gradient."""


@dataclass(frozen=True)
class Table1Config(StudyConfig):
    """Table 1's networks, for some of its 12 columns and a number of seeds, all of them as one ensemble.

    The source gives 1e-5 as the learning rate in its text, 1e-4 in its script, and no number of steps.
    """

    columns: Annotated[tuple[int, ...], Values(), Within(1, len(TABLE1))] = (1, 4)
    """Which columns of the table, counted from 1."""
    seeds: Annotated[int, Least(2, "for an interval")] = 6
    width: int = 48
    steps: int = 60
    look_at: tuple[int, ...] = (10, 30)
    """Measure after so many steps, besides the beginning and the end."""
    rate: float = 1e-3
    weight_decay: float = 1e-4
    batch: int = 128
    merge: bool = True
    """Compute each class once a step and weigh it with how often the batch holds it, which is the same to rounding."""
    device: str = "cpu"
    precision: Precision = "float32"
    together: int = 12
    """Networks trained at the same time; fewer take turns if the memory does not hold them."""
    checkpoint_every: float = 120.0
    """Seconds between checkpoints; at the paper's width one holds 0.4 GB for each network."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not {SIMPLE, COMPLEX} <= {(TABLE1[c - 1].children, TABLE1[c - 1].latents) for c in self.columns}:
            raise ValueError(f"columns must hold one of each end of the table, like 1 and 4, got {self.columns}")
        # refuses an impossible width
        nets.transformer(vocabulary=VOCABULARY, outputs=2, width=self.width, context=LENGTH)
        if any(step >= self.steps for step in self.look_at):
            raise ValueError(f"look_at must lie below {self.steps}, the end, got {self.look_at}")


class Members:
    """Who is in the ensemble: column after column, each with its seeds, and what each of them reads."""

    def __init__(self, config: Table1Config) -> None:
        self.config = config
        grid = Grid(config.columns, config.seeds)
        self.column = grid.cell
        # A number that names column and seed whatever other columns there are, so that a subset draws the same.
        self.number = [1000 * column + seed for column, seed in zip(grid.cell, grid.seed_of, strict=True)]
        self.sets = [self._draw(*named).to(config.device) for named in zip(self.column, self.number, strict=True)]
        self.most = max(sets.classes for sets in self.sets)
        self.classes = torch.tensor([sets.classes for sets in self.sets], device=config.device)
        self.tokens = torch.stack([F.pad(sets.tokens, (0, 0, 0, self.most - sets.classes)) for sets in self.sets])

    def _draw(self, column: int, number: int) -> LatentSets:
        classes, children, latents, _ = TABLE1[column - 1]
        source = streams(self.config.seed, [number], step=-1)[0]
        return LatentSets.draw(classes, latents, children, vocabulary=VOCABULARY, length=LENGTH, generator=source)

    def networks(self, members: Sequence[int]) -> Decoder:
        shape = nets.transformer(vocabulary=VOCABULARY, outputs=self.most, width=self.config.width, context=LENGTH)
        own = streams(self.config.seed, [self.number[m] for m in members], step=-2)
        made = Decoder(shape, [source.initial_seed() for source in own])
        with torch.no_grad():
            for row, member in enumerate(members):
                made.out_bias[row, self.sets[member].classes :] = ABSENT
        return made

    def batch(self, step: int, members: Sequence[int]) -> tuple[Tensor, ...]:
        """Tokens (members, sequences, length), their classes, and what each sequence counts for."""
        here, size = list(members), self.config.batch
        source = streams(self.config.seed, [self.number[m] for m in members], step, device=self.config.device)
        luck = uniform((len(here), size), source, self.tokens.device)
        labels = (luck * self.classes[here, None]).long()
        share = torch.full(labels.shape, 1 / size, device=labels.device)
        if not self.config.merge:
            return rows(self.tokens[here], labels), labels, share
        share = share.new_zeros(len(here), self.most).scatter_add(1, labels, share)
        return self.tokens[here], torch.arange(self.most, device=labels.device).expand_as(share), share

    def scores(self, decoder: Decoder, members: Sequence[int]) -> Tensor:
        activity, sound = nets.finite(nets.read(decoder, self.tokens[list(members)])[0])
        found = [self._of_member(member, activity[row]) for row, member in enumerate(members)]
        return torch.stack(found) * sound[:, None, None, None].to(activity)

    def _of_member(self, member: int, activity: Tensor) -> Tensor:
        sets = self.sets[member]
        levels = [latents.shape[-1] for latents in sets.latents]
        latents = torch.cat(sets.latents, dim=-1)  # (classes, latents)
        chance = streams(self.config.seed, [self.number[member]], step=-3)[0]
        order, halves = (torch.randperm(sets.classes, generator=chance).to(latents.device) for _ in range(2))
        both = torch.cat([latents, latents[order]], dim=-1)
        here = activity[:, : sets.classes]
        found = best_neuron_correlation(here, both).per_latent, _across_halves(here, both, halves)
        return torch.stack([nets.by_level(part, levels) for each in found for part in each.chunk(2, -1)])

    def accuracy(self, decoder: Decoder, members: Sequence[int]) -> Tensor:
        here = list(members)
        said = nets.read(decoder, self.tokens[here])[1].argmax(-1)
        classes = torch.arange(self.most, device=said.device)
        return ((said == classes) & (classes < self.classes[here, None])).sum(-1) / self.classes[here]


def _across_halves(activity: Tensor, latents: Tensor, order: Tensor) -> Tensor:
    """The neuron chosen on one half of the classes and scored on the other, both ways, (blocks, latents)."""
    halves = order.chunk(2)
    ways = [
        held_out_correlation(
            activity[:, one], latents[one], fresh_activity=activity[:, other], fresh_latents=latents[other]
        ).per_latent
        for one, other in (halves, halves[::-1])
    ]
    return torch.stack(ways).mean(0)


def shared_loss(decoder: Decoder, batch: tuple[Tensor, ...], noise: Tensor | None = None) -> Tensor:
    """Cross-entropy of the class read at the last position, weighted, (members,)."""
    tokens, labels, share = batch
    logits = decoder.read(decoder.features(tokens, noise=noise)[:, :, -1])
    return (F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(share) * share).sum(-1)


def run(config: Table1Config, run: Run, progress: Progress) -> None:
    """Train all members at once, measuring them as they go."""
    needs_device(config.device, at_paper_scale("table1"))
    who = Members(config)
    run.keep("column", lambda: np.array(who.column))
    run.keep("distinct inputs", lambda: np.array([int(sets.distinct) for sets in who.sets]))
    ensemble = nets.ensemble_of(who, shared_loss)
    train(ensemble, run, name="networks", progress=progress, checkpoint_every=config.checkpoint_every)


ENOUGH = 0.5  # a network learned if it tells so many of its classes right; one that knows nothing tells at most 5 %
ENTRIES = ("paper", "trained", "untrained", "permuted")
TITLES = ("C", "N_ch", "(N₀, N₁)", *(f"s = {s}: {entry}" for s in (0, 1) for entry in ENTRIES))


class Scores:
    """What a run recorded, by step, column and seed; level s is read from block s + 1, as in the paper.

    only_learned: scores of networks that diverged or did not learn their classes are NaN, before training too.
    """

    def __init__(self, run: Run, *, only_learned: bool = False) -> None:
        self.steps = run.steps("networks/scores")
        columns = len(run.config["columns"])
        scores = run.array("networks/scores")  # (steps, members, kinds, blocks, levels)
        self.all = scores.reshape(len(self.steps), columns, -1, *scores.shape[2:])
        self.accuracy = run.array("networks/accuracy").reshape(len(self.steps), columns, -1)
        self.columns = [TABLE1[c - 1] for c in run.value("column").reshape(columns, -1)[:, 0]]
        diverged = (run.array("networks/diverged_at")[-1] >= 0).reshape(columns, -1)
        self.fates = nets.Fates(diverged, self.accuracy[-1] >= ENOUGH)  # (columns, seeds) each
        if only_learned:
            self.all = np.where(self.fates.kept[None, :, :, None, None, None], self.all, np.nan)

    def at(self, kind: str, step: int, level: int) -> Any:
        """(seeds, columns); step counts the measuring points, -1 is the end and 0 the beginning."""
        return self.all[step, :, :, KINDS.index(kind), level, level].T

    def both(self, kind: str, step: int) -> Any:
        return np.stack([self.at(kind, step, level) for level in (0, 1)], axis=-1)

    def gain(self, kind: str, level: int, step: int = -1) -> Comparison:
        return nets.over_seeds(self.at(kind, step, level), self.at(kind, 0, level))

    def paper(self, level: int) -> Any:
        return np.array([column.ncorr[level].mean for column in self.columns])

    def published(self, level: int) -> float:
        counted = np.isfinite(self.at("best neuron", -1, level))
        return float(nets.mean_over(np.where(counted, self.paper(level), np.nan), (0, 1)))


def table(run: Run) -> list[tuple[str, ...]]:
    """Table 1 beside its controls as text: C, N_ch, (N0, N1), then paper, trained, untrained, permuted for both s."""
    scores = Scores(run)
    lines = []
    for c, column in enumerate(scores.columns):
        line = [str(column.classes), str(column.children), str(column.latents)]
        for s in (0, 1):
            line.append(f"{column.ncorr[s].mean:.2f} ± {column.ncorr[s].spread:.2f}")
            for kind, step in (("best neuron", -1), ("best neuron", 0), ("permuted latents", -1)):
                values = scores.at(kind, step, s)[:, c]
                values = values[np.isfinite(values)]
                line.append(f"{values.mean():.2f} ± {values.std(ddof=1):.2f}" if len(values) > 1 else "diverged")
        lines.append(tuple(line))
    return lines


MARGIN = 0.02  # of a correlation: what two decimals of the table can tell
NEAR = 0.05  # of the published number, whose spread over seeds is up to 0.08

ALIGN = ("table1/lowest-latents-align", "table1/upper-latents-align")
CLAIMS = Claims(source="JoMA Sec. 6", matters=MARGIN)


def _level(run: Run, claim: Claim, level: int) -> Finding:
    scores = Scores(run, only_learned=True)
    found = scores.gain("best neuron", level)
    permuted = over_seeds(scores.at("best neuron", -1, level), scores.at("permuted latents", -1, level))
    published, details = scores.published(level), {}
    gains = [scores.gain("best neuron", level, step).difference for step in range(1, len(scores.steps))]
    if np.isfinite(gains).any():
        best = int(np.nanargmax(gains))  # when training had added most, of the measuring points after the first
        most = {"gain": gains[best], "step": float(scores.steps[1 + best])}
        details = {"largest gain over the untrained network": most}
    return _finding(
        claim,
        found,
        scores,
        what="correlation of a latent with its best hidden neuron",
        expected=f"a correlation at least {MARGIN} above the untrained network, above latents permuted between "
        f"classes, and within {NEAR} of the table's mean",
        size=[at_most("distance from the table's mean", abs(found.value - published), NEAR)],
        controls=[clears("the gain over permuted latents", permuted, matters=MARGIN)],
        details={"the table": {"mean": published}, **details},
    )


@CLAIMS.declare("lowest-latents-align", "JoMA Table 1", ceiling=1.0)
def _lowest_latents_align(run: Run, claim: Claim) -> Finding:
    """Training gives each lowest latent a hidden node in the first block that correlates with it, at 0.94 to 1.00."""
    return _level(run, claim, 0)


@CLAIMS.declare("upper-latents-align", "JoMA Table 1", ceiling=1.0)
def _upper_latents_align(run: Run, claim: Claim) -> Finding:
    """Training gives each latent one level up a hidden node in the second block that correlates with it, at 0.55 to
    0.81.
    """
    return _level(run, claim, 1)


@CLAIMS.declare("published-correlations", "JoMA Table 1", ceiling=0.0, uses=ALIGN)  # the effect is minus a distance
def _values(run: Run, claim: Claim) -> Finding:
    """The correlations in the table are the result of training."""
    scores = Scores(run, only_learned=True)
    paper = np.stack([scores.paper(level) for level in (0, 1)], axis=-1)  # (columns, levels)
    return _finding(
        claim,
        over_seeds(*[-np.abs(scores.both("best neuron", step) - paper) for step in (-1, 0)]),
        scores,
        what="minus the mean distance from the published correlations",
        expected=(
            f"trained networks are nearer to the published correlations than untrained networks, by at least {MARGIN}"
        ),
    )


@CLAIMS.declare("latents-are-learned", ceiling=1.0, uses=ALIGN)
def _learned(run: Run, claim: Claim) -> Finding:
    """Hidden nodes learn the latents: a node chosen on some of the classes stands for its latent on the other classes
    too.
    """
    scores = Scores(run, only_learned=True)
    trained, untrained = (scores.both("held out", step) for step in (-1, 0))
    permuted = scores.both("held out, permuted latents", -1)
    levels = [scores.gain("held out", level) for level in (0, 1)]
    return _finding(
        claim,
        over_seeds(trained, untrained),
        scores,
        what="correlation on classes that the neuron was not chosen on",
        expected=f"a correlation at least {MARGIN} above the untrained network, and above latents permuted between "
        "classes",
        controls=[clears("the gain over permuted latents", over_seeds(trained, permuted), matters=MARGIN)],
        details={f"s = {s}": {"trained": one.value, "untrained": one.control} for s, one in enumerate(levels)},
    )


@CLAIMS.declare("lowest-level-best", uses=ALIGN)
def _levels(run: Run, claim: Claim) -> Finding:
    """Training aligns hidden nodes with the lowest level better than with the level above."""
    scores = Scores(run, only_learned=True)
    return _finding(
        claim,
        over_seeds(*[scores.at("best neuron", step, 0) - scores.at("best neuron", step, 1) for step in (-1, 0)]),
        scores,
        what="correlation at s = 0 minus that at s = 1",
        expected=f"training makes the lead of the lowest level larger, by at least {MARGIN}",
    )


@CLAIMS.declare("more-latents-align-less", uses=ALIGN)
def _harder(run: Run, claim: Claim) -> Finding:
    """Training aligns hidden nodes a bit less well when there are more latents and more children."""
    scores = Scores(run, only_learned=True)
    ends = [(column.children, column.latents) for column in scores.columns]
    simple, complex_ = (np.array([end == wanted for end in ends]) for wanted in (SIMPLE, COMPLEX))
    both = [scores.both("best neuron", step) for step in (-1, 0)]
    return _finding(
        claim,
        over_seeds(*[mean_over(x[:, simple], (1, 2)) - mean_over(x[:, complex_], (1, 2)) for x in both]),
        scores,
        what="fall of the correlation from the simplest to the most complex column",
        expected=f"training makes this fall larger, by at least {MARGIN}",
        of=simple | complex_,
    )


def _finding(claim: Claim, found: Comparison, scores: Scores, *, of: Any = slice(None), **evidence: Any) -> Finding:
    return scores.fates.of(of).judged(claim, found, study="table1", **evidence)


HEADS = (*TITLES[:3], *ENTRIES, *ENTRIES)
LEFT = (0.0, 0.4, 0.95, 2.0, 3.05, 4.1, 5.15, 6.35, 7.4, 8.45, 9.5)  # where the columns of the table begin
BLOCKS = ("lowest latents, block 1", "latents one level up, block 2")
LOOKS = {
    "best neuron": (BLUE, "best neuron"),
    "held out": (ORANGE, "chosen on\nother classes"),
    "permuted latents": (CONTROL, "permuted latents"),
}
"""Colour and label of every kind of score that is drawn over training."""


def _draw_table(run: Run) -> Drawing:
    lines, scores, config = table(run), Scores(run), run.config
    figure, (axis,) = panels(width=8.2, height=0.235 * (len(lines) + 2) + 0.1)
    axis.set(xlim=(-0.1, 10.5), ylim=(len(lines) - 0.4, -2.5))
    axis.axis("off")
    for x, title in ((LEFT[3], "s = 0, first block"), (LEFT[7], "s = 1, second block")):
        axis.text(x, -2, title, fontweight="bold", fontsize=9, va="center")
        axis.plot([x, x + 4.0], [-1.5, -1.5], color=INK, lw=0.6)
    for column, x in enumerate(LEFT):
        for row, text in enumerate((HEADS[column], *(line[column] for line in lines)), start=-1):
            axis.text(x, row, text, fontsize=8.5, va="center", fontweight="bold" if row < 0 else "normal")
    axis.plot([0, 10.45], [-0.5, -0.5], color=INK, lw=0.8)
    gains = [scores.gain("best neuron", level) for level in (0, 1)]
    means = [
        f"{where}: {gain.value:.2f} trained, {gain.control:.2f} untrained, {scores.paper(level).mean():.2f} published"
        for level, (where, gain) in enumerate(zip(BLOCKS, gains, strict=True))
    ]
    change = " and ".join(f"{gain.difference:+.3f}".replace("-", "−") for gain in gains)
    caption = (
        f"Training changes the mean correlation by {change} ({'; '.join(means)}). Entries: correlation between a "
        f"latent and its best hidden neuron, mean ± standard deviation over {config['seeds']} seeds. Trained: "
        f"{config['steps']:,} steps at a rate of {config['rate']:g}, width {config['width']}. Permuted: trained "
        "networks, latents permuted between classes. C classes, N_ch children per latent, N₀ and N₁ latents."
    )
    rows = [", ".join(f"{head} {entry}" for head, entry in zip(TITLES, line, strict=True)) for line in lines]
    alt = f"A table of {len(lines)} rows. First row: {rows[0]}. Last row: {rows[-1]}."  # it is drawn as text
    return Drawing("table", caption, figure, alt)


def _draw_training(scores: Scores) -> Drawing:
    figure, axes = panels(2, width=4.4, height=3.0)
    for s, axis in enumerate(axes):
        for kind, (colour, label) in LOOKS.items():
            over = [scores.gain(kind, s, step) for step in range(len(scores.steps))]
            mean, wide = (np.array([getattr(gain, name) for gain in over]) for name in ("value", "half_width"))
            axis.plot(scores.steps, mean, "o-", ms=3, color=colour, label=label)
            axis.fill_between(scores.steps, mean - wide, mean + wide, color=colour, alpha=0.2, lw=0)
            axis.axhline(mean[0], ls=":", lw=1.2, color=colour)
        axis.axhline(scores.paper(s).mean(), ls="--", lw=1.2, color=PRINTED, label="published mean")
        axis.plot(scores.steps, scores.accuracy.mean((1, 2)), lw=1, color=GREEN, label="share of classes\ntold right")
        axis.set(ylabel="correlation, or share", ylim=(-0.05, 1.05), title=f"s = {s}: {BLOCKS[s]}")
        step_axis(axis)
        end_label(axis, "untrained", ls=":")

    def moves(kind: str) -> str:
        lowest, upper = (scores.gain(kind, level) for level in (0, 1))
        return (
            f"from {lowest.control:.2f} to {lowest.value:.2f} for the lowest latents and from {upper.control:.2f} to "
            f"{upper.value:.2f} one level up"
        )

    caption = (
        "Where the neuron is chosen on one half of the classes and scored on the other half, training moves the "
        f"correlation {moves('held out')}. Where it is chosen on all classes, as in the table, training moves "
        f"it {moves('best neuron')}. Dots: measuring points, means over all columns and seeds. Bands: "
        "interval (95 %; 99 % over four seeds or fewer) of the difference from the untrained networks (dotted), "
        "paired by seed."
    )
    return Drawing("over-training", caption, figure)


STUDY = Study(
    name="table1",
    title="Table 1: hidden neurons and the latents of their data",
    version=2,
    claims=CLAIMS,
    # With 24 seeds from 3000 on training moved the lowest latents by -0.012, with a spread of 0.028. Ten seeds from 0
    # on just left a gain of 0.02 open. So 16 that had not been looked at, which rule it out in nine of ten draws.
    quick=Table1Config(seeds=16, seed=100),
    paper=Table1Config(
        columns=tuple(range(1, len(TABLE1) + 1)), seeds=5, width=1024, steps=2000, look_at=(100, 300, 1000),
        rate=1e-4, merge=False, device="cuda", precision="half", together=60, checkpoint_every=400.0,
    ),
    run=run,
    draw=lambda run: [_draw_table(run), _draw_training(Scores(run))],
    about=(
        "Three-block Transformers learn to tell the classes of Table 1's generator apart. All columns and seeds train "
        "as one ensemble. Each latent is compared with its best hidden neuron in the corresponding block, over the "
        "distinct inputs, one per class. This is done after several numbers of steps, because the source gives none. "
        "There are three comparisons: the network before training, latents permuted between classes, and neurons "
        "chosen on one half of the classes and scored on the other half. A verdict comes from the interval over seeds "
        f"of trained minus untrained. A network that tells fewer than {100 * ENOUGH:.0f} % of its classes right at the "
        "end did not learn and does not count."
    ),
)  # fmt: skip
