"""All seeds of Figure 6 read the text in one order: does attention come back as far where each seed has its own?

What was fixed when: variants, claims and bounds before any run at paper scale, after a difference had been seen between
studies. There the second of two layers came back by 0.23 and 0.30 nats where all seeds read the text from its beginning
(`spread`, `dilution`), and by 0.07 nats where every seed read pieces of it in an order of its own (`rebound-cause`).
Pieces that change places break the run of the text; to begin elsewhere and read round does not. So the two together
tell whether the run matters, or that one order. The seeds, 70 to 77, had not been looked at.
"""

from joma.claims.contract import Study
from joma.recipes.language import same_text
from joma.studies.ablations import _twins as twins
from joma.studies.ablations._figures import draws
from joma.studies.ablations._twins import AblationConfig

ONE, START, PIECES = "one order", "own start", "own pieces"
VARIANTS = {
    ONE: twins.as_it_is,
    START: lambda base: base.with_(own_start=True),
    PIECES: lambda base: base.with_(own_order=True),
}

SHOWN = twins.in_nats(
    "rebound-with-own-start",
    "JoMA Fig. 6",
    "Attention entropy drops and rebounds. Tested here: also if every seed begins at its own place in the text.",
)
PIECEWISE = twins.in_nats(
    "further-in-one-order",
    "JoMA Fig. 6",
    "Attention entropy rebounds. Tested here: the top layer comes back further if all seeds read the text from its "
    "beginning than if each reads pieces of it in an order of its own.",
)
BROKEN = twins.in_nats(
    "further-in-unbroken-text",
    "JoMA Fig. 6",
    "Attention entropy rebounds. Tested here: the top layer comes back further if the text runs on, begun anywhere, "
    "than if pieces of it change places.",
)
FIRST = twins.in_nats(
    "further-from-the-beginning",
    "JoMA Fig. 6",
    "Attention entropy rebounds. Tested here: the top layer comes back further if all seeds begin where the text does "
    "than if each begins at its own place.",
)

STUDY = Study(
    name="text-order",
    title="Ablation: one order of the text for all seeds, or one for each",
    version=1,
    claims={
        SHOWN: lambda run: twins.shows(SHOWN, run, variant=START, twin=ONE),
        PIECEWISE: lambda run: twins.further(PIECEWISE, run, one=ONE, other=PIECES),
        BROKEN: lambda run: twins.further(BROKEN, run, one=START, other=PIECES),
        FIRST: lambda run: twins.further(FIRST, run, one=ONE, other=START),
    },
    quick=AblationConfig(**twins.AT_QUICK_SCALE),
    paper=AblationConfig(**twins.AT_PAPER_SCALE | {"seeds": 8, "seed": 70}),
    run=twins.trains(VARIANTS),
    draw=draws(VARIANTS, "text-order"),
    check=same_text,
    about=(
        "Figure 6's language model is trained on the same text, from the same seeds, in three orders. One order: all "
        "seeds read from the beginning, as in the paper. Own start: every seed begins at a place of its own and reads "
        "round. Own pieces: pieces of 20 sequences change places, differently for every seed. The order is the same "
        "in every epoch."
    ),
)
