"""The study of Lemma 4: its claims, its sizes and its figure."""

from __future__ import annotations

import numpy as np

from joma.claims.contract import Drawing, Study
from joma.figures.labels import label_lines
from joma.figures.reading import number
from joma.figures.style import BLUE, GREEN, ORANGE, PRINTED, depth_colours, panels
from joma.runs import Run
from joma.studies.isotropic._forms import plain_ticks
from joma.studies.isotropic.lemma4 import claims, judge
from joma.studies.isotropic.lemma4.run import Lemma4Config, run


def draw(run: Run) -> list[Drawing]:
    """F/theta1 of three laws, and the curve on which critical rays exist."""
    figure, (left, right) = panels(2, width=4.3)
    m, shown = run.value("separations"), min(judge.tails(run), key=lambda nu: abs(float(nu) - 3))
    names = (("Gaussian", "Gaussian", BLUE), ("ball", "ball", ORANGE), (shown, f"Student-t,\nν = {shown}", GREEN))
    for name, label, colour in names:
        left.plot(run.value(f"{name}/s"), run.value(f"{name}/life"), color=colour, label=label)
    pair = int(np.argmin(np.abs(m - 4)))
    ratio, plus, minus = run.value(f"{shown}/ray")[:, pair]
    level = np.interp([minus, plus], run.value(f"{shown}/s"), run.value(f"{shown}/life"))
    left.plot([minus, plus], level, "o-", ms=4, lw=1, color=GREEN)
    note = f"ρ₊ − ρ₋ = {m[pair]:.3g}\na₋/a₊ = {ratio:.3g}"
    left.annotate(note, ((minus + plus) / 2, level[0] + 0.15), ha="center", fontsize=8)
    left.set(xlabel="signed distance ρ", ylabel="F/θ₁", xlim=(-8, 3.5), ylim=(0, 5))
    left.set_title("Power tails: one value at two distances")
    right.axhspan(0.5, 2, color=PRINTED, alpha=0.15, lw=0)
    right.axhline(2, color=PRINTED, ls="--", lw=1, label="printed:\n1/2 to 2")
    ratios = judge.of_tails(run, "ray")[:, 0]
    for nu, row, colour in zip(judge.tails(run), ratios, depth_colours(len(ratios)), strict=True):
        right.plot(m, row, "o-", ms=3.5, color=colour, label=f"ν = {nu}")
    right.set(xscale="log", yscale="log", xlabel="separation m = ‖x̄₊‖", ylabel="a₋/a₊", ylim=(0.4, 3e4))
    plain_ticks(right.xaxis, (0.25, 0.5, 1, 2, 4, 8))
    right.set_title("Where critical rays exist")
    for axis in (left, right):
        label_lines(axis)
    caption = (
        "Only laws with power tails have critical rays, and their ratios a₋/a₊ reach "
        f"{number(ratios.max())}, far above the printed limit of 2. Left: a critical ray needs two distances, ‖x̄₊‖ "
        "apart, with the same F/θ₁. Log-concave laws (Gaussian, ball) have no such pair. Right: the ratio of weights "
        "that belongs to each separation of the clusters; away from the curve there is no critical ray."
    )
    return [Drawing("critical-rays", caption, figure)]


STUDY = Study(
    name="lemma4",
    title="Lemma 4: where a node between two clusters stands still",
    version=2,
    claims={
        claims.NECESSARY: judge.necessary,
        claims.FREE: judge.free,
        claims.EXISTENCE: judge.existence,
        claims.CRITERION: judge.criterion,
        claims.BAND: judge.band,
        claims.LEVELS: judge.levels,
        claims.LIMIT: judge.limits,
        claims.SLOPE: judge.g_slope,
    },
    quick=Lemma4Config(),
    paper=Lemma4Config(
        separations=tuple(np.geomspace(0.1, 20, 24).round(4).tolist()),
        tails=(1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 20.0, 50.0),
        grid=4000,
    ),
    run=run,
    draw=draw,
    about=(
        "A ReLU node lies between a positive cluster at distance m and a negative cluster at the origin. The equations "
        "of a critical point are solved for Student-t laws, in the printed and in the corrected variable. The velocity "
        "of the node is then computed at the solutions. The values of F/θ₁ on a grid show which laws can have critical "
        "points."
    ),
)
