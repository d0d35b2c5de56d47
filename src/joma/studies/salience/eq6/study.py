"""The study of eq. 6 and Figure 4: its claims, its sizes and its figures."""

from __future__ import annotations

import numpy as np

from joma.claims.contract import Drawing, Study
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, CORRECTED, ORANGE, PRINTED, depth_colours, panels
from joma.runs import Run
from joma.studies.salience.eq6 import claims, judge
from joma.studies.salience.eq6.run import EVERY, TEMPERATURE, Eq6Config, run


def _draw_figure_4(run: Run) -> Drawing:
    """Components and entropy of the figure's own draw, with and without attention."""
    figure, (left, right) = panels(2, width=4.5, height=3.0)
    mu, v, rate = run.value("mu")[0], run.value("attention/v"), float(run.config["rate"])
    for i, colour in enumerate(depth_colours(len(mu))):
        left.plot(np.arange(len(v)) * EVERY * rate, v[:, i], color=colour, label=f"μ = {mu[i]:.2f}")
        left.axhline(mu[i], color=colour, ls="--", lw=0.7)
    end_label(left, "dashed: μ", ls="--", lw=0.7)
    left.set(ylabel="v", ylim=(0, None), title="Salient components learn first")
    entropies = run.value("attention/entropy")
    time = np.arange(len(entropies)) * rate
    right.plot(time, entropies, color=BLUE, label="Figure 4")
    right.plot(time, run.value("no attention/entropy"), color=CONTROL, label="without\nattention")
    right.plot(time, run.value("equal targets/entropy"), color=CONTROL, ls=":", label="equal targets")
    low = int(entropies.argmin())
    where = (time[low], entropies[low])
    right.plot(*where, "o", ms=5, color=BLUE)
    right.annotate(f"{where[1]:.4f}", where, (6, -4), textcoords="offset points", fontsize=8.5, va="top")
    right.set(ylabel="entropy of softmax(v²/3) (nats)", ylim=(0.7, None), title="Entropy drops and rebounds")
    for axis, size in ((left, 7.5), (right, 8.0)):
        axis.set_xlabel("time (step × rate)")
        label_lines(axis, fontsize=size)
    caption = (
        f"The entropy of attention drops to {number(entropies.min(), 'nats')} while the salient components learn, and "
        f"rises to {number(entropies[-1], 'nats')} while the others catch up. Left: the components in the order of "
        "their targets μ; large ones are learned first. Right: the entropy. If all components have the same speed it "
        "only falls, and with equal targets it does not move. Both panels follow the recipe of Figure 4 with the "
        "targets of seed 0."
    )
    return Drawing("entropy-rebound", caption, figure)


def _draw_rank(run: Run) -> Drawing:
    """Entropy by the exponent of attention, and the stable rank of the lower layer."""
    figure, (left, right) = panels(2, width=4.5, height=2.8)
    labels = ("softmax(v²),\nas printed", "softmax(v²/2),\nTheorem 1", f"softmax(v²/{TEMPERATURE:g}),\nas drawn")
    for curve, colour, label in zip(run.value("eq. 6/entropy"), (PRINTED, CORRECTED, ORANGE), labels, strict=True):
        left.plot(run.value("eq. 6/t"), curve, color=colour, label=label)
    left.set(xscale="log", xlabel="time of eq. 6", ylabel="entropy (nats)", ylim=(0, 2.5))
    left.set_title("The exponent sets the depth (μ of seed 0)")
    t, stable = run.value("rank/t")[1:], run.value("rank/stable")[1:]
    right.plot(t, stable, color=BLUE, label="with attention")
    right.plot(t, run.value("rank/stable without attention"), color=CONTROL, ls="--", label="without\nattention")
    right.set(xscale="log", xlabel="time", ylabel="stable rank of V", title="The stable rank drops and recovers")
    for axis in (left, right):
        label_lines(axis)
    caption = (
        f"The stable rank of the lower layer drops from {number(stable[0])} to {number(stable.min())} and recovers; "
        "its rank is the same at all times. Left: the entropy along eq. 6 from zero, for the three exponents in the "
        "text, the theory and the figure. Right: the stable rank of V with many nodes."
    )
    return Drawing("rank-rebound", caption, figure)


STUDY = Study(
    name="eq6",
    title="Equation 6 and Figure 4: entropy and rank drop and recover",
    version=1,
    claims={
        claims.CRITICAL: judge.critical,
        claims.FACTOR: judge.factor,
        claims.ATTENTION: judge.attention,
        claims.ORDER: judge.order,
        claims.FALL: judge.fall,
        claims.RISE: judge.rise,
        claims.SAME_PATH: judge.same_path,
        claims.RANK: judge.rank,
        claims.NONLINEAR: judge.nonlinear,
    },
    quick=Eq6Config(),
    paper=Eq6Config(draws=1000, checked=200, rows=96, nodes=32),
    run=run,
    draw=lambda run: [_draw_figure_4(run), _draw_rank(run)],
    about=(
        "Figure 4 is repeated by its recipe for many draws of the targets: ten targets 1 + 3u, Euler steps of 0.02, "
        "speeds softmax(v²/3). The control gives all components the same speed and changes nothing else. The exponents "
        "are tested on a flow that follows weights and logits together. The ranks are tested on the closed form with "
        "many nodes."
    ),
)
