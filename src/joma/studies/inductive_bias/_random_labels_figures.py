"""Two pictures of random labels: learning curves of all kinds of data, and train and test accuracy of every network."""

from __future__ import annotations

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.bands import mean_and_band
from joma.figures.labels import label_lines
from joma.figures.reading import course, number
from joma.figures.style import BLUE, CONTROL, INK, RED, SERIES, panels
from joma.runs import Run
from joma.studies.inductive_bias._judging import mean_known
from joma.studies.inductive_bias._random_labels import KINDS, RANDOM, SHAPES, TRUE
from joma.studies.inductive_bias._random_labels_findings import CHANCE, DEEP, FIT_AT, Fits


def draw_curves(run: Run) -> Drawing:
    """Training loss and training accuracy over epochs, of the network with three hidden layers."""
    fits = Fits(run)
    figure, axes = panels(2, width=4.4, height=2.8)
    for axis, what, label in zip(
        axes, ("train loss", "train"), ("training loss (nats)", "training accuracy"), strict=True
    ):
        for kind, colour in zip(KINDS, SERIES, strict=False):
            dashes = "--" if kind == "shuffled pixels" else "-"  # it lies upon the true labels
            mean_and_band(axis, fits.epochs, fits.curve(DEEP, kind, what), color=colour, label=kind, ls=dashes)
        axis.set(xlabel="epoch", ylabel=label)
    label_lines(axes[1])
    return Drawing("random-label-curves", _curves_caption(fits), figure, _curves_alt(fits))


def _curves_caption(fits: Fits) -> str:
    times = {kind: mean_known(fits.epochs_to_fit(kind)) for kind in (TRUE, RANDOM)}
    factor = mean_known(fits.epochs_to_fit(RANDOM) / fits.epochs_to_fit(TRUE))
    return (
        f"Random labels take {factor:.1f} times as long as true ones: {FIT_AT:.0%} are fitted after "
        f"{number(times[RANDOM])} and {number(times[TRUE])} epochs. The network with three hidden layers fits shuffled "
        "pixels, random pixels and Gaussian noise as well. Lines are means over seeds, bands go from the smallest to "
        "the largest."
    )


def _curves_alt(fits: Fits) -> str:
    parts = [
        f"{kind}: loss {course(fits.epochs, fits.curve(DEEP, kind, 'train loss').mean(1), 'nats', at='epoch')}, "
        f"accuracy {course(fits.epochs, fits.curve(DEEP, kind).mean(1), '%', at='epoch')}"
        for kind in KINDS
    ]
    return f"Two panels over epochs, training loss and training accuracy. {'. '.join(parts)}."


def draw_bars(run: Run) -> Drawing:
    """Training and test accuracy with true and with random labels, of every network."""
    fits = Fits(run)
    figure, (axis,) = panels(width=7.4, height=2.9)
    places = np.arange(len(SHAPES))
    for i, (kind, what, colour, look) in enumerate(BARS):
        values = [fits.end(shape, kind, what) for shape in SHAPES]
        at = places + 0.2 * (i - 1.5)
        axis.bar(at, [row.mean() for row in values], 0.18, color=colour, label=f"{kind}, {what}", alpha=look)
        for x, row in zip(at, values, strict=True):
            axis.plot(np.full(len(row), x), row, ".", ms=3, color=INK)
    axis.axhline(CHANCE, ls=":", lw=1, color=CONTROL)
    axis.set_xticks(places, [name.replace(", ", ",\n") for name in SHAPES])
    axis.set(ylabel="accuracy", ylim=(0, 1.05))
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return Drawing("random-label-accuracies", _bars_caption(fits), figure, _bars_alt(fits))


PALE, FULL = 0.45, 1.0  # opacity of bars
BARS = (
    (TRUE, "train", BLUE, PALE),
    (TRUE, "test", BLUE, FULL),
    (RANDOM, "train", RED, PALE),
    (RANDOM, "test", RED, FULL),
)


def _bars_caption(fits: Fits) -> str:
    true, random = (float(fits.end(DEEP, kind, "test").mean()) for kind in (TRUE, RANDOM))
    return (
        f"Networks fit random labels, and then their test accuracy is chance: {number(random, '%')} against "
        f"{number(true, '%')} with true labels, for three hidden layers. Pale bars are training, full bars test "
        f"accuracy; dots are seeds; the dotted line is chance, {number(CHANCE, '%')}. The linear classifier is the "
        "control: it reads the same images."
    )


def _bars_alt(fits: Fits) -> str:
    parts = [
        f"{shape}: "
        + ", ".join(
            f"{kind} {what} {number(float(fits.end(shape, kind, what).mean()), '%')}" for kind, what, *_ in BARS
        )
        for shape in SHAPES
    ]
    return f"Four groups of four bars. {'. '.join(parts)}."
