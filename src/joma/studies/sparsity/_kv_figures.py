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
from joma.studies.sparsity._kv_findings import FIFTH, SPARSE, Series

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
    stories = _stories(series)
    figure, axes = panels(len(shown) + (stories is not None), width=3.5)
    for axis, at in zip(axes, shown, strict=False):
        each = {policy: _costs(series, policy, at) for policy in series.policies}
        _panel(axis, series, each, f"Step {series.steps[at]:,}")
    for axis in axes[1 : len(shown)]:
        axis.sharey(axes[0])
    axes[0].autoscale_view()
    label_lines(axes[len(shown) - 1])
    if stories is not None:
        _panel(axes[-1], series, stories, "stories260K (its own scale)")
        label_lines(axes[-1])
    return Drawing("cost-by-share", _caption(series, stories is not None), figure, _alt(series, shown, stories))


def _costs(series: Series, policy: str, at: int) -> Any:
    """(keeps, seeds)."""
    return np.stack([series.cost(policy, keep, at) for keep in series.keeps])


def _stories(series: Series) -> dict[str, Any] | None:
    """(keeps, 1) by policy, mean over sequences: it is one network."""
    if "stories/loss" not in series.run:
        return None
    cost = (series.run.value("stories/cut") - series.run.value("stories/loss")).mean(-1)  # (policies, keeps)
    return {policy: each[:, None] for policy, each in zip(series.policies, cost, strict=True)}


def _panel(axis: Axes, series: Series, costs: dict[str, Any], title: str) -> None:
    for policy in in_order(costs):
        mean_and_band(axis, series.keeps, costs[policy], label=policy, marker=".", shade=0.1, **LOOKS[policy])
    axis.axhline(0.0, color=INK, lw=0.6)
    share_axis(axis, series.keeps, "share of the cache kept")
    axis.set(title=title, ylabel="loss added (nats per token)")


def _told(costs: dict[str, float]) -> str:
    ranked = sorted(costs.items(), key=lambda item: item[1])
    return listing(f"{policy} {_nats(cost)}" for policy, cost in ranked)


def _nats(cost: float) -> str:
    """With its sign: a cut cache may also do better."""
    return f"{cost:+.3f}".replace("-", "−")


def _caption(series: Series, with_stories: bool) -> str:
    ends = {policy: float(series.cost(policy).mean()) for policy in series.policies}
    scale = " The panel of stories260K has its own scale; the others share one." if with_stories else ""
    return (
        f"After training, a fifth of the cache costs, in nats per token: {_told(ends)}. The whole cache has a loss of "
        f"{number(float(series.mean('loss').mean()), 'nats')}. Lines are means over {len(series.kept)} networks, bands "
        "go from the lowest to the highest. The loss is that of the last quarter of each sequence. top-k evicts "
        f"nothing and lets every query choose; random protects the same first and last keys as h2o.{scale}"
    )


def _alt(series: Series, shown: list[int], stories: dict[str, Any] | None) -> str:
    count = len(shown) + (stories is not None)
    parts = [f"{count} panels, loss added against the share of the cache kept, which falls to the right."]
    fifth = series.keeps.index(FIFTH)
    for at in shown:
        ends = {policy: float(_costs(series, policy, at)[fifth].mean()) for policy in series.policies}
        parts.append(f"Step {series.steps[at]:,}, at a fifth: {_told(ends)}.")
    if stories is not None:
        parts.append(f"stories260K, at a fifth: {_told({name: float(x[fifth, 0]) for name, x in stories.items()})}.")
    return " ".join(parts)


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
    told = {name: course(series.steps, rows.mean(0), "%") for name, (rows, _) in lines.items()}
    paid = {
        name.replace("\n", " "): course(series.steps, rows.mean(0).round(3), "nats") for name, rows in costs.items()
    }
    caption = (
        f"Over training, the share of keys that attention leaves out {told['left out (1 - effective)']}; the share "
        f"that H2O counts as zero {told['zero as in H2O']}. Meanwhile the cost of H2O's choice of a fifth of the keys "
        f"{paid['h2o']}; that of random keys {paid['random']}. Random logits have the spread of the network's own."
    )
    alt = " ".join(
        [
            "Two panels over training.",
            f"Sparsity: {'; '.join(f'{name} {how}' for name, how in told.items())}.",
            f"Cost: {'; '.join(f'{name} {how}' for name, how in paid.items())}.",
        ]
    )
    return Drawing("sparsity-and-cost", caption, figure, alt)
