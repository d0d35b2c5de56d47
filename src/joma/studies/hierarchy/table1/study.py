"""The study `table1`: its claims, which effects matter, and what was found."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding, Study
from joma.claims.evidence import at_most
from joma.claims.guards import clears
from joma.data.latent_sets import TABLE1
from joma.measure.intervals import Comparison
from joma.runs import Run
from joma.studies.hierarchy._networks import mean_over, over_seeds
from joma.studies.hierarchy.table1.figures import draw
from joma.studies.hierarchy.table1.record import ENOUGH, Scores
from joma.studies.hierarchy.table1.run import COMPLEX, SIMPLE, Table1Config, run

MARGIN = 0.02  # of a correlation: what two decimals of the table can tell
NEAR = 0.05  # of the published number, whose spread over seeds is up to 0.08

ALIGN = ("table1/lowest-latents-align", "table1/upper-latents-align")
_claim = partial(Claim, matters=MARGIN, ceiling=1.0)
LOWEST = _claim(
    "lowest-latents-align",
    "JoMA Table 1",
    "Training gives each lowest latent a hidden node in the first block that correlates with it, at 0.94 to 1.00.",
)
UPPER = _claim(
    "upper-latents-align",
    "JoMA Table 1",
    "Training gives each latent one level up a hidden node in the second block that correlates with it, at 0.55 to "
    "0.81.",
)
VALUES = Claim(
    "published-correlations",
    "JoMA Table 1",
    "The correlations in the table are the result of training.",
    matters=MARGIN,
    ceiling=0.0,  # the effect is minus a distance
    uses=ALIGN,
)
LEARNED = _claim(
    "latents-are-learned",
    "JoMA Sec. 6",
    "Hidden nodes learn the latents: a node chosen on some of the classes stands for its latent on the other classes "
    "too.",
    uses=ALIGN,
)
LEVELS = Claim(
    "lowest-level-best",
    "JoMA Sec. 6",
    "Training aligns hidden nodes with the lowest level better than with the level above.",
    matters=MARGIN,
    uses=ALIGN,
)
HARDER = Claim(
    "more-latents-align-less",
    "JoMA Sec. 6",
    "Training aligns hidden nodes a bit less well when there are more latents and more children.",
    matters=MARGIN,
    uses=ALIGN,
)


def _level(claim: Claim, level: int, run: Run) -> Finding:
    scores = Scores(run, only_learned=True)
    found = scores.gain("best neuron", level)
    permuted = over_seeds(scores.at("best neuron", -1, level), scores.at("permuted latents", -1, level))
    published = scores.published(level)
    return _finding(
        claim,
        found,
        scores,
        what="correlation of a latent with its best hidden neuron",
        expected=f"a correlation at least {MARGIN} above the untrained network, above latents permuted between "
        f"classes, and within {NEAR} of the table's mean",
        size=[at_most("distance from the table's mean", abs(found.value - published), NEAR)],
        controls=[clears("the gain over permuted latents", permuted, matters=MARGIN)],
        details={"the table": {"mean": published}, **_most(scores, level)},
    )


def _most(scores: Scores, level: int) -> dict[str, dict[str, float]]:
    """When training had added most, of the measuring points after the first."""
    gains = [scores.gain("best neuron", level, step).difference for step in range(1, len(scores.steps))]
    if not np.isfinite(gains).any():
        return {}
    best = int(np.nanargmax(gains))
    return {"largest gain over the untrained network": {"gain": gains[best], "step": float(scores.steps[1 + best])}}


def _values(run: Run) -> Finding:
    """How far from the published numbers are trained networks, and how far are untrained ones?"""
    scores = Scores(run, only_learned=True)
    paper = np.stack([scores.paper(level) for level in (0, 1)], axis=-1)  # (columns, levels)
    near = [-np.abs(scores.both("best neuron", step) - paper) for step in (-1, 0)]
    return _finding(
        VALUES,
        over_seeds(*near),
        scores,
        what="minus the mean distance from the published correlations",
        expected=(
            f"trained networks are nearer to the published correlations than untrained networks, by at least {MARGIN}"
        ),
    )


def _learned(run: Run) -> Finding:
    scores = Scores(run, only_learned=True)
    trained, untrained, permuted = (
        scores.both(kind, step)
        for kind, step in (("held out", -1), ("held out", 0), ("held out, permuted latents", -1))
    )
    levels = [scores.gain("held out", level) for level in (0, 1)]
    return _finding(
        LEARNED,
        over_seeds(trained, untrained),
        scores,
        what="correlation on classes that the neuron was not chosen on",
        expected=f"a correlation at least {MARGIN} above the untrained network, and above latents permuted between "
        "classes",
        controls=[clears("the gain over permuted latents", over_seeds(trained, permuted), matters=MARGIN)],
        details={f"s = {s}": {"trained": one.value, "untrained": one.control} for s, one in enumerate(levels)},
    )


def _levels(run: Run) -> Finding:
    scores = Scores(run, only_learned=True)
    ahead = [scores.at("best neuron", step, 0) - scores.at("best neuron", step, 1) for step in (-1, 0)]
    return _finding(
        LEVELS,
        over_seeds(*ahead),
        scores,
        what="correlation at s = 0 minus that at s = 1",
        expected=f"training makes the lead of the lowest level larger, by at least {MARGIN}",
    )


def _harder(run: Run) -> Finding:
    scores = Scores(run, only_learned=True)
    ends = [(column.children, column.latents) for column in scores.columns]
    simple, complex_ = (np.array([end == wanted for end in ends]) for wanted in (SIMPLE, COMPLEX))
    drops = [
        mean_over(both[:, simple], (1, 2)) - mean_over(both[:, complex_], (1, 2))
        for both in (scores.both("best neuron", step) for step in (-1, 0))
    ]
    return _finding(
        HARDER,
        over_seeds(*drops),
        scores,
        what="fall of the correlation from the simplest to the most complex column",
        expected=f"training makes this fall larger, by at least {MARGIN}",
        of=simple | complex_,
    )


def _finding(claim: Claim, found: Comparison, scores: Scores, *, of: Any = slice(None), **evidence: Any) -> Finding:
    """of: the columns that it rests on."""
    return scores.fates.of(of).judged(claim, found, study="table1", **evidence)


STUDY = Study(
    name="table1",
    title="Table 1: hidden neurons and the latents of their data",
    version=2,
    claims={
        LOWEST: partial(_level, LOWEST, 0),
        UPPER: partial(_level, UPPER, 1),
        VALUES: _values,
        LEARNED: _learned,
        LEVELS: _levels,
        HARDER: _harder,
    },
    quick=Table1Config(),
    paper=Table1Config(
        columns=tuple(range(1, len(TABLE1) + 1)),
        seeds=5,
        width=1024,
        steps=2000,
        look_at=(100, 300, 1000),
        rate=1e-4,
        merge=False,
        device="cuda",
        precision="half",
        together=60,
        checkpoint_every=400.0,
    ),
    run=run,
    draw=draw,
    about=(
        "Three-block Transformers learn to tell the classes of Table 1's generator apart. All columns and seeds train "
        "as one ensemble. Each latent is compared with its best hidden neuron in the corresponding block, over the "
        "distinct inputs, one per class. This is done after several numbers of steps, because the source gives none. "
        "There are three comparisons: the network before training, latents permuted between classes, and neurons "
        "chosen on one half of the classes and scored on the other half. A verdict comes from the interval over seeds "
        f"of trained minus untrained. A network that tells fewer than {100 * ENOUGH:.0f} % of its classes right at the "
        "end did not learn and does not count."
    ),
)
