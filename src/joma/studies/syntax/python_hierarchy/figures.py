"""The figures of `python-hierarchy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.claims.guards import mean_known
from joma.figures.bands import mean_and_band
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, depth_colours, panels
from joma.runs import Run
from joma.studies.syntax.python_hierarchy.record import LEVELS, VERSIONS, Scores, mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {
    "neuron": "Best hidden node",
    "beyond": "Best hidden node, beyond the token",
    "hidden": "All hidden nodes, beyond the token",
}
"""What is drawn over training."""
_SHUFFLED = {"neuron": ("neuron", "labels"), "beyond": ("neuron", "beyond"), "hidden": ("hidden", "beyond")}


def draw(run: Run) -> list[Drawing]:
    """Alignment over training, by block, and label by label."""
    scores = Scores(run)
    curves: Mapping[str, Any] = {
        "neuron": scores.of("neuron", "labels"),
        "rotated": scores.of("neuron", "rotated"),
        "beyond": scores.of("neuron", "beyond"),
        "hidden": scores.of("hidden", "beyond"),
        "rise": scores.rise(),
    }
    ends = {key: scores.of(*place, shuffled=True)[-1] for key, place in _SHUFFLED.items()}
    blocks = {
        kind: np.stack([scores.of(f"{kind} {i + 1}", "beyond")[[0, -1]] for i in range(scores.layers)])
        for kind in ("neuron", "stream")
    }
    labels = {
        "rotated": scores.written[-1, :, scores.row["neuron"], VERSIONS.index("rotated")],
        "untrained": scores.written[0, :, scores.row["neuron"], 0],
        "trained": scores.written[-1, :, scores.row["neuron"], 0],
        "together": scores.written[-1, :, scores.row["hidden"], 0],
        "token": run.value("token"),
    }
    return [
        _draw_training(scores.steps, curves, ends),
        _draw_blocks(blocks),
        _draw_labels(scores.names, run.value("share"), {name: mean(value.T) for name, value in labels.items()}),
    ]


def _draw_training(steps: Any, curves: Mapping[str, Any], shuffled: Mapping[str, Any]) -> Drawing:
    """curves: (steps, seeds, levels) by name, and "rise" (levels,) in octaves; shuffled: (seeds, levels) at the end."""
    figure, axes = panels(3, width=3.4, height=2.9)
    for axis, (name, title) in zip(axes, TITLES.items(), strict=True):
        _log_steps(axis, steps)  # before the lines: the margins of a linear axis would stay
        for level, colour in enumerate(depth_colours(len(LEVELS))):
            label = LEVELS[level] if name == "hidden" else "_"
            mean_and_band(axis, steps, curves[name][..., level], over=1, color=colour, label=label)
            end = shuffled[name][:, level]
            axis.plot([steps[-1]] * len(end), end, "x", ms=5, color=colour, clip_on=False)
            if name == "neuron":
                axis.plot(steps, curves["rotated"][..., level].mean(1), ":", lw=1, color=colour)
            if name == "hidden" and np.isfinite(at := curves["rise"][level]):
                axis.plot(2**at, np.interp(2**at, steps, curves[name][..., level].mean(1)), "o", ms=5, color=colour)
        axis.axhline(0, lw=0.6, color=INK)
        axis.set_title(title)
        axis.set_ylabel("correlation on fresh files")
    end_label(axes[0], "rotated\nlabels", ls=":")
    end_label(axes[2], "middle of\nthe gain", ls="", marker="o")
    end_label(axes[2], "trained on\nshuffled text", ls="", marker="x")
    label_lines(axes[0])
    label_lines(axes[2])
    return Drawing("alignment-over-training", _training_caption(curves), figure)


def _log_steps(axis: Axes, steps: Any) -> None:
    axis.set_xscale("symlog", linthresh=steps[1], linscale=0.4)
    back = np.log2(steps[-1] / steps[1:])
    octaves = 1 if back[0] < 5 else 2
    ticks = [0, *steps[1:][np.abs(back - octaves * np.round(back / octaves)) < 0.1]]
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("training step (log scale)")


def _training_caption(curves: Mapping[str, Any]) -> str:
    start, end = (float(curves["neuron"][at].mean()) for at in (0, -1))
    middles = {level: 2**octave for level, octave in zip(LEVELS, curves["rise"], strict=True) if np.isfinite(octave)}
    order = "No level of syntax was clearly learned beyond the token."
    if middles:
        steps_of = (f"{number(float(middles[m]))} for {m}" for m in sorted(middles, key=lambda m: middles[m]))
        order = f"The middle of the gain beyond the token comes at step {listing(steps_of)}."
    return (
        f"The best hidden node's correlation with a syntax label goes from {number(start)} before training to "
        f"{number(end)} after it (mean over levels). {order} Lines: means over the labels of a level and over seeds, "
        "on held-out files; bands: all seeds. Beyond the token: the label minus its mean given the current token. "
        "Dots mark the middle of the gain in log time. Dotted lines and crosses are controls: labels rotated within "
        "their file, and networks trained on shuffled tokens."
    )


def _draw_blocks(scores: Mapping[str, Any]) -> Drawing:
    """scores: (blocks, untrained and trained, seeds, levels), beyond the token, of "neuron" and "stream"."""
    figure, axes = panels(2, width=4.2, height=3.0)
    for axis, name in zip(axes, ("neuron", "stream"), strict=True):
        blocks = np.arange(1, len(scores[name]) + 1)
        for level, colour in enumerate(depth_colours(len(LEVELS))):
            for i, style in enumerate((":", "-")):
                values = scores[name][:, i, :, level]
                middle = values.mean(1)
                place = blocks + 0.04 * (level - 1.5)
                axis.plot(place, middle, color=colour, ls=style, lw=1.4, label=LEVELS[level] if i else "_")
                reach = (middle - values.min(1), values.max(1) - middle)
                axis.errorbar(place, middle, reach, fmt="none", ecolor=colour, elinewidth=1)
        axis.axhline(0, lw=0.6, color=INK)
        axis.set_xticks(blocks)
        axis.set(xlabel="block", ylabel="correlation, beyond the token")
        end_label(axis, "untrained", ls=":")
        label_lines(axis)
    axes[0].set_title("Best hidden node of a block")
    axes[1].set_title("Linear probe on the stream behind a block")
    lead = scores["neuron"][-1, 1].mean(0) - scores["neuron"][0, 1].mean(0)  # (levels,)
    gains = listing(f"{level} {number(round(float(gain), 3))}" for level, gain in zip(LEVELS, lead, strict=True))
    caption = (
        f"From the first to the last block, the correlation of the best hidden node changes by: {gains}. If later "
        "blocks held higher levels, the change would grow from expression to definition. Measured on fresh files, "
        "beyond what the current token tells. Lines: means over seeds; bars: all seeds; dotted: the networks before "
        "training."
    )
    return Drawing("alignment-by-block", caption, figure)


LOOKS = {
    "rotated": ("|", CONTROL, "trained, rotated labels"),
    "untrained": ("o", CONTROL, "untrained, best node"),
    "trained": ("o", BLUE, "trained, best node"),
    "together": ("D", GREEN, "trained, all nodes"),
    "token": ("x", ORANGE, "current token alone"),
}
"""Markers of `draw_labels`."""


def _draw_labels(names: Sequence[Sequence[str]], share: Any, scores: Mapping[str, Any]) -> Drawing:
    """scores: (latents,) each. One line per label, the levels one below another."""
    levels = [level for level, _ in names]
    rows = np.arange(len(names)) + 0.8 * np.array([LEVELS.index(level) for level in levels])
    figure, (axis,) = panels(width=7.0, height=0.19 * (rows[-1] + 1) + 1.1)
    for name, (marker, colour, label) in LOOKS.items():
        axis.plot(scores[name], rows, marker, ms=5, color=colour, label=label, mfc="none" if marker == "D" else None)
    for low, high, row in zip(scores["untrained"], scores["trained"], rows, strict=True):
        axis.plot([low, high], [row, row], lw=1, color=BLUE, alpha=0.5, zorder=0)
    axis.set_yticks(rows, [f"{label}  {100 * part:.0f} %" for (_, label), part in zip(names, share, strict=True)])
    for level in LEVELS:
        mine = [row for row, of in zip(rows, levels, strict=True) if of == level]
        if mine:
            place: Any = {"transform": axis.get_yaxis_transform(), "rotation": 90, "ha": "center", "va": "center"}
            axis.text(-0.29, float(np.mean(mine)), level, fontsize=8.5, fontweight="bold", **place)
    axis.axvline(0, lw=0.6, color=INK)
    axis.set(ylim=(rows[-1] + 0.8, -0.8), xlabel="correlation on fresh files")
    axis.set_title("Syntax labels with their share of the tokens")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper right", ncols=3)
    means = {name: number(mean_known(values)) for name, values in scores.items()}
    better = int(np.sum(scores["trained"] > scores["token"]))
    caption = (
        f"One hidden node tells more of a label than the current token does for {better} of {len(scores['trained'])} "
        f"labels. Mean correlations: best node {means['untrained']} before and {means['trained']} after training, all "
        f"nodes together (a linear probe) {means['together']}, current token alone {means['token']}, rotated labels "
        f"{means['rotated']}. All numbers are means over seeds, on held-out files."
    )
    return Drawing("alignment-by-label", caption, figure)
