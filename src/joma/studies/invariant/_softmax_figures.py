"""Figures 2 and 3 of the paper, drawn from a recorded run with their controls."""

from __future__ import annotations

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.style import CONTROL, CORRECTED, GREEN, ORANGE, PRINTED, PURPLE, SERIES, panels
from joma.measure.correlation import pearson
from joma.runs import Run
from joma.studies.invariant._softmax_equations import relative
from joma.studies.invariant._softmax_training import KINDS


def figure_2(run: Run, *, tolerance: float) -> Drawing:
    """Correlation with z over training, as in the paper, above the relative error that it hides."""
    step = run.value("step")
    figure, axes = panels(2, 2)
    lines = (
        ("published", PRINTED, "ẑ (eq. 18)"),
        ("first term", ORANGE, "½Σv² alone"),
        ("second term", GREEN, "−½Σ‖v‖² b̄ alone"),
    )
    for kind, top, bottom in zip(KINDS, axes[:2], axes[2:], strict=True):
        z = run.value(f"{kind}/z")
        for method, colour, label in lines:
            top.plot(step, pearson(run.value(f"{kind}/{method}"), z).mean(0), color=colour, label=label)
        top.plot(
            step,
            pearson(np.roll(run.value(f"{kind}/published"), 1, 0), z).mean(0),
            "--",
            color=CONTROL,
            label="ẑ of another seed",
        )
        top.set(xlabel="step", ylabel="correlation with z", ylim=(-0.5, 1.05), title=f"{kind} classes")
        for method, colour, label in (
            ("published", PRINTED, "eq. 18, b̄ constant"),
            ("integrated", PURPLE, "eq. 17, true b̄(t)"),
            ("self-consistent", CORRECTED, "eq. 17, b̄ rebuilt"),
        ):
            bottom.plot(step[1:], relative(run.value(f"{kind}/{method}"), z)[:, 1:].mean(0), color=colour, label=label)
        bottom.plot(step[1:], relative(z[:, :1], z)[:, 1:].mean(0), "--", color=CONTROL, label="z never moves")
        bottom.axhline(tolerance, ls=":", lw=1, color="gray")
        bottom.set(xlabel="step", ylabel="relative error", yscale="log", ylim=(1e-2, 200))
    axes[0].legend(loc="lower right", bbox_to_anchor=(1.0, 0.36))
    axes[2].legend(loc="upper left", ncols=2, columnspacing=1.0)
    caption = (
        "Top: correlation over tokens between the true softmax logits and their published estimate, as in Figure 2, "
        "with its two terms and the estimate of another seed as the control (mean over seeds). On smooth classes every "
        "seed predicts every other. Bottom: the relative error of the same estimate and of better ones; "
        "dotted: the tolerance."
    )
    return Drawing("figure-2", caption, figure)


def figure_3(run: Run) -> Drawing:
    """The first components of the first node, as in the paper, beside those under frozen attention."""
    step = run.value("step")
    figure, axes = panels(2)
    for kind, axis in zip(KINDS, axes, strict=True):
        moving, frozen = (run.value(f"{kind}/{which}v of node 0")[0] for which in ("", "frozen/"))
        for token, colour in enumerate(SERIES[:4]):
            axis.plot(step, moving[:, token], color=colour, label=f"token {token}")
            axis.plot(step, frozen[:, token], "--", lw=1, color=colour)
        axis.set(xlabel="step", ylabel="components of v₀", title=f"{kind} classes")
    axes[0].legend(title="dashed: attention frozen", title_fontsize=8.5)
    caption = (
        "The first four components of the first node's weights over training, as in Figure 3, and the same network "
        "with its attention frozen at the start."
    )
    return Drawing("figure-3", caption, figure)
