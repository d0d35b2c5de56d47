"""What sets the step at which attention stops falling and begins to come back?

One base, and levels of it that differ in one factor: the rate, the number of words, how flat their frequencies are, the
size of the initial embeddings. The step of the valley is fitted by a power of the factor, seed by seed, and so is the
step of the fall before it: what moves both alike says nothing of the rebound. Queries of frequent and of rare words are
also measured separately, in the base.

The paper says none of this in so many words. Equation 6 has a time of its own, so the dull expectation for the rate is
that steps x rate is constant, a slope of -1. Section 4 ties the speed of a component to how often its words co-occur.
Section 7 says that embeddings reduce the vocabulary and may speed attention up.
What matters and the slope that counts as -1 were decided before any run at paper scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, each_claim
from joma.claims.evidence import at_most
from joma.claims.verdicts import by_effect, not_run
from joma.measure.intervals import compare
from joma.measure.rebound import FEWEST_SEEDS
from joma.recipes.language import PAPER, LanguageModelConfig, corpus, recipe, same_text
from joma.recipes.language_curves import mean_over_seeds
from joma.runs import Run
from joma.studies.rebound._onset_figures import draw_curves, draw_factors
from joma.studies.rebound._onset_networks import GROUPINGS, train_onset
from joma.studies.rebound._onset_valleys import class_steps, places, points_of, slopes, slopes_of_chance, steps_read

MATTERS = 0.1
"""A slope that matters: over a factor of ten the valley moves by a quarter, 10^0.1."""
NEAR = 0.2  # of 1: a slope as near counts as inverse proportion


@dataclass(frozen=True)
class Config(LanguageModelConfig):
    """Shallow networks, one base, and levels that differ in one factor."""

    vocabulary: int = 200
    """Words, or labels, that there is room for; `labels` must fit."""
    words: int = 50
    """Words of the base."""
    width: int = 16
    mlp: int = 16
    streams: int = 8
    length: int = 16
    sequence: int = 2
    valid_sequences: int = 3
    steps: int = 100
    every: int = 8
    """The first measuring point; the others follow, each further by the same ratio."""
    points: int = 14
    """Measuring points after the untrained network."""
    depths: tuple[int, ...] = (1,)
    rate: float = 1e-2
    """Of the base."""
    rates: tuple[float, ...] = (5e-3, 2e-2)
    fewer_or_more: tuple[int, ...] = (20, 200)
    """Numbers of words that are tried instead."""
    labels: tuple[int, ...] = (60, 90)
    """Labels that the words are split into, to flatten their frequencies."""
    scales: tuple[float, ...] = (0.5, 2.0)
    """What the initial embeddings are multiplied by."""

    def __post_init__(self) -> None:
        super().__post_init__()
        most = max(self.words, *self.fewer_or_more, *self.labels)
        if most > self.vocabulary:
            raise ValueError(
                f"vocabulary must be at least {most}, the most words or labels asked for, got {self.vocabulary}"
            )
        if min(self.labels) < self.words:
            raise ValueError(f"labels must be at least {self.words}, one per word, got {min(self.labels)}")
        for name, base in (
            ("rates", self.rate),
            ("fewer_or_more", self.words),
            ("labels", self.words),
            ("scales", 1.0),
        ):
            tried = getattr(self, name)
            if len({*tried, base}) < 1 + len(tried) or len(tried) < 2:
                raise ValueError(f"{name} must be at least two values other than the base's {base:g}, got {tried}")
        if min(self.scales) <= 0 or min(self.rates) <= 0:
            raise ValueError(f"scales and rates must be above 0, got {self.scales} and {self.rates}")


SAYS = {
    "rate": ("JoMA eq. 6", "after a fixed sum of rates: rate × step is constant"),
    "words": ("JoMA Sec. 7", "sooner with fewer words"),
    "flatness": ("JoMA Sec. 4", "later where frequent words are split into labels that are equally rare"),
    "queries": ("JoMA Sec. 4", "sooner at frequent query words than at rare ones"),
    "embedding": ("JoMA Sec. 7", "sooner with larger initial embeddings"),
}
"""By factor, what the paper says or implies of when attention does something."""
DOES = {
    "fall": "A network has learned from context and its attention has fallen",
    "valley": "Attention entropy passes its valley and begins to come back",
}
CLAIMS = {
    (what, factor): Claim(f"{what}-by-{factor}", source, f"{does} {says}.", matters=MATTERS)
    for what, does in DOES.items()
    for factor, (source, says) in SAYS.items()
}
SIGNS = {"rate": -1, "words": 1, "flatness": 1, "embedding": -1, "queries": -1}
"""Whether the claim expects a later step (1) or an earlier one (-1) where the factor is larger."""


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train all levels and seeds, one ensemble per depth."""
    text = corpus(config, progress)
    recipes = {f"L{layers}": recipe(config, text, layers=layers, rates=(config.rate,)) for layers in config.depths}
    train_onset(recipes, config, text, run, progress)


