"""The study of eq. 6 and Figure 4: its claims, its sizes and its figures."""

from functools import partial
from typing import Any

import numpy as np
import torch

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.evidence import above, at_least, at_most, below
from joma.claims.verdicts import by_effect, by_residual, by_tests, not_run
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, CORRECTED, ORANGE, PRINTED, depth_colours, panels
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.salience.eq6.run import EVERY, LEARNED, TARGETS, TEMPERATURE, Eq6Config, entropy, run

REBOUND = 0.05  # nats: what counts as one
DROP = 0.2  # of stable rank, and nats of entropy below the control: what counts as a drop
MAJORITY = 0.5  # by how much a share of draws or pairs must exceed its control
CRITICAL = Claim("critical-point", "JoMA eq. 6", "The factor exp(v²/2) does not change the critical point v = μ.")
FACTOR = Claim(
    "speed-factor",
    "JoMA Sec. 4",
    "Attention multiplies the speed of each component by exp(v²).",
    "The factor is exp(v²/2), in agreement with eq. 6 and Theorem 1.",
    uses=("thm1/exp-invariant",),
)
ATTENTION = Claim(
    "entropy-exponent",
    "JoMA Fig. 4",
    "The entropy in the figure is that of the attention softmax(v²).",
    "The attention is softmax(v²/2). The figure was drawn with softmax(v²/3).",
    uses=("thm1/exp-invariant",),
)
ORDER = Claim(
    "salient-learned-first",
    "JoMA Fig. 4",
    "Components with large μ are learned first, the others later.",
    matters=MAJORITY,
    unit="%",
    ceiling=1.0,
    uses=("thm4/salient-first",),
)
FALL = Claim(
    "entropy-drops",
    "JoMA Fig. 4",
    "The entropy of attention drops while the salient components learn.",
    matters=DROP,
    unit="nats",
    uses=("eq6/salient-learned-first",),
)
RISE = Claim(
    "entropy-rebounds",
    "JoMA Fig. 4",
    "The entropy rises again when the other components catch up.",
    matters=REBOUND,
    unit="nats",
    uses=("eq6/entropy-drops",),
)
SAME_PATH = Claim(
    "figure-is-eq-6",
    "JoMA Fig. 4",
    "The figure shows eq. 6.",
    "It shows eq. 6 for μ√(2/3) with another clock. The softmax instead of exp changes the times, not the path.",
    uses=("eq6/speed-factor",),
)
RANK = Claim(
    "rank-rebounds",
    "JoMA Sec. 4",
    "The rank of the lower layer of the MLP first drops and later recovers.",
    "From a zero start its rank never changes. Its stable rank drops and recovers.",
    uses=("eq6/speed-factor",),
)
NONLINEAR = Claim(
    "only-nonlinear-rebounds",
    "JoMA Sec. 5",
    "With a nonlinear MLP the entropy rises again. With a linear MLP it does not.",
    uses=("eq6/entropy-exponent", "thm2/one-hot"),
)


EXACT = 1e-9  # an identity along a flow at rtol 1e-12
CLOCK = 1e-4  # Euler steps of Figure 4, extrapolated to step 0, against the closed form


_off = partial(by_residual, tolerance=EXACT, what="largest difference")


def critical(run: Run) -> Finding:
    """Where flows end, from both sides of μ; μ of another component must not fit."""
    ends, targets = run.value("long run"), np.array(TARGETS)
    expected = "In the long run the flow reaches v = μ from both sides, with and without the factor."
    control = {"μ of another component": float(np.abs(ends - np.roll(targets, 1)).min())}
    return _off(CRITICAL, printed=np.abs(ends - targets).max(), expected=expected, control=control)


def factor(run: Run) -> Finding:
    """Both exponents along the flow of v and z together."""
    v, z = run.value("flow").swapaxes(0, 1)
    return _off(
        FACTOR,
        printed=np.abs(v**2 - z).max(),
        corrected=np.abs(v**2 / 2 - z).max(),
        expected="The logarithm of the factor equals the logits along the flow.",
        control={"no factor": float(np.abs(z).max())},
    )


def attention(run: Run) -> Finding:
    """The entropy of both exponents beside that of the logits; that of uniform attention must be off."""
    v, z = run.value("flow").swapaxes(0, 1)
    true = _entropy(z)
    return _off(
        ATTENTION,
        printed=np.abs(_entropy(v**2) - true).max(),
        corrected=np.abs(_entropy(v**2 / 2) - true).max(),
        expected="The entropy equals that of the logits along the flow.",
        control={"uniform attention": float(np.abs(_entropy(0 * v) - true).max())},
    )


def _pair(run: Run, key: str) -> tuple[Any, Any]:
    """A number of every draw, with attention and without."""
    return run.value(f"attention/{key}"), run.value(f"no attention/{key}")


def _learned(run: Run) -> float:
    """The share of components that the figure's own draw has learned by its last recorded step, with attention or
    without, whichever is less.
    """
    ends = np.stack([weights[-1] for weights in _pair(run, "v")])
    return float((ends >= LEARNED * run.value("mu")[0]).mean(-1).min())


def _too_short(run: Run, claim: Claim, expected: str, share: float) -> Finding | None:
    """What is found if no more than `share` of the components is learned: nothing."""
    if _learned(run) > share:
        return None
    return not_run(claim, expected, "the run ended before its components were learned", "joma run eq6 --steps 5000")


