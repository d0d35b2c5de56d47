"""The pictures of the study `deja-vu`: units needed over training, and what sets of one size carry and keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.bands import mean_and_band
from joma.figures.labels import label_lines
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, panels, step_axis
from joma.runs import Run
from joma.studies.sparsity._readings import known_mean
from joma.studies.sparsity.deja_vu.record import Active
from joma.studies.sparsity.deja_vu.run import CARRIED, HEADS, KEPT, NEURONS, UNITS

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
    ends: dict[tuple[str, str], list[str]] = {}
    for axis, units in zip(axes, UNITS, strict=True):
        for colour, activation in zip(COLOURS, seen.config.activations, strict=False):
            rows = seen.over_steps(activation, units, "needed")
            mean_and_band(axis, seen.steps(activation), rows, color=colour, label=activation)
            ends[activation, units] = [number(float(rows[at].mean()), "%") for at in (0, -1)]
        axis.set(title=units.capitalize(), ylabel=f"share of {units} needed", ylim=(0, 1.02))
        step_axis(axis)
        label_lines(axis)
    parts = [
        f"With {one}, a token needs {ends[one, NEURONS][0]} of the neurons for {number(seen.config.share, '%')} of an "
        f"MLP's output before training and {ends[one, NEURONS][1]} after it, and {ends[one, HEADS][1]} of the heads."
        for one in seen.config.activations
    ]
    how = f" Lines are means over {seen.config.seeds} networks, their layers and tokens; bands show all networks."
    return Drawing("needed-over-training", " ".join(parts) + how, figure)


def _carried(seen: Active) -> Drawing:
    figure, axes = panels(len(UNITS), width=4.6)
    found = {
        units: {
            one: dict(zip(CARRIED, seen.over_steps(one, units, "carried")[-1].T, strict=True))
            for one in seen.config.activations
        }
        for units in UNITS
    }
    for axis, units in zip(axes, UNITS, strict=True):
        _rows(axis, found[units], SETS)
        title = f"{number(seen.config.of(units), '%')} of the {units}"
        axis.set(title=title, xlabel="share of the output that they carry", xlim=(0, 1.02))
    parts = [
        f"With {one}, predicted neurons carry {_mean(sets['predicted'])} of the output, where the best carry "
        f"{_mean(sets['best'])} and one set for all tokens {_mean(sets['static'])}."
        for one, sets in found[NEURONS].items()
    ]
    how = (
        " Dots are networks at the end of training, means over tokens and all layers but the first. Sets are predicted "
        "from the input of the layer before by a linear map that was fitted on other text; from the token: from the "
        "embedding and place alone; permuted: predicted for another token."
    )
    return Drawing("what-sets-carry", " ".join(parts) + how, figure)


def _kept(seen: Active) -> Drawing:
    rows = [name for name in SETS if name in KEPT]
    figure, axes = panels(len(UNITS), width=4.6)
    found = {
        units: {one: {name: seen.worth(one, units, name) for name in rows} for one in seen.config.activations}
        for units in UNITS
    }
    for axis, units in zip(axes, UNITS, strict=True):
        _rows(axis, found[units], rows)
        axis.axvline(1, color=CONTROL, ls="--", lw=1)
        title = f"{number(seen.config.of(units), '%')} of the {units} computed"
        axis.set(title=title, xlabel=f"share kept of what the {units} are worth")
    parts = []
    for one in seen.config.activations:
        predicted, static, none = (
            number(seen.cost(one, NEURONS, by), "nats") for by in ("predicted", "static", "none")
        )
        parts.append(
            f"With {one}, a network that computes only the predicted {number(seen.config.budget, '%')} of its neurons "
            f"loses {predicted} where static sets lose {static} and no neurons at all {none}."
        )
    parts += [
        f"With {one}, the neurons that contribute most keep less than random ones, {_mean(sets['best'])} against "
        f"{_mean(sets['random'])}."
        for one, sets in found[NEURONS].items()
        if np.all(sets["best"] < sets["random"])
    ]
    how = (
        " Worth is the loss without any of them less the loss with all, in all layers but the first. Dots are networks."
    )
    return Drawing("what-sets-keep", " ".join(parts) + how, figure)


def _mean(values: Any) -> str:
    return number(known_mean(values), "%") if np.isfinite(values).any() else "no number"


def _rows(axis: Axes, values: dict[str, dict[str, Any]], rows: Sequence[str]) -> None:
    """One row of dots per kind of set and activation. values: by activation and set, over seeds."""
    for place, (colour, (activation, sets)) in enumerate(zip(COLOURS, values.items(), strict=False)):
        for row, name in enumerate(rows):
            known = sets[name][np.isfinite(sets[name])]
            at = np.full(len(known), row + (place - (len(values) - 1) / 2) * 0.2)
            axis.plot(known, at, "o", ms=4.5, color=colour, alpha=0.8, label=activation if row == 0 else None)
    axis.set_yticks(range(len(rows)), list(rows) if axis.get_position().x0 < 0.3 else [""] * len(rows))
    axis.set(ylim=(len(rows) - 0.5, -0.5), ylabel="kind of set")
    axis.legend(loc="best", fontsize=7.5, labelcolor=INK)
