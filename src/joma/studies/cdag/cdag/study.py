"""The study `cdag`: its claims with their judges, its sizes, its figure."""

from __future__ import annotations

import numpy as np

from joma.claims.contract import Drawing, Study
from joma.figures.bands import bound, mean_and_band
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import number
from joma.figures.style import CONTROL, SERIES, panels
from joma.runs import Run
from joma.studies.cdag.cdag.judge import CLAIMS
from joma.studies.cdag.cdag.record import NETWORKS, SMALL, column, share, while_learning
from joma.studies.cdag.cdag.run import CdagConfig, run


def draw(run: Run) -> list[Drawing]:
    """Shares with a positive outcome, and angles, over training."""
    figure, (left, right) = panels(2, width=4.5, height=3.0)
    for name, colour in zip(NETWORKS, SERIES, strict=False):
        steps = run.steps(f"{name}/counts")[1:]
        together, alone, other = (
            share(run, name, what)[1:].mean(1) for what in ("children", "signs", "other children")
        )
        left.plot(steps, together, color=colour, label=name)
        left.plot(steps, alone, color=colour, ls="--")
        left.plot(steps, other, color=CONTROL, lw=1, label="latent of\nanother node")
    end_label(left, "solid: all parents")
    end_label(left, "dashed: one parent", ls="--")
    left.set(xscale="log", xlabel="training step", ylabel="share of gradients that agree")
    left.set(ylim=(0.3, 1.05), yticks=(0.4, 0.6, 0.8, 1.0), title="Gradients that agree with the latent")
    for what, label, colour in (("total", "between layers", SERIES[0]), ("direct total", "residual edges", SERIES[1])):
        values = column(run, "residual", what)
        mean_and_band(right, 1 + run.steps("residual/counts"), values, color=colour, label=label)
    bound(right, 90, "needed:\nbelow 90°")
    right.set(xscale="log", xlabel="1 + training step", ylabel="a + b + c (degrees)")
    right.set(ylim=(60, 240), yticks=(90, 135, 180, 225), title="The angles of the premises stay too large")
    for axis in (left, right):
        label_lines(axis)
    own, other = (
        number(float(np.mean(while_learning(run, SMALL, share(run, SMALL, what)))), "%")
        for what in ("children", "other children")
    )
    caption = (
        "While the loss falls, the gradient from all parents together agrees with the latent of a first-layer node at "
        f"{own} of the nodes (small start); with the latent of another node it agrees at {other}. Left: this share "
        "during training, from all parents together and from each parent alone. Right: the sum of the three angles of "
        "the premises, mean over edges and seeds (bands: smallest to largest seed). Below 90° the conclusion would be "
        "certain."
    )
    return [Drawing("cdag-in-training", caption, figure)]


STUDY = Study(
    name="cdag",
    title="CDAG Theorem 1 in training: do gradients teach a node its latent?",
    version=1,
    claims=CLAIMS,
    quick=CdagConfig(),
    paper=CdagConfig(
        classes=20,
        branching=(3, 5),
        members=20,
        width=512,
        steps=3_000,
        batch=256,
        rate=0.5,
        samples=50_000,
        held_out=8_192,
        points=30,
        device="cuda",
    ),
    run=run,
    draw=draw,
    about=(
        "Networks of two hidden layers learn the class of a hierarchical latent tree from its tokens. Two signals "
        "agree if their correlation is positive. At every measuring point each node gets the latent that agrees "
        "best with its activation (or, above, the class that agrees best with its gradient) on one half of the "
        "held-out samples. On the other half the study counts how often the conclusion of the theorem is true where "
        "its premises are. The controls give a node the latent of another node, or use the untrained network. A "
        "number must exceed all of its controls over the seeds."
    ),
)
