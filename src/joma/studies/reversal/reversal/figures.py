"""Figures of the study `reversal`: the row law, the two probabilities, the weights and the bilinear model."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.bands import bound, mean_and_band
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, GREEN, ORANGE, PURPLE, RED, panels
from joma.runs import Run
from joma.studies.reversal._rows import MODELS, cases

RATES = (BLUE, GREEN, ORANGE, PURPLE, RED)


def draw(run: Run) -> list[Drawing]:
    """The row law and the two probabilities; the weights; the bilinear model."""
    return [_draw_rows(run), _draw_weights(run), _draw_bilinear(run)]


def _draw_rows(run: Run) -> Drawing:
    """Gaps over visits beside the law; probabilities of facts and of their reverses."""
    found = sorted({case[:-1] for case in cases(run)}, key=lambda case: tuple(map(float, case[:-1].split("/"))))
    fewest = [case for case in found if case.split("/")[0] == found[0].split("/")[0]]
    case = fewest[len(fewest) // 2]  # of the smallest facts, at the rate in the middle: 'tokens/rate/'
    figure, (left, right) = panels(2, width=4.7, height=3.1)
    _draw_law(run, left)
    _draw_probabilities(run, right, case)
    train, reverse, cured = (run.value(f"{case}A/{name}")[-1].mean() for name in ("train p", "reverse p", "cured p"))
    tokens = int(case.split("/")[0])
    caption = (
        f"Facts are learned and their reverses stay a guess. At the end of training, model A gives a trained fact "
        f"p = {number(train)} and its reverse p = {number(reverse)}, which is {number(tokens * reverse)}/M with "
        f"M = {tokens} tokens. The same reverses get p = {number(cured)} if they are trained. Left: the gap between "
        "the logit of the answer and the others, by the number of visits. Circles are rows of model A under SGD, lines "
        "are the row law. Right: mean probabilities over training; the theorem begins at 1."
    )
    return Drawing("row-law", caption, figure)


def _draw_law(run: Run, axis: Any) -> None:
    for rate, colour in zip(run.value("law/rates"), RATES, strict=False):
        grid, flow, law, visits, gap = (
            run.value(f"law/{rate:g}/{name}") for name in ("grid", "flow", "law", "visits", "gap")
        )
        axis.plot(grid, law, color=colour, lw=1.2, label=f"η = {rate:g}")
        axis.plot(grid, flow, color=colour, lw=1.0, ls=":")
        axis.plot(visits[:, ::5].ravel(), gap[:, ::5].ravel(), "o", ms=3, mfc="none", mew=0.8, color=colour)
    end_label(axis, "circles: SGD", marker="o", ms=3, mfc="none", ls="")
    end_label(axis, "dotted: gradient flow", ls=":", lw=1)
    axis.set(xscale="log", xlabel="visits of the row", ylabel="gap g (nats)", title="One law describes every row")
    label_lines(axis)


def _draw_probabilities(run: Run, axis: Any, case: str) -> None:
    tokens, rate = int(case.split("/")[0]), float(case.split("/")[1])
    for name, label, colour in (
        ("train p", "facts", BLUE),
        ("cured p", "reverses, trained", CONTROL),
        ("reverse p", "reverses, not trained", RED),
    ):
        for model, style in (("A", "-"), ("B", "--")):
            p, time = run.value(f"{case}{model}/{name}"), run.value(f"{case}{model}/times")
            mean_and_band(axis, time, p, ls=style, color=colour, label=f"{label}, model {model}")
    bound(axis, 1 / tokens, "1/M")
    axis.set(xscale="log", yscale="log", xlabel="η · steps per sequence / ln M", ylabel="probability of the answer")
    axis.set_title(f"Reverses stay a guess (M = {tokens}, η = {rate:g})")
    label_lines(axis)


def _draw_weights(run: Run) -> Drawing:
    """Y at the end of training, tokens sorted by what they are."""
    figure, axes = panels(2, width=4.0, height=3.9)
    shown = {model: run.value(f"picture/{model}") for model in MODELS}
    most = max(float(np.abs(weights).max()) for weights in shown.values())
    both = int(run.value("picture/both"))
    alone = len(shown["A"]) // 2 - both
    edges = np.cumsum([0, both, both, alone, alone])
    centres, names = (edges[:-1] + edges[1:]) / 2 - 0.5, ("A, both", "B, both", "start", "end")
    for axis, (model, weights) in zip(axes, shown.items(), strict=True):
        drawn = axis.imshow(weights, cmap="PuOr_r", vmin=-most, vmax=most, interpolation="nearest")
        for edge in edges[1:-1]:
            axis.axhline(edge - 0.5, lw=0.5, color="#757575")
            axis.axvline(edge - 0.5, lw=0.5, color="#757575")
        axis.set_xticks(centres, names)
        axis.set_yticks(centres, names)
        axis.tick_params(length=0)
        axis.set(xlabel="answer x₃", ylabel="first token x₁", title=f"Y of model {model}")
    figure.colorbar(drawn, ax=axes, shrink=0.75).ax.set(xlabel="logit", ylabel="Y[x₁, x₃]")
    ends = {model: number(np.abs(weights[-alone:]).max()) for model, weights in shown.items()}
    starts = number(np.abs(shown["A"][2 * both : -alone]).max())
    caption = (
        "The weights show the asymmetry: rows from which a trained sequence starts are filled, and rows that only end "
        f"one are empty. The largest |logit| in the rows of the ends is {ends['A']} in model A and "
        f"{ends['B']} in model B; in the rows of the starts it is {starts}. Rows are "
        "first tokens x₁, columns are answers x₃. The tokens are sorted: A and B of the pairs that train in "
        "both directions, then start and end of the pairs that train in one direction."
    )
    return Drawing("weights", caption, figure)


def _draw_bilinear(run: Run) -> Drawing:
    """Losses over training, and the smallest exponent over the width."""
    figure, (left, right) = panels(2, width=4.7, height=3.0)
    for kind, label, colour in (
        ("forward", "facts trained", RED),
        ("symmetric", "symmetric Θ", GREEN),
        ("both", "both trained", CONTROL),
    ):
        forward, reverse = run.value(f"bilinear/path/{kind}")[:, 0]
        steps = np.arange(1, len(forward) + 1)
        left.plot(steps, reverse, color=colour, label=label)
        left.plot(steps, forward, color=colour, ls=":", lw=1.2, zorder=5)
    end_label(left, "dotted: loss of facts", ls=":", lw=1.2)
    left.set(xscale="log", yscale="log", xlabel="step", ylabel="loss (nats)", title="The reverse is not learned")
    label_lines(left)
    widths, power, controls = (run.value(f"bilinear/{name}") for name in ("widths", "power", "control power"))
    right.plot(widths, power.mean(1), "o-", ms=4, color=RED, label="facts trained")
    right.plot(widths, 1 / widths, ls=":", lw=1, color=CONTROL, label="1/width")
    right.plot(widths.max(), controls[1].mean(), "s", ms=5, color=GREEN, label="symmetric Θ")
    right.plot(widths.max(), controls[2].mean(), "^", ms=5, color=CONTROL, label="both trained")
    right.set(xscale="log", yscale="log", xlabel="width of the embeddings", ylabel="smallest ε (mean over draws)")
    right.set_xticks(widths, [f"{width}" for width in widths])
    right.minorticks_off()
    right.set_title("ε falls as 1/width")
    label_lines(right)
    widest = int(np.argmax(widths))
    caption = (
        "In the bilinear model the reverse is not learned unless Θ is symmetric or reverses are trained. The smallest "
        f"ε of Theorem 1 is {number(power[widest].mean())} on average at width {widths[widest]}, about "
        f"{number(power[widest].mean() * widths[widest])}/width. Left: losses over training at that width. "
        "Facts are learned as fast alone as with both trained, so their dotted lines coincide. Right: the "
        "smallest ε with which the bound holds, by the width of Gaussian embeddings."
    )
    return Drawing("bilinear", caption, figure)
