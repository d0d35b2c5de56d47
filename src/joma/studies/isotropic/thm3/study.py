"""The study of Theorem 3: its claims, its sizes and its figures."""

from __future__ import annotations

from functools import partial

import numpy as np

from joma.claims.contract import Drawing, Study
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import number
from joma.figures.style import BLUE, CORRECTED, GREEN, GREY, ORANGE, PRINTED, panels
from joma.runs import Run
from joma.studies.isotropic.thm3 import claims, judge
from joma.studies.isotropic.thm3.run import Thm3Config, run


def _draw_linearisation(run: Run) -> Drawing:
    """Rates of C as printed and as corrected, and the remainder."""
    figure, (left, right) = panels(2, width=4.4)
    ray, m = judge.Record(run, "ray +1"), run.value("separations")
    places = np.arange(len(m))
    for i, marker in enumerate("os"):
        names = ("by differences", "corrected", "printed") if i == 0 else (None, None, None)
        left.plot(places - 0.08, ray.rates[:, i], marker, ms=9, mfc="none", color=GREEN, label=names[0])
        left.plot(places - 0.08, ray.corrected[:, i], marker, ms=4, color=CORRECTED, label=names[1])
        left.plot(places + 0.08, ray.printed[:, i], marker, ms=4, color=PRINTED, label=names[2])
    left.axhline(0, lw=0.8, ls="--", color=GREY)
    end_label(left, "circles: across μ", marker="o", ms=4, ls="")
    end_label(left, "squares: along μ", marker="s", ms=4, ls="")
    left.set_xticks(places, [f"{each:g}" for each in m])
    left.set(xlabel="separation m = ‖x̄₊‖", ylabel="eigenvalue of C", title="Corrected rates are positive")
    gamma, remainder = run.value("gamma"), run.value("remainder").mean(1)
    right.plot(gamma, remainder[:, 0], "o-", ms=4, color=CORRECTED, label="missed by\nC(μ − v)")
    right.plot(gamma, remainder[:, 1], "s-", ms=4, color=PRINTED, label="missed with\nthe best λ")
    line = remainder[0, 0] * gamma / gamma[0] / 3
    right.plot(gamma, line, ls="--", lw=1, color=GREY, label="proportional\nto ‖v − μ‖")
    right.set(xscale="log", yscale="log", xlabel="‖v − μ‖ / ‖μ‖", ylabel="share of v′ missed", ylim=(1e-6, 0.1))
    right.set_title("No number λ repairs the remainder")
    for axis in (left, right):
        label_lines(axis)
    caption = (
        "With the corrected rates C is positive definite, with the printed rates it is not: the smallest eigenvalue is "
        f"{number(ray.corrected.min())} and {number(ray.printed.min())}. Left: eigenvalues of C at critical points "
        "of a Student-t mixture. Right: what the linear term misses of v′ is one order smaller than the term "
        "itself, and no number λ repairs it."
    )
    return Drawing("linearisation", caption, figure)


def _draw_flows(run: Run) -> Drawing:
    figure, axes = panels(2, width=4.2)
    *mu, xi = run.value("critical ray")
    length = float(np.linalg.norm(mu))
    axes[0].axline((length, xi), slope=float(xi) / length, ls="--", lw=1, color=ORANGE, zorder=0, label="critical ray")
    titles = ("Student-t, no decay: the ends lie on a ray", "Gaussian, weight decay: one end point")
    for axis, name, title in zip(axes, ("ray", "decayed"), titles, strict=True):
        path = run.value(f"flow/{name}")  # (steps, starts, 5)
        axis.plot(path[..., 3], path[..., 4], lw=1, color=BLUE)
        axis.plot(path[0, :, 3], path[0, :, 4], "o", ms=3, color=GREY, label="start")
        axis.plot(path[-1, :, 3], path[-1, :, 4], "o", ms=4.5, color=CORRECTED, label="end")
        axis.set(xlabel="‖v‖", ylabel="bias ξ", title=title)
        label_lines(axis)
    left, left_with_decay = (number(judge.distance_left(run, name)[0], "%") for name in ("ray", "decayed"))
    caption = (
        "Without weight decay a critical point attracts only towards its ray; with weight decay it attracts in every "
        f"direction. At the end up to {left} of the first distance to the point is left without decay, "
        f"and {left_with_decay} with decay. The lines are flows from starts around a critical point."
    )
    return Drawing("flows", caption, figure)


STUDY = Study(
    name="thm3",
    title="Theorem 3: the flow near a critical point",
    version=1,
    claims={
        claims.EQ69: judge.jacobian_of_theta2,
        claims.BETA1: partial(judge.rate, claim=claims.BETA1, which=0),
        claims.BETA2: partial(judge.rate, claim=claims.BETA2, which=1),
        claims.POSITIVE: judge.positive,
        claims.SIGN: judge.sign,
        claims.FACTOR: judge.factor,
        claims.FROZEN: judge.frozen,
        claims.ISOLATED: judge.isolated,
        claims.PARALLEL: judge.parallel,
    },
    quick=Thm3Config(),
    paper=Thm3Config(separations=(0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0), steps=400, starts=64),
    run=run,
    draw=lambda run: [_draw_linearisation(run), _draw_flows(run)],
    about=(
        "The critical points of a ReLU node between two clusters come from the corrected Lemma 4 (rays of Student-t "
        "laws). With weight decay they come from a solver. The reference for eq. 69, 73 and 74 is the Jacobian of the "
        "velocity at these points, by numerical differences of sixth order. Flows from starts near the points show "
        "which points attract."
    ),
)
