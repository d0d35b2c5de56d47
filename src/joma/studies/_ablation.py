"""Ablations: one network, twins of it that differ in one thing, and what becomes of drop and rebound.

A study is a table of variants, each a change to the common recipe. All are trained on the same text, with the same
seeds, so that they are compared seed by seed. Two questions can be asked of the record:

    needs   does a part matter? What the network with the part does must exceed what its twin without it does.
    shows   is the pattern there under a condition? The twin without that condition stands beside it.

A seed's drop and rebound are read at the valley of the mean of the OTHER seeds, as in `joma.measure.rebound`. No
verdict is favourable unless the networks learned more than how frequent words are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from joma.measure.rebound import FEWEST_SEEDS, drop_and_rebound, rebound
from joma.runs import Run
from joma.studies._language_model_curves import Interval, alive, best_loss, layer_curves, learned_at, over_seeds
from joma.studies._language_model_findings import not_run
from joma.studies._language_models import PAPER, LanguageModelConfig, Recipe, corpus, recipe, train_variants
from joma.studies.contract import Claim, Finding, Progress
from joma.studies.verdicts import by_effect


@dataclass(frozen=True)
class AblationConfig(LanguageModelConfig):
    """Small models of Python source that differ in one thing."""

    vocabulary: int = 200
    width: int = 24
    mlp: int = 24
    streams: int = 4
    length: int = 24
    sequence: int = 5
    valid_sequences: int = 10
    steps: int = 160
    every: int = 16
    layers: int = 1
    rate: float = 5e-3
    """Of Adam."""


AT_PAPER_SCALE: dict[str, Any] = PAPER | {"length": 35, "layers": 2, "rate": 1e-4, "steps": 23_432, "seeds": 6}
"""Figure 6's recipe with two layers, for 8 of its 20 epochs of 2,929 steps. Six seeds: with three, rebounds of 0.3 and
0.4 nats after drops of 1.1 and 0.8 were within what chance could do at 99 %."""

Change = Callable[[Recipe], Recipe]


def as_it_is(base: Recipe) -> Recipe:
    """The network that the others are twins of."""
    return base


def trains(variants: Mapping[str, Change]) -> Callable[[AblationConfig, Run, Progress], None]:
    """A study's `run`: every variant of the recipe is trained, one ensemble of seeds each."""

    def run(config: AblationConfig, run: Run, progress: Progress) -> None:
        text = corpus(config, progress)
        base = recipe(config, text, layers=config.layers, rates=(config.rate,))
        train_variants({name: change(base) for name, change in variants.items()}, text, run, progress)

    return run


@dataclass(frozen=True)
class Quantity:
    """What drops and rebounds, and by how much two networks must differ to count as different."""

    measure: str
    name: str
    axis: str
    """Its name in figures."""
    margin: float
    unit: str
    relative: bool = False
    """Whether a curve is taken as a share of where it began."""


ENTROPY = Quantity("valid/entropy", "attention entropy", "attention entropy (nats)", 0.05, " nats")
"""The margin is what curves of single runs of one recipe were seen to differ by (RMS)."""

Part = Literal["drop", "rebound"]


class Shape(NamedTuple):
    """Drop and rebound of one variant, (seeds, layers) each, NaN for seeds that diverged."""

    drop: np.ndarray
    rebound: np.ndarray
    drops: np.ndarray
    """(layers,) bool: the drop exceeds the margin, and chance by the rule of `joma.measure.rebound`."""
    rebounds: np.ndarray
    """(layers,) bool: the rebound too."""


def curves_of(run: Run, variant: str, of: Quantity = ENTROPY) -> np.ndarray:
    """(layers, seeds, points) of the seeds that did not diverge."""
    curves = layer_curves(run, variant, of.measure)
    return curves / curves[..., :1] if of.relative else curves


def shape_of(run: Run, variant: str, of: Quantity = ENTROPY) -> Shape:
    """How every layer of a variant drops and rebounds; with too few seeds left, NaN, and no layer does."""
    curves, kept = curves_of(run, variant, of), alive(run, variant)[0]
    drop, back = (np.full((len(kept), len(curves)), np.nan) for _ in range(2))
    if curves.shape[1] < FEWEST_SEEDS:
        return Shape(drop, back, *(np.zeros(len(curves), bool) for _ in range(2)))
    each = torch.from_numpy(curves.copy())
    drop[kept], back[kept] = (part.T.numpy() for part in drop_and_rebound(each))
    found = rebound(each, over_seeds=True)
    drops = found.drops & (found.drop > of.margin)
    return Shape(drop, back, drops.numpy(), (drops & found.rebounds & (found.rebound > of.margin)).numpy())


def differences(run: Run, one: str, other: str, part: Part, of: Quantity = ENTROPY) -> list[Interval]:
    """By how much `one` does more than `other`, for every layer: seed by seed, mean and 95 % half-width."""
    first, second = (getattr(shape_of(run, variant, of), part) for variant in (one, other))
    return [over_seeds(column) for column in (first - second).T]


