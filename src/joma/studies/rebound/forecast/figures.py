"""Two pictures: skill over the step t by forecaster, and what some of them said beside what came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.beyond import mark_beyond
from joma.figures.labels import label_lines
from joma.figures.reading import listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, panels
from joma.measure.intervals import compare
from joma.recipes.language import called
from joma.recipes.language.curves import curve, mean_over_seeds, steps_of
from joma.runs import Run
from joma.studies.rebound.forecast.record import CONTROLS, EQUATION, QUANTITIES, THEOREM, skill_by_step, skill_of

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
Learned = Mapping[str, Sequence[str]]
"""By optimizer, the variants that learned; no optimizer without any."""


def draw_skill(run: Run, learned: Learned) -> Drawing:
    """One panel per quantity and optimizer."""
    figure, axes = panels(max(len(learned), 1), len(QUANTITIES), width=4.3, height=2.6)
    places = [(quantity, optimizer) for quantity in QUANTITIES for optimizer in learned]
    for axis, (quantity, optimizer) in zip(axes, places, strict=False):
        _skill_panel(axis, run, learned[optimizer], quantity)
        axis.set_title(f"{optimizer}: {NAMES[quantity]}")
    # One scale with room for every value: a forecast may be many times worse than no change, never above perfect.
    lowest = min([-LINEAR, *(axis.dataLim.y0 for axis in axes[: len(places)])])
    powers = [-(10.0**power) for power in range(1, 9) if -(10.0**power) > lowest]
    ticks = [*reversed(powers), -1.0, -0.5, 0.0, 0.5, 1.0]
    for axis in axes[: len(places)]:
        axis.set_yscale("symlog", linthresh=LINEAR, linscale=1.2)
        axis.set_ylim(1.15 * lowest, 1.08 * BEST)
        axis.set_yticks(ticks, [number(tick, "%") for tick in ticks], minor=False)
        axis.yaxis.minorticks_off()
    return Drawing("forecast-skill", _skill_caption(run, learned), figure)


def _skill_panel(axis: Axes, run: Run, variants: Sequence[str], quantity: str) -> None:
    at = run.value(f"{variants[0]}/at")
    for name, (label, colour, dashes) in LINES.items():
        found = [compare(column) for column in skill_by_step(run, variants, quantity, name).T]
        if name not in CONTROLS[:2]:  # bands of all would hide each other
            low, high = (np.minimum([getattr(one, end) for one in found], BEST) for end in ("low", "high"))
            axis.fill_between(at, low, high, color=colour, alpha=0.15, lw=0)
        axis.plot(at, [one.value for one in found], color=colour, ls=dashes, label=label)
    axis.axhline(0, color=INK, lw=0.9, ls=":", label="no change")
    axis.set(xscale="log", ylabel="skill over persistence", xlabel="forecast made at step (for twice that step)")
    _step_ticks(axis, at)
    label_lines(axis)


def _step_ticks(axis: Axes, at: np.ndarray) -> None:
    """Every other doubling, as plain numbers."""
    ticks = at[::4] if len(at) > 6 else at[::2]
    axis.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    axis.minorticks_off()


def _skill_caption(run: Run, learned: Learned) -> str:
    if not learned:
        return "No network learned more than how frequent words are, so nothing was foretold."
    everyone = [name for variants in learned.values() for name in variants]
    parts = []
    for quantity in QUANTITIES:
        means = {name: mean_over_seeds(skill_of(run, everyone, quantity, name)) for name in LINES}
        scores = listing(f"{LINES[name][0]} {number(mean, '%')}" for name, mean in means.items())
        parts.append(f"{NAMES[quantity].capitalize()}: {scores}.")
    return (
        f"Skill of forecasts of attention at step 2t, over all t and all networks. {' '.join(parts)} Skill is the part "
        "of the squared error of no change (persistence) that a forecast avoids: 100 % is perfect, 0 % is no change, "
        f"less is worse. Lines: mean over {run.config['seeds']} seeds on {called(run.config['corpus'])}; bands (not of "
        f"the straight lines): 95 % interval, cut at {number(BEST, '%')}. Below {number(-LINEAR, '%')} the axis is "
        "logarithmic."
    )


def draw_paths(run: Run, learned: Learned) -> Drawing:
    """The entropy of one layer of one seed, and where four forecasters saw it going."""
    variant = next((name for variants in learned.values() for name in variants), None)
    figure, axes = panels(2, 2, width=4.3, height=2.5)
    if variant is None:
        return Drawing("forecast-paths", "Nothing was foretold.", figure)
    steps, entropy = steps_of(run, variant), curve(run, variant, "valid/entropy")[0, 0, :, 0].mean(-1)
    at, spread = run.value(f"{variant}/at"), np.ptp(entropy)
    now, errors = np.interp(at, steps, entropy), []
    for axis, name in zip(axes, PATHS, strict=True):
        label, colour, _ = LINES[name]
        axis.plot(steps[1:], entropy[1:], color=INK, lw=1.2, label="what came")
        style: Any = {"color": colour, "lw": 1.3, "marker": "o", "ms": 3, "markevery": [1], "label": label}
        for t, start, end in zip(at, now, run.value(f"{variant}/told/{name}")[0, 0], strict=True):
            axis.plot([t, 2 * t], [start, end], **style)
        axis.set(xscale="log", xlabel="training step", ylabel="attention entropy (nats)")
        axis.set_ylim(entropy.min() - 0.5 * spread, entropy.max() + 0.35 * spread)
        axis.set_title(f"{label[0].upper()}{label[1:]}")
        _step_ticks(axis, at)
        mark_beyond(axis)
        error = float(np.sqrt(run.value(f"{variant}/entropy/{name}")[0, 0].mean()))
        errors.append(f"{number(error, 'nats')} ({label})")
    caption = (
        f"What four forecasters say of one network ({variant}, first seed, layer 1). Each line goes from the entropy "
        f"at step t to what is foretold for step 2t. The root mean square error is {listing(errors)}. An arrow at an "
        "edge marks an end beyond the panel, with its value."
    )
    return Drawing("forecast-paths", caption, figure)
