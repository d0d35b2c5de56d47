"""Ablations: one network, twins of it that differ in one thing, and what becomes of drop and rebound.

A study is a table of variants, each a change to the common recipe. All are trained on the same text, with the same
seeds, so that they are compared seed by seed. Three questions can be asked of the record, layer by layer:

    needs     does a part matter? What the network with the part does is compared with what its twin without it does.
    shows     is the pattern there under a condition? The rebound is compared with none at all.
    further   does the top layer come back further under one condition than under another?

A seed's drop and rebound are read at the valley of the mean of the OTHER seeds, as in `joma.measure.rebound`. Networks
that diverged, or that learned no more than how frequent words are, tell nothing: what is asked of them is "not run".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from joma.claims.contract import Claim, Finding, Progress
from joma.claims.guards import hardest, still_falls
from joma.claims.sentences import show
from joma.claims.verdicts import at_most, by_effect, not_run
from joma.figures.reading import number
from joma.measure.intervals import Comparison, compare
from joma.measure.rebound import FEWEST_SEEDS, drop_and_rebound
from joma.recipes.language import PAPER, QUICK, LanguageModelConfig, Recipe, corpus, recipe, train_variants
from joma.recipes.language.curves import alive, best_loss, diverged, layer_curves, learned_nothing, steps_of
from joma.runs import Run


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


AT_QUICK_SCALE: dict[str, Any] = QUICK | {"steps": 720, "every": 60, "seeds": 6, "seed": 100}
"""Of all ablations, so that they have the same base. Over 24 seeds from 5000 on, attention came back by 0.14 nats with
ReLU, with a spread of 0.05, and by 0.01 with the identity. With 150 words, a width of 28 and twice the batch it was
0.22 and 0.10, for three times the time. Half as long, or with an eighth of the batch, it does not come back."""

AT_PAPER_SCALE: dict[str, Any] = PAPER | {"length": 35, "layers": 2, "rate": 1e-4, "steps": 23_432, "seeds": 6}
"""Figure 6's recipe with two layers, for 8 of its 20 epochs of 2,929 steps. Six seeds: with three, rebounds of 0.3 and
0.4 nats after drops of 1.1 and 0.8 were within what chance could do at 99 %."""

MATTERS = 0.05
"""Nats of entropy by which two networks must differ: about what curves of single runs of one recipe were seen to differ
by (RMS)."""
FIGURE_6 = ("fig6/fig6-one-layer", "fig6/fig6-top-layers")  # the effect that the ablations take apart


def in_nats(name: str, source: str, says: str, *, uses: tuple[str, ...] = ()) -> Claim:
    """A claim about attention entropy that rests on Figure 6, and on whatever else it uses."""
    return Claim(name, source, says, matters=MATTERS, unit="nats", uses=(*FIGURE_6, *uses))


Change = Callable[[Recipe], Recipe]
Part = Literal["drop", "rebound"]


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
    """What drops and rebounds."""

    measure: str
    name: str
    axis: str  # its name in figures
    scale: str  # what drops and rebounds are in, in figures
    relative: bool = False  # whether a curve is taken as a share of where it began
    brief: str = "attention entropy"  # its name in captions
    short: str = "Attention entropy"  # its name in titles

    @property
    def unit(self) -> str:
        return "%" if self.relative else "nats"

    def show(self, change: float) -> str:
        return number(change, self.unit) + (" of its start" if self.relative else "")


ENTROPY = Quantity("valid/entropy", "attention entropy", "attention entropy (nats)", "nats")


class Shape(NamedTuple):
    """Drop and rebound of one variant, (layers, seeds) each, NaN for seeds that diverged."""

    drop: np.ndarray
    rebound: np.ndarray


def curves_of(run: Run, variant: str, of: Quantity = ENTROPY) -> np.ndarray:
    """(layers, seeds, points) of the seeds that `kept` names."""
    curves = _alive_curves(run, variant, of)
    return curves[:, _finite(curves)]


def kept(run: Run, variant: str, of: Quantity = ENTROPY) -> np.ndarray:
    """(seeds,) bool: which seeds neither diverged nor left a point of the curve that is not a number."""
    seeds: np.ndarray = alive(run, variant)[0].copy()
    seeds[seeds] = _finite(_alive_curves(run, variant, of))
    return seeds


def _alive_curves(run: Run, variant: str, of: Quantity) -> np.ndarray:
    curves = layer_curves(run, variant, of.measure)
    if not of.relative:
        return curves
    with np.errstate(divide="ignore", invalid="ignore"):  # of a start of 0 there is no share: such seeds are left out
        return np.asarray(curves / curves[..., :1])


def _finite(curves: np.ndarray) -> np.ndarray:
    return np.asarray(np.isfinite(curves).all(axis=(0, 2)))


def shape_of(run: Run, variant: str, of: Quantity = ENTROPY) -> Shape:
    """How far every layer of a variant drops and rebounds; with too few seeds left all is NaN.

    The rebound of a layer that still falls at the end is unknown, not 0.
    """
    seeds, curves = kept(run, variant, of), torch.from_numpy(curves_of(run, variant, of).copy())
    shape = Shape(*(np.full((len(curves), len(seeds)), np.nan) for _ in Shape._fields))
    if seeds.sum() >= FEWEST_SEEDS:
        shape.drop[:, seeds], shape.rebound[:, seeds] = drop_and_rebound(curves)
        shape.rebound[still_falls(curves.numpy())] = np.nan
    return shape


def by_layer(
    run: Run, variant: str, part: Part, of: Quantity = ENTROPY, *, level: float = 0.95
) -> dict[str, Comparison]:
    """A variant's drop or rebound in every layer, beside none at all."""
    return {_layer(i): compare(row, level=level) for i, row in enumerate(getattr(shape_of(run, variant, of), part))}