def _judged(what: str, factor: str, run: Run) -> Finding:
    """Slopes of log step by log factor in every layer, with the claim's sign."""
    claim, sign = CLAIMS[what, factor], SIGNS[factor]
    expected = (
        f"log step of the {what} by log {factor}: a slope {'above' if sign > 0 else 'below'} 0, by at least "
        f"{MATTERS:g} and by more than {_control(factor)} (95 %)"
    ) + (f"; within {NEAR:g} of -1" if factor == "rate" else "")
    found = {place: _in_layer(run, factor, what, *where) for place, where in places(run).items()}
    cases = {place: compare(sign * one.slopes, sign * one.chance) for place, one in found.items()}
    if all(case.seeds < FEWEST_SEEDS for case in cases.values()):
        reason = f"in every layer fewer than {FEWEST_SEEDS} seeds have a {what} at three levels"
        return not_run(claim, expected, reason, _command(run))
    return by_effect(
        claim,
        cases,
        expected=expected,
        what=f"{'minus ' if sign < 0 else ''}slope",
        size=[
            at_most(f"{place}, distance of the slope from -1", abs(case.value - 1), NEAR)
            for place, case in cases.items()
            if factor == "rate"
        ],
        details={f"{place}, step of the {what}": one.means() for place, one in found.items()},
    )


def _control(factor: str) -> str:
    return "with shuffled words" if factor == "queries" else "base networks of other seeds give"


class Sloped(NamedTuple):
    """Steps (levels, seeds) by values (levels,), and the slopes of every seed, (seeds,), with their control."""

    values: np.ndarray
    steps: np.ndarray
    slopes: np.ndarray
    chance: np.ndarray

    def means(self) -> dict[str, float]:
        """The mean step by value, where there is one."""
        means = {f"{value:.3g}": mean_over_seeds(row) for value, row in zip(self.values, self.steps, strict=True)}
        return {name: step for name, step in means.items() if np.isfinite(step)}


def _in_layer(run: Run, factor: str, what: str, variant: str, layer: int) -> Sloped:
    """The control takes its levels from seeds of the base; for queries it shuffles the words, anew for every seed."""
    values, steps = points_of(run, factor, what, variant, layer)
    if factor == "queries":
        shuffled = [class_steps(run, variant, layer, 1 + i % GROUPINGS, what)[:, i] for i in range(steps.shape[1])]
        return Sloped(values, steps, slopes(values, steps), slopes(values, np.array(shuffled).T))
    base = steps_read(run, variant, layer, what)[0]
    return Sloped(values, steps, slopes(values, steps), slopes_of_chance(values, base))


def _command(run: Run) -> str:
    if run.config["corpus"] == PAPER["corpus"]:
        return f"joma run rebound-onset --scale paper --steps {2 * run.config['steps']}"
    return "JOMA_DATA=FOLDER joma verify rebound-onset --scale paper"


def draw(run: Run) -> list[Drawing]:
    """The valley's step against every factor, and the curves that it was read from."""
    return [draw_factors(run), draw_curves(run)]


STUDY = Study(
    name="rebound-onset",
    title="What sets the step at which attention begins to come back",
    version=1,
    claims=tuple(CLAIMS.values()),
    quick=Config(),
    # The rate of the base is four times Figure 6's and the words are cut, so that all valleys are passed within two
    # minutes of one GPU; 1e-4 is among the rates.
    paper=Config(
        **PAPER | {"vocabulary": 8_000, "steps": 5_000, "every": 5, "valid_sequences": 40, "seeds": 6},
        words=2_000,
        depths=(1, 2),
        length=35,
        points=60,
        rate=4e-4,
        rates=(1e-4, 2e-4, 8e-4),
        fewer_or_more=(500, 8_000),
        labels=(2_050, 2_400),
        scales=(0.25, 0.5, 2.0),
    ),
    run=run,
    judge=each_claim(*(partial(_judged, what, factor) for what, factor in CLAIMS)),
    draw=draw,
    check=same_text,
    about=(
        "Networks of one and two layers are trained from one base and from levels that differ in one factor: the "
        "rate, the number of words, how flat the words' frequencies are, the size of the initial embeddings. The "
        "valley is the lowest point of attention entropy after the network knows more than how frequent words are, "
        "if entropy comes back by 0.05 nats after it. The fall is the first step at which the network knows as much "
        "and entropy is 0.2 nats below its start. Each step is fitted by a power of the factor, seed by seed. The "
        "control puts base networks of other seeds in place of the levels. In the base, queries of frequent and of "
        "rare words are measured separately; there the control shuffles the words."
    ),
)
