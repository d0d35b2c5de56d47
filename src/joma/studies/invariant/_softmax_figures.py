"""Figures 2 and 3 of the paper, drawn from a recorded run with their controls."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.bands import bound
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import course, listing, number
from joma.figures.style import CONTROL, CORRECTED, GREEN, ORANGE, PRINTED, PURPLE, SERIES, panels
from joma.measure.correlation import pearson
from joma.runs import Run
from joma.studies.invariant._softmax_equations import relative
from joma.studies.invariant._softmax_findings import concentration
from joma.studies.invariant._softmax_training import KINDS, Kind


def figure_2(run: Run, *, tolerance: float) -> Drawing:
    """Correlation with z over training, as in the paper, above the relative error that it hides."""
    figure, axes = panels(2, 2, width=4.6)
    seen = [_correlations(run, kind, axis) for kind, axis in zip(KINDS, axes[:2], strict=True)]
    seen += [_errors(run, kind, axis, tolerance) for kind, axis in zip(KINDS, axes[2:], strict=True)]
    errors = [number(relative(run.value(f"{kind}/published"), run.value(f"{kind}/z"))[:, -1].mean()) for kind in KINDS]
    caption = (
        "The published estimate of the softmax logits correlates with them, but its size is wrong: its relative error "
        f"ends at {errors[0]} on {KINDS[0]} and {errors[1]} on {KINDS[1]} classes. Top: correlation over tokens "
        "between the estimate and the true logits, as in Figure 2, with its two terms and the control (mean over "
        "seeds). Bottom: the relative error of the same estimate and of the two that integrate eq. 17."
    )
    return Drawing("figure-2", caption, figure, "Four panels. " + " ".join(seen))


def _correlations(run: Run, kind: Kind, axis: Any) -> str:
    step, z, ends = run.value("step"), run.value(f"{kind}/z"), []
    estimates = [
        (run.value(f"{kind}/published"), PRINTED, "-", "ẑ (eq. 18)"),
        (run.value(f"{kind}/first term"), ORANGE, "-", "½Σv² alone"),
        (run.value(f"{kind}/second term"), GREEN, "-", "−½Σ‖v‖² b̄ alone"),
        (np.roll(run.value(f"{kind}/published"), 1, 0), CONTROL, "--", "ẑ of another seed"),
    ]
    for estimate, colour, style, label in estimates:
        correlation = pearson(estimate, z).mean(0)
        axis.plot(step, correlation, style, color=colour, label=label)
        ends.append(f"{label}: {number(correlation[-1])}")
    axis.set(xlabel="training step", ylabel="correlation with z", ylim=(-0.5, 1.05))
    axis.set_title(f"Correlation of the estimate, {kind} classes")
    label_lines(axis)
    return f"Correlation at the end, {kind} classes. {'; '.join(ends)}."


def _errors(run: Run, kind: Kind, axis: Any, tolerance: float) -> str:
    step, z, ends = run.value("step"), run.value(f"{kind}/z"), []
    estimates = [
        (run.value(f"{kind}/published"), PRINTED, "-", "eq. 18, b̄ constant"),
        (run.value(f"{kind}/integrated"), PURPLE, "-", "eq. 17, true b̄(t)"),
        (run.value(f"{kind}/self-consistent"), CORRECTED, "-", "eq. 17, b̄ rebuilt"),
        (z[:, :1], CONTROL, "--", "z never moves"),
    ]
    for estimate, colour, style, label in estimates:
        error = relative(estimate, z)[:, 1:].mean(0)
        axis.plot(step[1:], error, style, color=colour, label=label)
        ends.append(f"{label}: {number(error[-1])}")
    bound(axis, tolerance, f"tolerance {tolerance:g}")
    axis.set(xlabel="training step", ylabel="relative error", yscale="log", ylim=(1e-2, 200))
    axis.set_title(f"Error of the estimates, {kind} classes")
    label_lines(axis)
    return f"Relative error at the end, {kind} classes. {'; '.join(ends)}."


def figure_3(run: Run) -> Drawing:
    """The first components of the first node, as in the paper, beside those under frozen attention."""
    figure, axes = panels(2, width=4.2)
    seen = [_components(run, kind, axis) for kind, axis in zip(KINDS, axes, strict=True)]
    (smooth, smooth_frozen), (random, random_frozen) = (
        [number(float(concentration(run.value(f"{kind}/{which}v")).mean()), "%") for which in ("", "frozen/")]
        for kind in KINDS
    )
    caption = (
        f"In the second half of training the fastest fifth of the components has {smooth} of the growth on {KINDS[0]} "
        f"classes and {random} on {KINDS[1]} classes. With frozen attention it has {smooth_frozen} and "
        f"{random_frozen}. The panels show the first four components of the weights of the first node during "
        "training, as in Figure 3. Dashed lines show the same network with its attention frozen at the start."
    )
    return Drawing("figure-3", caption, figure, "Two panels. " + " ".join(seen))


def _components(run: Run, kind: Kind, axis: Any) -> str:
    step, courses = run.value("step"), []
    moving, frozen = (run.value(f"{kind}/{which}v of node 0")[0] for which in ("", "frozen/"))
    for token, colour in enumerate(SERIES[:4]):
        axis.plot(step, moving[:, token], color=colour, label=f"token {token}")
        axis.plot(step, frozen[:, token], "--", lw=1, color=colour)
        courses.append(f"token {token} {course(step, moving[:, token])} (frozen: ends at {number(frozen[-1, token])})")
    end_label(axis, "dashed: frozen\nattention", ls="--", lw=1)
    axis.set(xlabel="training step", ylabel="components of v₀", title=f"Weights of one node, {kind} classes")
    label_lines(axis)
    return f"{kind.capitalize()} classes: {listing(courses)}."
