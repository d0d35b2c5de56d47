"""The theory has no dropout, the runs of Figure 6 have it: do drop and rebound of attention occur without it?"""

from __future__ import annotations

from joma.claims.contract import Claim, Finding, Study, each_claim
from joma.recipes.language import same_text
from joma.runs import Run
from joma.studies.ablations._figures import draws
from joma.studies.ablations._twins import (
    AT_PAPER_SCALE,
    FIGURE_6,
    MATTERS,
    AblationConfig,
    as_it_is,
    needs,
    shows,
    trains,
)

VARIANTS = {"dropout": as_it_is, "no dropout": lambda base: base.with_decoder(dropout=0.0)}

WITHOUT = Claim(
    "rebound-without-dropout",
    "JoMA eq. 6",
    "The dynamics of the weights make attention entropy drop and rebound. They contain no dropout.",
    matters=MATTERS,
    unit="nats",
    uses=(*FIGURE_6, "eq6/entropy-rebounds"),
)
BY_DROPOUT = Claim(
    "rebound-needs-dropout",
    "JoMA Fig. 6",
    "Attention entropy rebounds in networks trained with dropout. Tested here: does the rebound need dropout?",
    matters=MATTERS,
    unit="nats",
    uses=FIGURE_6,
)


def _without(run: Run) -> Finding:
    return shows(WITHOUT, run, variant="no dropout", twin="dropout")


def _by_dropout(run: Run) -> Finding:
    return needs(BY_DROPOUT, run, part="rebound", whole="dropout", without="no dropout")


STUDY = Study(
    name="dropout",
    title="Ablation: dropout on and off",
    version=2,
    claims=(WITHOUT, BY_DROPOUT),
    quick=AblationConfig(),
    paper=AblationConfig(**AT_PAPER_SCALE),
    run=trains(VARIANTS),
    judge=each_claim(_without, _by_dropout),
    draw=draws(VARIANTS, "dropout"),
    check=same_text,
    about=(
        "Figure 6's language model is trained with its dropout of 0.2 and without dropout, on the same text and from "
        "the same seeds. Dropout acts on embeddings, attention weights, hidden units and both branches. Entropy is "
        "always measured with dropout switched off."
    ),
)
