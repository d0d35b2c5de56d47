"""Does the kind of normalisation, or having one, matter to attention's drop and rebound?"""

from __future__ import annotations

from joma.claims.contract import Claim, Finding, Study, each_claim
from joma.recipes.language import same_text
from joma.runs import Run
from joma.studies.ablations._figures import draws
from joma.studies.ablations._twins import AT_PAPER_SCALE, FIGURE_6, MATTERS, AblationConfig, as_it_is, shows, trains

TWIN = "LayerNorm after"
VARIANTS = {
    TWIN: as_it_is,
    "LayerNorm before": lambda base: base.with_decoder(norm="pre-layer"),
    "RMSNorm after": lambda base: base.with_decoder(norm="post-rms"),
    "none": lambda base: base.with_decoder(norm="none"),
}

NONE = Claim(
    "rebound-without-norm",
    "JoMA eq. 1",
    "The block of the theory has no normalisation. Without normalisation, attention entropy drops and then rebounds.",
    matters=MATTERS,
    unit="nats",
    uses=FIGURE_6,
)
BEFORE = Claim(
    "rebound-with-norm-before",
    "JoMA Sec. 6",
    "Attention entropy drops and rebounds, though less clearly, in OPT and Pythia. Both normalise before each branch.",
    matters=MATTERS,
    unit="nats",
    uses=(*FIGURE_6, "fig7/entropy-over-checkpoints"),
)
RMS = Claim(
    "rebound-with-rmsnorm",
    "JoMA Sec. 4",
    "The rebound is derived for a block without normalisation. Tested here: RMSNorm in place of LayerNorm.",
    matters=MATTERS,
    unit="nats",
    uses=FIGURE_6,
)


def _none(run: Run) -> Finding:
    return shows(NONE, run, variant="none", twin=TWIN)


def _before(run: Run) -> Finding:
    return shows(BEFORE, run, variant="LayerNorm before", twin=TWIN)


def _rms(run: Run) -> Finding:
    return shows(RMS, run, variant="RMSNorm after", twin=TWIN)


STUDY = Study(
    name="norm",
    title="Ablation: kind and place of normalisation",
    version=2,
    claims=(NONE, BEFORE, RMS),
    quick=AblationConfig(),
    paper=AblationConfig(**AT_PAPER_SCALE),
    run=trains(VARIANTS),
    judge=each_claim(_none, _before, _rms),
    draw=draws(VARIANTS, "norm"),
    check=same_text,
    about=(
        "Figure 6's language model normalises with LayerNorm after every branch. Here it is also trained with "
        "LayerNorm before every branch, with RMSNorm after every branch, and without normalisation. All variants have "
        "the same text, the same seeds and the same learning rate."
    ),
)
