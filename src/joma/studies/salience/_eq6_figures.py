"""The figures of the study of eq. 6, drawn from a recorded run: Figure 4 with its controls, entropies and ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import course, number
from joma.figures.style import BLUE, CONTROL, CORRECTED, ORANGE, PRINTED, depth_colours, panels
from joma.runs import Run
from joma.studies.salience._figure_4 import EVERY, TEMPERATURE


def draw_figure_4(run: Run) -> Drawing:
    """Components and entropy of the figure's own draw, with and without attention."""
    figure, (left, right) = panels(2, width=4.5, height=3.0)
    seen = [_components(run, left), _entropies(run, right)]
    entropy = run.value("attention/entropy")
    caption = (
        f"The entropy of attention drops to {number(entropy.min(), 'nats')} while the salient components learn, and "
        f"rises to {number(entropy[-1], 'nats')} while the others catch up. Left: the components in the order of "
        "their targets μ; large ones are learned first. Right: the entropy. If all components have the same speed it "
        "only falls, and with equal targets it does not move. Both panels follow the recipe of Figure 4 with the "
        "targets of seed 0."
    )
    return Drawing("entropy-rebound", caption, figure, "Two panels. " + " ".join(seen))


def _components(run: Run, axis: Any) -> str:
    mu, v = run.value("mu")[0], run.value("attention/v")
    time = np.arange(len(v)) * EVERY * float(run.config["rate"])
    for i, colour in enumerate(depth_colours(len(mu))):
        axis.plot(time, v[:, i], color=colour, label=f"μ = {mu[i]:.2f}")
        axis.axhline(mu[i], color=colour, ls="--", lw=0.7)
    end_label(axis, "dashed: μ", ls="--", lw=0.7)
    axis.set(xlabel="time (step × rate)", ylabel="v", ylim=(0, None), title="Salient components learn first")
    label_lines(axis, fontsize=7.5)
    half = [time[np.argmax(v[:, i] >= mu[i] / 2)] for i in (len(mu) - 1, 0)]
    return (
        f"Left: {len(mu)} components rise from {number(v[0, 0])} towards their targets. The one with the largest "
        f"target, {number(mu[-1])}, is half way at time {number(half[0])} and ends at {number(v[-1, -1])}. The one "
        f"with the smallest target, {number(mu[0])}, is half way at time {number(half[1])} and ends at "
        f"{number(v[-1, 0])}."
    )


def _entropies(run: Run, axis: Any) -> str:
    curves = {name: run.value(f"{name}/entropy") for name in ("attention", "no attention", "equal targets")}
    time = np.arange(len(curves["attention"])) * float(run.config["rate"])
    axis.plot(time, curves["attention"], color=BLUE, label="Figure 4")
    axis.plot(time, curves["no attention"], color=CONTROL, label="without\nattention")
    axis.plot(time, curves["equal targets"], color=CONTROL, ls=":", label="equal targets")
    low = int(curves["attention"].argmin())
    axis.plot(time[low], curves["attention"][low], "o", ms=5, color=BLUE)
    where = (time[low], curves["attention"][low])
    axis.annotate(f"{where[1]:.4f}", where, (6, -4), textcoords="offset points", fontsize=8.5, va="top")
    axis.set(xlabel="time (step × rate)", ylabel="entropy of softmax(v²/3) (nats)", ylim=(0.7, None))
    axis.set_title("Entropy drops and rebounds")
    label_lines(axis)
    told = {name: course(time, curve, "nats", at="time") for name, curve in curves.items()}
    return (
        f"Right: the entropy {told['attention']}. Without attention it {told['no attention']}, and with equal targets "
        f"it {told['equal targets']}."
    )


def draw_rank(run: Run) -> Drawing:
    """Entropy by the exponent of attention, and the stable rank of the lower layer."""
    figure, (left, right) = panels(2, width=4.5, height=2.8)
    seen = [_exponents(run, left), _stable_rank(run, right)]
    stable = run.value("rank/stable")[1:]
    caption = (
        f"The stable rank of the lower layer drops from {number(stable[0])} to {number(stable.min())} and recovers; "
        "its rank is the same at all times. Left: the entropy along eq. 6 from zero, for the three exponents in the "
        "text, the theory and the figure. Right: the stable rank of V with many nodes."
    )
    return Drawing("rank-rebound", caption, figure, "Two panels with time on a log scale. " + " ".join(seen))


def _exponents(run: Run, axis: Any) -> str:
    t, told = run.value("eq. 6/t"), []
    labels = ("softmax(v²),\nas printed", "softmax(v²/2),\nTheorem 1", f"softmax(v²/{TEMPERATURE:g}),\nas drawn")
    for curve, colour, label in zip(run.value("eq. 6/entropy"), (PRINTED, CORRECTED, ORANGE), labels, strict=True):
        axis.plot(t, curve, color=colour, label=label)
        told.append(f"with {label.split(',')[0]} it {course(t, curve, 'nats', at='time')}")
    axis.set(xscale="log", xlabel="time of eq. 6", ylabel="entropy (nats)", ylim=(0, 2.5))
    axis.set_title("The exponent sets the depth (μ of seed 0)")
    label_lines(axis)
    return f"Left, the entropy: {'; '.join(told)}."


def _stable_rank(run: Run, axis: Any) -> str:
    t, stable = run.value("rank/t")[1:], run.value("rank/stable")[1:]
    alone = run.value("rank/stable without attention")
    axis.plot(t, stable, color=BLUE, label="with attention")
    axis.plot(t, alone, color=CONTROL, ls="--", label="without\nattention")
    axis.set(xscale="log", xlabel="time", ylabel="stable rank of V", title="The stable rank drops and recovers")
    label_lines(axis)
    return f"Right: the stable rank {course(t, stable, at='time')}. Without attention it {course(t, alone, at='time')}."
