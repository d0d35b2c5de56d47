"""The two pictures of `thm5`: co-occurrence against the height of the ancestor, and the remainder of eq. 8."""

from __future__ import annotations

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import number
from joma.figures.style import CONTROL, CORRECTED, ORANGE, PRINTED, depth_colours, panels
from joma.runs import Run
from joma.studies.hierarchy.thm5.run import CURVE_EPS, CURVES, ERRORS, EXPANDED, orders, standard_errors

FORMS = {"printed": (PRINTED, "o"), "corrected": (CORRECTED, "s")}


def draw(run: Run) -> list[Drawing]:
    """Co-occurrence against the height of the ancestor, and the remainder of eq. 8."""
    return [_draw_heights(run), _draw_remainder(run)]


def _draw_heights(run: Run) -> Drawing:
    figure, (left, right) = panels(2, width=4.2)
    far = 0.0  # how far the line 1 - H/L is from the formula
    for depth, colour in zip(CURVES, depth_colours(len(CURVES)), strict=True):
        curve = run.value(f"curves/{depth}")
        far = max(far, float(np.abs(curve - (1 - np.arange(len(curve)) / depth)).max()))
        left.plot(curve, "o", ms=3.5, color=colour, label=f"L = {depth}")
        left.plot([0, depth], [1, 0], ls="--", lw=1, color=colour)
    end_label(left, "1 − H/L", ls="--")
    left.set_title(f"Formula at ρ = ρ₀ = {1 - CURVE_EPS:g}")
    truth, printed, corrected, other = (
        run.value(f"sampled/{name}") for name in ("truth", "printed", "corrected", "shuffled")
    )
    height = np.arange(1, len(truth) + 1)
    right.plot(height[:-1], corrected[:-1], color=CORRECTED, label="corrected ρ₀")
    right.plot(height[:-1], printed, color=PRINTED, label="printed ρ₀")
    right.plot(height[-1:], corrected[-1:], "D", ms=7, mfc="none", color=CORRECTED, label="through the root")
    right.errorbar(height, truth, ERRORS * standard_errors(run), fmt="none", lw=1, ecolor=ORANGE)
    right.plot(height, truth, ".", ms=6, color=ORANGE, label=f"sampled,\n± {ERRORS:g} errors")
    right.plot(height, other, "x", ms=4, color=CONTROL, label="l of another\nsequence")
    right.set_title(f"A sampled tree, L = {run.config['depth']}, ρ = {run.config['rho']:g}")
    for axis in (left, right):
        axis.set(xlabel="height H of the common ancestor", ylabel="co-occurrence P[l | m]")
        label_lines(axis)
    off = [number(float(np.abs(said - truth[: len(said)]).max())) for said in (printed, corrected)]
    caption = (
        f"The formula with the corrected ρ₀ is at most {off[1]} from the sampled co-occurrence, the printed "
        f"ρ₀ up to {off[0]}. Left: co-occurrence falls with the height of the common ancestor; the line 1 − "
        f"H/L is up to {number(far)} off at ρ = {1 - CURVE_EPS:g}. Right: one tree, {run.config['samples']:,} "
        "sequences; the last pair of tokens meets only in the root, and the crosses pair tokens of different "
        "sequences."
    )
    return Drawing("co-occurrence", caption, figure)


def _draw_remainder(run: Run) -> Drawing:
    figure, (axis,) = panels(1, width=6.0, height=3.2)
    eps = run.value("eq8/eps")
    for form, (colour, marker) in FORMS.items():
        remainder = np.abs(run.value("eq8/truth") - run.value(f"eq8/{form}"))  # (pairs, eps)
        for (depth, height), line in zip(EXPANDED, remainder, strict=True):
            label = f"{form}, L = {depth}, H = {height}"
            axis.plot(eps, line, marker=marker, ms=3, lw=1, color=colour, label=label)
    axis.set(xscale="log", yscale="log", xlabel="ε = 1 − ρ", ylabel="|P[l | m] − expansion|")
    axis.set_title("What eq. 8 leaves out")
    label_lines(axis)
    caption = (
        f"As printed, eq. 8 leaves out a remainder that falls as ε to the power {orders(run, 'printed').mean():.2f}. "
        f"With its first-order term, what is left falls as ε to the power {orders(run, 'corrected').mean():.2f}. Each "
        "line is one pair of depth L and height H of the common ancestor; the order is the slope of the line."
    )
    return Drawing("remainder", caption, figure)
