"""The pictures of `chain-of-thought-decoder`: probabilities over training, and the ways to the end of a chain."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.bands import bound, share_errors
from joma.figures.labels import label_lines
from joma.figures.reading import course, listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, RED, depth_colours, panels
from joma.measure.intervals import compare
from joma.studies.reversal._decoder_chain_scores import Scores
from joma.studies.reversal._decoder_chains import BASE, SPELLED
from joma.studies.reversal._decoder_figures import FLOOR, known_mean, log_axes, over_steps, rows_of_panels
from joma.studies.reversal._decoder_judging import NOBODY, layers_of, mean_of

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


def draw_training(scores: Scores) -> Drawing:
    """One panel per depth."""
    depths = scores.depths[:6]
    figure, axes, columns = rows_of_panels(len(depths))
    for index, (axis, depth) in enumerate(zip(axes, depths, strict=False)):
        for kind, (colour, label) in LINES.items():
            values = scores.over_training(scores.named(BASE, depth), kind)
            over_steps(axis, scores.steps, values, color=colour, label=label)
        bound(axis, scores.uniform, "uniform guess")
        log_axes(axis, scores.steps, layers_of(depth))
        if index % columns == columns - 1 or index == len(depths) - 1:
            label_lines(axis)
    for axis in axes[len(depths) :]:
        axis.remove()
    return Drawing("chain-over-training", _training_caption(scores), figure, _training_alt(scores, depths))


def _training_caption(scores: Scores) -> str:
    deepest = scores.named(BASE, max(scores.depths))
    held_out, steps = mean_of(scores.probability(deepest, "held out")), mean_of(scores.steps_known(deepest))
    if not np.isfinite(held_out):
        return NOBODY
    return (
        f"With {layers_of(deepest.layers)}, the steps of held-out chains are answered with probability {number(steps)} "
        f"in the end, and their compositions with {number(held_out)}. The uniform guess is {number(scores.uniform)}. "
        "Green: the same questions with the ends of other chains. Grey: chains of entities that were never seen. Lines "
        f"are means over networks that learned what they were taught. Probabilities below {FLOOR:g} are drawn there."
    )


def _training_alt(scores: Scores, depths: list[int]) -> str:
    parts = [f"{len(depths)} panels on log axes; the uniform guess is at {number(scores.uniform)}."]
    for depth in depths:
        told = []
        for kind in ("first step", "compositions", "held out"):
            values = known_mean(scores.over_training(scores.named(BASE, depth), kind), 1)
            told.append(f"{LINES[kind][1]} {course(scores.steps, values, log=True)}")
        parts.append(f"{layers_of(depth)}: {'; '.join(told)}.")
    return " ".join(parts)


def draw_ways(scores: Scores) -> Drawing:
    """How many ends of held-out chains are reached, one bar per way and depth."""
    figure, (axis,) = panels(1, width=6.4, height=0.34 * len(ROWS) * max(1, len(scores.spelled) / 1.5) + 1.1)
    for place, (depth, colour) in enumerate(zip(scores.spelled, depth_colours(len(scores.spelled)), strict=True)):
        found = [compare(_reached(scores, row, depth)) for row in ROWS]
        rows = np.arange(len(ROWS)) + (place - (len(scores.spelled) - 1) / 2) * 0.36
        means = [one.value for one in found]
        axis.barh(rows, means, height=0.7 / len(scores.spelled), color=colour, alpha=0.75, label=layers_of(depth))
        axis.errorbar(means, rows, xerr=share_errors(found), fmt="none", ecolor=INK, elinewidth=0.9, capsize=2)
    axis.set_yticks(range(len(ROWS)), list(ROWS))
    axis.set(xlim=(0, 1.05), xlabel="share of held-out chains whose end is reached", ylabel="way")
    axis.invert_yaxis()
    if len(scores.spelled) > 1:
        axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return Drawing("chain-ways", _ways_caption(scores), figure, _ways_alt(scores))


def _reached(scores: Scores, row: str, depth: int) -> Any:
    name, way = ROWS[row]
    return scores.answered(scores.named(name, depth), way)


def _ways_caption(scores: Scores) -> str:
    depth = scores.spelled[0]
    reached = [mean_of(_reached(scores, row, depth)) for row in ROWS]
    if not np.isfinite(reached).all():
        return NOBODY
    at_once, steps, written, others = (number(share, "%") for share in reached)
    return (
        f"With {layers_of(depth)}, {at_once} of the held-out chains are answered at once and {steps} step by step from "
        f"the network's own answers. Networks that were taught compositions with their steps write {written} of them "
        f"rightly, with the steps of other chains {others}. Bars are means over networks that learned what they were "
        "taught, lines their 95 % intervals, cut at 0 and 100 %."
    )


def _ways_alt(scores: Scores) -> str:
    parts = [f"Bars for {len(ROWS)} ways to the end of a held-out chain."]
    for depth in scores.spelled:
        known = {row: mean_of(_reached(scores, row, depth)) for row in ROWS}
        told = [f"{row} {number(value, '%')}" for row, value in known.items() if np.isfinite(value)]
        parts.append(f"{layers_of(depth)}: {listing(told)}." if told else "")
    return " ".join(part for part in parts if part)
