"""The study `shallow-first`: its claims, its two sizes, what it says of itself, and two pictures."""

from functools import partial

import numpy as np

from joma.claims.contract import Drawing, Study
from joma.figures.labels import label_lines
from joma.figures.reading import listing, number
from joma.figures.style import CONTROL, INK, SERIES, depth_colours, panels
from joma.runs import Run
from joma.studies.hierarchy.shallow_first import claims as c
from joma.studies.hierarchy.shallow_first import judge
from joma.studies.hierarchy.shallow_first.run import ShallowFirstConfig, run

TITLES = {
    "bare token": "Token: one block per query, no residual",
    "residual token": "Token: one block per query (eq. 1, 2)",
    "bare class": "Class: one block per query, no residual",
    "residual class": "Class: one block per query (eq. 1, 2)",
    c.SHARED: "Token: one block for all queries (eq. 1)",
    c.DECODER: "Token: decoder",
}
"""What a network predicts, and what it is."""
HEIGHTS = [*(f"H = {height}" for height in range(1, c.DEPTH)), "root"]
PAIRS = [*(f"H = {h} from {h + 1}" for h in range(1, c.DEPTH - 1)), f"H = {c.DEPTH - 1} from root"]
"""What the decoder tells apart."""


def _draw_attention(run: Run) -> Drawing:
    figure, axes = panels(2, 3, width=4.2, height=2.4)
    early_on = in_the_end = 0  # networks in which siblings lead
    for axis, name in zip(axes, c.NETWORKS, strict=True):
        steps, attention = run.steps(f"{name}/attention")[1:], c.series(run, name)
        seen, permuted = (values[1:] for values in c.by_height(attention))
        for height, colour in enumerate(depth_colours(c.DEPTH)):
            mean, spread = seen[..., height].mean(1), seen[..., height].std(1)
            axis.plot(steps, mean, color=colour, label=HEIGHTS[height])
            axis.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.2, lw=0)
        axis.plot(steps, permuted[..., 0].mean(1), ls="--", lw=1.2, color=CONTROL, label="H = 1, permuted")
        when, every = c.early(attention), c.by_height(attention)[0]
        early_on += int((every[when, np.arange(len(when))] - every[0]).mean(0).argmax() == 0)
        in_the_end += int(every[-1].mean(0).argmax() == 0)
        begun = float(np.median(run.steps(f"{name}/attention")[when]))  # over seeds
        axis.axvline(begun, lw=0.9, ls=":", color=INK, label="a tenth moved")
        axis.set(xscale="log", title=TITLES[name], xlabel="training step (log scale)", ylabel="attention / even share")
        label_lines(axis)
    caption = (
        f"When a tenth of the movement has happened, attention has grown most on siblings (H = 1) in {early_on} of "
        f"{len(c.NETWORKS)} networks. At the end it is largest on siblings in {in_the_end} of {len(c.NETWORKS)}. "
        "Attention is given as a multiple of an even share, by the height H of the lowest common ancestor of query and "
        "token. Titles name what is predicted first. Lines: means over seeds; bands: their standard deviation. Dashed: "
        "H = 1 in a tree with permuted leaves. Dotted: a tenth of the movement has happened."
    )
    return Drawing("attention-by-height", caption, figure)


