"""The talk's picture of accuracy against contrastive loss, and two pictures of random labels."""

import numpy as np

from joma.claims.contract import Drawing
from joma.claims.guards import mean_known
from joma.figures.bands import mean_and_band
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, RED, SERIES, panels
from joma.figures.types import Axes
from joma.runs import Run
from joma.studies.inductive_bias.inductive_bias.hypercube import LINEAR, MLP
from joma.studies.inductive_bias.inductive_bias.random_labels import DEEP, KINDS, RANDOM, SHAPES, TRUE
from joma.studies.inductive_bias.inductive_bias.record import CHANCE, FIT_AT, Contrast, Fits

MARKS = {"perfect": ("*", GREEN), "scrambled": ("D", PURPLE), "spurious": ("X", RED)}
FAR = 0.25  # nats above the loss of the built representations: beyond it nothing is to be seen


def draw(run: Run) -> list[Drawing]:
    """Accuracy against loss, learning curves of all kinds of data, and accuracies of all classifiers of digits."""
    return [_draw_contrast(Contrast(run)), _draw_curves(Fits(run)), _draw_bars(Fits(run))]


def _draw_contrast(contrast: Contrast) -> Drawing:
    figure, (left, right) = panels(2, width=4.4, height=3.0)
    colours = {LINEAR: GREEN, **dict(zip(contrast.decayed, (ORANGE, RED, PURPLE), strict=False)), MLP: BLUE}
    _draw_paths(left, contrast, colours)
    for name in contrast.methods:
        right.plot(contrast.steps, contrast.curve(name, "informative").mean(1), color=colours[name], label=name)
    end_label(right, "depends on them alone", ls="--")
    right.set(xlabel="training step", ylabel="informative coordinates in the code", ylim=(-0.05, 1.05))
    label_lines(right)
    for name in contrast.methods:  # after the labels at the ends of lines: the description names these, the panel not
        similar = contrast.curve(name, "same bits").mean(1)
        right.plot(contrast.steps, similar, "--", color=colours[name], label=f"{name}, depends on them alone")
    rows = contrast.rows().items()
    learned = "; ".join(f"{name} {number(row['accuracy'], '%')} at {row['loss']:.3f} nats" for name, row in rows)
    built = {name: number(float(contrast.built(name).mean()), "%") for name in MARKS}
    caption = (
        f"The contrastive loss does not decide the downstream accuracy. Three codes that are built have the same loss "
        f"and accuracies of {built['perfect']} (perfect), {built['spurious']} (spurious) and "
        f"{built['scrambled']} (scrambled). Learned: {learned}. Left: lines are means over seeds during training, "
        "dots are seeds at the end; the loss falls from left to right. Right, solid: the share of the informative "
        "coordinates that a linear map of the code explains on fresh points. Dashed: the similarity of codes of points "
        "that agree in the informative coordinates alone. It is 1 where a code depends on nothing else."
    )
    return Drawing("accuracy-against-loss", caption, figure)


def _draw_paths(axis: Axes, contrast: Contrast, colours: dict[str, str]) -> None:
    for name in contrast.methods:
        loss, accuracy = contrast.curve(name, "loss"), contrast.curve(name)
        axis.plot(loss.mean(1), accuracy.mean(1), lw=1.2, color=colours[name], label=name)
        axis.plot(loss[-1], accuracy[-1], "o", ms=4, color=colours[name])
    axis.axhline(0.5, ls=":", lw=1, color=CONTROL)
    least = min(float(contrast.curve(name, "loss")[-1].min()) for name in contrast.methods) - 0.02
    axis.set(xlim=(float(contrast.built("perfect", "loss").mean()) + FAR, least), ylim=(0.45, 1.03))
    axis.set(xlabel="contrastive loss (nats), falling", ylabel="downstream accuracy")
    label_lines(axis)
    for name, (mark, colour) in MARKS.items():  # after the labels at the ends of lines: these have theirs beside them
        place, code = (contrast.built(name, "loss").mean(), contrast.built(name).mean()), f"{name} code"
        axis.plot(*place, mark, ms=9, mec=INK, mew=0.6, color=colour, ls="none", label=code)
        axis.annotate(code, place, xytext=(-8, 2), textcoords="offset points", va="bottom", ha="right", size=8)


def _draw_curves(fits: Fits) -> Drawing:
    figure, axes = panels(2, width=4.4, height=2.8)
    ylabels = {"train loss": "training loss (nats)", "train": "training accuracy"}
    for axis, (what, ylabel) in zip(axes, ylabels.items(), strict=True):
        for kind, colour in zip(KINDS, SERIES, strict=False):
            dashes = "--" if kind == "shuffled pixels" else "-"  # it lies upon the true labels
            mean_and_band(axis, fits.epochs, fits.curve(DEEP, kind, what), color=colour, label=kind, ls=dashes)
        axis.set(xlabel="epoch", ylabel=ylabel)
    label_lines(axes[1])
    random, true = fits.epochs_to_fit(RANDOM), fits.epochs_to_fit(TRUE)
    caption = (
        f"Random labels take {mean_known(random / true):.1f} times as long as true ones: {FIT_AT:.0%} are fitted after "
        f"{number(mean_known(random))} and {number(mean_known(true))} epochs. The network with three hidden layers "
        "fits shuffled pixels, random pixels and Gaussian noise as well. Lines are means over seeds, bands go from the "
        "smallest to the largest."
    )
    return Drawing("random-label-curves", caption, figure)


def _draw_bars(fits: Fits) -> Drawing:
    figure, (axis,) = panels(width=7.4, height=2.9)
    places = np.arange(len(SHAPES))
    bars = [(kind, what, colour) for kind, colour in ((TRUE, BLUE), (RANDOM, RED)) for what in ("train", "test")]
    for i, (kind, what, colour) in enumerate(bars):
        values = [fits.end(shape, kind, what) for shape in SHAPES]
        at, alpha = places + 0.2 * (i - 1.5), 0.45 if what == "train" else 1.0
        axis.bar(at, [row.mean() for row in values], 0.18, color=colour, label=f"{kind}, {what}", alpha=alpha)
        for x, row in zip(at, values, strict=True):
            axis.plot(np.full(len(row), x), row, ".", ms=3, color=INK)
    axis.axhline(CHANCE, ls=":", lw=1, color=CONTROL)
    axis.set_xticks(places, [name.replace(", ", ",\n") for name in SHAPES])
    axis.set(ylabel="accuracy", ylim=(0, 1.05))
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    true, random = (float(fits.end(DEEP, kind, "test").mean()) for kind in (TRUE, RANDOM))
    caption = (
        f"Networks fit random labels, and then their test accuracy is chance: {number(random, '%')} against "
        f"{number(true, '%')} with true labels, for three hidden layers. Pale bars are training, full bars test "
        f"accuracy; dots are seeds; the dotted line is chance, {number(CHANCE, '%')}. The linear classifier is the "
        "control: it reads the same images."
    )
    return Drawing("random-label-accuracies", caption, figure)
