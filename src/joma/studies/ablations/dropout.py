"""The theory has no dropout, the runs of Figure 6 have it: do drop and rebound of attention occur without it?"""

from joma.claims.contract import Study
from joma.recipes.language import same_text
from joma.studies.ablations import _twins as twins
from joma.studies.ablations._figures import draws
from joma.studies.ablations._twins import AblationConfig

VARIANTS = {"dropout": twins.as_it_is, "no dropout": lambda base: base.with_decoder(dropout=0.0)}

WITHOUT = twins.in_nats(
    "rebound-without-dropout",
    "JoMA eq. 6",
    "The dynamics of the weights make attention entropy drop and rebound. They contain no dropout.",
    uses=("eq6/entropy-rebounds",),
)
BY_DROPOUT = twins.in_nats(
    "rebound-needs-dropout",
    "JoMA Fig. 6",
    "Attention entropy rebounds in networks trained with dropout. Tested here: does the rebound need dropout?",
)

STUDY = Study(
    name="dropout",
    title="Ablation: dropout on and off",
    version=2,
    claims={
        WITHOUT: lambda run: twins.shows(WITHOUT, run, variant="no dropout", twin="dropout"),
        BY_DROPOUT: lambda run: twins.needs(BY_DROPOUT, run, part="rebound", full="dropout", without="no dropout"),
    },
    quick=AblationConfig(**twins.AT_QUICK_SCALE | {"dropout": 0.2}),
    paper=AblationConfig(**twins.AT_PAPER_SCALE),
    run=twins.trains(VARIANTS),
    draw=draws(VARIANTS, "dropout"),
    check=same_text,
    about=(
        "Figure 6's language model is trained with its dropout of 0.2 and without dropout, on the same text and from "
        "the same seeds. Dropout acts on embeddings, attention weights, hidden units and both branches. Entropy is "
        "always measured with dropout switched off."
    ),
)