def learned(run: Run, variant: str) -> bool:
    """Whether the networks learned more than the words' frequencies."""
    return bool(learned_at(run, variant)[0])


def lost(run: Run, *variants: str) -> str:
    """How many runs of these networks diverged, if too few seeds are left in which all are there; else empty."""
    left = {name: alive(run, name)[0] for name in variants}
    if not _too_few(np.logical_and.reduce(list(left.values()))):
        return ""
    parts = [f"{(~seeds).sum()} of {len(seeds)} runs of {name}" for name, seeds in left.items() if not seeds.all()]
    return f"{', '.join(parts)} diverged"


def _too_few(seeds: np.ndarray) -> bool:
    return bool(seeds.sum() < FEWEST_SEEDS)


def unknown(claim: Claim, run: Run, expected: str, reason: str, remedy: str = "") -> Finding:
    """The finding about a claim for which `reason` names what is `lost`; remedy: if it is not a lower --rate."""
    return not_run(claim, expected, reason, remedy or f"a lower --rate than {run.config['rate']:g}")


def needs(claim: Claim, run: Run, *, part: Part, whole: str, without: str, of: Quantity = ENTROPY) -> Finding:
    """Does `part`, drop or rebound, need what `whole` has and `without` lacks?

    holds: in every layer it exceeds the twin's by more than the margin, with a 95 % interval of the paired difference
    above 0, the twin shows none of it, and both learned. Only some of this: only qualitative. No layer in which it is
    there and exceeds the twin's: not above its control.
    """
    expected = (
        f"in every layer a larger {part} of {of.name} with {whole} than with {without}, by {of.margin:g}{of.unit} and "
        "by more than seeds differ (95 %); none at all in the twin"
    )
    if reason := lost(run, whole, without):
        return unknown(claim, run, expected, reason)
    there, left = (getattr(shape_of(run, variant, of), f"{part}s") for variant in (whole, without))
    gaps = differences(run, whole, without, part, of)
    surplus = [
        gap.mean if yes and gap.mean > gap.half_width and learned(run, whole) else 0.0
        for gap, yes in zip(gaps, there, strict=True)
    ]
    everywhere = all(more > of.margin for more in surplus)
    return by_effect(
        claim,
        measured=max(surplus),
        control=0.0,
        margin=of.margin,
        expected=expected,
        quantitative=everywhere and not left.any() and learned(run, without),
        shown=f"{said(run, whole, of)}; {part} minus that of {without}: {_listed(gaps)}",
        control_shown=said(run, without, of),
    )


def shows(claim: Claim, run: Run, *, variant: str, twin: str, of: Quantity = ENTROPY, remedy: str = "") -> Finding:
    """Do all layers of `variant` drop and rebound by more than chance makes them, while it learns?

    holds: all do; only qualitative: some do; not above its control: none beyond chance, or it did not learn.
    """
    expected = (
        f"in every layer {of.name} drops and comes back, by more than seeds differ by chance (99 %) and by "
        f"{of.margin:g}{of.unit}"
    )
    if reason := lost(run, variant):
        return unknown(claim, run, expected, reason, remedy)
    shape = shape_of(run, variant, of)
    does = shape.rebounds & learned(run, variant)
    return by_effect(
        claim,
        measured=max(over_seeds(back).mean if yes else 0.0 for back, yes in zip(shape.rebound.T, does, strict=True)),
        control=0.0,
        margin=of.margin,
        expected=expected,
        quantitative=bool(does.all()),
        shown=said(run, variant, of),
        control_shown=f"by chance alone no layer; its twin {said(run, twin, of)}",
    )


def said(run: Run, variant: str, of: Quantity = ENTROPY) -> str:
    """A variant in words: drop and rebound by layer, seeds, how many layers do so beyond chance, and the loss."""
    shape, seeds = shape_of(run, variant, of), alive(run, variant)[0]
    gone = f", {(~seeds).sum()} of {len(seeds)} seeds diverged" if not seeds.all() else ""
    loss = f"loss {over_seeds(best_loss(run, variant)[0]).mean:.3f}" if seeds.any() else "no loss"
    if seeds.any() and not learned(run, variant):
        loss += f", not below the {float(run.value(f'{variant}/loss by frequency')):.3f} of the words' frequencies"
    if _too_few(seeds):
        return f"{variant}: too few seeds to tell ({loss}{gone})"
    down, back = (", ".join(f"{value:.2f}" for value in part[seeds].mean(0)) for part in (shape.drop, shape.rebound))
    count = f"{seeds.sum()} seeds, {shape.rebounds.sum()} of {len(shape.drops)} layers come back"
    return f"{variant}: down {down}, back {back}{of.unit} ({count}, {loss}{gone})"


def _listed(gaps: list[Interval]) -> str:
    return ", ".join(f"{gap.mean:.2f} ± {gap.half_width:.2f}" for gap in gaps)
