"""What keeps the first layer sparse, the optimizer or the rate? SGD and Adam at several rates, read at equal loss.

Runs are read where they are alike: at the moment when the validation loss crosses a level.
Between two measuring points all is read in the logarithm of the step. A run that never gets there has NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Above, Claim, Drawing, Finding, NotRun, Progress, Study, Values
from joma.claims.declare import Claims
from joma.claims.verdicts import by_effect
from joma.figures.reading import listing, number
from joma.figures.style import BLUE, INK, ORANGE, Axes, depth_colours, panels
from joma.measure.intervals import Comparison, compare
from joma.models.decoder import Decoder
from joma.recipes.language import PAPER, LanguageModelConfig, Recipe, called, corpus, recipe, same_text
from joma.recipes.language.curves import alive, curve, diverged, mean_over_seeds, steps_of
from joma.runs import Run
from joma.studies.rebound._points import Measure, spread_points, train_measured

OPTIMIZERS = ("Adam", "SGD")
QK = "first QK"
Alike = Literal["steps", "way"]
FEWEST = 3  # seeds that must reach a level for a rate to count there


class Reading(NamedTuple):
    """One optimizer's runs at one level, (rates, seeds) first."""

    rates: np.ndarray
    steps: np.ndarray  # when they are there, (rates, seeds)
    entropy: np.ndarray  # (rates, seeds, layers)
    way: np.ndarray  # how far the query and key weights of the first layer are from their start, (rates, seeds)


def levels(run: Run) -> list[float]:
    """The losses at which runs are compared, the highest first."""
    return sorted(run.config["levels"], reverse=True)


def at_loss(run: Run, optimizer: str, level: float) -> Reading:
    """Where the validation loss first is as low as `level`."""
    losses = curve(run, optimizer, "valid/loss")
    there = (losses <= level) & alive(run, optimizer)[..., None]
    reached = there.any(-1) & ~there[..., 0]
    place = np.where(reached, there.argmax(-1), 1)
    before, after = (_taken(losses, place - back) for back in (1, 0))
    share = np.where(reached, (level - before) / np.where(after == before, 1.0, after - before), np.nan)

    def read(values: np.ndarray) -> np.ndarray:
        """(rates, seeds, points, ...) between the point before and the one that is there."""
        earlier, later = (_taken(values, place - back) for back in (1, 0))
        return np.asarray(earlier + share.reshape(*share.shape, *[1] * (later.ndim - 2)) * (later - earlier))

    log_steps = np.broadcast_to(np.log(np.maximum(steps_of(run, optimizer), 1.0)), losses.shape)
    entropy, way = curve(run, optimizer, "valid/entropy").mean(-1), curve(run, optimizer, f"way/{QK}")
    return Reading(run.value(f"{optimizer}/rates"), np.exp(read(log_steps)), read(entropy), read(way))


