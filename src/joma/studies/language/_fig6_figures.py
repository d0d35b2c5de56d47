"""The two pictures of Figure 6: entropy by layer for every depth beside the losses, and the weights of the deepest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import course, listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, depth_colours, panels, step_axis
from joma.measure.intervals import compare
from joma.recipes.language import called
from joma.recipes.language_curves import (
    alive,
    best_loss,
    curve,
    drops_and_rebounds,
    fall_and_rise,
    layer_curves,
    mean_over_seeds,
    steps_of,
)
from joma.runs import Run
from joma.studies.language._figures import WITH_RANGE, layers_told, plot_layers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Depths = Mapping[int, str]
RANKS = {
    "rank/up": "the MLP's lower matrix",
    "rank/gradient": "that matrix's gradient",
    "rank/query_key": "the query-key product",
}
"""Whose stable rank is drawn."""
ESTIMATES = {"theorem": ("Theorem 1", BLUE), "squares": ("½Σv² alone", GREEN), "frequency": ("log frequency", CONTROL)}
"""What is correlated with the changes of the logits."""


def draw_entropy(run: Run, variants: Depths, printed: Mapping[int, float]) -> Drawing:
    """One panel per depth, and the losses; printed: the paper's best losses by depth, where they can be compared."""
    columns = min(len(variants) + 1, 3)
    figure, axes = panels(columns, -(-(len(variants) + 1) // columns), width=3.2, height=2.5)
    entropies = [layer_curves(run, name).mean(1) for name in variants.values() if alive(run, name).any()]
    for axis, (layers, name) in zip(axes, variants.items(), strict=False):
        plot_layers(axis, run, name)
        step_axis(axis)
        axis.set_title(f"{_depth(layers)}: entropy by layer")
        axis.set_ylabel("attention entropy (nats)")
        if entropies:
            axis.set_ylim(0.9 * min(part.min() for part in entropies), 1.03 * max(part.max() for part in entropies))
        label_lines(axis, fontsize=8 if layers <= WITH_RANGE else 7)
    _draw_losses(axes[len(variants)], run, variants, printed)
    for axis in axes[len(variants) + 1 :]:
        axis.remove()
    return Drawing(
        "entropy-over-training", _entropy_caption(run, variants, printed), figure, _entropy_alt(run, variants)
    )


def _draw_losses(axis: Axes, run: Run, variants: Depths, printed: Mapping[int, float]) -> None:
    late = list(printed.values())
    for (layers, name), colour in zip(variants.items(), depth_colours(len(variants)), strict=True):
        losses = curve(run, name, "valid/loss")[0][alive(run, name)[0]]
        axis.plot([], color=colour, label=_depth(layers)) if not len(losses) else None
        for seed, loss in enumerate(losses):
            axis.plot(steps_of(run, name), loss, color=colour, lw=1, label=_depth(layers) if seed == 0 else None)
        if layers in printed:
            axis.axhline(printed[layers], color=colour, lw=0.8, ls=":")
        late += losses[:, losses.shape[1] // 20 + 1 :].flatten().tolist()
    step_axis(axis)
    axis.set_ylabel("validation loss (nats)")
    if late:  # the fall from ln(vocabulary) would flatten all that follows
        axis.set_ylim(min(late) - 0.05, max(late) + 0.05)
    axis.set_title("Validation loss by depth")
    if printed:
        end_label(axis, "printed best", ls=":")
    label_lines(axis)


def _depth(layers: int) -> str:
    return f"{layers} layer{'s' if layers > 1 else ''}"


def _entropy_caption(run: Run, variants: Depths, printed: Mapping[int, float]) -> str:
    """How many layers drop and come back, the first depth in numbers, the losses; then how it was measured."""
    found = {layers: _back(run, name) for layers, name in variants.items()}
    back, every = (sum(counts[i] for counts in found.values()) for i in (0, 1))
    losses = listing(f"{mean_over_seeds(best_loss(run, name)):.3f} with {_depth(n)}" for n, name in variants.items())
    layers, name = min(variants.items())
    drop, rise = (mean_over_seeds(part[-1]) for part in drops_and_rebounds(run, name))
    range_shown = (
        "bands: their range" if max(variants) <= WITH_RANGE else f"bands up to {WITH_RANGE} layers: their range"
    )
    return (
        f"Attention entropy drops and then comes back, beyond chance (99 %), in {back} of {every} layers. With "
        f"{_depth(layers)}, the top layer drops by {number(drop, 'nats')} and comes back by {number(rise, 'nats')}. "
        f"The best validation losses are {losses} (nats). Lines: mean of {run.config['seeds']} seeds on held-out text "
        f"of {called(run.config['corpus'])}; {range_shown}. Layer 1 is the one next to the input. The loss panel has "
        "one line per seed and leaves out the first fall"
        + ("; its dotted lines are the best losses that the paper prints." if printed else ".")
    )


def _back(run: Run, name: str) -> tuple[int, int]:
    """How many layers of a depth drop and come back beyond chance, and how many there are."""
    drop, back = drops_and_rebounds(run, name)
    both = [all(compare(part, level=0.99).low > 0 for part in pair) for pair in zip(drop, back, strict=True)]
    return sum(both), len(both)


def _entropy_alt(run: Run, variants: Depths) -> str:
    parts = [f"{len(variants) + 1} panels."]
    parts += [f"Entropy with {_depth(layers)}: {layers_told(run, name)}." for layers, name in variants.items()]
    losses = [f"with {_depth(layers)} {_loss_told(run, name)}" for layers, name in variants.items()]
    return " ".join([*parts, f"Validation loss: {'; '.join(losses)}."])


def _loss_told(run: Run, name: str) -> str:
    losses = curve(run, name, "valid/loss")[0][alive(run, name)[0]]
    return fall_and_rise(steps_of(run, name), losses.mean(0)) if len(losses) else "all runs diverged"


def draw_weights(run: Run, variants: Depths, high: float) -> Drawing:
    """Stable ranks in the deepest model, and how Theorem 1 tells the logits of the shallowest; high: what is asked."""
    layers, name = max(variants), variants[max(variants)]
    figure, axes = panels(2, 2, width=4.4, height=2.5)
    for axis, (measure, title) in zip(axes, RANKS.items(), strict=False):
        plot_layers(axis, run, name, measure)
        step_axis(axis)
        axis.set(ylim=(0, None), ylabel="stable rank")
        axis.set_title(f"{_depth(layers)}: rank of {title}")
        label_lines(axis, fontsize=8 if layers <= WITH_RANGE else 7)
    first = variants[min(variants)]
    found = _estimates(run, first)
    _draw_estimates(axes[3], found, high)
    axes[3].set_title(f"{_depth(min(variants))}: predicting the logits of layer 1")
    caption = _weights_caption(run, name, layers, found, high)
    return Drawing("weights-over-training", caption, figure, _weights_alt(run, name, layers, found))


Estimates = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""By part of `ESTIMATES`: steps, and correlations (seeds, points)."""


def _estimates(run: Run, name: str) -> Estimates:
    """Empty with several heads, where the theorem does not say which logits it means."""
    if f"{name}/estimate/theorem" not in run or not alive(run, name).any():
        return {}
    kept, steps = alive(run, name)[0], steps_of(run, name)[1:]
    return {part: (steps, curve(run, name, f"estimate/{part}")[0, :, 1:][kept]) for part in ESTIMATES}


def _draw_estimates(axis: Axes, found: Estimates, high: float) -> None:
    for part, (steps, seeds) in found.items():
        label, colour = ESTIMATES[part]
        for number_, values in enumerate(seeds):
            axis.plot(steps, values, color=colour, lw=1, label=label if number_ == 0 else None)
    axis.axhline(0, color=INK, lw=0.5)
    axis.axhline(high, color=INK, lw=0.9, ls=":", label="asked for")
    axis.set(ylabel="correlation over words", ylim=(None, 1))
    step_axis(axis)
    label_lines(axis)


def _weights_caption(run: Run, name: str, layers: int, found: Estimates, high: float) -> str:
    """Where the ranks end and how well Theorem 1 does; then how it was measured."""
    finding = f"With {_depth(layers)}, {_rank_told(run, name)}. "
    if found:
        ends = {part: float(values[:, -1].mean()) for part, (_, values) in found.items()}
        finding += (
            f"Theorem 1 predicts the changes of the first layer's logits with a correlation of "
            f"{number(ends['theorem'])} at the end; {high:g} is asked for. Log frequency reaches "
            f"{number(ends['frequency'])}. "
        )
    return finding + (
        "Lines of the first three panels: mean over seeds"
        + ("; bands: their range" if layers <= WITH_RANGE else "")
        + ". Last panel: correlations over the most frequent words, one line per seed."
    )


def _rank_told(run: Run, name: str) -> str:
    ranks = layer_curves(run, name, "rank/up")
    if not ranks.shape[1]:
        return "all runs diverged"
    ends = steps_of(run, name)[[0, -1]], ranks.mean((0, 1))[[0, -1]]
    return f"the stable rank of the MLP's lower matrix {course(*ends)} (mean over layers)"


def _weights_alt(run: Run, name: str, layers: int, found: Estimates) -> str:
    parts = ["Four panels."]
    for measure, title in RANKS.items():
        parts.append(f"Stable rank of {title}: {layers_told(run, name, measure, unit='')}.")
    lines = [f"{ESTIMATES[part][0]} {course(steps, seeds.mean(0))}" for part, (steps, seeds) in found.items()]
    return " ".join([*parts, f"Correlation with the logits: {'; '.join(lines) or 'not measured'}."])
