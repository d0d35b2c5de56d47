"""The networks of Table 1: who is in the ensemble, what each one reads, how it is scored, and the record."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from joma.claims.config import Least, Several, StudyConfig, Within
from joma.claims.contract import Progress
from joma.claims.guards import at_paper_scale, needs_device
from joma.data.latent_sets import TABLE1, LatentSets
from joma.data.samples import rows, streams, uniform
from joma.measure.alignment import best_neuron_correlation, held_out_correlation
from joma.measure.intervals import Comparison
from joma.models.decoder import Decoder
from joma.recipes.grid import Grid
from joma.runs import Run
from joma.studies.hierarchy import _networks as nets
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

    columns: Annotated[tuple[int, ...], Several(), Within(1, len(TABLE1))] = (1, 4)
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
        """All with as many outputs as the column with most classes; those that a member has no class for are shut."""
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
        """(members, kinds, blocks, levels), over the inputs that there are: one a class."""
        activity, sound = nets.finite(nets.read(decoder, self.tokens[list(members)])[0])
        found = [self._of_member(member, activity[row]) for row, member in enumerate(members)]
        return torch.stack(found) * sound[:, None, None, None].to(activity)

    def _of_member(self, member: int, activity: Tensor) -> Tensor:
        """(kinds, blocks, levels) from (blocks, classes, neurons)."""
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
        """The share of classes that are told right, (members,)."""
        here = list(members)
        said = nets.read(decoder, self.tokens[here])[1].argmax(-1)
        classes = torch.arange(self.most, device=said.device)
        return ((said == classes) & (classes < self.classes[here, None])).sum(-1) / self.classes[here]


def _across_halves(activity: Tensor, latents: Tensor, order: Tensor) -> Tensor:
    """The neuron chosen on one half of the classes and scored on the other, both ways, (blocks, latents).

    A latent that does not vary within both halves is left out, NaN.
    """
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
        """(seeds, columns, levels)."""
        return np.stack([self.at(kind, step, level) for level in (0, 1)], axis=-1)

    def gain(self, kind: str, level: int, step: int = -1) -> Comparison:
        return nets.over_seeds(self.at(kind, step, level), self.at(kind, 0, level))

    def paper(self, level: int) -> Any:
        """(columns,)."""
        return np.array([column.ncorr[level].mean for column in self.columns])

    def published(self, level: int) -> float:
        """The mean of the published values, over the networks that count at the end."""
        counted = np.isfinite(self.at("best neuron", -1, level))
        return float(nets.mean_over(np.where(counted, self.paper(level), np.nan), (0, 1)))


def table(run: Run) -> list[tuple[str, ...]]:
    """Table 1 beside its controls as text: C, N_ch, (N0, N1), then paper, trained, untrained, permuted for both s.

    Means over seeds; the spread is the standard deviation, as far as one can tell that of the paper.
    """
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
