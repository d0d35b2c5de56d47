"""The two pictures of `hblt-alignment`: scores against ρ, and what training adds by block and over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import course, number
from joma.figures.style import CONTROL, GREEN, INK, depth_colours, panels, step_axis
from joma.measure.intervals import Comparison
from joma.studies.hierarchy._latents import ALL_BLOCKS, BLOCKS, mean_known

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from joma.studies.hierarchy.hblt_alignment import Scores


def draw_scores(scores: Scores) -> Drawing:
    """One panel per depth and height of latents, ρ from certain to noisy."""
    levels = [(depth, level) for depth in scores.depths for level in range(depth - 1)]
    columns = min(len(levels), 3)
    figure, axes = panels(columns, -(-len(levels) // columns), width=8.6 / columns, height=2.5)
    for index, (axis, (depth, level)) in enumerate(zip(axes, levels, strict=False)):
        _draw_level(axis, scores, depth, level)
        axis.set_title(f"Depth {depth}, latents at height {level + 1}")
        axis.set_ylabel("held-out correlation")
        if index % columns == columns - 1:
            label_lines(axis)
    for axis in axes[len(levels) :]:
        axis.remove()
    return Drawing("alignment-by-rho", _scores_caption(scores), figure, _scores_alt(scores, levels))


def _draw_level(axis: Axes, scores: Scores, depth: int, level: int) -> None:
    order = np.argsort(scores.rhos)
    rhos = scores.rhos[order]
    for step, style, kind in ((-1, "o-", "trained"), (0, ":", "untrained")):
        for block, colour in enumerate(depth_colours(BLOCKS)):
            mean = mean_known(scores.at(depth, "neuron", step)[:, order, block, level], 0)
            label = f"trained, block {block + 1}" if kind == "trained" else None
            axis.plot(rhos, mean, style, ms=3, color=colour, label=label)
    end_label(axis, "untrained", ls=":")
    probe = mean_known(scores.tokens[depth][order, :, level], 1)
    axis.plot(rhos, probe, "-.", lw=1.2, color=GREEN, label="probe of tokens")
    chance = mean_known(scores.at(depth, "neuron, permuted latents", -1)[:, order, ALL_BLOCKS, level], 0)
    axis.plot(rhos, chance, "--", lw=1.2, color=CONTROL, label="permuted latents")
    axis.set(xlabel="ρ (1: certain)", ylim=(-0.1, 1.05))
    axis.set_xticks(rhos)
    axis.invert_xaxis()  # lines lie apart where latents are noisy: there they are named


def _scores_caption(scores: Scores) -> str:
    """What training adds at the lowest and the top latents of the deepest tree, where latents are noisy."""
    depth = max(scores.depths)
    lowest, top = (scores.in_block(depth, level, scores.noisy, ALL_BLOCKS) for level in (0, -1))
    return (
        f"In trees of depth {depth} with ρ < 1, training moves the best neuron's correlation {_moved(lowest)} for the "
        f"lowest latents and {_moved(top)} for the top ones. The neuron is chosen on some samples and scored on fresh "
        "ones; lines are means over latents and seeds. Green: what a linear probe of the tokens alone tells. Grey: "
        "latents permuted between samples."
    )


def _moved(gain: Comparison) -> str:
    return f"from {gain.control:.2f} to {gain.value:.2f}"


def _scores_alt(scores: Scores, levels: list[tuple[int, int]]) -> str:
    order = np.argsort(-scores.rhos)
    parts = [f"{len(levels)} panels, ρ falling from {number(scores.rhos.max())} to {number(scores.rhos.min())}."]
    for depth, level in levels:
        lines = []
        for step, kind in ((-1, "trained"), (0, "untrained")):
            mean = mean_known(scores.at(depth, "neuron", step)[:, order, BLOCKS - 1, level], 0)
            lines.append(f"{kind}, block {BLOCKS} {course(scores.rhos[order], mean, at='ρ =')}")
        probe = mean_known(scores.tokens[depth][order, :, level], 1)
        lines.append(f"probe of the tokens {course(scores.rhos[order], probe, at='ρ =')}")
        parts.append(f"Depth {depth}, height {level + 1}: {'; '.join(lines)}.")
    return " ".join([*parts, "Permuted latents stay near 0."]) if _permuted_near_zero(scores) else " ".join(parts)


def _permuted_near_zero(scores: Scores) -> bool:
    found = [mean_known(scores.at(d, "neuron, permuted latents", -1)[:, :, ALL_BLOCKS], 0) for d in scores.depths]
    return all(float(np.abs(part[np.isfinite(part)]).max(initial=0.0)) < 0.05 for part in found)


def draw_gains(scores: Scores) -> Drawing:
    """Gains of the deepest trees by block at the end, and in any block over training; means over ρ < 1."""
    depth = max(scores.depths)
    figure, (left, right) = panels(2, width=4.0)
    for level, colour in enumerate(depth_colours(depth - 1)):
        blocks, over = _gains(scores, depth, level)
        place = np.arange(1, BLOCKS + 1) + 0.06 * (level - (depth - 2) / 2)
        gains, reach = [b.difference for b in blocks], [b.half_width for b in blocks]
        left.plot(place, gains, "o-", ms=4, color=colour, label=f"height {level + 1}")
        left.errorbar(place, gains, reach, fmt="none", capsize=2, ecolor=colour)
        right.plot(scores.steps, over, "o-", ms=3, color=colour, label=f"height {level + 1}")
    for axis in (left, right):
        axis.axhline(0, ls="--", lw=1, color=INK)
        axis.set_ylabel("gain in correlation")
        label_lines(axis)
    left.set(xlabel="block", title=f"Depth {depth}: gain at the end, by block")
    left.set_xticks(range(1, BLOCKS + 1))
    right.set_title(f"Depth {depth}: gain over training, any block")
    step_axis(right)
    return Drawing("gain-by-block", _gains_caption(scores, depth), figure, _gains_alt(scores, depth))


def _gains(scores: Scores, depth: int, level: int) -> tuple[list[Comparison], list[float]]:
    """By block at the end; and in any block at every measuring point."""
    blocks = [scores.in_block(depth, level, scores.noisy, block) for block in range(BLOCKS)]
    steps = range(len(scores.steps))
    return blocks, [scores.in_block(depth, level, scores.noisy, ALL_BLOCKS, step).difference for step in steps]


def _gains_caption(scores: Scores, depth: int) -> str:
    found = {
        (level, block): one
        for level in range(depth - 1)
        for block, one in enumerate(_gains(scores, depth, level)[0])
        if np.isfinite(one.difference)
    }
    finding = "No gain was measured."
    if found:
        most, least = (pick(found, key=lambda where: found[where].difference) for pick in (max, min))
        told = [
            f"{number(found[where].difference)} (± {number(found[where].half_width)}) in block {where[1] + 1} for "
            f"latents at height {where[0] + 1}"
            for where in (most, least)
        ]
        finding = f"Training adds most, {told[0]}, and least, {told[1]}."
    return (
        f"{finding} The gain is the held-out correlation of the best neuron minus that of the untrained network, mean "
        "over ρ < 1. Bars: 95 % intervals over seeds, paired with the untrained network. Height 1 is next to the "
        "tokens."
    )


def _gains_alt(scores: Scores, depth: int) -> str:
    blocks, over = [], []
    for level in range(depth - 1):
        by_block, by_step = _gains(scores, depth, level)
        gains = [one.difference for one in by_block]
        blocks.append(f"height {level + 1} {course(np.arange(1, BLOCKS + 1), gains, at='block')}")
        over.append(f"height {level + 1} {course(scores.steps, by_step)}")
    return f"Two panels. Left, gain by block: {'; '.join(blocks)}. Right, gain over training: {'; '.join(over)}."
