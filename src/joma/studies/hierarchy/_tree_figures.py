"""The two pictures of `shallow-first`: attention by height over training, and in which order things are learned."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import label_lines
from joma.figures.reading import course, listing, number
from joma.figures.style import CONTROL, INK, SERIES, depth_colours, panels
from joma.runs import Run
from joma.studies.hierarchy._tree_claims import DECODER, DEPTH, NETWORKS, SHARED
from joma.studies.hierarchy._tree_series import ORDER, by_height, column, contrasts, early, series

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
        axis.axvline(_begun(run, name), lw=0.9, ls=":", color=INK, label="a tenth moved")
        axis.set(xscale="log", title=TITLES[name], xlabel="training step (log scale)", ylabel="attention / even share")
        label_lines(axis)
    return Drawing("attention-by-height", _attention_caption(run), figure, _attention_alt(run))


def _begun(run: Run, name: str) -> float:
    """The step at which a tenth of the movement has happened, the median over seeds."""
    return float(np.median(run.steps(f"{name}/attention")[early(series(run, name))]))


def _siblings_lead(run: Run, name: str) -> tuple[bool, bool]:
    """Whether attention grew most at H = 1 until a tenth of the movement happened, and is largest there at the end."""
    values = series(run, name)
    seen, when = by_height(values)[0], early(values)
    grown = (seen[when, np.arange(len(when))] - seen[0]).mean(0)  # (L,)
    return bool(grown.argmax() == 0), bool(seen[-1].mean(0).argmax() == 0)


def _attention_caption(run: Run) -> str:
    """In how many networks siblings lead, early and at the end; then how to read it."""
    early_on, in_the_end = (sum(lead) for lead in zip(*(_siblings_lead(run, name) for name in NETWORKS), strict=True))
    return (
        f"When a tenth of the movement has happened, attention has grown most on siblings (H = 1) in {early_on} of "
        f"{len(NETWORKS)} networks. At the end it is largest on siblings in {in_the_end} of {len(NETWORKS)}. Attention "
        "is given as a multiple of an even share, by the height H of the lowest common ancestor of query and token. "
        "Titles name what is predicted first. Lines: means over seeds; bands: their standard deviation. Dashed: H = 1 "
        "in a tree with permuted leaves. Dotted: a tenth of the movement has happened."
    )


def _attention_alt(run: Run) -> str:
    parts = [f"{len(NETWORKS)} panels."]
    for name in NETWORKS:
        steps = run.steps(f"{name}/attention")
        seen = by_height(series(run, name))[0].mean(1)
        lines = [f"{HEIGHTS[h]} {_peak(steps, seen[:, h])}" for h in range(DEPTH)]
        parts.append(f"{TITLES[name]}: {'; '.join(lines)}.")
    return " ".join(parts)


def _peak(steps: Any, values: Any) -> str:
    """From the start over the point farthest from it to the end."""
    told = [0, int(np.argmax(np.abs(values - values[0]))), -1]
    return course(steps[told], values[told])


def _draw_order(run: Run) -> Drawing:
    figure, (left, right) = panels(2, width=4.4)
    for name, colour in zip(NETWORKS, SERIES, strict=True):
        steps = run.steps(f"{name}/attention")[1:]
        style = "--" if name.startswith("residual") else "-"
        left.plot(steps, _order(run, name)[1:], style, color=colour, label=name)
    left.axhline(0, lw=0.8, color=INK)
    left.set(
        xscale="log", xlabel="training step (log scale)", ylabel="rank correlation with lowness", ylim=(-1.05, 1.05)
    )
    left.set_title("Attention: +1 if siblings come first")
    label_lines(left)
    steps, shares = _contrast_shares(run)
    for height, colour in enumerate(depth_colours(DEPTH - 1)):
        right.plot(steps, shares[:, height], color=colour, label=PAIRS[height])
    right.axhline(0.5, lw=0.9, ls=":", color=INK, label="half")
    right.set(xscale="log", xlabel="training step (log scale)", ylabel="share of the final contrast")
    right.set_title("Decoder: levels told apart")
    label_lines(right)
    return Drawing("order-of-learning", _order_caption(run), figure, _order_alt(run))


def _order(run: Run, name: str) -> Any:
    """(points,) rank correlation of the change of attention with lowness, the mean over seeds."""
    return column(series(run, name), ORDER)[0].mean(1)


def _contrast_shares(run: Run) -> tuple[Any, Any]:
    """Steps, and (points, L - 1) mean contrasts as shares of the final ones."""
    contrast, steps = contrasts(run)[0][1:].mean(1), run.steps(f"{DECODER}/says")[1:]
    return steps, contrast / contrast[-1]


def _halves(run: Run) -> list[float]:
    """The first step with half of the final contrast, by pair of heights."""
    steps, shares = _contrast_shares(run)
    return [float(steps[int((shares[:, h] >= 0.5).argmax())]) for h in range(DEPTH - 1)]


def _order_caption(run: Run) -> str:
    ends = {name: float(_order(run, name)[-1]) for name in NETWORKS}
    first = [name for name, end in ends.items() if end > 0]
    halves = listing(f"{pair} at step {number(step)}" for pair, step in zip(PAIRS, _halves(run), strict=True))
    return (
        f"At the end, the change of attention favours low common ancestors in {len(first)} of {len(ends)} "
        f"networks{f' ({listing(first)})' if first else ''}. The decoder reaches half of its final contrast for "
        f"{halves}. Left: rank correlation of the change of attention with lowness; bare: no residual, shared: one "
        "block for all queries. Right: how much the decoder prefers a token at one height to one at the next height, "
        "given the query alone. Lines are means over seeds."
    )


def _order_alt(run: Run) -> str:
    left = [f"{name} {_peak(run.steps(f'{name}/attention'), _order(run, name))}" for name in NETWORKS]
    steps, shares = _contrast_shares(run)
    right = [f"{pair} {course(steps, shares[:, h])}" for h, pair in enumerate(PAIRS)]
    return f"Two panels. Left, rank correlation: {'; '.join(left)}. Right, share of the contrast: {'; '.join(right)}."
