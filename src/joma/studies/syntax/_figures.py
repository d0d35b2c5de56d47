"""The figures of `python-hierarchy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.style import BLUE, CONTROL, GREEN, ORANGE, depth_colours, panels
from joma.studies.syntax._alignment import LEVELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_training(steps: Any, curves: Mapping[str, Any], shuffled: Mapping[str, Any]) -> Drawing:
    """curves: (steps, seeds, levels) by name, and "rise" (levels,) in octaves; shuffled: (seeds, levels) at the end."""
    figure, axes = panels(3, width=3.0, height=3.0)
    titles = {
        "neuron": "Best hidden node",
        "beyond": "Best node, beyond the token",
        "hidden": "All nodes, beyond the token",
    }
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        for level, colour in enumerate(depth_colours(len(LEVELS))):
            _band(axis, steps, curves[name][..., level], colour, LEVELS[level])
            end = shuffled[name][:, level]
            axis.plot([steps[-1]] * len(end), end, "x", ms=5, color=colour, clip_on=False)
            if name == "neuron":
                axis.plot(steps, curves["rotated"][..., level].mean(1), ":", lw=1, color=colour)
            if name == "hidden":
                _mark_rise(axis, steps, curves[name][..., level].mean(1), curves["rise"][level], colour)
        axis.axhline(0, lw=0.6, color=CONTROL)
        axis.set_xscale("symlog", linthresh=steps[1], linscale=0.4)
        back = np.log2(steps[-1] / steps[1:])
        octaves = 1 if back[0] < 5 else 2
        ticks = [0, *steps[1:][np.abs(back - octaves * np.round(back / octaves)) < 0.1]]
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
        axis.set(xlabel="training step", title=title)
    axes[0].set_ylabel("correlation on fresh files")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(LEVELS))
    caption = (
        "Correlation of hidden nodes with syntax labels of held-out files, mean over the labels of a level; bands: all "
        "seeds. Dotted: labels rotated within their file. Crosses: networks trained on shuffled tokens. Beyond the "
        "token: the label less its mean given the current token. Dots: the middle of the gain, in log time."
    )
    return Drawing("alignment-over-training", caption, figure)


def _band(axis: Axes, steps: Any, values: Any, colour: str, label: str) -> None:
    axis.plot(steps, values.mean(1), color=colour, label=label)
    axis.fill_between(steps, values.min(1), values.max(1), color=colour, alpha=0.15, lw=0)


def _mark_rise(axis: Axes, steps: Any, curve: Any, octave: float, colour: str) -> None:
    if np.isfinite(octave):
        axis.plot(2**octave, np.interp(2**octave, steps, curve), "o", ms=5, color=colour)


def draw_blocks(scores: Mapping[str, Any]) -> Drawing:
    """scores: (blocks, untrained and trained, seeds, levels), beyond the token, of "neuron" and "stream"."""
    figure, axes = panels(2, width=3.8, height=3.0)
    for axis, name in zip(axes, ("neuron", "stream"), strict=True):
        blocks = np.arange(1, len(scores[name]) + 1)
        for level, colour in enumerate(depth_colours(len(LEVELS))):
            for i, style in enumerate((":", "-")):
                values = scores[name][:, i, :, level]
                mean = values.mean(1)
                reach = (mean - values.min(1), values.max(1) - mean)
                label = LEVELS[level] if i else None
                place = blocks + 0.04 * (level - 1.5)
                axis.errorbar(place, mean, reach, color=colour, ls=style, lw=1.4, elinewidth=1, label=label)
        axis.axhline(0, lw=0.6, color=CONTROL)
        axis.set_xticks(blocks)
        axis.set(xlabel="block")
    axes[0].set(title="Best node of a block", ylabel="correlation, beyond the token")
    axes[1].set(title="Linear probe on the stream behind it")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(LEVELS))
    caption = (
        "What each block tells of the levels of syntax beyond the current token, on fresh files: its best hidden node, "
        "and all of the stream behind it. Dotted: untrained. Bars: all seeds."
    )
    return Drawing("alignment-by-block", caption, figure)


def draw_labels(names: Sequence[Sequence[str]], share: Any, scores: Mapping[str, Any]) -> Drawing:
    """scores: (latents,) each. One line a label, the levels one below another."""
    looks = {
        "rotated": ("|", CONTROL, "trained, rotated labels"),
        "untrained": ("o", CONTROL, "untrained, best node"),
        "trained": ("o", BLUE, "trained, best node"),
        "together": ("D", GREEN, "trained, all nodes"),
        "token": ("x", ORANGE, "current token alone"),
    }
    levels = [level for level, _ in names]
    rows = np.arange(len(names)) + 0.8 * np.array([LEVELS.index(level) for level in levels])
    figure, (axis,) = panels(width=7.0, height=0.19 * (rows[-1] + 1) + 0.9)
    for name, (marker, colour, label) in looks.items():
        axis.plot(scores[name], rows, marker, ms=5, color=colour, label=label, mfc="none" if marker == "D" else None)
    for low, high, row in zip(scores["untrained"], scores["trained"], rows, strict=True):
        axis.plot([low, high], [row, row], lw=1, color=BLUE, alpha=0.5, zorder=0)
    axis.set_yticks(rows, [f"{label}  {part:.0%}" for (_, label), part in zip(names, share, strict=True)])
    for level in LEVELS:
        mine = [row for row, of in zip(rows, levels, strict=True) if of == level]
        if mine:
            place: Any = {"transform": axis.get_yaxis_transform(), "rotation": 90, "ha": "center", "va": "center"}
            axis.text(-0.27, float(np.mean(mine)), level, fontsize=8.5, fontweight="bold", **place)
    axis.axvline(0, lw=0.6, color=CONTROL)
    axis.set(ylim=(rows[-1] + 0.8, -0.8), xlabel="correlation on fresh files")
    axis.legend(loc="upper center", bbox_to_anchor=(0.45, 1.0 + 1.1 / (rows[-1] + 1) + 0.06), ncols=3)
    caption = (
        "Label by label, with its share of the tokens: the best hidden node before and after training, all hidden "
        "nodes together (a linear probe), and what the current token alone tells. Means over seeds."
    )
    return Drawing("alignment-by-label", caption, figure)
