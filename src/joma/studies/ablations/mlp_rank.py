"""Section 4's remark on rank: does the MLP's lower matrix lose rank and regain it, as attention does with entropy?"""

from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding, Study
from joma.claims.verdicts import at_least, by_effect
from joma.measure.correlation import pearson
from joma.measure.intervals import compare
from joma.recipes.language import same_text
from joma.recipes.language.curves import layer_curves, steps_of
from joma.runs import Run
from joma.studies.ablations import _twins as twins
from joma.studies.ablations._figures import draw_curves, draw_summary
from joma.studies.ablations._twins import AblationConfig

RANK = twins.Quantity(
    "rank/up",
    "the stable rank of the MLP's lower matrix (as a share of its start)",
    "stable rank / its start",
    "share of the start",
    relative=True,
    brief="the stable rank of the MLP's lower matrix",
    short="Stable rank",
)
SHARE = 0.02  # of the start: a smaller change of rank counts as none
CLOSE = 0.9  # a correlation that counts as following
MARGIN = 0.05  # by which it must exceed its control
OF_RANK: dict[str, Any] = {"matters": SHARE, "unit": "%", "ceiling": 1.0}

VARIANTS = {"ReLU": twins.as_it_is, "identity": lambda base: base.with_decoder(activation="identity")}

BOUNCES = Claim(
    "mlp-rank-bounces",
    "JoMA Sec. 4",
    "The rank of the MLP's lower matrix first drops and then bounces back.",
    **OF_RANK,
    uses=("eq6/rank-rebounds",),
)
NONLINEAR = Claim(
    "mlp-rank-needs-nonlinearity",
    "JoMA Sec. 8",
    "The weights become low rank and then high rank again because the MLP is nonlinear.",
    **OF_RANK,
    uses=("mlp-rank/mlp-rank-bounces",),
)
TOGETHER = Claim(
    "mlp-rank-follows-entropy",
    "JoMA Sec. 4",
    "MLP and attention move together: the rank of the MLP falls and rises with the entropy of attention.",
    matters=MARGIN,
    ceiling=1.0,
    uses=("mlp-rank/mlp-rank-bounces", *twins.FIGURE_6),
)


def _together(run: Run) -> Finding:
    """Over measuring points: does rank go with entropy more than any slow trend does, such as the log of time?"""
    expected = (
        f"in every layer, rank and entropy have a correlation over training of at least {CLOSE}; it exceeds the "
        f"absolute correlation of rank with log time by at least {MARGIN} and beyond chance"
    )
    if finding := twins.cannot_tell(TOGETHER, run, expected, "ReLU", of=RANK):
        return finding
    ranks, entropies = (layer_curves(run, "ReLU", measure) for measure in ("rank/up", "valid/entropy"))
    follows = pearson(ranks, entropies)  # (layers, seeds)
    drifts = np.abs(pearson(ranks, np.log1p(steps_of(run, "ReLU"))))
    found = {f"layer {i}": compare(*pair) for i, pair in enumerate(zip(follows, drifts, strict=True), start=1)}
    return by_effect(
        TOGETHER,
        found,
        expected=expected,
        what="correlation of rank with entropy",
        size=[at_least(f"{layer}: mean correlation", one.value, CLOSE) for layer, one in found.items()],
        details=twins.numbers(run, "ReLU", of=RANK),
    )


STUDY = Study(
    name="mlp-rank",
    title="Section 4: does the rank of the MLP drop and bounce back?",
    version=2,
    claims={
        BOUNCES: lambda run: twins.shows(BOUNCES, run, variant="ReLU", twin="identity", of=RANK),
        NONLINEAR: lambda run: twins.needs(NONLINEAR, run, part="rebound", full="ReLU", without="identity", of=RANK),
        TOGETHER: _together,
    },
    quick=AblationConfig(**twins.AT_QUICK_SCALE),
    paper=AblationConfig(**twins.AT_PAPER_SCALE),
    run=twins.trains(VARIANTS),
    draw=lambda run: [
        draw_curves(run, {"": list(VARIANTS)}, "mlp-rank", RANK),
        draw_curves(run, {"": list(VARIANTS)}, "mlp-rank-entropy"),
        draw_summary(run, list(VARIANTS), "mlp-rank-summary", RANK),
    ],
    check=same_text,
    about=(
        "Figure 6's language model is trained with ReLU and with no activation (identity). Over training, the stable "
        "rank of the MLP's lower matrix is measured as a share of its start. Its correlation with attention entropy is "
        "compared with its correlation with the log of time, which any slow trend would have."
    ),
)
