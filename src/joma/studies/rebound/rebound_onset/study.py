"""The study `rebound-onset`: ten claims, five factors by the fall and the valley, and their judge."""

from __future__ import annotations

from functools import partial

import numpy as np

from joma.claims.contract import Claim, Finding, Study
from joma.claims.evidence import at_most
from joma.claims.verdicts import by_effect, not_run
from joma.measure.intervals import compare
from joma.measure.rebound import FEWEST_SEEDS
from joma.recipes.language import PAPER, same_text
from joma.recipes.language.curves import mean_over_seeds
from joma.runs import Run
from joma.studies.rebound.rebound_onset.figures import draw_curves, draw_factors
from joma.studies.rebound.rebound_onset.record import (
    class_steps,
    places,
    points_of,
    slopes,
    slopes_of_chance,
    steps_read,
)
from joma.studies.rebound.rebound_onset.run import GROUPINGS, ReboundOnsetConfig, run

MATTERS = 0.1
"""A slope that matters: over a factor of ten the valley moves by a quarter, 10^0.1."""
NEAR = 0.2  # of 1: a slope as near counts as inverse proportion

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


def judge_slope(what: str, factor: str, run: Run) -> Finding:
    """Slopes of log step by log factor in every layer, with the claim's sign.

    The control takes its levels from seeds of the base; for queries it shuffles the words, anew for every seed.
    """
    claim, sign = CLAIMS[what, factor], SIGNS[factor]
    control = "with shuffled words" if factor == "queries" else "base networks of other seeds give"
    expected = (
        f"log step of the {what} by log {factor}: a slope {'above' if sign > 0 else 'below'} 0, by at least "
        f"{MATTERS:g} and by more than {control} (95 %)"
    ) + (f"; within {NEAR:g} of -1" if factor == "rate" else "")
    cases, details = {}, {}
    for place, (variant, layer) in places(run).items():
        values, steps = points_of(run, factor, what, variant, layer)  # (levels,), (levels, seeds)
        if factor == "queries":
            seeds = range(steps.shape[1])
            shuffled = [class_steps(run, variant, layer, 1 + i % GROUPINGS, what)[:, i] for i in seeds]
            chance = slopes(values, np.array(shuffled).T)
        else:
            chance = slopes_of_chance(values, steps_read(run, variant, layer, what)[0])
        cases[place] = compare(sign * slopes(values, steps), sign * chance)
        means = {f"{value:.3g}": mean_over_seeds(row) for value, row in zip(values, steps, strict=True)}
        known = {value: step for value, step in means.items() if np.isfinite(step)}
        details[f"{place}, step of the {what}"] = known
    if all(case.seeds < FEWEST_SEEDS for case in cases.values()):
        reason = f"in every layer fewer than {FEWEST_SEEDS} seeds have a {what} at three levels"
        return not_run(claim, expected, reason, _command(run))
    off = {place: abs(case.value - 1) for place, case in cases.items() if factor == "rate"}
    return by_effect(
        claim,
        cases,
        expected=expected,
        what=f"{'minus ' if sign < 0 else ''}slope",
        size=[at_most(f"{place}, distance of the slope from -1", distance, NEAR) for place, distance in off.items()],
        details=details,
    )


def _command(run: Run) -> str:
    if run.config["corpus"] == PAPER["corpus"]:
        return f"joma run rebound-onset --scale paper --steps {2 * run.config['steps']}"
    return "JOMA_DATA=FOLDER joma verify rebound-onset --scale paper"


STUDY = Study(
    name="rebound-onset",
    title="What sets the step at which attention begins to come back",
    version=1,
    claims={claim: partial(judge_slope, what, factor) for (what, factor), claim in CLAIMS.items()},
    quick=ReboundOnsetConfig(),
    # The rate of the base is four times Figure 6's and the words are cut, so that all valleys are passed within two
    # minutes of one GPU; 1e-4 is among the rates.
    paper=ReboundOnsetConfig(
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
    draw=lambda run: [draw_factors(run), draw_curves(run)],
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
