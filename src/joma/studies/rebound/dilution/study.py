"""The study `dilution`: two claims on sizes of logits, and the figure of the twins that hold them.

Both were written before any run at paper scale, with the bounds of `_twin_claims`. Two more, on words and on the mean
of the input, could not be held by a push every 50 steps (off by 112 and 11 %). They are asked anew in `reading`.
"""

from functools import partial

from joma.claims.contract import Study
from joma.figures.style import BLUE, GREY, ORANGE
from joma.recipes.language import PAPER, same_text
from joma.studies.rebound._twin_claims import draw_twins, judge_hold, twin_claim
from joma.studies.rebound._twins import Twins, TwinsConfig
from joma.studies.rebound.dilution.holds import Sizes

SHARED, SPECIFIC, BOTH = "shared size", "specific size", "both sizes"
TWINS = Twins(
    {BOTH: Sizes(), SHARED: Sizes(parts=("shared",)), SPECIFIC: Sizes(parts=("specific",))}, uncontrolled=(SPECIFIC,)
)
COLOURS = {BOTH: BLUE, SHARED: ORANGE, SPECIFIC: GREY}
PAPER_SEED = 60

LOGITS = twin_claim(
    "logits-shrink",
    "because its logits shrink. With the size of their shared and of their specific part held, it does not.",
)
PREFERENCE = twin_claim(
    "shared-preference-shrinks",
    "because the preference for keys that all queries share shrinks. With the size of this part held, it does not.",
)

STUDY = Study(
    name="dilution",
    title="What makes the rebound: twins that hold the sizes of their logits",
    version=1,
    claims={
        LOGITS: partial(judge_hold, TWINS, LOGITS, BOTH),
        PREFERENCE: partial(judge_hold, TWINS, PREFERENCE, SHARED),
    },
    quick=TwinsConfig(),
    paper=TwinsConfig(
        **PAPER | {"valid_sequences": 40, "steps": 10_000, "every": 250, "seeds": 5, "seed": PAPER_SEED}, dropout=0.2,
        length=35, layers=(1, 2), rate=1e-4, valley=2_000, batches=10, refresh=50,
    ),
    run=TWINS.run,
    draw=lambda run: [draw_twins(TWINS, COLOURS, BOTH, run)],
    check=same_text,
    about=(
        "Figure 6's language models are trained. From the valley on, twins of them hold something in all layers as it "
        "was there: the size of logits through the mean query (shared), through the rest of queries (specific), or "
        "both. What is held is measured on a fixed batch of training text every few steps, and pushed back. Controls "
        "are pushed as far elsewhere: queries along a random rotation. Compared is the share of the rise of entropy, "
        "from the valley to the end, that a twin does not have, in one layer and in the second of two. Quick scale "
        "trains small models on Python source, which hardly come back."
    ),
)  # fmt: skip
