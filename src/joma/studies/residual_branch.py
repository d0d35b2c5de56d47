"""Do attention's drop and rebound need the residual connections?"""

from __future__ import annotations

from joma.runs import Run
from joma.studies._ablation import AT_PAPER_SCALE, AblationConfig, as_it_is, needs, trains
from joma.studies._ablation_figures import draws
from joma.studies._language_models import same_text
from joma.studies.contract import Claim, Finding, Study

VARIANTS = {"residual": as_it_is, "no residual": lambda base: base.with_decoder(residual=False)}

DROP = Claim(
    "drop-needs-residual",
    "JoMA Sec. 2",
    "The residual connection is a critical component of the block; asked here of the drop in attention entropy.",
    empirical=True,
)
REBOUND = Claim(
    "rebound-needs-residual",
    "JoMA eq. 1",
    "The block that the dynamics are derived for has a residual connection; asked here of the rebound.",
    empirical=True,
)


def judge(run: Run) -> list[Finding]:
    """With residual connections against without."""
    return [
        needs(DROP, run, part="drop", whole="residual", without="no residual"),
        needs(REBOUND, run, part="rebound", whole="residual", without="no residual"),
    ]


STUDY = Study(
    name="residual",
    title="Ablation: residual connections on and off",
    version=2,
    claims=(DROP, REBOUND),
    quick=AblationConfig(),
    paper=AblationConfig(**AT_PAPER_SCALE),
    run=trains(VARIANTS),
    judge=judge,
    draw=draws(VARIANTS, "residual"),
    check=same_text,
    about=(
        "Figure 6's language model with and without the residual connections round attention and MLP, on one text with "
        "the same seeds. A network that learns no more than how frequent words are counts as evidence of nothing."
    ),
)
