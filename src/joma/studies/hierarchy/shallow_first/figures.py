"""The two pictures of `shallow-first`: attention by height over training, and in which order things are learned."""

from __future__ import annotations

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import label_lines
from joma.figures.reading import listing, number
from joma.figures.style import CONTROL, INK, SERIES, depth_colours, panels
from joma.runs import Run
from joma.studies.hierarchy.shallow_first.claims import DECODER, DEPTH, NETWORKS, SHARED
from joma.studies.hierarchy.shallow_first.record import ORDER, by_height, column, contrasts, early, series

TITLES = {
    "bare token": "Token: one block per query, no residual",
    "residual token": "Token: one block per query (eq. 1, 2)",
    "bare class": "Class: one block per query, no residual",
    "residual class": "Class: one block per query (eq. 1, 2)",
    SHARED: "Token: one block for all queries (eq. 1)",
    DECODER: "Token: decoder",
}
"""What a network predicts, and what it is."""
HEIGHTS = [*(f"H = {height}" for height in range(1, DEPTH)), "root"]
PAIRS = [*(f"H = {h} from {h + 1}" for h in range(1, DEPTH - 1)), f"H = {DEPTH - 1} from root"]
"""What the decoder tells apart."""


def draw(run: Run) -> list[Drawing]:
    """Attention by height over training in each network, and in which order what is learned."""
    return [_draw_attention(run), _draw_order(run)]


def _draw_attention(run: Run) -> Drawing:
    figure, axes = panels(2, 3, width=4.2, height=2.4)
    for axis, name in zip(axes, NETWORKS, strict=True):
        steps, attention = run.steps(f"{name}/attention")[1:], series(run, name)
        seen, permuted = (values[1:] for values in by_height(attention))
        for height, colour in enumerate(depth_colours(DEPTH)):
            mean, spread = seen[..., height].mean(1), seen[..., height].std(1)
            axis.plot(steps, mean, color=colour, label=HEIGHTS[height])
            axis.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.2, lw=0)
        axis.plot(steps, permuted[..., 0].mean(1), ls="--", lw=1.2, color=CONTROL, label="H = 1, permuted")
        begun = float(np.median(run.steps(f"{name}/attention")[early(attention)]))  # over seeds
        axis.axvline(begun, lw=0.9, ls=":", color=INK, label="a tenth moved")
        axis.set(xscale="log", title=TITLES[name], xlabel="training step (log scale)", ylabel="attention / even share")
        label_lines(axis)
    leads = [_siblings_lead(run, name) for name in NETWORKS]
    early_on, in_the_end = (sum(lead) for lead in zip(*leads, strict=True))
    caption = (
        f"When a tenth of the movement has happened, attention has grown most on siblings (H = 1) in {early_on} of "
        f"{len(NETWORKS)} networks. At the end it is largest on siblings in {in_the_end} of {len(NETWORKS)}. Attention "
        "is given as a multiple of an even share, by the height H of the lowest common ancestor of query and token. "
        "Titles name what is predicted first. Lines: means over seeds; bands: their standard deviation. Dashed: H = 1 "
        "in a tree with permuted leaves. Dotted: a tenth of the movement has happened."
    )
    return Drawing("attention-by-height", caption, figure)


def _siblings_lead(run: Run, name: str) -> tuple[bool, bool]:
    """Whether attention grew most at H = 1 until a tenth of the movement happened, and is largest there at the end."""
    values = series(run, name)
    seen, when = by_height(values)[0], early(values)
    grown = (seen[when, np.arange(len(when))] - seen[0]).mean(0)  # (L,)
    return bool(grown.argmax() == 0), bool(seen[-1].mean(0).argmax() == 0)


def _draw_order(run: Run) -> Drawing:
    figure, (left, right) = panels(2, width=4.4)
    # rank correlation of the change of attention with lowness, the mean over seeds
    order = {name: column(series(run, name), ORDER)[0].mean(1) for name in NETWORKS}  # (points,) each
    for (name, values), colour in zip(order.items(), SERIES, strict=True):
        style = "--" if name.startswith("residual") else "-"
        left.plot(run.steps(f"{name}/attention")[1:], values[1:], style, color=colour, label=name)
    left.axhline(0, lw=0.8, color=INK)
    left.set(
        xscale="log", xlabel="training step (log scale)", ylabel="rank correlation with lowness", ylim=(-1.05, 1.05)
    )
    left.set_title("Attention: +1 if siblings come first")
    label_lines(left)
    contrast, steps = contrasts(run)[0][1:].mean(1), run.steps(f"{DECODER}/says")[1:]
    shares = contrast / contrast[-1]  # (points, L - 1) of the final ones
    for height, colour in enumerate(depth_colours(DEPTH - 1)):
        right.plot(steps, shares[:, height], color=colour, label=PAIRS[height])
    right.axhline(0.5, lw=0.9, ls=":", color=INK, label="half")
    right.set(xscale="log", xlabel="training step (log scale)", ylabel="share of the final contrast")
    right.set_title("Decoder: levels told apart")
    label_lines(right)
    low = [name for name in NETWORKS if order[name][-1] > 0]
    half = [number(float(steps[int((shares[:, h] >= 0.5).argmax())])) for h in range(DEPTH - 1)]
    caption = (
        f"At the end, the change of attention favours low common ancestors in {len(low)} of {len(NETWORKS)} "
        f"networks{f' ({listing(low)})' if low else ''}. The decoder reaches half of its final contrast for "
        f"{listing(f'{pair} at step {step}' for pair, step in zip(PAIRS, half, strict=True))}. Left: rank correlation "
        "of the change of attention with lowness; bare: no residual, shared: one block for all queries. Right: how "
        "much the decoder prefers a token at one height to one at the next height, given the query alone. Lines are "
        "means over seeds."
    )
    return Drawing("order-of-learning", caption, figure)