def _taken(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    index = place.reshape(*place.shape, *[1] * (values.ndim - 2))
    return np.take_along_axis(values, index, axis=2)[:, :, 0]


def reaching(found: Reading) -> list[int]:
    """The rates that get there with at least `FEWEST` seeds, in increasing order."""
    count = np.isfinite(found.steps).sum(1)
    return [int(i) for i in np.argsort(found.rates) if count[i] >= FEWEST]


class Pairs(NamedTuple):
    """Adam and SGD where they are alike, (rates, seeds) each."""

    rates: np.ndarray  # of SGD
    adam: np.ndarray
    sgd: np.ndarray


def at_equal(adam: Reading, sgd: Reading, by: Alike = "steps", layer: int = 0) -> Pairs:
    """Entropy of Adam and of SGD where both took as many steps to the level, or went as far."""
    rates, rows, twins = [], [], []
    for rate in reaching(sgd):
        wanted = getattr(sgd, by)[rate]
        twin = np.array([_between_rates(adam, by, float(one), seed, layer) for seed, one in enumerate(wanted)])
        if np.isfinite(twin).sum() >= FEWEST:
            rates.append(sgd.rates[rate])
            rows.append(sgd.entropy[rate, :, layer])
            twins.append(twin)
    shape = (len(rates), sgd.steps.shape[1])
    return Pairs(np.array(rates), np.reshape(twins, shape), np.reshape(rows, shape))


def _between_rates(adam: Reading, by: Alike, wanted: float, seed: int, layer: int) -> float:
    kept = np.isfinite(adam.steps[:, seed])
    x, entropy = getattr(adam, by)[kept, seed], adam.entropy[kept, seed, layer]
    if not len(x) or not x.min() <= wanted <= x.max():
        return float("nan")
    order = np.argsort(x)
    return float(np.interp(np.log(wanted), np.log(x[order]), entropy[order]))


MATTERS = 0.05
"""Nats of entropy by which two networks must differ: about what curves of single runs of one recipe were seen to differ
by (RMS), as in the ablations."""


@dataclass(frozen=True)
class OptimizerOrRateConfig(LanguageModelConfig):
    """Small models of Python source with two layers, trained with two optimizers at three rates each."""

    vocabulary: int = 200
    width: int = 24
    mlp: int = 24
    streams: int = 4
    length: int = 24
    sequence: int = 5
    valid_sequences: int = 3
    steps: int = 112
    every: int = 8
    """The first measuring point after the start. There are three per doubling of the step."""
    seeds: int = 4
    layers: int = 2
    adam_rates: Annotated[tuple[float, ...], Values(2), Above(0)] = (2e-3, 4e-3, 8e-3)
    sgd_rates: Annotated[tuple[float, ...], Values(2), Above(0)] = (0.1, 0.3, 1.0)
    levels: Annotated[tuple[float, ...], Above(0)] = (3.2, 2.8)
    """Validation losses (nats) at which the runs are compared."""


CLAIMS = Claims(matters=MATTERS, unit="nats")


def run(config: OptimizerOrRateConfig, run: Run, progress: Progress) -> None:
    """All rates and seeds of one optimizer train as one ensemble."""
    text = corpus(config, progress)
    adam = recipe(config, text, layers=config.layers, rates=sorted(config.adam_rates))
    sgd = adam.with_(rates=tuple(sorted(config.sgd_rates))).with_optimizer(kind="sgd", renew_every=None)
    variants = dict(zip(OPTIMIZERS, (adam, sgd), strict=True))
    measures = {name: {"way": _way(variant)} for name, variant in variants.items()}
    points = spread_points(config.every, config.steps, per_doubling=3)
    train_measured(variants, text, run, progress, points, measures)


def _way(variant: Recipe) -> Measure:
    """How far the weights are from their start, (members,): all of them, and the first layer's queries and keys."""
    starts: dict[tuple[int, ...], Decoder] = {}

    def measure(decoder: Any, members: Sequence[int]) -> dict[str, Tensor]:
        key = tuple(members)
        if key not in starts:
            seeds = [variant.members[member][1] for member in members]
            starts[key] = Decoder(variant.decoder, seeds).to(variant.device)
        start = dict(starts[key].named_parameters())
        moved = {name: (weight - start[name]).detach() for name, weight in decoder.named_parameters()}
        squares = torch.stack([part.flatten(1).double().square().sum(1) for part in moved.values()])
        first = moved["qkv"][:, 0, :, : 2 * variant.decoder.width].flatten(1).double()
        return {"all": squares.sum(0).sqrt(), QK: first.norm(dim=1)}

    return measure


@CLAIMS.declare("rate-at-equal-loss", "JoMA Sec. 6", uses=("fig8/fig8-large-rate",))
def judge_rate(run: Run, claim: Claim) -> Finding:
    """With a large learning rate attention becomes extremely sparse. Tested at equal loss: the largest rate leaves the
    first layer sparser than the smallest.

    Expected: at every loss level and with both optimizers, the first layer's entropy is at least {MATTERS:g} nats lower
    at the largest rate than at the smallest, and by more than seeds differ
    """
    cases, details = {}, {}
    for optimizer, level in product(OPTIMIZERS, levels(run)):
        found, where = at_loss(run, optimizer, level), f"{optimizer} at loss {level:g}"
        rates = reaching(found)
        for what, values in {"entropy of layer 1": found.entropy[..., 0], "way of its QK": found.way}.items():
            details[f"{where}, {what} by rate"] = {f"{found.rates[i]:g}": mean_over_seeds(values[i]) for i in rates}
        if len(rates) > 1:
            least, most = rates[0], rates[-1]
            case = f"{where}, rate {found.rates[least]:g} against {found.rates[most]:g}"
            cases[case] = compare(found.entropy[least, :, 0], found.entropy[most, :, 0])
    return _concluded(run, claim, cases, details)


@CLAIMS.declare("optimizer-at-equal-loss", "JoMA Sec. 7", uses=("optimizer/rebound-with-sgd",))
def judge_optimizer(run: Run, claim: Claim) -> Finding:
    """The joint dynamics are those of SGD. Tested at equal loss and equal speed: SGD leaves the first layer sparser
    than Adam does.

    Expected: at every loss level, the first layer's entropy is at least {MATTERS:g} nats lower with SGD than with an
    Adam that takes as many steps to the level, and by more than seeds differ

    Adam is read between its rates. Both are means over the rates of SGD that can be compared; a seed counts where it
    has all of them.
    """
    cases, details = {}, {}
    for level in levels(run):
        adam, sgd = (at_loss(run, optimizer, level) for optimizer in OPTIMIZERS)
        pairs = at_equal(adam, sgd)
        if len(pairs.rates):
            cases[f"Adam against SGD at loss {level:g}"] = compare(pairs.adam.mean(0), pairs.sgd.mean(0))
        alike = {"equal steps": pairs, "equal way of QK": at_equal(adam, sgd, by="way")}
        for what, found in {**alike, "equal steps, top layer": at_equal(adam, sgd, layer=-1)}.items():
            details[f"Adam minus SGD at loss {level:g} and {what}, by SGD's rate"] = {
                f"{rate:g}": mean_over_seeds(one - other) for rate, one, other in zip(*found, strict=True)
            }
    return _concluded(run, claim, cases, details)


def _concluded(run: Run, claim: Claim, cases: dict[str, Comparison], details: dict[str, dict[str, float]]) -> Finding:
    if not cases:
        reached = ", ".join(f"{level:g}" for level in levels(run))
        reason = f"too few runs reach a loss of {reached} nats to be compared there"
        raise NotRun(reason, steps=2 * run.config["steps"])
    known = {name: {k: v for k, v in part.items() if v == v} for name, part in details.items()}
    known = {name: part for name, part in known.items() if part} | diverged(run, OPTIMIZERS)
    return by_effect(claim, cases, what="entropy of layer 1", details=known)


COLOURS = dict(zip(OPTIMIZERS, (BLUE, ORANGE), strict=True))
ACROSS: dict[Alike, tuple[str, str]] = {
    "steps": ("steps taken to this loss", "equal speed"),
    "way": ("way of the first QK at this loss", "equal way"),
}
"""What runs are alike in: its axis, and its name in captions."""


def draw_against_loss(run: Run) -> Drawing:
    """One row per optimizer: its first and its last layer."""
    shown = sorted({0, int(run.config["layers"]) - 1})
    figure, axes = panels(len(shown), len(OPTIMIZERS), width=4.3, height=2.6)
    # from a little below the lowest loss to a little above that of the words' frequencies
    lowest = min(float(np.nanmin(curve(run, optimizer, "valid/loss"))) for optimizer in OPTIMIZERS)
    highest = float(run.value(f"{OPTIMIZERS[0]}/loss by frequency"))
    spare = 0.05 * max(highest - lowest, 0.1)
    for axis, (optimizer, layer) in zip(axes, product(OPTIMIZERS, shown), strict=True):
        rates, kept = run.value(f"{optimizer}/rates"), alive(run, optimizer)
        loss, entropy = (curve(run, optimizer, f"valid/{what}") for what in ("loss", "entropy"))
        for i, colour in enumerate(depth_colours(len(rates))):
            if kept[i].any():  # means over seeds at every measuring point after the start
                x, y = loss[i][kept[i]].mean(0), entropy[i][kept[i]][:, :, layer].mean((0, -1))
                axis.plot(x[1:], y[1:], color=colour, lw=1.3, marker=".", ms=3, label=f"{rates[i]:g}")
        for level in levels(run):
            axis.axvline(level, color=INK, lw=0.6, ls=":")
        axis.set(xlabel="validation loss (nats; training to the right)", ylabel="attention entropy (nats)")
        axis.set_title(f"{optimizer} at several rates: layer {layer + 1}")
        axis.set_xlim(max(highest, lowest + 0.1) + spare, lowest - spare)
    _one_height(axes)
    return Drawing("entropy-against-loss", _loss_caption(run), figure)


def _loss_caption(run: Run) -> str:
    finding = "No two rates reach a common loss level. "
    for level in levels(run):  # the lowest that two rates reach is said
        parts = []
        for optimizer in OPTIMIZERS:
            found = at_loss(run, optimizer, level)
            if len(rates := reaching(found)) > 1:
                means = [number(mean_over_seeds(found.entropy[i, :, 0]), "nats") for i in (rates[0], rates[-1])]
                ends = zip(means, found.rates[[rates[0], rates[-1]]], strict=True)
                parts.append(f"{listing(f'{mean} at {rate:g}' for mean, rate in ends)} with {optimizer}")
        if parts:
            finding = f"At a loss of {level:g} nats, the first layer's entropy is {listing(parts)}. "
    return (
        f"{finding}Lines: mean over {run.config['seeds']} seeds on {called(run.config['corpus'])}, one per rate; one "
        "dot per measuring point. Loss falls to the right. Dotted lines: the losses at which runs are compared."
    )


def draw_alike(run: Run) -> Drawing:
    """The first layer's entropy at each level by the steps taken there, and by the way gone: one dot per rate."""
    from matplotlib.ticker import LogLocator, NullFormatter

    readings = {level: [at_loss(run, name, level) for name in OPTIMIZERS] for level in levels(run)}
    figure, axes = panels(len(readings), len(ACROSS), width=max(8.6 / len(readings), 3.0), height=2.6)
    for axis, (by, level) in zip(axes, product(ACROSS, readings), strict=True):
        for optimizer, found in zip(OPTIMIZERS, readings[level], strict=True):
            _dots(axis, found, by, optimizer)
        axis.set(xscale="log", xlabel=ACROSS[by][0], ylabel="entropy of layer 1 (nats)", title=f"At loss {level:g}")
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.3g}" if value < 1000 else f"{value:,.0f}")
        axis.xaxis.set_minor_formatter(NullFormatter())
    _one_height(axes)
    return Drawing("entropy-where-alike", _alike_caption(run, readings), figure)


