"""The pictures of the study `deja-vu`: units needed over training, and what sets of one size carry and keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.bands import mean_and_band
from joma.figures.labels import label_lines
from joma.figures.reading import course, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, panels, step_axis
from joma.runs import Run
from joma.studies.sparsity._active_findings import Active
from joma.studies.sparsity._active_networks import CARRIED, HEADS, KEPT, NEURONS, UNITS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (BLUE, ORANGE, GREEN, PURPLE)
SETS = ("best", "predicted", "from the token", "static", "permuted", "random")
"""From the most that a set can carry to the least that it should."""


def draw(run: Run) -> list[Drawing]:
    """Over training, then at the end what sets carry, then what they cost."""
    seen = Active(run)
    return [_over_training(seen), _carried(seen), _kept(seen)]


def _over_training(seen: Active) -> Drawing:
    figure, axes = panels(len(UNITS), width=4.2)
    for axis, units in zip(axes, UNITS, strict=True):
        for colour, activation in zip(COLOURS, seen.config.activations, strict=False):
            rows = seen.over_steps(activation, units, "needed")
            mean_and_band(axis, seen.steps(activation), rows, color=colour, label=activation)
        axis.set(title=units.capitalize(), ylabel=f"share of {units} needed", ylim=(0, 1.02))
        step_axis(axis)
        label_lines(axis)
    share = number(seen.config.share, "%")
    said = " ".join(
        f"With {activation}, a token needs {number(_end(seen, activation, NEURONS, 0), '%')} of the neurons for "
        f"{share} of an MLP's output before training and {number(_end(seen, activation, NEURONS), '%')} after it, and "
        f"{number(_end(seen, activation, HEADS), '%')} of the heads."
        for activation in seen.config.activations
    )
    how = f" Lines are means over {seen.config.seeds} networks, their layers and tokens; bands show all networks."
    return Drawing("needed-over-training", said + how, figure, _alt_training(seen))


def _end(seen: Active, activation: str, units: str, step: int = -1) -> float:
    return float(seen.over_steps(activation, units, "needed")[step].mean())


def _alt_training(seen: Active) -> str:
    parts = ["Two panels, the share of units needed over training."]
    for units in UNITS:
        lines = [
            f"{one} {course(seen.steps(one), seen.over_steps(one, units, 'needed').mean(1), '%')}"
            for one in seen.config.activations
        ]
        parts.append(f"{units.capitalize()}: {'; '.join(lines)}.")
    return " ".join(parts)


def _carried(seen: Active) -> Drawing:
    means = {
        (units, one): seen.over_steps(one, units, "carried")[-1] for units in UNITS for one in seen.config.activations
    }
    figure, axes = panels(len(UNITS), width=4.6)
    for axis, units in zip(axes, UNITS, strict=True):
        _rows(axis, seen, {one: means[units, one] for one in seen.config.activations}, SETS, CARRIED)
        title = f"{number(seen.config.of(units), '%')} of the {units}"
        axis.set(title=title, xlabel="share of the output that they carry", xlim=(0, 1.02))
    said = " ".join(
        f"With {one}, predicted neurons carry {_of(means[NEURONS, one], CARRIED, 'predicted')} of the output, where "
        f"the best carry {_of(means[NEURONS, one], CARRIED, 'best')} and one set for all tokens "
        f"{_of(means[NEURONS, one], CARRIED, 'static')}."
        for one in seen.config.activations
    )
    how = (
        " Dots are networks at the end of training, means over tokens and all layers but the first. Sets are predicted "
        "from the input of the layer before by a linear map that was fitted on other text; from the token: from the "
        "embedding and place alone; permuted: predicted for another token."
    )
    alt = _alt_rows("what sets of one size carry", seen, means, SETS, CARRIED)
    return Drawing("what-sets-carry", said + how, figure, alt)


def _kept(seen: Active) -> Drawing:
    rows = [name for name in SETS if name in KEPT]
    means = {
        (units, one): np.stack([seen.worth(one, units, name) for name in KEPT], -1)
        for units in UNITS
        for one in seen.config.activations
    }
    figure, axes = panels(len(UNITS), width=4.6)
    for axis, units in zip(axes, UNITS, strict=True):
        _rows(axis, seen, {one: means[units, one] for one in seen.config.activations}, rows, KEPT)
        axis.axvline(1, color=CONTROL, ls="--", lw=1)
        title = f"{number(seen.config.of(units), '%')} of the {units} computed"
        axis.set(title=title, xlabel=f"share kept of what the {units} are worth")
    said = " ".join(
        f"With {one}, a network that computes only the predicted {number(seen.config.budget, '%')} of its neurons "
        f"loses {number(seen.cost(one, NEURONS, 'predicted'), 'nats')} where static sets lose "
        f"{number(seen.cost(one, NEURONS, 'static'), 'nats')} and no neurons at all "
        f"{number(seen.cost(one, NEURONS, 'none'), 'nats')}."
        for one in seen.config.activations
    )
    odd = [one for one in seen.config.activations if _worse_than_random(seen, one)]
    said += "".join(
        f" With {one}, the neurons that contribute most keep less than random ones, "
        f"{_of(means[NEURONS, one], KEPT, 'best')} against {_of(means[NEURONS, one], KEPT, 'random')}."
        for one in odd
    )
    how = (
        " Worth is the loss without any of them less the loss with all, in all layers but the first. Dots are networks."
    )
    return Drawing("what-sets-keep", said + how, figure, _alt_rows("what is kept", seen, means, rows, KEPT))


def _worse_than_random(seen: Active, activation: str) -> bool:
    return bool(np.all(seen.worth(activation, NEURONS, "best") < seen.worth(activation, NEURONS, "random")))


def _of(found: Any, names: tuple[str, ...], name: str) -> str:
    kept = found[:, names.index(name)]
    return number(float(np.mean(kept[np.isfinite(kept)])), "%") if np.isfinite(kept).any() else "no number"


def _rows(axis: Axes, seen: Active, values: dict[str, Any], rows: Any, names: tuple[str, ...]) -> None:
    """One row of dots per kind of set and activation."""
    count = len(values)
    for number_, (colour, (one, found)) in enumerate(zip(COLOURS, values.items(), strict=False)):
        for row, name in enumerate(rows):
            at = np.full(len(found), row + (number_ - (count - 1) / 2) * 0.2)
            axis.plot(
                found[:, names.index(name)], at, "o", ms=4.5, color=colour, alpha=0.8, label=one if row == 0 else None
            )
    axis.set_yticks(range(len(rows)), list(rows) if axis.get_position().x0 < 0.3 else [""] * len(rows))
    axis.set(ylim=(len(rows) - 0.5, -0.5), ylabel="kind of set")
    axis.legend(loc="best", fontsize=7.5, labelcolor=INK)


def _alt_rows(what: str, seen: Active, means: dict[Any, Any], rows: Any, names: tuple[str, ...]) -> str:
    parts = [f"Two panels of dots, {what}, one row per kind of set."]
    for (units, one), found in means.items():
        told = [f"{name} {_of(found, names, name)}" for name in rows]
        parts.append(f"{units.capitalize()}, {one}: {', '.join(told)}.")
    return " ".join(parts)
