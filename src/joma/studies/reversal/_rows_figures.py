"""Figures of the study `reversal`: the row law, the two probabilities, the weights and the bilinear model."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.bands import bound, mean_and_band
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import between, course, number
from joma.figures.style import BLUE, CONTROL, GREEN, ORANGE, PURPLE, RED, panels
from joma.runs import Run
from joma.studies.reversal._rows_findings import cases

RATES = (BLUE, GREEN, ORANGE, PURPLE, RED)


def draw_rows(run: Run) -> Drawing:
    """Gaps over visits beside the law; probabilities of facts and of their reverses."""
    figure, (left, right) = panels(2, width=4.7, height=3.1)
    seen = [_draw_law(run, left), _draw_probabilities(run, right)]
    case = _shown(run)
    train, reverse, cured = (run.value(f"{case}A/{name}")[-1].mean() for name in ("train p", "reverse p", "cured p"))
    tokens = int(case.split("/")[0])
    caption = (
        f"Facts are learned and their reverses stay a guess. At the end of training, model A gives a trained fact "
        f"p = {number(train)} and its reverse p = {number(reverse)}, which is {number(tokens * reverse)}/M with "
        f"M = {tokens} tokens. The same reverses get p = {number(cured)} if they are trained. Left: the gap between "
        "the logit of the answer and the others, by the number of visits. Circles are rows of model A under SGD, lines "
        "are the row law. Right: mean probabilities over training; the theorem begins at 1."
    )
    return Drawing("row-law", caption, figure, "Two panels. " + " ".join(seen))


def _draw_law(run: Run, axis: Any) -> str:
    rates, ends = run.value("law/rates"), []
    for rate, colour in zip(rates, RATES, strict=False):
        grid, flow, law, visits, gap = (
            run.value(f"law/{rate:g}/{name}") for name in ("grid", "flow", "law", "visits", "gap")
        )
        axis.plot(grid, law, color=colour, lw=1.2, label=f"η = {rate:g}")
        axis.plot(grid, flow, color=colour, lw=1.0, ls=":")
        axis.plot(visits[:, ::5].ravel(), gap[:, ::5].ravel(), "o", ms=3, mfc="none", mew=0.8, color=colour)
        ends.append(f"at η = {rate:g} to {number(gap.max())} after {number(visits.max())} visits")
    end_label(axis, "circles: SGD", marker="o", ms=3, mfc="none", ls="")
    end_label(axis, "dotted: gradient flow", ls=":", lw=1)
    axis.set(xscale="log", xlabel="visits of the row", ylabel="gap g (nats)", title="One law describes every row")
    label_lines(axis)
    return (
        "Left, visits on a log scale: one rising curve per rate, steep at first and then bending to a logarithm. "
        f"The gap rises {', '.join(ends)}. The circles of SGD lie on the lines of the law."
    )


def _shown(run: Run) -> str:
    """Of the smallest facts, at the rate in the middle: 'tokens/rate/'."""
    found = sorted({case[:-1] for case in cases(run)}, key=lambda case: tuple(map(float, case[:-1].split("/"))))
    fewest = [case for case in found if case.split("/")[0] == found[0].split("/")[0]]
    return fewest[len(fewest) // 2]


def _draw_probabilities(run: Run, axis: Any) -> str:
    case, texts = _shown(run), []
    tokens, rate = int(case.split("/")[0]), float(case.split("/")[1])
    for name, label, colour in (
        ("train p", "facts", BLUE),
        ("cured p", "reverses, trained", CONTROL),
        ("reverse p", "reverses, not trained", RED),
    ):
        for model, style in (("A", "-"), ("B", "--")):
            p, time = run.value(f"{case}{model}/{name}"), run.value(f"{case}{model}/times")
            mean_and_band(axis, time, p, ls=style, color=colour, label=f"{label}, model {model}")
            texts.append(f"{label} in model {model} end at {number(p[-1].mean())}")
    bound(axis, 1 / tokens, "1/M")
    axis.set(xscale="log", yscale="log", xlabel="η · steps per sequence / ln M", ylabel="probability of the answer")
    axis.set_title(f"Reverses stay a guess (M = {tokens}, η = {rate:g})")
    label_lines(axis)
    return f"Right, on log scales: {'; '.join(texts)}. A dotted line marks 1/M = {number(1 / tokens)}."


def draw_weights(run: Run) -> Drawing:
    """Y at the end of training, tokens sorted by what they are."""
    figure, axes = panels(2, width=4.0, height=3.9)
    both = int(run.value("picture/both"))
    most = max(float(np.abs(run.value(f"picture/{model}")).max()) for model in "AB")
    filled = {}
    for axis, model in zip(axes, "AB", strict=True):
        weights = run.value(f"picture/{model}")
        drawn = axis.imshow(weights, cmap="PuOr_r", vmin=-most, vmax=most, interpolation="nearest")
        _name_blocks(axis, both, len(weights))
        axis.set_title(f"Y of model {model}")
        filled[model] = np.abs(weights[-(len(weights) // 2 - both) :]).max()
    figure.colorbar(drawn, ax=axes, shrink=0.75).ax.set(xlabel="logit", ylabel="Y[x₁, x₃]")
    start = run.value("picture/A")[2 * both : -(len(weights) // 2 - both)]
    caption = (
        "The weights show the asymmetry: rows from which a trained sequence starts are filled, and rows that only end "
        f"one are empty. The largest |logit| in the rows of the ends is {number(filled['A'])} in model A and "
        f"{number(filled['B'])} in model B; in the rows of the starts it is {number(np.abs(start).max())}. Rows are "
        "first tokens x₁, columns are answers x₃. The tokens are sorted: A and B of the pairs that train in both "
        "directions, then start and end of the pairs that train in one direction."
    )
    alt = (
        "Two square colour maps of logits, one per model, each in four by four blocks. In both, the block of A rows "
        "has a dark diagonal in the B columns, the block of B rows in the A columns, and the block of starts in the "
        f"columns of the ends, with logits up to {number(most)}. The lowest rows, the ends, are blank: "
        f"{number(filled['A'])} and {number(filled['B'])}."
    )
    return Drawing("weights", caption, figure, alt)


def _name_blocks(axis: Any, both: int, size: int) -> None:
    alone = size // 2 - both
    edges = np.cumsum([0, both, both, alone, alone])
    for edge in edges[1:-1]:
        axis.axhline(edge - 0.5, lw=0.5, color="#757575")
        axis.axvline(edge - 0.5, lw=0.5, color="#757575")
    centres = (edges[:-1] + edges[1:]) / 2 - 0.5
    names = ("A, both", "B, both", "start", "end")
    axis.set_xticks(centres, names)
    axis.set_yticks(centres, names)
    axis.tick_params(length=0)
    axis.set(xlabel="answer x₃", ylabel="first token x₁")


def draw_bilinear(run: Run) -> Drawing:
    """Losses over training, and the smallest exponent over the width."""
    figure, (left, right) = panels(2, width=4.7, height=3.0)
    seen = [_draw_losses(run, left), _draw_powers(run, right)]
    widths, power = run.value("bilinear/widths"), run.value("bilinear/power")
    widest = int(np.argmax(widths))
    caption = (
        "In the bilinear model the reverse is not learned unless Θ is symmetric or reverses are trained. The smallest "
        f"ε of Theorem 1 is {number(power[widest].mean())} on average at width {widths[widest]}, about "
        f"{number(power[widest].mean() * widths[widest])}/width. Left: losses over training at that width. "
        "Facts are learned as fast alone as with both trained, so their dotted lines coincide. Right: the "
        "smallest ε with which the bound holds, by the width of Gaussian embeddings."
    )
    return Drawing("bilinear", caption, figure, "Two panels. " + " ".join(seen))


def _draw_losses(run: Run, axis: Any) -> str:
    texts = []
    for kind, label, colour in (
        ("forward", "facts trained", RED),
        ("symmetric", "symmetric Θ", GREEN),
        ("both", "both trained", CONTROL),
    ):
        forward, reverse = run.value(f"bilinear/path/{kind}")[:, 0]
        steps = np.arange(1, len(forward) + 1)
        axis.plot(steps, reverse, color=colour, label=label)
        axis.plot(steps, forward, color=colour, ls=":", lw=1.2, zorder=5)
        texts.append(f"with {label} the reverse loss {course(steps, reverse, 'nats')}")
    end_label(axis, "dotted: loss of facts", ls=":", lw=1.2)
    axis.set(xscale="log", yscale="log", xlabel="step", ylabel="loss (nats)", title="The reverse is not learned")
    label_lines(axis)
    return f"Left, on log scales: {'; '.join(texts)}."


def _draw_powers(run: Run, axis: Any) -> str:
    widths, power, controls = (run.value(f"bilinear/{name}") for name in ("widths", "power", "control power"))
    mean = power.mean(1)
    axis.plot(widths, mean, "o-", ms=4, color=RED, label="facts trained")
    axis.plot(widths, 1 / widths, ls=":", lw=1, color=CONTROL, label="1/width")
    axis.plot(widths.max(), controls[1].mean(), "s", ms=5, color=GREEN, label="symmetric Θ")
    axis.plot(widths.max(), controls[2].mean(), "^", ms=5, color=CONTROL, label="both trained")
    axis.set(xscale="log", yscale="log", xlabel="width of the embeddings", ylabel="smallest ε (mean over draws)")
    axis.set_xticks(widths, [f"{width}" for width in widths])
    axis.minorticks_off()
    axis.set_title("ε falls as 1/width")
    label_lines(axis)
    return (
        f"Right, on log scales: the mean smallest ε falls from {number(mean[0])} at width {widths[0]} to "
        f"{number(mean[-1])} at width {widths[-1]}, near the dotted line 1/width. Both controls lie "
        f"{between([controls[1].mean(), controls[2].mean()])}."
    )
