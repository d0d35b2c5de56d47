"""The two pictures of `hblt-alignment`: scores against ρ, and what training adds by block and over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import number
from joma.figures.style import CONTROL, GREEN, INK, depth_colours, panels, step_axis
from joma.measure.intervals import Comparison
from joma.runs import Run
from joma.studies.hierarchy._networks import ALL_BLOCKS, BLOCKS, mean_over
from joma.studies.hierarchy.hblt_alignment.record import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(run: Run) -> list[Drawing]:
    """The scores against ρ, and the gain block by block and over training."""
    scores = Scores(run)
    return [_draw_scores(scores), _draw_gains(scores)]


def _draw_scores(scores: Scores) -> Drawing:
    """One panel per depth and height of latents, ρ from certain to noisy."""
    levels = [(depth, level) for depth in scores.depths for level in range(depth - 1)]
    columns = min(len(levels), 3)
    figure, axes = panels(columns, -(-len(levels) // columns), width=8.6 / columns, height=2.5)
    for index, (axis, (depth, level)) in enumerate(zip(axes, levels, strict=False)):
        _draw_level(axis, scores, depth, level)
        axis.set(title=f"Depth {depth}, latents at height {level + 1}", ylabel="held-out correlation")
        if index % columns == columns - 1:
            label_lines(axis)
    for axis in axes[len(levels) :]:
        axis.remove()
    depth = max(scores.depths)
    lowest, top = (scores.in_block(depth, level, scores.noisy, ALL_BLOCKS) for level in (0, -1))
    caption = (
        f"In trees of depth {depth} with ρ < 1, training moves the best neuron's correlation "
        f"from {lowest.control:.2f} to {lowest.value:.2f} for the lowest latents and "
        f"from {top.control:.2f} to {top.value:.2f} for the top ones. The neuron is chosen on some samples and scored "
        "on fresh ones; lines are means over latents and seeds. Green: what a linear probe of the tokens alone tells. "
        "Grey: latents permuted between samples."
    )
    return Drawing("alignment-by-rho", caption, figure)


def _draw_level(axis: Axes, scores: Scores, depth: int, level: int) -> None:
    order = np.argsort(scores.rhos)
    rhos = scores.rhos[order]
    for step, style in ((-1, "o-"), (0, ":")):
        for block, colour in enumerate(depth_colours(BLOCKS)):
            mean = mean_over(scores.at(depth, "neuron", step)[:, order, block, level], 0)
            label = f"trained, block {block + 1}" if step else None
            axis.plot(rhos, mean, style, ms=3, color=colour, label=label)
    end_label(axis, "untrained", ls=":")
    probe = mean_over(scores.tokens[depth][order, :, level], 1)
    axis.plot(rhos, probe, "-.", lw=1.2, color=GREEN, label="probe of tokens")
    chance = mean_over(scores.at(depth, "neuron, permuted latents", -1)[:, order, ALL_BLOCKS, level], 0)
    axis.plot(rhos, chance, "--", lw=1.2, color=CONTROL, label="permuted latents")
    axis.set(xlabel="ρ (1: certain)", ylim=(-0.1, 1.05))
    axis.set_xticks(rhos)
    axis.invert_xaxis()  # lines lie apart where latents are noisy: there they are named


def _draw_gains(scores: Scores) -> Drawing:
    """Gains of the deepest trees by block at the end, and in any block over training; means over ρ < 1."""
    depth = max(scores.depths)
    figure, (left, right) = panels(2, width=4.0)
    found: dict[tuple[int, int], Comparison] = {}
    for level, colour in enumerate(depth_colours(depth - 1)):
        blocks = [scores.in_block(depth, level, scores.noisy, block) for block in range(BLOCKS)]
        found |= {(level, block): one for block, one in enumerate(blocks) if np.isfinite(one.difference)}
        over = [scores.in_block(depth, level, scores.noisy, ALL_BLOCKS, step) for step in range(len(scores.steps))]
        place = np.arange(1, BLOCKS + 1) + 0.06 * (level - (depth - 2) / 2)
        gains, reach = [b.difference for b in blocks], [b.half_width for b in blocks]
        left.plot(place, gains, "o-", ms=4, color=colour, label=f"height {level + 1}")
        left.errorbar(place, gains, reach, fmt="none", capsize=2, ecolor=colour)
        changes = [one.difference for one in over]
        right.plot(scores.steps, changes, "o-", ms=3, color=colour, label=f"height {level + 1}")
    for axis in (left, right):
        axis.axhline(0, ls="--", lw=1, color=INK)
        axis.set_ylabel("gain in correlation")
        label_lines(axis)
    left.set(xlabel="block", title=f"Depth {depth}: gain at the end, by block")
    left.set_xticks(range(1, BLOCKS + 1))
    right.set_title(f"Depth {depth}: gain over training, any block")
    step_axis(right)
    finding = "No gain was measured."
    if found:
        most, least = (
            f"{number(found[at].difference)} (± {number(found[at].half_width)}) in block {at[1] + 1} for latents at "
            f"height {at[0] + 1}"
            for at in (pick(found, key=lambda where: found[where].difference) for pick in (max, min))
        )
        finding = f"Training adds most, {most}, and least, {least}."
    caption = (
        f"{finding} The gain is the held-out correlation of the best neuron minus that of the untrained network, mean "
        "over ρ < 1. Bars: 95 % intervals over seeds, paired with the untrained network. Height 1 is next to the "
        "tokens."
    )
    return Drawing("gain-by-block", caption, figure)
