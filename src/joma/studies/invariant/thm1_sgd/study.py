"""The study of Theorem 1 outside gradient flow: its claims, its sizes and its figure."""

from __future__ import annotations

from functools import partial

import numpy as np

from joma.claims.contract import Drawing, Study
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import number
from joma.figures.style import BLUE, GREEN, ORANGE, PURPLE, RED, panels
from joma.runs import Run
from joma.studies.invariant.thm1_sgd import claims, judge
from joma.studies.invariant.thm1_sgd.run import KINDS, RECIPES, Thm1SgdConfig, run


def draw(run: Run) -> list[Drawing]:
    """Relative drift against the rate, and one drift over training beside its identity."""
    figure, (left, right) = panels(2, width=4.6, height=3.0)
    rates = run.value("rates")
    colours = dict(zip(RECIPES, (BLUE, GREEN, ORANGE, RED, PURPLE), strict=True))
    for recipe, colour in colours.items():
        for kind, style, label in zip(KINDS, ("o-", "s:"), (recipe, None), strict=True):
            left.plot(rates, judge.relative_drift(run, f"{kind}/{recipe}"), style, color=colour, ms=4, label=label)
    end_label(left, "circles: exp", marker="o", ms=4, ls="-")
    end_label(left, "squares: linear", marker="s", ms=4, ls=":")
    left.set(xscale="log", yscale="log", xlabel="learning rate η", ylabel="drift / movement of z")
    left.set_title("Which optimisers keep Theorem 1")
    left.set_xticks(rates, [f"{rate:g}" for rate in rates])
    left.minorticks_off()
    left.set_xlim(rates.max() * 1.1, rates.min() / 1.1)
    for recipe in ("full batch", "minibatch"):
        path, predicted = (run.value(f"exp/{recipe}/{key}")[:, 0] for key in ("drift path", "predicted path"))
        time = np.arange(len(path)) * rates[-1]
        right.plot(time, path, color=colours[recipe], label=recipe)
        dots = slice(None, None, max(len(path) // 12, 1))
        right.plot(time[dots], predicted[dots], "o", ms=4, mfc="none", color=colours[recipe])
    end_label(right, "circles: exact sum\n−κ/(2T) ΣΣ(Δv)²", marker="o", ms=4, mfc="none", ls="")
    right.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    right.set(xlabel="training time η · steps", ylabel="change of z − κΣv²/(2T)")
    right.set_title(f"The drift of one token is known (exp, η = {rates[-1]:g})", pad=14)
    for axis in (left, right):
        label_lines(axis)
    plain, adam = (number(judge.relative_drift(run, f"exp/{recipe}")[-1], "%") for recipe in ("full batch", "Adam"))
    caption = (
        "Plain SGD, minibatches and momentum approach Theorem 1 as the rate falls. Adam and weight decay stay far "
        f"from it. At the smallest rate the drift under exp attention is {plain} of the movement for plain SGD and "
        f"{adam} for Adam. Left: "
        "the drift of the invariant at the end of training, as a share of the movement of the logits, against the "
        "learning rate. Right: the drift of one token over training, with its exact sum over steps."
    )
    return [Drawing("sgd-drift", caption, figure)]


STUDY = Study(
    name="thm1-sgd",
    title="Theorem 1 under SGD, momentum, Adam and weight decay",
    version=1,
    claims={
        claims.IDENTITY_EXP: partial(judge.identity, claim=claims.IDENTITY_EXP, kind="exp", decayed=False),
        claims.IDENTITY_LINEAR: partial(judge.identity, claim=claims.IDENTITY_LINEAR, kind="linear", decayed=False),
        claims.LIMIT: partial(judge.vanishes, claim=claims.LIMIT, recipe="full batch"),
        claims.BATCHES: partial(judge.vanishes, claim=claims.BATCHES, recipe="minibatch"),
        claims.MOMENTUM: judge.momentum,
        claims.ADAM: judge.adam,
        claims.DECAY_EXP: partial(judge.identity, claim=claims.DECAY_EXP, kind="exp", decayed=True),
        claims.DECAY_LINEAR: partial(judge.identity, claim=claims.DECAY_LINEAR, kind="linear", decayed=True),
    },
    quick=Thm1SgdConfig(),
    paper=Thm1SgdConfig(samples=40, batch=8, members=64, rates=(0.2, 0.1, 0.05, 0.025, 0.0125, 0.00625), horizon=8.0),
    run=run,
    draw=draw,
    about=(
        "A JoMA block with tanh nodes and a cross-entropy loss is trained by real optimisers. Several networks are "
        "trained at several rates up to the same training time, under exp and under linear attention. The change of "
        "the invariant is compared with its exact sum over steps. A line is fitted to the drift, as a share of the "
        "movement of the logits, against the rate. Momentum gets the rate η(1 − β), so that it moves as far as plain "
        "SGD. For Adam the interval is over networks. It asks whether the relation predicts the logits better than the "
        "guess that they never move."
    ),
)
