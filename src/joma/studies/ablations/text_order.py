"""All seeds of Figure 6 read the text in one order: does attention come back as far where each seed has its own?

What was fixed when: variants, claims and bounds before any run at paper scale, after a difference had been seen between
studies. There the second of two layers came back by 0.23 and 0.30 nats where all seeds read the text from its beginning
(`spread`, `dilution`), and by 0.07 nats where every seed read pieces of it in an order of its own (`rebound-cause`).
Pieces that change places break the run of the text; to begin elsewhere and read round does not. So the two together
tell whether the run matters, or that one order. The seeds, 70 to 77, had not been looked at.
"""

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study
from joma.claims.guards import at_paper_scale
from joma.claims.verdicts import only_at_paper_scale
from joma.recipes.language import same_text
from joma.runs import Run
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


def _orders(layers: int) -> list[str]:
    """One layer has none above another: its networks are those of the claim about any layer."""
    return list(VARIANTS) if layers > 1 else [ONE, START]


def run(config: AblationConfig, run: Run, progress: Progress) -> None:
    """Train the orders that this depth can tell apart."""
    twins.trains({name: VARIANTS[name] for name in _orders(config.layers)})(config, run, progress)


def _further(claim: Claim, one: str, other: str, run: Run) -> Finding:
    """Of layers that lie above another: that of two does not come back at quick scale, see `fig6`."""
    if run.config["layers"] > 1:
        return twins.further(claim, run, one=one, other=other)
    reason = "the difference was seen in the second of two layers, and these networks have one"
    expected = f"in the top layer of several, attention entropy comes back further with {one} than with {other}"
    return only_at_paper_scale(claim, expected, reason, at_paper_scale("text-order"))


def _draw(run: Run) -> list[Drawing]:
    return draws(_orders(run.config["layers"]), "text-order")(run)


STUDY = Study(
    name="text-order",
    title="Ablation: one order of the text for all seeds, or one for each",
    version=1,
    claims={
        SHOWN: lambda run: twins.shows(SHOWN, run, variant=START, twin=ONE),
        PIECEWISE: lambda run: _further(PIECEWISE, ONE, PIECES, run),
        BROKEN: lambda run: _further(BROKEN, START, PIECES, run),
        FIRST: lambda run: _further(FIRST, ONE, START, run),
    },
    quick=AblationConfig(**twins.AT_QUICK_SCALE),
    paper=AblationConfig(**twins.AT_PAPER_SCALE | {"seeds": 8, "seed": 70}),
    run=run,
    draw=_draw,
    check=same_text,
    about=(
        "Figure 6's language model is trained on the same text, from the same seeds, in three orders. One order: all "
        "seeds read from the beginning, as in the paper. Own start: every seed begins at a place of its own and reads "
        "round. Own pieces: pieces of 20 sequences change places, differently for every seed. The order is the same "
        "in every epoch. Quick scale has one layer, and the first two orders."
    ),
)
