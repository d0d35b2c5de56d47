"""The study `table1`: its claims, which effects matter, what was found, and two pictures."""

from functools import partial
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.evidence import at_most
from joma.claims.guards import clears
from joma.data.latent_sets import TABLE1
from joma.figures.labels import end_label, label_lines
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PRINTED, panels, step_axis
from joma.measure.intervals import Comparison
from joma.runs import Run
from joma.studies.hierarchy._networks import mean_over, over_seeds
from joma.studies.hierarchy.table1.run import COMPLEX, ENOUGH, ENTRIES, SIMPLE, TITLES, Scores, Table1Config, run, table

MARGIN = 0.02  # of a correlation: what two decimals of the table can tell
NEAR = 0.05  # of the published number, whose spread over seeds is up to 0.08

ALIGN = ("table1/lowest-latents-align", "table1/upper-latents-align")
_claim = partial(Claim, matters=MARGIN, ceiling=1.0)
LOWEST = _claim(
    "lowest-latents-align",
    "JoMA Table 1",
    "Training gives each lowest latent a hidden node in the first block that correlates with it, at 0.94 to 1.00.",
)
UPPER = _claim(
    "upper-latents-align",
    "JoMA Table 1",
    "Training gives each latent one level up a hidden node in the second block that correlates with it, at 0.55 to "
    "0.81.",
)
VALUES = Claim(
    "published-correlations",
    "JoMA Table 1",
    "The correlations in the table are the result of training.",
    matters=MARGIN,
    ceiling=0.0,  # the effect is minus a distance
    uses=ALIGN,
)
LEARNED = _claim(
    "latents-are-learned",
    "JoMA Sec. 6",
    "Hidden nodes learn the latents: a node chosen on some of the classes stands for its latent on the other classes "
    "too.",
    uses=ALIGN,
)
LEVELS = Claim(
    "lowest-level-best",
    "JoMA Sec. 6",
    "Training aligns hidden nodes with the lowest level better than with the level above.",
    matters=MARGIN,
    uses=ALIGN,
)
HARDER = Claim(
    "more-latents-align-less",
    "JoMA Sec. 6",
    "Training aligns hidden nodes a bit less well when there are more latents and more children.",
    matters=MARGIN,
    uses=ALIGN,
)


def _level(claim: Claim, level: int, run: Run) -> Finding:
    scores = Scores(run, only_learned=True)
    found = scores.gain("best neuron", level)
    permuted = over_seeds(scores.at("best neuron", -1, level), scores.at("permuted latents", -1, level))
    published, details = scores.published(level), {}
    gains = [scores.gain("best neuron", level, step).difference for step in range(1, len(scores.steps))]
    if np.isfinite(gains).any():
        best = int(np.nanargmax(gains))  # when training had added most, of the measuring points after the first
        most = {"gain": gains[best], "step": float(scores.steps[1 + best])}
        details = {"largest gain over the untrained network": most}
    return _finding(
        claim,
        found,
        scores,
        what="correlation of a latent with its best hidden neuron",
        expected=f"a correlation at least {MARGIN} above the untrained network, above latents permuted between "
        f"classes, and within {NEAR} of the table's mean",
        size=[at_most("distance from the table's mean", abs(found.value - published), NEAR)],
        controls=[clears("the gain over permuted latents", permuted, matters=MARGIN)],
        details={"the table": {"mean": published}, **details},
    )


def _values(run: Run) -> Finding:
    scores = Scores(run, only_learned=True)
    paper = np.stack([scores.paper(level) for level in (0, 1)], axis=-1)  # (columns, levels)
    return _finding(
        VALUES,
        over_seeds(*[-np.abs(scores.both("best neuron", step) - paper) for step in (-1, 0)]),
        scores,
        what="minus the mean distance from the published correlations",
        expected=(
            f"trained networks are nearer to the published correlations than untrained networks, by at least {MARGIN}"
        ),
    )


