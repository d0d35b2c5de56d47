"""The pictures of `chain-of-thought-decoder`: probabilities over training, and the ways to the end of a chain."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Drawing
from joma.claims.guards import mean_known
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, GREEN, ORANGE, RED, panels
from joma.runs import Run
from joma.studies.reversal._decoder_figures import FLOOR, NOBODY, draw_bars, draw_over_training
from joma.studies.reversal._decoders import layers_of
from joma.studies.reversal.chain_of_thought_decoder.run import BASE, SPELLED, Scores

LINES = {
    "first step": (BLUE, "A → B"),
    "compositions": (ORANGE, "trained A ⇝ C"),
    "held out": (RED, "held-out A ⇝ C"),
    "shuffled held out": (GREEN, "shuffled ends"),
    "unseen": (CONTROL, "unseen chains"),
}
ROWS = {
    "asked at once": (BASE, "direct"),
    "step by step": (BASE, "rollout"),
    "steps spelled out": (SPELLED[0], "written"),
    "steps of other chains": (SPELLED[1], "written"),
}
"""Condition and way of each bar."""


def draw(run: Run) -> list[Drawing]:
    """Probabilities over training, and the ways to the end of a chain."""
    scores = Scores(run)
    return [_draw_training(scores), _draw_ways(scores)]


def _draw_training(scores: Scores) -> Drawing:
    """One panel per depth."""
    deepest = scores.named(BASE, max(scores.depths))
    held_out, steps = mean_known(scores.probability(deepest, "held out")), mean_known(scores.steps_known(deepest))
    caption = (
        f"With {layers_of(deepest.layers)}, the steps of held-out chains are answered with probability {number(steps)} "
        f"in the end, and their compositions with {number(held_out)}. The uniform guess is {number(scores.uniform)}. "
        "Green: the same questions with the ends of other chains. Grey: chains of entities that were never seen. Lines "
        f"are means over networks that learned what they were taught. Probabilities below {FLOOR:g} are drawn there."
    )
    figure = draw_over_training(scores, scores.at(BASE, scores.depths[:6]), LINES)
    return Drawing("chain-over-training", caption if np.isfinite(held_out) else NOBODY, figure)


def _draw_ways(scores: Scores) -> Drawing:
    """How many ends of held-out chains are reached, one bar per way and depth."""

    def reached(row: str, depth: int) -> Any:
        name, way = ROWS[row]
        return scores.answered(scores.named(name, depth), way)

    depths = scores.spelled
    figure, (axis,) = panels(1, width=6.4, height=0.34 * len(ROWS) * max(1, len(depths) / 1.5) + 1.1)
    draw_bars(axis, list(ROWS), depths, reached)
    axis.set(xlabel="share of held-out chains whose end is reached", ylabel="way", title="Ways to the end of a chain")
    if len(depths) > 1:
        axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    shares = [mean_known(reached(row, depths[0])) for row in ROWS]
    at_once, steps, written, others = (number(share, "%") for share in shares)
    caption = (
        f"With {layers_of(depths[0])}, {at_once} of the held-out chains are answered at once and {steps} step by step "
        f"from the network's own answers. Networks that were taught compositions with their steps write {written} of "
        f"them rightly, with the steps of other chains {others}. Bars are means over networks that learned what they "
        "were taught, lines their 95 % intervals, cut at 0 and 100 %."
    )
    return Drawing("chain-ways", caption if np.isfinite(shares).all() else NOBODY, figure)
