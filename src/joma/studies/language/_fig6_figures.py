"""The two pictures of Figure 6: entropy by layer for every depth beside the losses, and the weights of the deepest."""

from __future__ import annotations

from collections.abc import Mapping

from joma.claims.contract import Drawing
from joma.figures.style import BLUE, CONTROL, GREEN, depth_colours, panels, step_axis
from joma.recipes.language import called
from joma.recipes.language_curves import alive, best_loss, curve, layer_curves, mean_over_seeds, steps_of
from joma.runs import Run
from joma.studies.language._figures import WITH_RANGE, plot_layers


def draw_entropy(run: Run, variants: Mapping[int, str], printed: Mapping[int, float]) -> Drawing:
    """A panel a depth, and the losses; printed: the best losses of the paper by depth, where they can be compared."""
    figure, axes = panels(len(variants) + 1, width=2.3 if len(variants) > 2 else 2.9)
    entropies = [layer_curves(run, name).mean(1) for name in variants.values() if alive(run, name).any()]
    for axis, (layers, name) in zip(axes, variants.items(), strict=False):
        plot_layers(axis, run, name)
        step_axis(axis)
        axis.set_title(f"L = {layers}, loss {mean_over_seeds(best_loss(run, name)):.3f}")
        if entropies:
            axis.set_ylim(0.6 * min(part.min() for part in entropies), 1.05 * max(part.max() for part in entropies))
        if layers > 1 and alive(run, name).any():
            axis.legend(fontsize=7, loc="lower right", ncols=2, handlelength=1.2, columnspacing=1.0)
    axes[0].set_ylabel("attention entropy (nats)")
    late = list(printed.values())
    for (layers, name), colour in zip(variants.items(), depth_colours(len(variants)), strict=True):
        losses = curve(run, name, "valid/loss")[0][alive(run, name)[0]]
        axes[-1].plot(steps_of(run, name), losses.T, color=colour, lw=1)
        axes[-1].plot([], color=colour, label=f"L = {layers}")
        if layers in printed:
            axes[-1].axhline(printed[layers], color=colour, lw=0.8, ls=":")
        late += losses[:, losses.shape[1] // 20 + 1 :].flatten().tolist()
    step_axis(axes[-1])
    axes[-1].set_ylabel("validation loss")
    if late:  # the fall from ln(vocabulary) would flatten all that follows
        axes[-1].set_ylim(min(late) - 0.05, max(late) + 0.05)
    axes[-1].set_title("Loss")
    axes[-1].legend(fontsize=7)
    range_shown = "their range" if max(variants) <= WITH_RANGE else f"with up to {WITH_RANGE} layers their range"
    caption = (
        f"Attention entropy on held-out text of {called(run.config['corpus'])}, mean of {run.config['seeds']} seeds "
        f"and {range_shown}, layers dark to light from the input upwards; and the loss on that text, one line a seed, "
        "without its first fall" + ("; dotted, the best losses that the paper prints." if printed else ".")
    )
    return Drawing("entropy-over-training", caption, figure)


def draw_weights(run: Run, variants: Mapping[int, str], high: float) -> Drawing:
    """Stable ranks in the deepest model, and how Theorem 1 tells the logits of the shallowest; high: what is asked."""
    layers, name = max(variants), variants[max(variants)]
    shown = {
        "rank/up": "MLP's lower matrix",
        "rank/gradient": "its gradient",
        "rank/query_key": "query-key product",
    }
    figure, axes = panels(4, width=2.4)
    for axis, (measure, title) in zip(axes, shown.items(), strict=False):
        plot_layers(axis, run, name, measure)
        step_axis(axis)
        axis.set_ylim(0, None)
        axis.set_title(f"L = {layers}, {title}")
    axes[0].set_ylabel("stable rank")
    if alive(run, name).any():
        axes[0].legend(fontsize=7)
    first = variants[min(variants)]
    if f"{first}/estimate/theorem" in run:
        parts = (
            ("theorem", "Theorem 1", BLUE),
            ("squares", "½Σv² alone", GREEN),
            ("frequency", "log frequency", CONTROL),
        )
        for part, label, colour in parts:
            values = curve(run, first, f"estimate/{part}")[0, :, 1:][alive(run, first)[0]]
            axes[3].plot(steps_of(run, first)[1:], values.T, color=colour, lw=1)
            axes[3].plot([], color=colour, label=label)
        axes[3].axhline(0, color=CONTROL, lw=0.5)
        axes[3].axhline(high, color=BLUE, lw=0.8, ls=":")
        axes[3].legend(fontsize=7, loc="upper right", bbox_to_anchor=(1.0, 0.93))
    step_axis(axes[3])
    axes[3].set(ylabel="correlation with logits", ylim=(None, 1))
    axes[3].set_title(f"L = {min(variants)}, logits")
    caption = (
        f"Stable ranks in the model of {layers} layers, dark to light from the input upwards: mean of seeds"
        + (" and their range" if layers <= WITH_RANGE else "")
        + ". Last: how well Theorem 1, its first term alone and the words' frequency tell how the first layer's "
        f"logits moved, over the most frequent words, one line a seed; dotted, the {high:g} that is asked for."
    )
    return Drawing("weights-over-training", caption, figure)