def _learned(run: Run) -> Finding:
    scores = Scores(run, only_learned=True)
    trained, untrained = (scores.both("held out", step) for step in (-1, 0))
    permuted = scores.both("held out, permuted latents", -1)
    levels = [scores.gain("held out", level) for level in (0, 1)]
    return _finding(
        LEARNED,
        over_seeds(trained, untrained),
        scores,
        what="correlation on classes that the neuron was not chosen on",
        expected=f"a correlation at least {MARGIN} above the untrained network, and above latents permuted between "
        "classes",
        controls=[clears("the gain over permuted latents", over_seeds(trained, permuted), matters=MARGIN)],
        details={f"s = {s}": {"trained": one.value, "untrained": one.control} for s, one in enumerate(levels)},
    )


def _levels(run: Run) -> Finding:
    scores = Scores(run, only_learned=True)
    return _finding(
        LEVELS,
        over_seeds(*[scores.at("best neuron", step, 0) - scores.at("best neuron", step, 1) for step in (-1, 0)]),
        scores,
        what="correlation at s = 0 minus that at s = 1",
        expected=f"training makes the lead of the lowest level larger, by at least {MARGIN}",
    )


def _harder(run: Run) -> Finding:
    scores = Scores(run, only_learned=True)
    ends = [(column.children, column.latents) for column in scores.columns]
    simple, complex_ = (np.array([end == wanted for end in ends]) for wanted in (SIMPLE, COMPLEX))
    both = [scores.both("best neuron", step) for step in (-1, 0)]
    return _finding(
        HARDER,
        over_seeds(*[mean_over(x[:, simple], (1, 2)) - mean_over(x[:, complex_], (1, 2)) for x in both]),
        scores,
        what="fall of the correlation from the simplest to the most complex column",
        expected=f"training makes this fall larger, by at least {MARGIN}",
        of=simple | complex_,
    )


def _finding(claim: Claim, found: Comparison, scores: Scores, *, of: Any = slice(None), **evidence: Any) -> Finding:
    return scores.fates.of(of).judged(claim, found, study="table1", **evidence)


HEADS = (*TITLES[:3], *ENTRIES, *ENTRIES)
LEFT = (0.0, 0.4, 0.95, 2.0, 3.05, 4.1, 5.15, 6.35, 7.4, 8.45, 9.5)  # where the columns of the table begin
BLOCKS = ("lowest latents, block 1", "latents one level up, block 2")
LOOKS = {
    "best neuron": (BLUE, "best neuron"),
    "held out": (ORANGE, "chosen on\nother classes"),
    "permuted latents": (CONTROL, "permuted latents"),
}
"""Colour and label of every kind of score that is drawn over training."""


def _draw_table(run: Run) -> Drawing:
    lines, scores, config = table(run), Scores(run), run.config
    figure, (axis,) = panels(width=8.2, height=0.235 * (len(lines) + 2) + 0.1)
    axis.set(xlim=(-0.1, 10.5), ylim=(len(lines) - 0.4, -2.5))
    axis.axis("off")
    for x, title in ((LEFT[3], "s = 0, first block"), (LEFT[7], "s = 1, second block")):
        axis.text(x, -2, title, fontweight="bold", fontsize=9, va="center")
        axis.plot([x, x + 4.0], [-1.5, -1.5], color=INK, lw=0.6)
    for column, x in enumerate(LEFT):
        for row, text in enumerate((HEADS[column], *(line[column] for line in lines)), start=-1):
            axis.text(x, row, text, fontsize=8.5, va="center", fontweight="bold" if row < 0 else "normal")
    axis.plot([0, 10.45], [-0.5, -0.5], color=INK, lw=0.8)
    gains = [scores.gain("best neuron", level) for level in (0, 1)]
    means = [
        f"{where}: {gain.value:.2f} trained, {gain.control:.2f} untrained, {scores.paper(level).mean():.2f} published"
        for level, (where, gain) in enumerate(zip(BLOCKS, gains, strict=True))
    ]
    change = " and ".join(f"{gain.difference:+.3f}".replace("-", "−") for gain in gains)
    caption = (
        f"Training changes the mean correlation by {change} ({'; '.join(means)}). Entries: correlation between a "
        f"latent and its best hidden neuron, mean ± standard deviation over {config['seeds']} seeds. Trained: "
        f"{config['steps']:,} steps at a rate of {config['rate']:g}, width {config['width']}. Permuted: trained "
        "networks, latents permuted between classes. C classes, N_ch children per latent, N₀ and N₁ latents."
    )
    rows = [", ".join(f"{head} {entry}" for head, entry in zip(TITLES, line, strict=True)) for line in lines]
    alt = f"A table of {len(lines)} rows. First row: {rows[0]}. Last row: {rows[-1]}."  # it is drawn as text
    return Drawing("table", caption, figure, alt)