def _draw_order(run: Run) -> Drawing:
    figure, (left, right) = panels(2, width=4.4)
    # rank correlation of the change of attention with lowness, the mean over seeds
    order = {name: c.column(c.series(run, name), c.ORDER)[0].mean(1) for name in c.NETWORKS}  # (points,) each
    for (name, values), colour in zip(order.items(), SERIES, strict=True):
        style = "--" if name.startswith("residual") else "-"
        left.plot(run.steps(f"{name}/attention")[1:], values[1:], style, color=colour, label=name)
    left.axhline(0, lw=0.8, color=INK)
    left.set(
        xscale="log", xlabel="training step (log scale)", ylabel="rank correlation with lowness", ylim=(-1.05, 1.05)
    )
    left.set_title("Attention: +1 if siblings come first")
    label_lines(left)
    contrast, steps = c.contrasts(run)[0][1:].mean(1), run.steps(f"{c.DECODER}/says")[1:]
    shares = contrast / contrast[-1]  # (points, L - 1) of the final ones
    for height, colour in enumerate(depth_colours(c.DEPTH - 1)):
        right.plot(steps, shares[:, height], color=colour, label=PAIRS[height])
    right.axhline(0.5, lw=0.9, ls=":", color=INK, label="half")
    right.set(xscale="log", xlabel="training step (log scale)", ylabel="share of the final contrast")
    right.set_title("Decoder: levels told apart")
    label_lines(right)
    low = [name for name in c.NETWORKS if order[name][-1] > 0]
    half = [number(float(steps[int((shares[:, h] >= 0.5).argmax())])) for h in range(c.DEPTH - 1)]
    caption = (
        f"At the end, the change of attention favours low common ancestors in {len(low)} of {len(c.NETWORKS)} "
        f"networks{f' ({listing(low)})' if low else ''}. The decoder reaches half of its final contrast for "
        f"{listing(f'{pair} at step {step}' for pair, step in zip(PAIRS, half, strict=True))}. Left: rank correlation "
        "of the change of attention with lowness; bare: no residual, shared: one block for all queries. Right: how "
        "much the decoder prefers a token at one height to one at the next height, given the query alone. Lines are "
        "means over seeds."
    )
    return Drawing("order-of-learning", caption, figure)


STUDY = Study(
    name="shallow-first",
    title="Section 5: are tokens with a low common ancestor learned first?",
    version=2,
    claims={
        c.TOKEN_PULL: judge.token_pull,
        c.CLASS_PULL: judge.class_pull,
        c.FIRST: partial(judge.first_in_blocks, c.FIRST, "attention"),
        c.WEIGHTS: partial(judge.first_in_blocks, c.WEIGHTS, "weights"),
        c.REACH: judge.reaches_out,
        c.EVENTUALLY: partial(
            judge.in_the_end,
            c.EVENTUALLY,
            f"attention at H = {c.DEPTH - 1} in the end, in even shares",
            lambda values: [heights[..., c.FAR] for heights in c.by_height(values)],
        ),
        c.PICKED: partial(
            judge.in_the_end,
            c.PICKED,
            "attention on far tokens without a sibling minus that on equally far tokens with one, in even shares",
            lambda values: c.column(values, c.ALONE),
        ),
        c.TOGETHER: partial(judge.first_in, c.TOGETHER, c.SHARED, "attention"),
        c.TRANSFORMER: partial(judge.first_in, c.TRANSFORMER, c.DECODER, "attention"),
        c.NODES: partial(judge.first_in, c.NODES, c.DECODER, "weights"),
        c.BOTTOM_UP: judge.bottom_up,
    },
    quick=ShallowFirstConfig(),
    paper=ShallowFirstConfig(
        classes=10, members=20, samples=40_000, block_steps=3_000, block_batch=32, block_rate=1.0,
        decoder_steps=10_000, decoder_batch=256, decoder_rate=3e-4, context=12, layers=2, width=256, points=60,
        device="cuda",
    ),
    run=run,
    draw=lambda run: [_draw_attention(run), _draw_order(run)],
    about=(
        "Sequences are drawn from a hierarchical binary latent tree. Three kinds of network read them: the block of "
        "eq. 1 with one copy per query, as eq. 2 trains it (with and without its residual), one block for all queries, "
        "and a small decoder. They predict a token that was left out, or the class. Over training, attention and MLP "
        "weights between two tokens are sorted by the height of their lowest common ancestor. A verdict comes from the "
        "interval over seeds: the number in the true tree minus the same number in a tree with permuted leaves. The "
        "first point of every curve is the untrained network. A network whose loss ends as high as that of even "
        "guesses did not learn and does not count."
    ),
)  # fmt: skip
