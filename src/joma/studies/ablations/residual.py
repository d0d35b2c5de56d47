"""Do attention's drop and rebound need the residual connections?"""

from joma.claims.contract import Study
from joma.recipes.language import same_text
from joma.studies.ablations._figures import draws
from joma.studies.ablations._twins import (
    AT_PAPER_SCALE,
    AT_QUICK_SCALE,
    AblationConfig,
    as_it_is,
    in_nats,
    needs,
    trains,
)

VARIANTS = {"residual": as_it_is, "no residual": lambda base: base.with_decoder(residual=False)}

DROP = in_nats(
    "drop-needs-residual",
    "JoMA Sec. 2",
    "The residual connection is a critical part of the block. Tested here: does the drop in attention entropy need it?",
)
REBOUND = in_nats(
    "rebound-needs-residual",
    "JoMA eq. 1",
    "The dynamics are derived for a block with a residual connection. Tested here: does the rebound need it?",
)

STUDY = Study(
    name="residual",
    title="Ablation: residual connections on and off",
    version=2,
    claims={
        DROP: lambda run: needs(DROP, run, part="drop", full="residual", without="no residual"),
        REBOUND: lambda run: needs(REBOUND, run, part="rebound", full="residual", without="no residual"),
    },
    quick=AblationConfig(**AT_QUICK_SCALE),
    paper=AblationConfig(**AT_PAPER_SCALE),
    run=trains(VARIANTS),
    draw=draws(VARIANTS, "residual"),
    check=same_text,
    about=(
        "Figure 6's language model is trained with and without the residual connections around attention and MLP, on "
        "the same text and from the same seeds. A network that learns only how frequent words are shows nothing and is "
        "not judged."
    ),
)
