"""Do attention's drop and rebound need the residual connections?"""

from __future__ import annotations

from joma.claims.contract import Claim, Finding, Study, each_claim
from joma.recipes.language import same_text
from joma.runs import Run
from joma.studies.ablations._figures import draws
from joma.studies.ablations._twins import AT_PAPER_SCALE, FIGURE_6, MATTERS, AblationConfig, as_it_is, needs, trains

VARIANTS = {"residual": as_it_is, "no residual": lambda base: base.with_decoder(residual=False)}

DROP = Claim(
    "drop-needs-residual",
    "JoMA Sec. 2",
    "The residual connection is a critical part of the block. Tested here: does the drop in attention entropy need it?",
    matters=MATTERS,
    unit="nats",
    uses=FIGURE_6,
)
REBOUND = Claim(
    "rebound-needs-residual",
    "JoMA eq. 1",
    "The dynamics are derived for a block with a residual connection. Tested here: does the rebound need it?",
    matters=MATTERS,
    unit="nats",
    uses=FIGURE_6,
)


def _drop(run: Run) -> Finding:
    return needs(DROP, run, part="drop", whole="residual", without="no residual")


def _rebound(run: Run) -> Finding:
    return needs(REBOUND, run, part="rebound", whole="residual", without="no residual")


STUDY = Study(
    name="residual",
    title="Ablation: residual connections on and off",
    version=2,
    claims=(DROP, REBOUND),
    quick=AblationConfig(),
    paper=AblationConfig(**AT_PAPER_SCALE),
    run=trains(VARIANTS),
    judge=each_claim(_drop, _rebound),
    draw=draws(VARIANTS, "residual"),
    check=same_text,
    about=(
        "Figure 6's language model is trained with and without the residual connections around attention and MLP, on "
        "the same text and from the same seeds. A network that learns only how frequent words are shows nothing and is "
        "not judged."
    ),
)