def _dots(axis: Axes, found: Reading, by: Alike, optimizer: str) -> None:
    rates = reaching(found)
    if not rates:
        axis.plot([], [], color=COLOURS[optimizer], label=f"{optimizer} (not there)")
        return
    x = np.array([np.exp(mean_over_seeds(np.log(getattr(found, by)[i]))) for i in rates])
    order = np.argsort(x)
    read = [compare(found.entropy[rates[i], :, 0]) for i in order]
    y, reach = ([getattr(one, part) for one in read] for part in ("value", "half_width"))
    axis.errorbar(x[order], y, yerr=reach, color=COLOURS[optimizer], marker="o", ms=4, lw=1.2, capsize=2)
    axis.plot(x[order], y, color=COLOURS[optimizer], lw=1.2, label=optimizer)
    for i, value in zip(order, y, strict=True):
        name, last = f"{found.rates[rates[i]]:g}", i == order[-1]
        above = optimizer != OPTIMIZERS[0]  # so that numbers of both optimizers do not meet
        side: Any = {"xytext": (-4 if last else 4, 4 if above else -10), "ha": "right" if last else "left"}
        axis.annotate(name, (x[i], value), textcoords="offset points", fontsize=7, **side)


def _one_height(axes: Sequence[Axes]) -> None:
    ends = [axis.get_ylim() for axis in axes if axis.has_data()]
    for axis in axes:
        axis.set_ylim(min((low for low, _ in ends), default=0.0), max((high for _, high in ends), default=1.0))


