"""The pictures of the study `kv-cache`: cost against the share kept, and sparsity and cost over training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.bands import mean_and_band
from joma.figures.labels import label_lines
from joma.figures.policies import LOOKS, in_order, share_axis
from joma.figures.reading import course, listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, panels
from joma.runs import Run
from joma.studies.sparsity.kv_cache.judge import SPARSE
from joma.studies.sparsity.kv_cache.record import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OVER_TRAINING = ("window", "sinks", "h2o", "random")
"""Policies whose cost is drawn over training."""


def draw(run: Run) -> list[Drawing]:
    """Nothing where no network learned."""
    series = Series(run)
    return [_by_share(series), _over_training(series)] if series.kept else []


def _by_share(series: Series) -> Drawing:
    """The study's networks at a few steps, on one scale; stories260K beside them, on its own."""
    shown = sorted({1, len(series.steps) // 2 + 1, len(series.steps) - 1} & set(range(len(series.steps))))
    with_stories = "stories/loss" in series.run
    figure, axes = panels(len(shown) + with_stories, width=3.5)
    for axis, at in zip(axes, shown, strict=False):
        costs = {one: np.stack([series.cost(one, keep, at) for keep in series.keeps]) for one in series.policies}
        _panel(axis, series, costs, f"Step {series.steps[at]:,}")
    for axis in axes[1 : len(shown)]:
        axis.sharey(axes[0])
    axes[0].autoscale_view()
    label_lines(axes[len(shown) - 1])
    if with_stories:
        cost = (series.run.value("stories/cut") - series.run.value("stories/loss")).mean(-1)  # (policies, keeps)
        each = dict(zip(series.policies, cost[..., None], strict=True))
        _panel(axes[-1], series, each, "stories260K (its own scale)")
        label_lines(axes[-1])
    ends = {policy: float(series.cost(policy).mean()) for policy in series.policies}
    ranked = sorted(ends.items(), key=lambda item: item[1])
    # With their signs: a cut cache may also do better.
    listed = listing(f"{policy} {cost:+.3f}".replace(" -", " −") for policy, cost in ranked)
    scale = " The panel of stories260K has its own scale; the others share one." if with_stories else ""
    caption = (
        f"After training, a fifth of the cache costs, in nats per token: {listed}. The whole cache has a loss of "
        f"{number(float(series.mean('loss').mean()), 'nats')}. Lines are means over {len(series.kept)} networks, bands "
        "go from the lowest to the highest. The loss is that of the last quarter of each sequence. top-k evicts "
        f"nothing and lets every query choose; random protects the same first and last keys as h2o.{scale}"
    )
    return Drawing("cost-by-share", caption, figure)


def _panel(axis: Axes, series: Series, costs: dict[str, Any], title: str) -> None:
    """costs: (keeps, networks) by policy."""
    for policy in in_order(costs):
        mean_and_band(axis, series.keeps, costs[policy], label=policy, marker=".", shade=0.1, **LOOKS[policy])
    axis.axhline(0.0, color=INK, lw=0.6)
    share_axis(axis, series.keeps, "share of the cache kept")
    axis.set(title=title, ylabel="loss added (nats per token)")


def _over_training(series: Series) -> Drawing:
    figure, axes = panels(2, width=4.6)
    lines: dict[str, tuple[Any, dict[str, Any]]] = {
        "left out (1 - effective)": (1 - series.of("effective").mean((2, 3)), {"color": BLUE}),
        "zero as in H2O": (series.of("zero").mean((2, 3)), {"color": ORANGE}),
        "zero, random logits": (series.of("random zero").mean((2, 3)), {"color": CONTROL, "ls": "--"}),
    }
    for name, (rows, look) in lines.items():
        mean_and_band(axes[0], series.steps, rows, over=0, label=name, marker=".", **look)
    axes[0].axhline(SPARSE, color=INK, ls=":", lw=1, label="95 %")
    axes[0].set(title="Sparsity", ylabel="share of keys", ylim=(-0.02, 1.02))
    costs = {policy: series.costs(policy).mean(-1) for policy in OVER_TRAINING}
    costs["distant words\nin random order"] = (series.of("permuted") - series.of("loss")).mean(-1)
    for name, rows in costs.items():
        look = LOOKS.get(name, {"color": GREEN, "ls": "-."})
        mean_and_band(axes[1], series.steps, rows, over=0, label=name, marker=".", **look)
    axes[1].axhline(0.0, color=INK, lw=0.6)
    axes[1].set(title="Cost of keeping a fifth", ylabel="loss added (nats per token)")
    for axis in axes:
        axis.set_xscale("symlog", linthresh=max(1, int(series.steps[1])))
        axis.set(xlabel="training step (log scale)", xlim=(0, None))
        label_lines(axis)
    left_out, zero, _ = (course(series.steps, rows.mean(0), "%") for rows, _ in lines.values())
    h2o, random = (course(series.steps, costs[name].mean(0).round(3), "nats") for name in ("h2o", "random"))
    caption = (
        f"Over training, the share of keys that attention leaves out {left_out}; the share that H2O counts as zero "
        f"{zero}. Meanwhile the cost of H2O's choice of a fifth of the keys {h2o}; that of random keys {random}. "
        "Random logits have the spread of the network's own."
    )
    return Drawing("sparsity-and-cost", caption, figure)
