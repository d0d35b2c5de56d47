"""The figures of the study of eq. 6, drawn from a recorded run: Figure 4 with its controls, entropies and ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.style import BLUE, CONTROL, CORRECTED, ORANGE, PRINTED, depth_colours, panels
from joma.runs import Run
from joma.studies.salience._figure_4 import EVERY, TEMPERATURE

_OFFSET: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8.5, "va": "top"}


def draw_figure_4(run: Run) -> Drawing:
    """Components and entropy of the figure's own draw, with and without attention."""
    mu, v, rate = run.value("mu")[0], run.value("attention/v"), float(run.config["rate"])
    figure, (left, right) = panels(2, width=3.8, height=3.0)
    time = np.arange(len(v)) * EVERY * rate
    for i, colour in enumerate(depth_colours(len(mu))):
        left.plot(time, v[:, i], color=colour)
        left.axhline(mu[i], color=colour, ls="--", lw=0.7)
    left.set(xlabel="time (step × rate)", ylabel="v", ylim=(0, None), title="Salient components first (dashed: μ)")
    curves = {name: run.value(f"{name}/entropy") for name in ("attention", "no attention", "equal targets")}
    time = np.arange(len(curves["attention"])) * rate
    right.plot(time, curves["attention"], color=BLUE, label="Figure 4")
    right.plot(time, curves["no attention"], color=CONTROL, label="without attention")
    right.plot(time, curves["equal targets"], color=CONTROL, ls=":", label="equal targets")
    low = int(curves["attention"].argmin())
    right.plot(time[low], curves["attention"][low], "o", ms=5, color=BLUE)
    right.annotate(f"{curves['attention'][low]:.4f}", (time[low], curves["attention"][low]), (6, -4), **_OFFSET)
    right.set(
        xlabel="time (step × rate)", ylabel="entropy of softmax(v²/3)", ylim=(0.7, None), title="Drop and rebound"
    )
    right.legend(loc="lower right")
    caption = (
        "Figure 4 by its recipe, targets of seed 0. Left: the components, coloured by target; large ones are learned "
        "first. Right: the entropy of attention drops below its final value and rises again; with the same speed for "
        "all components it only falls, and with equal targets it does not move."
    )
    return Drawing("entropy-rebound", caption, figure)


def draw_rank(run: Run) -> Drawing:
    """Entropy by the exponent of attention, and the stable rank of the lower layer."""
    figure, (left, right) = panels(2, width=3.8, height=2.8)
    t, curves = run.value("eq. 6/t"), run.value("eq. 6/entropy")
    for curve, colour, label in zip(
        curves,
        (PRINTED, CORRECTED, ORANGE),
        ("softmax(v²), as printed", "softmax(v²/2), Theorem 1", f"softmax(v²/{TEMPERATURE:g}), as drawn"),
        strict=True,
    ):
        left.plot(t, curve, color=colour, label=label)
    left.set(xscale="log", xlabel="time of eq. 6", ylabel="entropy", ylim=(0, 3.2))
    left.set_title("Which attention? (μ of seed 0)")
    left.legend(loc="upper right")
    t = run.value("rank/t")[1:]
    right.plot(t, run.value("rank/stable")[1:], color=BLUE, label="with attention")
    right.plot(t, run.value("rank/stable without attention"), color=CONTROL, label="without")
    right.set(xscale="log", xlabel="time", ylabel="stable rank of V", title="Rank of the lower layer")
    right.legend(loc="lower right")
    caption = (
        "Left: the entropy along eq. 6 from zero, for the three exponents that text, theory and figure use. Right: the "
        "stable rank of the lower layer with many nodes drops and recovers; its rank is the same at all times."
    )
    return Drawing("rank-rebound", caption, figure)
