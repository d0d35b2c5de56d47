"""The two pictures of Figure 6: entropy by layer for every depth beside the losses, and the weights of the deepest."""

from collections.abc import Mapping

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import course, listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, depth_colours, panels, step_axis
from joma.figures.types import Axes
from joma.measure.intervals import compare
from joma.recipes.language import called, curves
from joma.runs import Run
from joma.studies.language._figures import WITH_RANGE, plot_layers

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
    entropies = [curves.layer_curves(run, name).mean(1) for name in variants.values() if curves.alive(run, name).any()]
    for axis, (layers, name) in zip(axes, variants.items(), strict=False):
        plot_layers(axis, run, name)
        axis.set(title=f"{_depth(layers)}: entropy by layer", ylabel="attention entropy (nats)")
        if entropies:
            axis.set_ylim(0.9 * min(part.min() for part in entropies), 1.03 * max(part.max() for part in entropies))
        label_lines(axis, fontsize=8 if layers <= WITH_RANGE else 7)
    _draw_losses(axes[len(variants)], run, variants, printed)
    for axis in axes[len(variants) + 1 :]:
        axis.remove()
    return Drawing("entropy-over-training", _entropy_caption(run, variants, printed), figure)


def _draw_losses(axis: Axes, run: Run, variants: Depths, printed: Mapping[int, float]) -> None:
    late = list(printed.values())
    for (layers, name), colour in zip(variants.items(), depth_colours(len(variants)), strict=True):
        losses = curves.curve(run, name, "valid/loss")[0][curves.alive(run, name)[0]]
        axis.plot([], color=colour, label=_depth(layers)) if not len(losses) else None
        for seed, loss in enumerate(losses):
            axis.plot(curves.steps_of(run, name), loss, color=colour, lw=1, label=_depth(layers) if seed == 0 else None)
        if layers in printed:
            axis.axhline(printed[layers], color=colour, lw=0.8, ls=":")
        late += losses[:, losses.shape[1] // 20 + 1 :].flatten().tolist()
    step_axis(axis)
    if late:  # the fall from ln(vocabulary) would flatten all that follows
        axis.set_ylim(min(late) - 0.05, max(late) + 0.05)
    axis.set(title="Validation loss by depth", ylabel="validation loss (nats)")
    if printed:
        end_label(axis, "printed best", ls=":")
    label_lines(axis)


def _depth(layers: int) -> str:
    return f"{layers} layer{'s' if layers > 1 else ''}"


def _entropy_caption(run: Run, variants: Depths, printed: Mapping[int, float]) -> str:
    each = [pair for name in variants.values() for pair in zip(*curves.drops_and_rebounds(run, name), strict=True)]
    back = sum(all(compare(part, level=0.99).low > 0 for part in pair) for pair in each)
    best = {layers: curves.mean_over_seeds(curves.best_loss(run, name)) for layers, name in variants.items()}
    losses = listing(f"{loss:.3f} with {_depth(layers)}" for layers, loss in best.items())
    layers, name = min(variants.items())
    drop, rise = (curves.mean_over_seeds(part[-1]) for part in curves.drops_and_rebounds(run, name))
    which = "bands" if max(variants) <= WITH_RANGE else f"bands up to {WITH_RANGE} layers"
    return (
        f"Attention entropy drops and then comes back, beyond chance (99 %), in {back} of {len(each)} layers. With "
        f"{_depth(layers)}, the top layer drops by {number(drop, 'nats')} and comes back by {number(rise, 'nats')}. "
        f"The best validation losses are {losses} (nats). Lines: mean of {run.config['seeds']} seeds on held-out text "
        f"of {called(run.config['corpus'])}; {which}: their range. Layer 1 is the one next to the input. The loss "
        "panel has one line per seed and leaves out the first fall"
        + ("; its dotted lines are the best losses that the paper prints." if printed else ".")
    )


def draw_weights(run: Run, variants: Depths, high: float) -> Drawing:
    """Stable ranks in the deepest model, and how Theorem 1 tells the logits of the shallowest; high: what is asked."""
    layers, name = max(variants.items())
    figure, axes = panels(2, 2, width=4.4, height=2.5)
    for axis, (measure, title) in zip(axes, RANKS.items(), strict=False):
        plot_layers(axis, run, name, measure)
        axis.set(ylim=(0, None), ylabel="stable rank", title=f"{_depth(layers)}: rank of {title}")
        label_lines(axis, fontsize=8 if layers <= WITH_RANGE else 7)
    ends = _draw_estimates(axes[3], run, variants[min(variants)], high)
    axes[3].set_title(f"{_depth(min(variants))}: predicting the logits of layer 1")
    ranks = curves.layer_curves(run, name, "rank/up")
    finding = "all runs diverged"
    if ranks.shape[1]:
        moved = course(curves.steps_of(run, name)[[0, -1]], ranks.mean((0, 1))[[0, -1]])
        finding = f"the stable rank of the MLP's lower matrix {moved} (mean over layers)"
    if ends:
        finding += (
            f". Theorem 1 predicts the changes of the first layer's logits with a correlation of "
            f"{number(ends['theorem'])} at the end; {high:g} is asked for. Log frequency reaches "
            f"{number(ends['frequency'])}"
        )
    caption = (
        f"With {_depth(layers)}, {finding}. Lines of the first three panels: mean over seeds"
        + ("; bands: their range" if layers <= WITH_RANGE else "")
        + ". Last panel: correlations over the most frequent words, one line per seed."
    )
    return Drawing("weights-over-training", caption, figure)


def _draw_estimates(axis: Axes, run: Run, name: str, high: float) -> dict[str, float]:
    """Returns means at the end; none with several heads, where the theorem does not say which logits it means."""
    ends, kept = {}, curves.alive(run, name)[0]
    for part, (label, colour) in ESTIMATES.items() if f"{name}/estimate/theorem" in run and kept.any() else ():
        found: np.ndarray = curves.curve(run, name, f"estimate/{part}")[0, :, 1:][kept]
        for seed, values in enumerate(found):
            axis.plot(curves.steps_of(run, name)[1:], values, color=colour, lw=1, label=label if seed == 0 else None)
        ends[part] = float(found[:, -1].mean())
    axis.axhline(0, color=INK, lw=0.5)
    axis.axhline(high, color=INK, lw=0.9, ls=":", label="asked for")
    axis.set(ylabel="correlation over words", ylim=(None, 1))
    step_axis(axis)
    label_lines(axis)
    return ends