def _draw_training(scores: Scores) -> Drawing:
    figure, axes = panels(2, width=4.4, height=3.0)
    for s, axis in enumerate(axes):
        for kind, (colour, label) in LOOKS.items():
            over = [scores.gain(kind, s, step) for step in range(len(scores.steps))]
            mean, wide = (np.array([getattr(gain, name) for gain in over]) for name in ("value", "half_width"))
            axis.plot(scores.steps, mean, "o-", ms=3, color=colour, label=label)
            axis.fill_between(scores.steps, mean - wide, mean + wide, color=colour, alpha=0.2, lw=0)
            axis.axhline(mean[0], ls=":", lw=1.2, color=colour)
        axis.axhline(scores.paper(s).mean(), ls="--", lw=1.2, color=PRINTED, label="published mean")
        axis.plot(scores.steps, scores.accuracy.mean((1, 2)), lw=1, color=GREEN, label="share of classes\ntold right")
        axis.set(ylabel="correlation, or share", ylim=(-0.05, 1.05), title=f"s = {s}: {BLOCKS[s]}")
        step_axis(axis)
        end_label(axis, "untrained", ls=":")
        label_lines(axis)

    def moves(kind: str) -> str:
        lowest, upper = (scores.gain(kind, level) for level in (0, 1))
        return (
            f"from {lowest.control:.2f} to {lowest.value:.2f} for the lowest latents and from {upper.control:.2f} to "
            f"{upper.value:.2f} one level up"
        )

    caption = (
        "Where the neuron is chosen on one half of the classes and scored on the other half, training moves the "
        f"correlation {moves('held out')}. Where it is chosen on all classes, as in the table, training moves "
        f"it {moves('best neuron')}. Dots: measuring points, means over all columns and seeds. Bands: "
        "interval (95 %; 99 % over four seeds or fewer) of the difference from the untrained networks (dotted), "
        "paired by seed."
    )
    return Drawing("over-training", caption, figure)


STUDY = Study(
    name="table1",
    title="Table 1: hidden neurons and the latents of their data",
    version=2,
    claims={
        LOWEST: partial(_level, LOWEST, 0), UPPER: partial(_level, UPPER, 1), VALUES: _values, LEARNED: _learned,
        LEVELS: _levels, HARDER: _harder,
    },
    quick=Table1Config(),
    paper=Table1Config(
        columns=tuple(range(1, len(TABLE1) + 1)), seeds=5, width=1024, steps=2000, look_at=(100, 300, 1000),
        rate=1e-4, merge=False, device="cuda", precision="half", together=60, checkpoint_every=400.0,
    ),
    run=run,
    draw=lambda run: [_draw_table(run), _draw_training(Scores(run))],
    about=(
        "Three-block Transformers learn to tell the classes of Table 1's generator apart. All columns and seeds train "
        "as one ensemble. Each latent is compared with its best hidden neuron in the corresponding block, over the "
        "distinct inputs, one per class. This is done after several numbers of steps, because the source gives none. "
        "There are three comparisons: the network before training, latents permuted between classes, and neurons "
        "chosen on one half of the classes and scored on the other half. A verdict comes from the interval over seeds "
        f"of trained minus untrained. A network that tells fewer than {100 * ENOUGH:.0f} % of its classes right at the "
        "end did not learn and does not count."
    ),
)  # fmt: skip
