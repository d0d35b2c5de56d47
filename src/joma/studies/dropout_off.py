"""The theory knows no dropout, the runs of Figure 6 have it: do attention's drop and rebound come without it?"""

from __future__ import annotations

from joma.runs import Run
from joma.studies._ablation import AT_PAPER_SCALE, AblationConfig, as_it_is, needs, shows, trains
from joma.studies._ablation_figures import draws
from joma.studies._language_models import same_text
from joma.studies.contract import Claim, Finding, Study

VARIANTS = {"dropout": as_it_is, "no dropout": lambda base: base.with_decoder(dropout=0.0)}

WITHOUT = Claim(
    "rebound-without-dropout",
    "JoMA eq. 6",
    "Attention entropy drops and rebounds by the dynamics of the weights, in which there is no dropout.",
    empirical=True,
)
BY_DROPOUT = Claim(
    "rebound-needs-dropout",
    "JoMA Fig. 6",
    "Attention entropy rebounds in networks trained with dropout; asked here: does the rebound need it?",
    empirical=True,
)


def judge(run: Run) -> list[Finding]:
    """Without dropout beside with it."""
    return [
        shows(WITHOUT, run, variant="no dropout", twin="dropout"),
        needs(BY_DROPOUT, run, part="rebound", whole="dropout", without="no dropout"),
    ]


STUDY = Study(
    name="dropout",
    title="Ablation: dropout on and off",
    version=2,
    claims=(WITHOUT, BY_DROPOUT),
    quick=AblationConfig(),
    paper=AblationConfig(**AT_PAPER_SCALE),
    run=trains(VARIANTS),
    judge=judge,
    draw=draws(VARIANTS, "dropout"),
    check=same_text,
    about=(
        "Figure 6's language model with its dropout of 0.2 on embeddings, attention weights, hidden units and both "
        "branches, and without any, on one text with the same seeds. Entropy is measured without dropout in both."
    ),
)
