"""The study of Theorem 1: its claims, its sizes and its figure."""

from __future__ import annotations

from functools import partial

import torch

from joma.claims.contract import Drawing, Study
from joma.figures.bands import bound
from joma.figures.labels import label_lines
from joma.figures.reading import number
from joma.figures.style import CONTROL, CORRECTED, GREEN, INK, ORANGE, panels
from joma.runs import Run
from joma.studies.invariant._blocks import FLOW, GRADIENTS, KINDS, drift_over_time, kept
from joma.studies.invariant.thm1 import claims, judge
from joma.studies.invariant.thm1.run import Thm1Config, run


def draw(run: Run) -> list[Drawing]:
    """What the logits do against what V predicts, and the drift of right and wrong invariants."""
    figure, (left, right) = panels(2, width=4.6)
    z, v = (part[:, 0] for part in judge.widths(run, "exp")[-1])  # from random starts
    predicted = v.square().sum(-1) / 2
    for i, (gradient, colour) in enumerate(zip(GRADIENTS, (CORRECTED, ORANGE, GREEN), strict=True)):
        across, up = ((part - part[0])[:, :, i].flatten() for part in (predicted, z))
        left.plot(across, up, "o", ms=2.5, mew=0, alpha=0.6, color=colour, label=f"g {gradient}")
    ends = torch.stack([predicted - predicted[0], z - z[0]]).aminmax()
    left.axline((0, 0), slope=1, lw=1, color=INK, zorder=0, label="equality")
    left.set(xlim=tuple(map(float, ends)), ylim=tuple(map(float, ends)), title="Exp logits follow the weights")
    left.set(xlabel="change of ½Σv² of a token", ylabel="change of its logit z")
    reached: dict[str, list[float]] = {"Theorem 1": [], "wrong factor": []}
    for kind, style in zip(KINDS, ("-", "--"), strict=True):
        path = judge.widths(run, kind)[-1]
        constants = (kept(*path, kind=kind), CORRECTED), (judge.wrong_integral(*path, kind), CONTROL)
        for label, (c, colour) in zip(reached, constants, strict=True):
            drifts = drift_over_time(c)
            right.plot(run.value("t")[1:], drifts, color=colour, ls=style, label=f"{label}, {kind}")
            reached[label].append(float(drifts.max()))
    bound(right, FLOW)
    right.set(yscale="log", ylim=(1e-15, 1e1), xlabel="time", ylabel="largest drift")
    right.set_title("Only Theorem 1 is conserved")
    for axis in (left, right):
        label_lines(axis)
    caption = (
        "The logits move as Theorem 1 predicts from the weights: the invariants drift by at most "
        f"{number(max(reached['Theorem 1']))}. With a wrong factor the drift is at least "
        f"{number(min(reached['wrong factor']))}. Left: the change of each exp logit against "
        "its prediction, for all tokens, activations and times; the line marks equality. Right: the largest drift of "
        "the invariants over all activations and gradients. The control is an invariant with a wrong factor: z − Σv² "
        "(exp) and z² − Σv²/2 (linear)."
    )
    return [Drawing("first-integral", caption, figure)]


STUDY = Study(
    name="thm1",
    title="Theorem 1: what attention and MLP conserve together",
    version=2,
    claims={
        claims.EXP: partial(judge.conserved, claim=claims.EXP, kind="exp"),
        claims.LINEAR: partial(judge.conserved, claim=claims.LINEAR, kind="linear"),
        claims.PULL: judge.pulled,
        claims.SIGMA: judge.sigma,
        claims.KINKS: judge.kinks,
        claims.STATIONARY: judge.stationary,
        claims.ANY_DATA: judge.any_data,
        claims.RESIDUAL: judge.residual,
        claims.ZERO_EXP: judge.zero_exp,
        claims.ZERO_LINEAR: judge.zero_linear,
    },
    quick=Thm1Config(),
    paper=Thm1Config(tokens=20, nodes=(1, 4, 20), samples=64, steps=41, kink_steps=(100, 400)),
    run=run,
    draw=draw,
    about=(
        "One block with random data is trained by gradient flow. The runs cover linear, SiLU and tanh activations, "
        "three kinds of gradient (constant, cross-entropy, changing in time), one and several nodes, and the block "
        "with and without a residual connection. The solver does not use Theorem 1. The invariants are computed "
        "afterwards from the recorded z and V."
    ),
)