def _alike_caption(run: Run, readings: dict[float, list[Reading]]) -> str:
    finding = ""
    for by, (_, name) in ACROSS.items():
        parts = []
        for level, (adam, sgd) in readings.items():
            pairs = at_equal(adam, sgd, by=by)
            if len(pairs.rates):
                gap = compare(pairs.adam.mean(0), pairs.sgd.mean(0))
                width = f" ± {number(gap.half_width)}" if np.isfinite(gap.half_width) else ""
                parts.append(f"{number(gap.difference)}{width} nats at loss {level:g}")
        finding += f"At equal loss and {name}, Adam minus SGD is {listing(parts)}. " if parts else ""
    return (
        f"{finding or 'No rate of SGD is as fast as one of Adam, or goes as far. '}Each dot is one rate, written "
        f"next to it: mean over {run.config['seeds']} seeds with its interval (95 %; 99 % over four or fewer). "
        "If only speed (top) or way (bottom) had an effect, both optimizers would lie on one line. If nothing had one "
        "at equal loss, both lines would be flat and equal. Way: how far the first layer's queries and keys are from "
        "their start. Rates of SGD beyond all of Adam's are not in the differences."
    )


STUDY = Study(
    name="optimizer-or-rate",
    title="Optimizer or rate: what keeps the first layer sparse at equal loss",
    version=1,
    claims=CLAIMS,
    # Of ten seeds from 3000 on, both differences were above what five leave open; of five from 1 on one failed. With
    # eight of 3500 on both claims were decided.
    quick=OptimizerOrRateConfig(seeds=8, seed=100),
    paper=OptimizerOrRateConfig(
        **PAPER | {"length": 35, "valid_sequences": 100, "steps": 11_585, "every": 64, "seeds": 6},
        adam_rates=(5e-5, 1e-4, 3e-4, 1e-3),
        sgd_rates=(0.3, 1.0, 3.0),
        levels=(6.2, 6.0, 5.8, 5.6),
    ),
    run=run,
    draw=lambda run: [draw_against_loss(run), draw_alike(run)],
    check=same_text,
    about=(
        "Language models with two layers are trained with SGD and with Adam, at several rates each. Runs at different "
        "rates are at different places after the same number of steps. So each run is read at the moment when its "
        "validation loss crosses a given level. The rate is judged within one optimizer: smallest against largest. The "
        "optimizer is judged at equal speed: SGD against an Adam that takes as many steps to the level, interpolated "
        "between Adam's rates. The alternative explanation is judged too: the same at equal loss and equal way, where "
        "the queries and keys of the first layer have moved as far from their start."
    ),
)