def differences(run: Run, one: str, other: str, part: Part, of: Quantity = ENTROPY) -> dict[str, Comparison]:
    """Drop or rebound of `one` beside that of `other` in every layer, seed by seed."""
    first, second = (getattr(shape_of(run, variant, of), part) for variant in (one, other))
    return {_layer(i): compare(*rows) for i, rows in enumerate(zip(first, second, strict=True))}


def _layer(index: int) -> str:
    return f"layer {index + 1}"


def needs(claim: Claim, run: Run, *, part: Part, full: str, without: str, of: Quantity = ENTROPY) -> Finding:
    """Does `part`, drop or rebound, need what `full` has and `without` lacks?

    Every layer of `full` is compared with its twin, seed by seed, and with none at all (99 %), for a part that
    is not there needs nothing; the harder of the two counts. holds: every layer exceeds both by what matters, and no
    layer of the twin has as much of it as matters.
    """
    expected = (
        f"in every layer, {of.name} has a {part} with {full} (99 %); it is larger than with {without}, by at least "
        f"{show(claim.matters or 0.0, claim.unit)} and beyond chance; with {without} it is too small to matter"
    )
    if finding := cannot_tell(claim, run, expected, full, without, of=of):
        return finding
    there = _there(run, full, part, of, f" against no {part}")
    found = {
        layer: {f"{part} with {full} against {without}": against_twin, **there[layer]}
        for layer, against_twin in differences(run, full, without, part, of).items()
    }
    return by_effect(
        claim,
        _hardest_by_layer(claim, found),
        expected=expected,
        size=[
            at_most(f"{layer}, {part} with {without}", left.value, claim.matters or 0.0, claim.unit)
            for layer, left in by_layer(run, without, part, of).items()
        ],
        details=numbers(run, full, without, of=of),
    )


