"""The study of Theorem 1 under softmax attention: its claims, its sizes and its figures."""

from functools import partial
from typing import Any

import numpy as np

from joma.claims.contract import Drawing, Study
from joma.figures.bands import bound
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import number
from joma.figures.style import CONTROL, CORRECTED, GREEN, ORANGE, PRINTED, PURPLE, SERIES, panels
from joma.measure.correlation import pearson
from joma.runs import Run
from joma.studies.invariant.thm1_softmax import judge
from joma.studies.invariant.thm1_softmax import judge as claims
from joma.studies.invariant.thm1_softmax.run import KINDS, Thm1SoftmaxConfig, concentration, relative, run


def _figure_2(run: Run) -> Drawing:
    figure, axes = panels(2, 2, width=4.6)
    step, errors = run.value("step"), []
    for kind, top, bottom in zip(KINDS, axes[:2], axes[2:], strict=True):
        z, published, first, second, integrated, rebuilt = (
            run.value(f"{kind}/{name}")
            for name in ("z", "published", "first term", "second term", "integrated", "self-consistent")
        )
        correlations: list[tuple[Any, str, str, str]] = [
            (published, PRINTED, "-", "ẑ (eq. 18)"),
            (first, ORANGE, "-", "½Σv² alone"),
            (second, GREEN, "-", "−½Σ‖v‖² b̄ alone"),
            (np.roll(published, 1, 0), CONTROL, "--", "ẑ of another seed"),
        ]
        for estimate, colour, style, label in correlations:
            top.plot(step, pearson(estimate, z).mean(0), style, color=colour, label=label)
        top.set(ylabel="correlation with z", ylim=(-0.5, 1.05), title=f"Correlation of the estimate, {kind} classes")
        for estimate, colour, style, label in (
            (published, PRINTED, "-", "eq. 18, b̄ constant"),
            (integrated, PURPLE, "-", "eq. 17, true b̄(t)"),
            (rebuilt, CORRECTED, "-", "eq. 17, b̄ rebuilt"),
            (z[:, :1], CONTROL, "--", "z never moves"),
        ):
            bottom.plot(step[1:], relative(estimate, z)[:, 1:].mean(0), style, color=colour, label=label)
        bound(bottom, claims.CLOSE, f"tolerance {claims.CLOSE:g}")
        bottom.set(ylabel="relative error", yscale="log", ylim=(1e-2, 200))
        bottom.set_title(f"Error of the estimates, {kind} classes")
        for axis in (top, bottom):
            axis.set_xlabel("training step")
            label_lines(axis)
        errors.append(f"{number(relative(published, z)[:, -1].mean())} on {kind}")
    caption = (
        "The published estimate of the softmax logits correlates with them, but its size is wrong: its relative error "
        f"ends at {' and '.join(errors)} classes. Top: correlation over tokens "
        "between the estimate and the true logits, as in Figure 2, with its two terms and the control (mean over "
        "seeds). Bottom: the relative error of the same estimate and of the two that integrate eq. 17."
    )
    return Drawing("figure-2", caption, figure)


def _figure_3(run: Run) -> Drawing:
    figure, axes = panels(2, width=4.2)
    for kind, axis in zip(KINDS, axes, strict=True):
        moving, frozen = (run.value(f"{kind}/{which}v of node 0")[0] for which in ("", "frozen/"))
        for token, colour in enumerate(SERIES[:4]):
            axis.plot(run.value("step"), moving[:, token], color=colour, label=f"token {token}")
            axis.plot(run.value("step"), frozen[:, token], "--", lw=1, color=colour)
        end_label(axis, "dashed: frozen\nattention", ls="--", lw=1)
        axis.set(xlabel="training step", ylabel="components of v₀", title=f"Weights of one node, {kind} classes")
        label_lines(axis)
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
    return Drawing("figure-3", caption, figure)


STUDY = Study(
    name="thm1-softmax",
    title="Theorem 1 under softmax attention: Figures 2 and 3",
    version=1,
    claims={
        claims.PUBLISHED: judge.published,
        **{claims.CORRELATES[kind]: partial(judge.figure_2, kind=kind) for kind in KINDS},
        claims.PARTS: judge.components,
        claims.SUMS: judge.sums,
        claims.COVARIANCE: judge.covariance,
        claims.CONSTANT: judge.constant,
        claims.CURRENT: judge.current,
        claims.REBUILT: judge.rebuilt,
        claims.CONDITION: judge.condition,
        claims.MEAN: judge.mean,
        **{claims.GROWTH[kind]: partial(judge.figure_3, kind=kind) for kind in KINDS},
    },
    quick=Thm1SoftmaxConfig(),
    paper=Thm1SoftmaxConfig(seeds=100),
    run=run,
    draw=lambda run: [_figure_2(run), _figure_3(run)],
    about=(
        "The networks of Figures 2 and 3 (20 tokens, 20 classes, linear nodes, softmax attention at T = 0.5) are "
        "trained by full-batch SGD on the mean cross-entropy from several seeds, and once more with frozen attention. "
        "The logits are compared with every estimate from V: the published one, its two terms, and the path integrals "
        "that replace it. The comparison is made for each seed at three moments: a quarter, half and the end of "
        "training. Each estimate has a control that knows less: the estimate of another seed, the estimate with frozen "
        "attention, or the guess that z never moves."
    ),
)
