"""The two pictures of Table 1: the table with its controls, and the scores over training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import course, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PRINTED, panels, step_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from joma.studies.hierarchy.table1 import Scores

ENTRIES = ("paper", "trained", "untrained", "permuted")
HEADS = ("C", "N_ch", "(N₀, N₁)", *ENTRIES, *ENTRIES)
LEFT = (0.0, 0.4, 0.95, 2.0, 3.05, 4.1, 5.15, 6.35, 7.4, 8.45, 9.5)  # where the columns of the table begin
BLOCKS = ("lowest latents, block 1", "latents one level up, block 2")
LOOKS = {
    "best neuron": (BLUE, "best neuron"),
    "held out": (ORANGE, "chosen on\nother classes"),
    "permuted latents": (CONTROL, "permuted latents"),
}
"""Colour and label of every kind of score that is drawn over training."""


def draw_table(lines: Sequence[Sequence[str]], scores: Scores, config: Mapping[str, Any]) -> Drawing:
    """lines: the table as text, one row per column of Table 1."""
    figure, (axis,) = panels(width=8.2, height=0.235 * (len(lines) + 2) + 0.1)
    axis.set(xlim=(-0.1, 10.5), ylim=(len(lines) - 0.4, -2.5))
    axis.axis("off")
    for x, title in ((LEFT[3], "s = 0, first block"), (LEFT[7], "s = 1, second block")):
        axis.text(x, -2, title, fontweight="bold", fontsize=9, va="center")
        axis.plot([x, x + 4.0], [-1.5, -1.5], color=INK, lw=0.6)
    for column, x in enumerate(LEFT):
        for row, text in enumerate((HEADS[column], *(line[column] for line in lines)), start=-1):
            axis.text(x, row, text, fontsize=8.5, va="center", fontweight="bold" if row < 0 else "normal")
    axis.plot([0, 10.45], [-0.5, -0.5], color=INK, lw=0.8)
    caption = (
        f"{_means(scores)} Entries: correlation between a latent and its best hidden neuron, mean ± standard deviation "
        f"over {config['seeds']} seeds. Trained: {config['steps']:,} steps at a rate of {config['rate']:g}, width "
        f"{config['width']}. Permuted: trained networks, latents permuted between classes. C classes, N_ch children "
        "per latent, N₀ and N₁ latents."
    )
    return Drawing("table", caption, figure, _table_alt(lines))


def _means(scores: Scores) -> str:
    """The finding: trained beside untrained networks and the published values, means over all columns."""
    told = []
    for level, where in enumerate(BLOCKS):
        gain = scores.gain("best neuron", level)
        paper = float(scores.paper(level).mean())
        told.append(f"{where}: {gain.value:.2f} trained, {gain.control:.2f} untrained, {paper:.2f} published")
    changes = [scores.gain("best neuron", level).difference for level in (0, 1)]
    change = " and ".join(f"{change:+.3f}".replace("-", "−") for change in changes)
    return f"Training changes the mean correlation by {change} ({'; '.join(told)})."


def _table_alt(lines: Sequence[Sequence[str]]) -> str:
    """The first and the last row, as they stand."""
    rows = [f"C = {line[0]}, N_ch = {line[1]}, {line[2]}: {_row(line)}" for line in (lines[0], lines[-1])]
    count = len(lines)
    return f"A table of {count} row{'s' if count > 1 else ''}. First row, {rows[0]}. Last row, {rows[1]}."


def _row(line: Sequence[str]) -> str:
    halves = (line[3:7], line[7:11])
    named = [", ".join(f"{head} {entry}" for head, entry in zip(ENTRIES, half, strict=True)) for half in halves]
    return f"s = 0 {named[0]}; s = 1 {named[1]}"


def draw_training(scores: Scores) -> Drawing:
    """Means over columns and seeds at every measuring point, on a true axis of steps."""
    figure, axes = panels(2, width=4.4, height=3.0)
    for s, axis in enumerate(axes):
        for kind, (colour, label) in LOOKS.items():
            _draw_kind(axis, scores, kind, s, colour, label)
        axis.axhline(scores.paper(s).mean(), ls="--", lw=1.2, color=PRINTED, label="published mean")
        axis.plot(scores.steps, scores.accuracy.mean((1, 2)), lw=1, color=GREEN, label="share of classes\ntold right")
        axis.set(ylabel="correlation, or share", ylim=(-0.05, 1.05))
        axis.set_title(f"s = {s}: {BLOCKS[s]}")
        step_axis(axis)
        end_label(axis, "untrained", ls=":")
        label_lines(axis)
    caption = (
        "Where the neuron is chosen on one half of the classes and scored on the other half, training moves the "
        f"correlation {_moves(scores, 'held out')}. Where it is chosen on all classes, as in the table, training moves "
        f"it {_moves(scores, 'best neuron')}. Dots: measuring points, means over all columns and seeds. Bands: 95 % "
        "interval of the difference from the untrained networks (dotted), paired by seed."
    )
    return Drawing("over-training", caption, figure, _training_alt(scores))


def _moves(scores: Scores, kind: str) -> str:
    lowest, upper = (scores.gain(kind, level) for level in (0, 1))
    return (
        f"from {lowest.control:.2f} to {lowest.value:.2f} for the lowest latents and from {upper.control:.2f} to "
        f"{upper.value:.2f} one level up"
    )


def _over_training(scores: Scores, kind: str, level: int) -> tuple[Any, Any]:
    """Means at every measuring point, and half of the interval of their difference from the first."""
    over = [scores.gain(kind, level, step) for step in range(len(scores.steps))]
    return np.array([gain.value for gain in over]), np.array([gain.half_width for gain in over])


def _draw_kind(axis: Axes, scores: Scores, kind: str, level: int, colour: str, label: str) -> None:
    mean, wide = _over_training(scores, kind, level)
    axis.plot(scores.steps, mean, "o-", ms=3, color=colour, label=label)
    axis.fill_between(scores.steps, mean - wide, mean + wide, color=colour, alpha=0.2, lw=0)
    axis.axhline(mean[0], ls=":", lw=1.2, color=colour)


def _training_alt(scores: Scores) -> str:
    parts = ["Two panels."]
    for s, where in enumerate(BLOCKS):
        lines = [
            f"{label.replace(chr(10), ' ')} {course(scores.steps, _over_training(scores, kind, s)[0])}"
            for kind, (_, label) in LOOKS.items()
        ]
        parts.append(
            f"{where.capitalize()}: {'; '.join(lines)}; published mean {number(float(scores.paper(s).mean()))}."
        )
    told = course(scores.steps, scores.accuracy.mean((1, 2)), "%")
    return " ".join([*parts, f"In both, the share of classes told right {told}."])
