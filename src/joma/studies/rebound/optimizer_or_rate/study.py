"""The study `optimizer-or-rate`: its claims, its networks and its judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from joma.claims.config import Above, Several
from joma.claims.contract import Claim, Drawing, Finding, Progress, Study
from joma.claims.verdicts import by_effect, not_run
from joma.measure.intervals import Comparison, compare
from joma.models.decoder import Decoder
from joma.recipes.language import PAPER, LanguageModelConfig, Recipe, corpus, recipe, same_text
from joma.recipes.language.curves import diverged, mean_over_seeds
from joma.runs import Run
from joma.studies.rebound._points import Measure, spread_points, train_measured
from joma.studies.rebound.optimizer_or_rate.figures import draw_against_loss, draw_alike
from joma.studies.rebound.optimizer_or_rate.record import OPTIMIZERS, QK, at_equal, at_loss, levels, reaching

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
    adam_rates: Annotated[tuple[float, ...], Several(2), Above(0)] = (2e-3, 4e-3, 8e-3)
    sgd_rates: Annotated[tuple[float, ...], Several(2), Above(0)] = (0.1, 0.3, 1.0)
    levels: Annotated[tuple[float, ...], Above(0)] = (3.2, 2.8)
    """Validation losses (nats) at which the runs are compared."""


RATE = Claim(
    "rate-at-equal-loss",
    "JoMA Sec. 6",
    "With a large learning rate attention becomes extremely sparse. Tested at equal loss: the largest rate leaves the "
    "first layer sparser than the smallest.",
    matters=MATTERS,
    unit="nats",
    uses=("fig8/fig8-large-rate",),
)
OPTIMIZER = Claim(
    "optimizer-at-equal-loss",
    "JoMA Sec. 7",
    "The joint dynamics are those of SGD. Tested at equal loss and equal speed: SGD leaves the first layer sparser "
    "than Adam does.",
    matters=MATTERS,
    unit="nats",
    uses=("optimizer/rebound-with-sgd",),
)


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


def judge_rate(run: Run) -> Finding:
    """The smallest rate that reaches a level beside the largest that does, seed by seed, with either optimizer."""
    expected = (
        f"at every loss level and with both optimizers, the first layer's entropy is at least {MATTERS:g} nats lower "
        "at the largest rate than at the smallest, and by more than seeds differ (95 %)"
    )
    cases, details = {}, {}
    for optimizer, level in ((one, level) for one in OPTIMIZERS for level in levels(run)):
        found, where = at_loss(run, optimizer, level), f"{optimizer} at loss {level:g}"
        rates = reaching(found)
        for what, values in {"entropy of layer 1": found.entropy[..., 0], "way of its QK": found.way}.items():
            details[f"{where}, {what} by rate"] = {f"{found.rates[i]:g}": mean_over_seeds(values[i]) for i in rates}
        if len(rates) > 1:
            least, most = rates[0], rates[-1]
            case = f"{where}, rate {found.rates[least]:g} against {found.rates[most]:g}"
            cases[case] = compare(found.entropy[least, :, 0], found.entropy[most, :, 0])
    return _concluded(RATE, run, expected, cases, details)


def judge_optimizer(run: Run) -> Finding:
    """Adam beside SGD at equal loss; Adam is read between its rates where it took as many steps to get there.

    Both are means over the rates of SGD that can be compared; a seed counts where it has all of them.
    """
    expected = (
        f"at every loss level, the first layer's entropy is at least {MATTERS:g} nats lower with SGD than with an Adam "
        "that takes as many steps to the level, and by more than seeds differ (95 %)"
    )
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
    return _concluded(OPTIMIZER, run, expected, cases, details)


def _concluded(
    claim: Claim, run: Run, expected: str, cases: dict[str, Comparison], details: dict[str, dict[str, float]]
) -> Finding:
    if not cases:
        reached = ", ".join(f"{level:g}" for level in levels(run))
        reason = f"too few runs reach a loss of {reached} nats to be compared there"
        return not_run(claim, expected, reason, f"joma run {run.study} with higher --levels or more --steps")
    known = {name: {k: v for k, v in part.items() if v == v} for name, part in details.items()}
    known = {name: part for name, part in known.items() if part} | diverged(run, OPTIMIZERS)
    return by_effect(claim, cases, expected=expected, what="entropy of layer 1", details=known)


def draw(run: Run) -> list[Drawing]:
    """Entropy against loss by optimizer and rate, and what is left at equal loss."""
    return [draw_against_loss(run), draw_alike(run)]


STUDY = Study(
    name="optimizer-or-rate",
    title="Optimizer or rate: what keeps the first layer sparse at equal loss",
    version=1,
    claims={RATE: judge_rate, OPTIMIZER: judge_optimizer},
    quick=OptimizerOrRateConfig(),
    paper=OptimizerOrRateConfig(
        **PAPER | {"length": 35, "valid_sequences": 100, "steps": 11_585, "every": 64, "seeds": 6},
        adam_rates=(5e-5, 1e-4, 3e-4, 1e-3),
        sgd_rates=(0.3, 1.0, 3.0),
        levels=(6.2, 6.0, 5.8, 5.6),
    ),
    run=run,
    draw=draw,
    check=same_text,
    about=(
        "Language models with two layers are trained with SGD and with Adam, at several rates each. Runs at different "
        "rates are at different places after the same number of steps. So each run is read at the moment when its "
        "validation loss crosses a given level. The rate is judged within one optimizer: smallest against largest. The "
        "optimizer is judged at equal speed: SGD against an Adam that takes as many steps to the level, interpolated "
        "between Adam's rates. Beside it stands the dull explanation: the same at equal loss and equal way, where the "
        "queries and keys of the first layer have moved as far from their start."
    ),
)
