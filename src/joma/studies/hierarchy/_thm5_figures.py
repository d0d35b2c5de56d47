"""The two pictures of `thm5`: co-occurrence against the height of the ancestor, and the remainder of eq. 8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import between, course, number
from joma.figures.style import CONTROL, CORRECTED, ORANGE, PRINTED, depth_colours, panels
from joma.runs import Run
from joma.studies.hierarchy import _hblt
from joma.studies.hierarchy._thm5_findings import ERRORS, orders, standard_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES = (5, 10, 20)
"""Depths of the trees whose co-occurrence is drawn."""
CURVE_EPS = 0.01
FORMS = {"printed": (PRINTED, "o"), "corrected": (CORRECTED, "s")}


def draw(run: Run) -> list[Drawing]:
    """Co-occurrence against the height of the ancestor, and the remainder of eq. 8."""
    return [_draw_heights(run), _draw_remainder(run)]


def _draw_heights(run: Run) -> Drawing:
    figure, (left, right) = panels(2, width=4.2)
    for depth, colour in zip(CURVES, depth_colours(len(CURVES)), strict=True):
        left.plot(run.value(f"curves/{depth}"), "o", ms=3.5, color=colour, label=f"L = {depth}")
        left.plot([0, depth], [1, 0], ls="--", lw=1, color=colour)
    end_label(left, "1 − H/L", ls="--")
    left.set_title(f"Formula at ρ = ρ₀ = {1 - CURVE_EPS:g}")
    _draw_sampled(right, run)
    right.set_title(f"A sampled tree, L = {run.config['depth']}, ρ = {run.config['rho']:g}")
    for axis in (left, right):
        axis.set(xlabel="height H of the common ancestor", ylabel="co-occurrence P[l | m]")
        label_lines(axis)
    return Drawing("co-occurrence", _heights_caption(run), figure, _heights_alt(run))


def _draw_sampled(axis: Axes, run: Run) -> None:
    truth, corrected = run.value("sampled/truth"), run.value("sampled/corrected")
    height = np.arange(1, len(truth) + 1)
    axis.plot(height[:-1], corrected[:-1], color=CORRECTED, label="corrected ρ₀")
    axis.plot(height[:-1], run.value("sampled/printed"), color=PRINTED, label="printed ρ₀")
    axis.plot(height[-1:], corrected[-1:], "D", ms=7, mfc="none", color=CORRECTED, label="through the root")
    axis.errorbar(height, truth, ERRORS * standard_errors(run), fmt="none", lw=1, ecolor=ORANGE)
    axis.plot(height, truth, ".", ms=6, color=ORANGE, label=f"sampled,\n± {ERRORS:g} errors")
    axis.plot(height, run.value("sampled/shuffled"), "x", ms=4, color=CONTROL, label="l of another\nsequence")


def _off(run: Run) -> tuple[float, float]:
    """How far the two forms of the formula are from the sampled frequencies at most."""
    truth = run.value("sampled/truth")
    said = [run.value(f"sampled/{form}") for form in FORMS]
    printed, corrected = (float(np.abs(one - truth[: len(one)]).max()) for one in said)
    return printed, corrected


def _heights_caption(run: Run) -> str:
    printed, corrected = _off(run)
    far = max(float(np.abs(run.value(f"curves/{depth}") - _line(run, depth)).max()) for depth in CURVES)
    return (
        f"The formula with the corrected ρ₀ is at most {number(corrected)} from the sampled co-occurrence, the printed "
        f"ρ₀ up to {number(printed)}. Left: co-occurrence falls with the height of the common ancestor; the line 1 − "
        f"H/L is up to {number(far)} off at ρ = {1 - CURVE_EPS:g}. Right: one tree, {run.config['samples']:,} "
        "sequences; the last pair of tokens meets only in the root, and the crosses pair tokens of different "
        "sequences."
    )


def _line(run: Run, depth: int) -> Any:
    return 1 - np.arange(len(run.value(f"curves/{depth}"))) / depth


def _heights_alt(run: Run) -> str:
    left = [_over_heights(run.value(f"curves/{depth}"), f"L = {depth}", 0) for depth in CURVES]
    names = {"truth": "sampled", "corrected": "corrected ρ₀", "printed": "printed ρ₀", "shuffled": "other sequences"}
    right = [_over_heights(run.value(f"sampled/{series}"), name, 1) for series, name in names.items()]
    return f"Two panels over the height H. Left: {'; '.join(left)}. Right: {'; '.join(right)}."


def _over_heights(values: Any, name: str, first: int) -> str:
    return f"{name} {course(np.arange(first, first + len(values)), values, at='H =')}"


def _draw_remainder(run: Run) -> Drawing:
    figure, (axis,) = panels(1, width=6.0, height=3.2)
    eps = run.value("eq8/eps")
    for form, (colour, marker) in FORMS.items():
        for (depth, height), line in zip(_hblt.EXPANDED, _remainder(run, form), strict=True):
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
    return Drawing("remainder", caption, figure, _remainder_alt(run))


def _remainder(run: Run, form: str) -> Any:
    """(pairs, eps)."""
    return np.abs(run.value("eq8/truth") - run.value(f"eq8/{form}"))


def _remainder_alt(run: Run) -> str:
    eps = run.value("eq8/eps")
    small, large = int(eps.argmin()), int(eps.argmax())
    told = [
        f"{form}, {len(lines)} lines rise from {between(lines[:, small])} at ε = {number(eps[small])} to "
        f"{between(lines[:, large])} at ε = {number(eps[large])}"
        for form, lines in ((form, _remainder(run, form)) for form in FORMS)
    ]
    return f"Straight lines on two log scales. As {'. As '.join(told)}."
