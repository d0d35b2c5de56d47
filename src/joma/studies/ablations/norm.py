"""Does the kind of normalisation, or having one, matter to attention's drop and rebound?"""

from joma.claims.contract import Study
from joma.recipes.language import same_text
from joma.studies.ablations._figures import draws
from joma.studies.ablations._twins import (
    AT_PAPER_SCALE,
    AT_QUICK_SCALE,
    AblationConfig,
    as_it_is,
    in_nats,
    shows,
    trains,
)

TWIN = "LayerNorm after"
VARIANTS = {
    TWIN: as_it_is,
    "LayerNorm before": lambda base: base.with_decoder(norm="pre-layer"),
    "RMSNorm after": lambda base: base.with_decoder(norm="post-rms"),
    "none": lambda base: base.with_decoder(norm="none"),
}

NONE = in_nats(
    "rebound-without-norm",
    "JoMA eq. 1",
    "The block of the theory has no normalisation. Without normalisation, attention entropy drops and then rebounds.",
)
BEFORE = in_nats(
    "rebound-with-norm-before",
    "JoMA Sec. 6",
    "Attention entropy drops and rebounds, though less clearly, in OPT and Pythia. Both normalise before each branch.",
    uses=("fig7/entropy-over-checkpoints",),
)
RMS = in_nats(
    "rebound-with-rmsnorm",
    "JoMA Sec. 4",
    "The rebound is derived for a block without normalisation. Tested here: RMSNorm in place of LayerNorm.",
)

STUDY = Study(
    name="norm",
    title="Ablation: kind and place of normalisation",
    version=2,
    claims={
        NONE: lambda run: shows(NONE, run, variant="none", twin=TWIN),
        BEFORE: lambda run: shows(BEFORE, run, variant="LayerNorm before", twin=TWIN),
        RMS: lambda run: shows(RMS, run, variant="RMSNorm after", twin=TWIN),
    },
    quick=AblationConfig(**AT_QUICK_SCALE),
    paper=AblationConfig(**AT_PAPER_SCALE),
    run=trains(VARIANTS),
    draw=draws(VARIANTS, "norm"),
    check=same_text,
    about=(
        "Figure 6's language model normalises with LayerNorm after every branch. Here it is also trained with "
        "LayerNorm before every branch, with RMSNorm after every branch, and without normalisation. All variants have "
        "the same text, the same seeds and the same learning rate."
    ),
)
