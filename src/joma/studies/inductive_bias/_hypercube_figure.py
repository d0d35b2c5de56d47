"""The talk's picture: downstream accuracy against contrastive loss, on the way and at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joma.claims.contract import Drawing
from joma.figures.labels import label_lines
from joma.figures.reading import course, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, RED, panels
from joma.runs import Run
from joma.studies.inductive_bias._hypercube import LINEAR, MLP
from joma.studies.inductive_bias._hypercube_findings import Contrast

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = {"perfect": ("*", GREEN), "scrambled": ("D", PURPLE), "spurious": ("X", RED)}
FAR = 0.25  # nats above the loss of the built representations: beyond it nothing is to be seen


def _colours(contrast: Contrast) -> dict[str, str]:
    return {LINEAR: GREEN, **dict(zip(contrast.decayed, (ORANGE, RED, PURPLE), strict=False)), MLP: BLUE}


def draw_contrast(run: Run) -> Drawing:
    """Left: accuracy against loss. Right: what the codes of the MLPs and of the linear map can tell."""
    contrast = Contrast(run)
    figure, (left, right) = panels(2, width=4.4, height=3.0)
    _draw_paths(left, contrast)
    _draw_readable(right, contrast)
    return Drawing("accuracy-against-loss", _caption(contrast), figure, _alt(contrast))


def _draw_paths(axis: Axes, contrast: Contrast) -> None:
    colours = _colours(contrast)
    for name in contrast.methods:
        loss, accuracy = contrast.curve(name, "loss"), contrast.curve(name)
        axis.plot(loss.mean(1), accuracy.mean(1), lw=1.2, color=colours[name], label=name)
        axis.plot(loss[-1], accuracy[-1], "o", ms=4, color=colours[name])
    for name, (mark, colour) in MARKS.items():
        place = contrast.built(name, "loss").mean(), contrast.built(name).mean()
        axis.plot(*place, mark, ms=9, mec=INK, mew=0.6, color=colour, ls="none")
        axis.annotate(
            f"{name} code", place, xytext=(-8, 2), textcoords="offset points", va="bottom", ha="right", size=8
        )
    axis.axhline(0.5, ls=":", lw=1, color=CONTROL)
    most = float(contrast.built("perfect", "loss").mean()) + FAR
    least = min(float(contrast.curve(name, "loss")[-1].min()) for name in contrast.methods) - 0.02
    axis.set(
        xlim=(most, least), ylim=(0.45, 1.03), xlabel="contrastive loss (nats), falling", ylabel="downstream accuracy"
    )
    label_lines(axis)


def _draw_readable(axis: Axes, contrast: Contrast) -> None:
    colours = _colours(contrast)
    for name in contrast.methods:
        for what, style in (("informative", "-"), ("same bits", "--")):
            label = name if what == "informative" else None
            axis.plot(contrast.steps, contrast.curve(name, what).mean(1), style, color=colours[name], label=label)
    axis.plot([], [], "--", color=INK, lw=1.2, label="depends on them alone")
    axis.set(xlabel="training step", ylabel="informative coordinates in the code", ylim=(-0.05, 1.05))
    label_lines(axis)


def _caption(contrast: Contrast) -> str:
    rows = {name: contrast.row(name) for name in contrast.methods}
    said = "; ".join(f"{name} {number(row['accuracy'], '%')} at {row['loss']:.3f} nats" for name, row in rows.items())
    exact, spurious, scrambled = (float(contrast.built(name).mean()) for name in ("perfect", "spurious", "scrambled"))
    return (
        f"The contrastive loss does not decide the downstream accuracy. Three codes that are built have the same loss "
        f"and accuracies of {number(exact, '%')} (perfect), {number(spurious, '%')} (spurious) and "
        f"{number(scrambled, '%')} (scrambled). Learned: {said}. Left: lines are means over seeds during training, "
        "dots are seeds at the end; the loss falls from left to right. Right, solid: the share of the informative "
        "coordinates that a linear map of the code explains on fresh points. Dashed: the similarity of codes of points "
        "that agree in the informative coordinates alone. It is 1 where a code depends on nothing else."
    )


def _alt(contrast: Contrast) -> str:
    left = "; ".join(
        f"{name} {course(contrast.steps, contrast.curve(name).mean(1), '%')} while its loss "
        f"{course(contrast.steps, contrast.curve(name, 'loss').mean(1), 'nats')}"
        for name in contrast.methods
    )
    places = "; ".join(
        f"{name} at {number(float(contrast.built(name, 'loss').mean()), 'nats')} and "
        f"{number(float(contrast.built(name).mean()), '%')}"
        for name in MARKS
    )
    right = "; ".join(
        f"{name}: informative {course(contrast.steps, contrast.curve(name, 'informative').mean(1), '%')}, similarity "
        f"{course(contrast.steps, contrast.curve(name, 'same bits').mean(1))}"
        for name in contrast.methods
    )
    return f"Left, accuracy against loss: {left}. Marks: {places}. Right, share read linearly and similarity: {right}."
