"""Section 4's remark on rank: does the MLP's lower matrix lose rank and regain it, as attention does with entropy?"""

from __future__ import annotations

import numpy as np

from joma.runs import Run
from joma.studies._ablation import (
    AT_PAPER_SCALE,
    AblationConfig,
    Quantity,
    as_it_is,
    learned,
    lost,
    needs,
    said,
    shows,
    trains,
    unknown,
)
from joma.studies._ablation_figures import draw_curves, draw_summary
from joma.studies._language_model_curves import layer_curves, over_seeds, steps_of
from joma.studies._language_models import same_text
from joma.studies.contract import Claim, Drawing, Finding, Study
from joma.studies.verdicts import by_effect

RANK = Quantity(
    "rank/up",
    "the stable rank of the MLP's lower matrix",
    "stable rank / its start",
    0.02,
    " of the start",
    relative=True,
)
CLOSE = 0.9  # a correlation that counts as following
MARGIN = 0.05  # by which it must exceed its control

VARIANTS = {"ReLU": as_it_is, "identity": lambda base: base.with_decoder(activation="identity")}

BOUNCES = Claim(
    "mlp-rank-bounces",
    "JoMA Sec. 4",
    "The rank of the MLP's lower matrix first drops and then bounces back.",
    empirical=True,
)
NONLINEAR = Claim(
    "mlp-rank-needs-nonlinearity",
    "JoMA Sec. 8",
    "It is in the dynamics of nonlinear MLPs that weights become low rank and then high rank again.",
    empirical=True,
)
TOGETHER = Claim(
    "mlp-rank-follows-entropy",
    "JoMA Sec. 4",
    "MLP and attention move together, so that the rank of the one falls and rises with the entropy of the other.",
    empirical=True,
)


def judge(run: Run) -> list[Finding]:
    """The rank's own drop and rebound; with ReLU against the identity; and rank against entropy over training."""
    return [
        shows(BOUNCES, run, variant="ReLU", twin="identity", of=RANK),
        needs(NONLINEAR, run, part="rebound", whole="ReLU", without="identity", of=RANK),
        _together(run),
    ]


def _together(run: Run) -> Finding:
    """Over measuring points: does rank go with entropy more than with mere time? By seed and layer."""
    expected = f"a correlation over training of at least {CLOSE} in every layer, and more than with log time"
    if reason := lost(run, "ReLU"):
        return unknown(TOGETHER, run, expected, reason)
    ranks, entropies = (layer_curves(run, "ReLU", measure) for measure in ("rank/up", "valid/entropy"))
    time = np.log1p(steps_of(run, "ReLU"))
    follows = _correlations(ranks, entropies)  # (layers, seeds)
    drifts = np.abs(_correlations(ranks, np.broadcast_to(time, ranks.shape)))
    by_layer = [over_seeds(row) for row in follows]
    ahead = over_seeds((follows - drifts).mean(0))
    return by_effect(
        TOGETHER,
        measured=ahead.mean if ahead.mean > ahead.half_width and learned(run, "ReLU") else 0.0,
        control=0.0,
        margin=MARGIN,
        expected=expected,
        quantitative=all(one.mean >= CLOSE for one in by_layer),
        shown=f"correlation with entropy {', '.join(map(str, by_layer))}, more than with log time by {ahead}; "
        + said(run, "ReLU", RANK),
        control_shown=f"with log time: {', '.join(str(over_seeds(row)) for row in drifts)}",
    )


def _correlations(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Pearson over the last dimension; NaN where one of the two does not vary."""
    x, y = (part - part.mean(-1, keepdims=True) for part in (x, y))
    sizes = np.sqrt((x**2).sum(-1) * (y**2).sum(-1))
    products = (x * y).sum(-1)
    return np.asarray(np.divide(products, sizes, out=np.full(sizes.shape, np.nan), where=sizes > 0))


def draw(run: Run) -> list[Drawing]:
    """Rank of the two, drops and rebounds of rank, and entropy for comparison."""
    return [
        draw_curves(run, {"": list(VARIANTS)}, "mlp-rank", RANK),
        draw_curves(run, {"": list(VARIANTS)}, "mlp-rank-entropy"),
        draw_summary(run, list(VARIANTS), "mlp-rank-summary", RANK),
    ]


STUDY = Study(
    name="mlp-rank",
    title="Section 4: does the MLP's rank drop and bounce back?",
    version=2,
    claims=(BOUNCES, NONLINEAR, TOGETHER),
    quick=AblationConfig(),
    paper=AblationConfig(**AT_PAPER_SCALE),
    run=trains(VARIANTS),
    judge=judge,
    draw=draw,
    check=same_text,
    about=(
        "The stable rank of the MLP's lower matrix, as a share of where it began, over the training of Figure 6's "
        "language model, with ReLU and with the identity in its place; and whether it goes with attention entropy more "
        "than any slow trend would."
    ),
)
