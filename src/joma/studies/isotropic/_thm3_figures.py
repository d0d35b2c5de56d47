"""The figures of the study of Theorem 3: rates at critical points, the remainder, and flows towards them."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import between, number
from joma.figures.style import BLUE, CORRECTED, GREEN, GREY, ORANGE, PRINTED, panels
from joma.runs import Run
from joma.studies.isotropic._critical_point import Record


def distance_left(path: Any) -> Any:
    """Shares of the first distances to the point and to its ray, of the start that comes least near."""
    return (path[-1, :, :2] / path[0, :, :2]).max(0)


def draw(run: Run) -> list[Drawing]:
    """Rates of C as printed and as corrected; the remainder; and two flows."""
    figure, (left, right) = panels(2, width=4.4)
    seen = [_draw_rates(run, left), _draw_remainder(run, right)]
    ray = Record(run.value("ray +1"))
    caption = (
        "With the corrected rates C is positive definite, with the printed rates it is not: the smallest eigenvalue is "
        f"{number(ray.corrected.min())} and {number(ray.printed.min())}. Left: eigenvalues of C at critical points "
        "of a Student-t mixture. Right: what the linear term misses of v′ is one order smaller than the term "
        "itself, and no number λ repairs it."
    )
    return [Drawing("linearisation", caption, figure, "Two panels. " + " ".join(seen)), _draw_flows(run)]


def _draw_rates(run: Run, axis: Any) -> str:
    ray, m = Record(run.value("ray +1")), run.value("separations")
    places = np.arange(len(m))
    for i, marker in ((0, "o"), (1, "s")):
        label = ("by differences", "corrected", "printed") if i == 0 else (None, None, None)
        axis.plot(places - 0.08, ray.rates[:, i], marker, ms=9, mfc="none", color=GREEN, label=label[0])
        axis.plot(places - 0.08, ray.corrected[:, i], marker, ms=4, color=CORRECTED, label=label[1])
        axis.plot(places + 0.08, ray.printed[:, i], marker, ms=4, color=PRINTED, label=label[2])
    axis.axhline(0, lw=0.8, ls="--", color=GREY)
    end_label(axis, "circles: across μ", marker="o", ms=4, ls="")
    end_label(axis, "squares: along μ", marker="s", ms=4, ls="")
    axis.set_xticks(places, [f"{each:g}" for each in m])
    axis.set(xlabel="separation m = ‖x̄₊‖", ylabel="eigenvalue of C", title="Corrected rates are positive")
    label_lines(axis)
    return (
        f"Left: at separations {between(m)} the corrected eigenvalues lie inside the marks found by differences, "
        f"{between(ray.rates)}. The printed ones lie {between(ray.printed)}; along μ none is above "
        f"{number(ray.printed[:, 1].max())}."
    )


def _draw_remainder(run: Run, axis: Any) -> str:
    gamma, remainder = run.value("gamma"), run.value("remainder").mean(1)
    axis.plot(gamma, remainder[:, 0], "o-", ms=4, color=CORRECTED, label="missed by\nC(μ − v)")
    axis.plot(gamma, remainder[:, 1], "s-", ms=4, color=PRINTED, label="missed with\nthe best λ")
    line = remainder[0, 0] * gamma / gamma[0] / 3
    axis.plot(gamma, line, ls="--", lw=1, color=GREY, label="proportional\nto ‖v − μ‖")
    axis.set(xscale="log", yscale="log", xlabel="‖v − μ‖ / ‖μ‖", ylabel="share of v′ missed")
    axis.set_title("No number λ repairs the remainder")
    axis.set_ylim(1e-6, 0.1)
    label_lines(axis)
    return (
        f"Right, on log scales: while ‖v − μ‖/‖μ‖ falls from {number(gamma[0])} to {number(gamma[-1])}, the share "
        f"missed falls in proportion from {number(remainder[0, 0])} to {number(remainder[-1, 0])}. With the best λ it "
        f"falls in parallel from {number(remainder[0, 1])} to {number(remainder[-1, 1])}."
    )


def _draw_flows(run: Run) -> Drawing:
    figure, axes = panels(2, width=4.2)
    titles = ("Student-t, no decay: the ends lie on a ray", "Gaussian, weight decay: one end point")
    for axis, name, title in zip(axes, ("ray", "decayed"), titles, strict=True):
        path = run.value(f"flow/{name}")  # (steps, starts, 5)
        axis.plot(path[..., 3], path[..., 4], lw=1, color=BLUE)
        axis.plot(path[0, :, 3], path[0, :, 4], "o", ms=3, color=GREY, label="start")
        axis.plot(path[-1, :, 3], path[-1, :, 4], "o", ms=4.5, color=CORRECTED, label="end")
        axis.set(xlabel="‖v‖", ylabel="bias ξ", title=title)
    *mu, xi = run.value("critical ray")
    length = float(np.linalg.norm(mu))
    axes[0].axline((length, xi), slope=float(xi) / length, ls="--", lw=1, color=ORANGE, zorder=0, label="critical ray")
    for axis in axes:
        label_lines(axis)
    return Drawing("flows", _flows_caption(run), figure, _flows_alt(run))


def _flows_caption(run: Run) -> str:
    left, left_with_decay = (distance_left(run.value(f"flow/{name}")) for name in ("ray", "decayed"))
    return (
        "Without weight decay a critical point attracts only towards its ray; with weight decay it attracts in every "
        f"direction. At the end up to {number(left[0], '%')} of the first distance to the point is left without decay, "
        f"and {number(left_with_decay[0], '%')} with decay. The lines are flows from starts around a critical point."
    )


def _flows_alt(run: Run) -> str:
    ray, decayed = (run.value(f"flow/{name}") for name in ("ray", "decayed"))
    return (
        f"Two panels of ‖v‖ and ξ with {ray.shape[1]} flows each. Left: the flows run to different points of the "
        f"dashed critical ray, with ‖v‖ {between(ray[-1, :, 3])} at their ends. Right: the flows start with ‖v‖ "
        f"{between(decayed[0, :, 3])} and all end in one point, ‖v‖ = {number(decayed[-1, :, 3].mean())} and "
        f"ξ = {number(decayed[-1, :, 4].mean())}."
    )