def order(run: Run) -> Finding:
    """The share of pairs in order, beside that without attention."""
    expected = "Of two components the more salient one reaches 90 % of its target first."
    if short := _too_short(run, ORDER, expected, 0.0):
        return short
    what = "share of pairs in which the more salient component is learned first"
    return by_effect(ORDER, compare(*_pair(run, "in order")), what=what, over="draws", expected=expected)


def fall(run: Run) -> Finding:
    """How deep the entropy drops, beside the drop without attention; with equal targets it must not move."""
    expected = "The entropy drops deeper than without attention, and it does not drop with equal targets."
    if short := _too_short(run, FALL, expected, 0.0):
        return short
    start, lowest, equal = _pair(run, "start"), _pair(run, "lowest"), run.value("equal targets/entropy")
    at = {"lowest at step": float(run.value("attention/at")[0])}
    return by_effect(
        FALL,
        compare(start[0] - lowest[0], start[1] - lowest[1]),
        what="drop of entropy from the start to its minimum",
        expected=expected,
        over="draws",
        controls=[at_most("equal targets: change of entropy", np.ptp(equal), EXACT, "nats")],
        details={"seed 0": {"start": float(start[0][0]), "lowest": float(lowest[0][0]), **at}},
    )


def rise(run: Run) -> Finding:
    """How far the entropy rises after its minimum, beside the rise without attention."""
    expected = (
        f"After its minimum the entropy rises by over {REBOUND:g} nats in most draws. It does not without attention."
    )
    if short := _too_short(run, RISE, expected, MAJORITY):
        return short
    end, lowest = _pair(run, "end"), _pair(run, "lowest")
    rise, plain = end[0] - lowest[0], end[1] - lowest[1]
    what = f"share of draws that rise by {REBOUND:g} nats, minus the same share without attention"
    return by_effect(
        RISE,
        compare(rise, plain),
        what="rise of entropy from its minimum to the end",
        expected=expected,
        over="draws",
        size=[above(what, _share_above(rise, REBOUND) - _share_above(plain, REBOUND), MAJORITY, "%")],
        details={"seed 0": {"lowest": float(lowest[0][0]), "end": float(end[0][0])}},
    )


def _share_above(values: Any, bound: float) -> float:
    return float((values > bound).mean()) if np.isfinite(values).all() else float("nan")


def same_path(run: Run) -> Finding:
    """The smallest entropy of the figure at step size 0, beside both closed forms."""
    full, half, closed = (run.value(f"{name}/lowest") for name in ("attention", "half step", "closed form"))
    limit = 2 * half - full[: len(half)]  # the error of an Euler step is of first order
    return by_residual(
        SAME_PATH,
        printed=float(abs(run.value("eq. 6/entropy")[1].min() - limit[0])),
        corrected=np.abs(closed - limit).max(),
        tolerance=CLOCK,
        what="largest difference",
        expected="The formula gives the smallest entropy of the figure at step size 0.",
        control={"without attention": float(np.abs(closed - run.value("no attention/lowest")[: len(half)]).min())},
        details={"seed 0": {"smallest entropy at step size 0": float(limit[0])}},
    )


def rank(run: Run) -> Finding:
    """Rank and stable rank of the closed form with many nodes; without attention the stable rank must not move."""
    stable, exact, plain = (run.value(f"rank/{n}") for n in ("stable", "exact", "stable without attention"))
    return by_tests(
        RANK,
        expected=f"As printed: the rank drops and recovers. As corrected: the stable rank does, by {DROP:g}.",
        printed=[
            at_least("drop of the rank", exact[0] - exact.min(), 1.0),
            at_least("recovery of the rank", exact[-1] - exact.min(), 1.0),
        ],
        corrected=[
            above("drop of the stable rank", stable[0] - stable.min(), DROP),
            above("recovery of the stable rank", stable[-1] - stable.min(), DROP),
            at_most("change of the rank", exact.max() - exact.min(), 0.0),
        ],
        controls=[below("without attention: change of the stable rank", np.ptp(plain), DROP)],
        details={"stable rank": {"start": float(stable[0]), "lowest": float(stable.min()), "end": float(stable[-1])}},
    )


def nonlinear(run: Run) -> Finding:
    """The rise of entropy along eq. 6; along Theorem 2 there must be none."""
    rises = [curve[-1] - curve.min() for curve in (run.value("eq. 6/entropy")[1], run.value("linear MLP/entropy"))]
    return by_tests(
        NONLINEAR,
        expected="The entropy rises after its minimum along eq. 6, and does not rise along Theorem 2.",
        printed=[above("rise of entropy along eq. 6", rises[0], REBOUND, "nats")],
        controls=[at_most("linear MLP: rise of entropy", rises[1], REBOUND, "nats")],
    )


def _entropy(logits: Any) -> Any:
    return entropy(torch.from_numpy(np.array(logits))).numpy()


def _draw_figure_4(run: Run) -> Drawing:
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
        CRITICAL: critical,
        FACTOR: factor,
        ATTENTION: attention,
        ORDER: order,
        FALL: fall,
        RISE: rise,
        SAME_PATH: same_path,
        RANK: rank,
        NONLINEAR: nonlinear,
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
