"""The two pictures of Table 1: the table with its controls, and the scores over training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import end_label, label_lines
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PRINTED, panels, step_axis
from joma.runs import Run
from joma.studies.hierarchy.table1.record import ENTRIES, TITLES, Scores, table

HEADS = (*TITLES[:3], *ENTRIES, *ENTRIES)
LEFT = (0.0, 0.4, 0.95, 2.0, 3.05, 4.1, 5.15, 6.35, 7.4, 8.45, 9.5)  # where the columns of the table begin
BLOCKS = ("lowest latents, block 1", "latents one level up, block 2")
LOOKS = {
    "best neuron": (BLUE, "best neuron"),
    "held out": (ORANGE, "chosen on\nother classes"),
    "permuted latents": (CONTROL, "permuted latents"),
}
"""Colour and label of every kind of score that is drawn over training."""


def draw(run: Run) -> list[Drawing]:
    """The table with its controls, and the scores over training."""
    scores = Scores(run)
    return [_draw_table(table(run), scores, run.config), _draw_training(scores)]


def _draw_table(lines: Sequence[Sequence[str]], scores: Scores, config: Mapping[str, Any]) -> Drawing:
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
    gains = [scores.gain("best neuron", level) for level in (0, 1)]
    means = [
        f"{where}: {gain.value:.2f} trained, {gain.control:.2f} untrained, {scores.paper(level).mean():.2f} published"
        for level, (where, gain) in enumerate(zip(BLOCKS, gains, strict=True))
    ]
    change = " and ".join(f"{gain.difference:+.3f}".replace("-", "−") for gain in gains)
    caption = (
        f"Training changes the mean correlation by {change} ({'; '.join(means)}). "
        "Entries: correlation between a latent and its best hidden neuron, mean ± standard deviation "
        f"over {config['seeds']} seeds. Trained: {config['steps']:,} steps at a rate of {config['rate']:g}, width "
        f"{config['width']}. Permuted: trained networks, latents permuted between classes. C classes, N_ch children "
        "per latent, N₀ and N₁ latents."
    )
    rows = [", ".join(f"{head} {entry}" for head, entry in zip(TITLES, line, strict=True)) for line in lines]
    alt = f"A table of {len(lines)} rows. First row: {rows[0]}. Last row: {rows[-1]}."  # it is drawn as text
    return Drawing("table", caption, figure, alt)


def _draw_training(scores: Scores) -> Drawing:
    """Means over columns and seeds at every measuring point, on a true axis of steps."""
    figure, axes = panels(2, width=4.4, height=3.0)
    for s, axis in enumerate(axes):
        for kind, (colour, label) in LOOKS.items():
            over = [scores.gain(kind, s, step) for step in range(len(scores.steps))]
            mean, wide = (np.array([getattr(gain, name) for gain in over]) for name in ("value", "half_width"))
            axis.plot(scores.steps, mean, "o-", ms=3, color=colour, label=label)
            axis.fill_between(scores.steps, mean - wide, mean + wide, color=colour, alpha=0.2, lw=0)
            axis.axhline(mean[0], ls=":", lw=1.2, color=colour)
        axis.axhline(scores.paper(s).mean(), ls="--", lw=1.2, color=PRINTED, label="published mean")
        axis.plot(scores.steps, scores.accuracy.mean((1, 2)), lw=1, color=GREEN, label="share of classes\ntold right")
        axis.set(ylabel="correlation, or share", ylim=(-0.05, 1.05))
        axis.set_title(f"s = {s}: {BLOCKS[s]}")
        step_axis(axis)
        end_label(axis, "untrained", ls=":")
        label_lines(axis)

    def moves(kind: str) -> str:
        lowest, upper = (scores.gain(kind, level) for level in (0, 1))
        return (
            f"from {lowest.control:.2f} to {lowest.value:.2f} for the lowest latents and from {upper.control:.2f} to "
            f"{upper.value:.2f} one level up"
        )

    caption = (
        "Where the neuron is chosen on one half of the classes and scored on the other half, training moves the "
        f"correlation {moves('held out')}. Where it is chosen on all classes, as in the table, training moves "
        f"it {moves('best neuron')}. Dots: measuring points, means over all columns and seeds. Bands: 95 % "
        "interval of the difference from the untrained networks (dotted), paired by seed."
    )
    return Drawing("over-training", caption, figure)
