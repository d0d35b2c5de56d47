"""Two pictures: skill over the step t by forecaster, and what some of them said beside what came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.beyond import mark_beyond
from joma.figures.labels import label_lines
from joma.figures.reading import between, course, listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, panels
from joma.measure.intervals import compare
from joma.recipes.language import called
from joma.recipes.language_curves import curve, mean_over_seeds, steps_of
from joma.runs import Run
from joma.studies.rebound._forecast_reading import skill_by_step, skill_of
from joma.studies.rebound._forecast_scores import CONTROLS, EQUATION, QUANTITIES, THEOREM

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES: dict[str, tuple[str, str, str]] = {
    CONTROLS[2]: ("earlier runs", GREEN, "-"),
    CONTROLS[1]: ("line in log t", CONTROL, "-"),
    CONTROLS[0]: ("line in t", CONTROL, "--"),
    THEOREM["corrected"]: ("Theorem 1", BLUE, "-"),
    EQUATION["corrected"]: ("eq. 6", ORANGE, "-"),
}
"""Name, colour and dashes of every forecaster that is drawn."""
PATHS = (CONTROLS[1], CONTROLS[2], THEOREM["corrected"], EQUATION["corrected"])
LINEAR = 1.0
"""Down to minus this the axis of skill is linear; below, where a forecast may be worse without limit, logarithmic."""
BEST = 1.0
"""No forecast can be better: an interval that reaches beyond is cut here."""
NAMES = {"entropy": "entropy of every layer", "logits": "logits of frequent words"}
Told = Mapping[str, Sequence[str]]


def draw_skill(run: Run, told: Told) -> Drawing:
    """One panel per quantity and optimizer."""
    there = {optimizer: variants for optimizer, variants in told.items() if variants}
    figure, axes = panels(max(len(there), 1), len(QUANTITIES), width=4.3, height=2.6)
    places = [(quantity, optimizer) for quantity in QUANTITIES for optimizer in there]
    for axis, (quantity, optimizer) in zip(axes, places, strict=False):
        _skill_panel(axis, run, there[optimizer], quantity)
        axis.set_title(f"{optimizer}: {NAMES[quantity]}")
    _skill_axes(axes[: len(places)])
    return Drawing("forecast-skill", _skill_caption(run, there), figure, _skill_alt(run, there))


def _skill_panel(axis: Axes, run: Run, variants: Sequence[str], quantity: str) -> None:
    at = run.value(f"{variants[0]}/at")
    for name, (label, colour, dashes) in LINES.items():
        found = [compare(column) for column in skill_by_step(run, variants, quantity, name).T]
        if name not in CONTROLS[:2]:  # bands of all would hide each other
            low, high = (np.minimum([getattr(one, end) for one in found], BEST) for end in ("low", "high"))
            axis.fill_between(at, low, high, color=colour, alpha=0.15, lw=0)
        axis.plot(at, [one.value for one in found], color=colour, ls=dashes, label=label)
    axis.axhline(0, color=INK, lw=0.9, ls=":", label="no change")
    axis.set(xscale="log", ylabel="skill over persistence")
    step_ticks(axis, at)
    label_lines(axis)


def _skill_axes(axes: Sequence[Axes]) -> None:
    """One scale with room for every value: a forecast may be many times worse than no change, never above perfect."""
    lowest = min([-LINEAR, *(axis.dataLim.y0 for axis in axes)])
    powers = [-(10.0**power) for power in range(1, 9) if -(10.0**power) > lowest]
    ticks = [*reversed(powers), -1.0, -0.5, 0.0, 0.5, 1.0]
    for axis in axes:
        axis.set_yscale("symlog", linthresh=LINEAR, linscale=1.2)
        axis.set_ylim(1.15 * lowest, 1.08 * BEST)
        axis.set_yticks(ticks, [number(tick, "%") for tick in ticks], minor=False)
        axis.yaxis.minorticks_off()


def step_ticks(axis: Axes, at: np.ndarray) -> None:
    """Every other doubling, as plain numbers."""
    ticks = at[::4] if len(at) > 6 else at[::2]
    axis.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("step t at which step 2t is foretold")


def _skill_caption(run: Run, there: Told) -> str:
    if not there:
        return "No network learned more than how frequent words are, so nothing was foretold."
    everyone = [name for variants in there.values() for name in variants]
    parts = []
    for quantity in QUANTITIES:
        scores = [f"{label} {_score(run, everyone, quantity, name)}" for name, (label, _, _) in LINES.items()]
        parts.append(f"{NAMES[quantity].capitalize()}: {listing(scores)}.")
    return (
        f"Skill of forecasts of attention at step 2t, over all t and all networks. {' '.join(parts)} Skill is the part "
        "of the squared error of no change (persistence) that a forecast avoids: 100 % is perfect, 0 % is no change, "
        f"less is worse. Lines: mean over {run.config['seeds']} seeds on {called(run.config['corpus'])}; bands (not of "
        f"the straight lines): 95 % interval, cut at {number(BEST, '%')}. Below {number(-LINEAR, '%')} the axis is "
        "logarithmic."
    )


def _score(run: Run, variants: Sequence[str], quantity: str, name: str) -> str:
    return number(mean_over_seeds(skill_of(run, variants, quantity, name)), "%")


def _skill_alt(run: Run, there: Told) -> str:
    axis = f"on an axis that is logarithmic below {number(-LINEAR, '%')}"
    parts = [f"{len(there) * len(QUANTITIES)} panels of skill over step t, {axis}."]
    for optimizer, variants in there.items():
        for quantity in QUANTITIES:
            at = run.value(f"{variants[0]}/at")
            lines = []
            for name, (label, _, _) in LINES.items():
                mean = [compare(column).value for column in skill_by_step(run, variants, quantity, name).T]
                lines.append(f"{label} {course(at, np.round(mean, 3), '%')}")
            parts.append(f"{optimizer}, {quantity}: {'; '.join(lines)}.")
    return " ".join(parts)


def draw_paths(run: Run, told: Told) -> Drawing:
    """The entropy of one layer of one seed, and where four forecasters saw it going."""
    variant = next((name for variants in told.values() for name in variants), None)
    figure, axes = panels(2, 2, width=4.3, height=2.5)
    if variant is None:
        return Drawing(
            "forecast-paths", "Nothing was foretold.", figure, "Four empty panels: no network learned enough."
        )
    steps, entropy = _first_curve(run, variant)
    at = run.value(f"{variant}/at")
    for axis, name in zip(axes, PATHS, strict=True):
        axis.plot(steps[1:], entropy[1:], color=INK, lw=1.2, label="what came")
        _arrows(axis, at, np.interp(at, steps, entropy), _first_told(run, variant, name), LINES[name])
        axis.set(xscale="log", ylabel="attention entropy (nats)")
        low, high = entropy.min(), entropy.max()
        axis.set_ylim(low - 0.5 * (high - low), high + 0.35 * (high - low))
        axis.set_title(f"{LINES[name][0][0].upper()}{LINES[name][0][1:]}")
        step_ticks(axis, at)
        axis.set_xlabel("training step")
        mark_beyond(axis)
    told_at_most = {name: _off(run, variant, name) for name in PATHS}
    caption = (
        f"What four forecasters say of one network ({variant}, first seed, layer 1). Each line goes from the entropy "
        "at step t to what is foretold for step 2t. The root mean square error is "
        + listing(f"{number(off, 'nats')} ({LINES[name][0]})" for name, off in told_at_most.items())
        + ". An arrow at an edge marks an end beyond the panel, with its value."
    )
    return Drawing("forecast-paths", caption, figure, _paths_alt(run, variant, steps, entropy))


def _first_curve(run: Run, variant: str) -> tuple[np.ndarray, np.ndarray]:
    return steps_of(run, variant), curve(run, variant, "valid/entropy")[0, 0, :, 0].mean(-1)


def _first_told(run: Run, variant: str, name: str) -> np.ndarray:
    told: np.ndarray = run.value(f"{variant}/told/{name}")[0, 0]
    return told


def _off(run: Run, variant: str, name: str) -> float:
    return float(np.sqrt(run.value(f"{variant}/entropy/{name}")[0, 0].mean()))


def _arrows(axis: Axes, at: np.ndarray, now: np.ndarray, then: np.ndarray, look: tuple[str, str, str]) -> None:
    style: Any = {"color": look[1], "lw": 1.3, "marker": "o", "ms": 3, "markevery": [1]}
    for t, start, end in zip(at, now, then, strict=True):
        axis.plot([t, 2 * t], [start, end], **style)


def _paths_alt(run: Run, variant: str, steps: np.ndarray, entropy: np.ndarray) -> str:
    parts = [f"Four panels with the same black curve: entropy {course(steps, entropy, 'nats')}."]
    for name in PATHS:
        told = _first_told(run, variant, name)
        parts.append(f"The short lines of {LINES[name][0]} end {between(told, 'nats')}.")
    return " ".join(parts)
