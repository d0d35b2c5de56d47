"""Learned embeddings, frozen random ones, and the frozen orthonormal ones that the theory assumes."""

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, NotRun, Study
from joma.claims.declare import Claims
from joma.claims.guards import hardest
from joma.claims.verdicts import at_least, by_effect
from joma.measure.intervals import compare
from joma.recipes.language import Recipe, same_text
from joma.recipes.language.curves import alive, best_loss, curve, diverged
from joma.runs import Run
from joma.studies.ablations import _twins as twins
from joma.studies.ablations._figures import draw_curves, draw_summary
from joma.studies.ablations._twins import AblationConfig

BETTER = 0.02  # nats of loss that count as a gain
ALIKE = 0.1  # of the frozen vectors' coherence: by so much more, words have become alike
HIGH = 0.9  # a correlation that counts as high
MARGIN = 0.05  # by which a correlation must exceed its control


def _few_words(base: Recipe, embeddings: str) -> Recipe:
    """The text cut to as many words as the network is wide: more cannot be orthonormal."""
    return base.with_decoder(vocabulary=min(base.decoder.width, base.decoder.vocabulary), embeddings=embeddings)


ALL_WORDS = {"learned": twins.as_it_is, "frozen": lambda base: base.with_decoder(embeddings="frozen")}
FEW_WORDS = {
    "learned, few words": lambda base: _few_words(base, "learned"),
    "frozen, few words": lambda base: _few_words(base, "frozen"),
    "orthonormal": lambda base: _few_words(base, "orthonormal"),
}

CLAIMS = Claims(source="JoMA Sec. 7")


@CLAIMS.declare(
    "rebound-with-orthonormal-embeddings", "JoMA Sec. 2", matters=twins.MATTERS, unit="nats", uses=twins.FIGURE_6
)
def _orthonormal(run: Run, claim: Claim) -> Finding:
    """The theory takes embeddings as fixed and orthonormal. With such embeddings attention entropy drops and
    rebounds.
    """
    return twins.shows(claim, run, variant="orthonormal", twin="learned, few words")


@CLAIMS.declare("rebound-with-random-embeddings", matters=twins.MATTERS, unit="nats", uses=twins.FIGURE_6)
def _random(run: Run, claim: Claim) -> Finding:
    """More words than dimensions can have almost orthogonal vectors. Tested here: does attention rebound with them?"""
    return twins.shows(claim, run, variant="frozen", twin="learned")


@CLAIMS.declare("learned-embeddings-help", matters=BETTER, unit="nats")
def _better(run: Run, claim: Claim) -> Finding:
    """Training the embeddings too makes learning more effective and generalisation better.

    Expected: after the same number of steps, a validation loss at least {BETTER} nats lower than with frozen vectors,
    beyond chance

    Frozen vectors with which nothing is learned would speak for the claim, so that twin need not have learned.
    """
    if finding := twins.cannot_tell(claim, run, claim.expected, "learned", may_be_idle=("frozen",)):
        return finding
    below = [float(run.value(f"{name}/loss by frequency")) - best_loss(run, name)[0] for name in ALL_WORDS]
    return by_effect(
        claim,
        compare(*below),
        what="gain in loss over predicting each word by its frequency",
        details={name: {"loss": compare(best_loss(run, name)[0]).value} for name in ALL_WORDS}
        | diverged(run, ALL_WORDS),
    )


@CLAIMS.declare("learned-embeddings-become-alike", matters=ALIKE, unit="%")
def _alike(run: Run, claim: Claim) -> Finding:
    """Trained embeddings of similar words become similar: they are less orthogonal than random vectors.

    Expected: a mean |cos| between words at least 10 % larger than that of frozen random vectors, beyond chance
    """
    if finding := twins.cannot_tell(claim, run, claim.expected, "learned"):
        return finding
    random = curve(run, "frozen", "coherence")[0, :, -1]  # there even if that network diverged: the vectors are frozen
    found = _ends(run, "learned", "coherence")
    coherence = {"learned": found, "frozen": random, "orthonormal": curve(run, "orthonormal", "coherence")[0, :, -1]}
    return by_effect(
        claim,
        compare(found / random - 1),
        what="excess of the mean |cos| between words over that of frozen random vectors",
        details={name: {"mean |cos|": compare(ends).value} for name, ends in coherence.items()}
        | diverged(run, ["learned"]),
    )


@CLAIMS.declare(
    "logits-with-orthonormal-embeddings",
    "JoMA Thm 1",
    matters=MARGIN,
    ceiling=1.0,
    uses=("thm1-softmax/softmax-published", "fig6/logits-of-a-language-model"),
)
def _logits(run: Run, claim: Claim) -> Finding:
    """With orthonormal embeddings, softmax logits follow from the MLP's weights as ½Σ(v² − ‖v‖² b̄) + c.

    Expected: a correlation over words of at least {HIGH}; larger than with random vectors, and larger than the absolute
    correlation with log frequency, each by at least {MARGIN} and beyond chance
    """
    if "orthonormal/estimate/theorem" not in run:
        raise NotRun("with several heads the theorem does not say which logits it means", "joma verify embeddings")
    if finding := twins.cannot_tell(claim, run, claim.expected, "orthonormal", "frozen, few words"):
        return finding
    found = {name: _ends(run, name, "estimate/theorem") for name in FEW_WORDS}
    frequency = np.abs(_ends(run, "orthonormal", "estimate/frequency"))
    theorem = found["orthonormal"]
    controls = {"random vectors": found["frozen, few words"], "log frequency": frequency}
    return by_effect(
        claim,
        hardest(claim, {f"against {name}": compare(theorem, other) for name, other in controls.items()}),
        what="correlation of Theorem 1's estimate with the logits",
        size=[at_least("mean correlation", compare(theorem).value, HIGH)],
        details={name: {"correlation": compare(ends).value} for name, ends in found.items()}
        | {"log frequency": {"|correlation|": compare(frequency).value}}
        | diverged(run, FEW_WORDS),
    )


def _ends(run: Run, variant: str, measure: str) -> np.ndarray:
    """(seeds,) of a measure at the end of training, NaN for those that diverged."""
    return np.where(alive(run, variant)[0], curve(run, variant, measure)[0, :, -1], np.nan)


def draw(run: Run) -> list[Drawing]:
    """Curves on all words and on few, and all drops and rebounds."""
    few = min(run.config["width"], int(run.value("corpus/sizes")[0]))
    return [
        draw_curves(run, {"All words": list(ALL_WORDS), f"{few} words": list(FEW_WORDS)}, "embeddings"),
        draw_summary(run, [*ALL_WORDS, *FEW_WORDS], "embeddings-summary"),
    ]


STUDY = Study(
    name="embeddings",
    title="Ablation: learned, frozen and orthonormal embeddings",
    version=2,
    claims=CLAIMS,
    quick=AblationConfig(**twins.AT_QUICK_SCALE),
    paper=AblationConfig(**twins.AT_PAPER_SCALE),
    run=twins.trains(ALL_WORDS | FEW_WORDS),
    draw=draw,
    check=same_text,
    about=(
        "Figure 6's language model is trained on the whole vocabulary with learned embeddings and with random "
        "embeddings that stay frozen. It is also trained on the text cut to as many words as the network is wide, with "
        "learned, frozen random and frozen orthonormal embeddings. The theory assumes frozen orthonormal embeddings. "
        "Orthonormal vectors have length 1. Random vectors start with length 0.1 √(width/3)."
    ),
)