def shows(
    claim: Claim,
    run: Run,
    *,
    variant: str,
    twin: str,
    of: Quantity = ENTROPY,
    changes: Mapping[str, Any] | None = None,
) -> Finding:
    """Do all layers of `variant` drop and rebound, beyond what seeds do by chance (99 %)? Its twin stands beside it.

    Of drop and rebound the weaker counts. holds: both are there in every layer, and as large as matters. changes: the
    options of a run in which `variant` would not diverge, if it is not a lower rate.
    """
    expected = (
        f"in every layer, {of.name} drops and comes back, both by at least {show(claim.matters or 0.0, claim.unit)} "
        "and beyond chance (99 %)"
    )
    return cannot_tell(claim, run, expected, variant, of=of, changes=changes) or by_effect(
        claim,
        _hardest_by_layer(claim, _there(run, variant, "rebound", of)),
        expected=expected,
        details=numbers(run, variant, twin, of=of),
    )


def further(claim: Claim, run: Run, *, one: str, other: str, of: Quantity = ENTROPY) -> Finding:
    """Does the top layer come back further with `one` than with `other`, seed by seed?"""
    expected = (
        f"in the top layer, {of.name} comes back further with {one} than with {other}, by at least "
        f"{show(claim.matters or 0.0, claim.unit)} and beyond chance"
    )
    if finding := cannot_tell(claim, run, expected, one, other, of=of):
        return finding
    *_, (layer, found) = differences(run, one, other, "rebound", of).items()
    what = f"rebound with {one}; control: with {other}"
    return by_effect(claim, {layer: found}, expected=expected, what=what, details=numbers(run, one, other, of=of))


def _there(run: Run, variant: str, part: Part, of: Quantity, against: str = "") -> dict[str, dict[str, Comparison]]:
    """By layer, what must be above zero for a part to be there: a rebound is one only after a drop."""
    parts: tuple[Part, ...] = ("rebound", "drop") if part == "rebound" else ("drop",)
    found = {one: by_layer(run, variant, one, of, level=0.99) for one in parts}
    return {layer: {f"{one} with {variant}{against}": found[one][layer] for one in parts} for layer in found[part]}


def _hardest_by_layer(claim: Claim, found: Mapping[str, Mapping[str, Comparison]]) -> dict[str, Comparison]:
    worst = {layer: hardest(claim, several).items() for layer, several in found.items()}
    return {f"{layer}, {name}": one for layer, several in worst.items() for name, one in several}


def cannot_tell(
    claim: Claim,
    run: Run,
    expected: str,
    *variants: str,
    of: Quantity = ENTROPY,
    may_be_idle: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
) -> Finding | None:
    """The finding "not run" where too few seeds of these variants are left or one learned nothing; else None."""
    if reason := lost(run, *variants, *may_be_idle, of=of):
        return not_run(claim, expected, reason, **(changes or {"rate": run.config["rate"] / 3}))
    for variant in variants:
        if reason := learned_nothing(run, variant):
            return not_run(claim, expected, reason, steps=2 * run.config["steps"])
    return None


def lost(run: Run, *variants: str, of: Quantity = ENTROPY) -> str:
    """How many runs of these networks diverged, if too few seeds are left in which all are there; else empty."""
    left = {name: kept(run, name, of) for name in variants}
    if np.logical_and.reduce(list(left.values())).sum() >= FEWEST_SEEDS:
        return ""
    parts = [f"{(~seeds).sum()} of {len(seeds)} runs of {name}" for name, seeds in left.items() if not seeds.all()]
    return f"{', '.join(parts)} diverged"


def numbers(run: Run, *variants: str, of: Quantity = ENTROPY) -> dict[str, dict[str, float]]:
    """What a reader wants beside a verdict: drop, rebound and valley of every layer, and the loss; who diverged."""
    every: dict[str, dict[str, float]] = {}
    for variant in variants:
        shape, curves, steps = shape_of(run, variant, of), curves_of(run, variant, of), steps_of(run, variant)
        found = every[variant] = {}
        for i, layer in enumerate(curves if curves.shape[1] else ()):
            found[f"{_layer(i)} drop"] = compare(shape.drop[i]).value
            found[f"{_layer(i)} rebound"] = compare(shape.rebound[i]).value
            found[f"{_layer(i)} valley at share of training"] = float(steps[layer.mean(0).argmin()] / steps[-1])
        found["loss"] = compare(best_loss(run, variant)[0]).value
    return every | diverged(run, variants)
