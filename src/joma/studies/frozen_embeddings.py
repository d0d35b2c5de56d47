"""Learned embeddings, frozen random ones, and the frozen orthonormal ones that the theory assumes."""

from __future__ import annotations

from joma.runs import Run
from joma.studies._ablation import (
    AT_PAPER_SCALE,
    AblationConfig,
    as_it_is,
    learned,
    lost,
    shows,
    trains,
    unknown,
)
from joma.studies._ablation_figures import draw_curves, draw_summary
from joma.studies._language_model_curves import Interval, best_loss, curve, over_seeds
from joma.studies._language_model_findings import diverged, not_run
from joma.studies._language_models import Recipe, same_text
from joma.studies.contract import Claim, Drawing, Finding, Study
from joma.studies.verdicts import by_effect

BETTER = 0.02  # nats of loss that count as a gain
ALIKE = 0.1  # of the frozen vectors' coherence: by so much more, words have become alike
HIGH = 0.9  # a correlation that counts as high
MARGIN = 0.05  # by which a correlation must exceed its control


def _few_words(base: Recipe, embeddings: str) -> Recipe:
    """The text cut to as many words as the network is wide: more cannot be orthonormal."""
    return base.with_decoder(vocabulary=min(base.decoder.width, base.decoder.vocabulary), embeddings=embeddings)


ALL_WORDS = {"learned": as_it_is, "frozen": lambda base: base.with_decoder(embeddings="frozen")}
FEW_WORDS = {
    "learned, few words": lambda base: _few_words(base, "learned"),
    "frozen, few words": lambda base: _few_words(base, "frozen"),
    "orthonormal": lambda base: _few_words(base, "orthonormal"),
}

ORTHONORMAL = Claim(
    "rebound-with-orthonormal-embeddings",
    "JoMA Sec. 2",
    "Embeddings are taken as fixed and orthonormal; with such ones attention entropy drops and then rebounds.",
    empirical=True,
)
FROZEN = Claim(
    "rebound-with-random-embeddings",
    "JoMA Sec. 7",
    "Words that outnumber dimensions can have almost orthogonal vectors; asked here: does attention rebound with them?",
    empirical=True,
)
BETTER_LEARNED = Claim(
    "learned-embeddings-help",
    "JoMA Sec. 7",
    "Training the embeddings as well makes learning more effective and generalisation better.",
    empirical=True,
)
ALIKE_LEARNED = Claim(
    "learned-embeddings-become-alike",
    "JoMA Sec. 7",
    "Trained embeddings of similar words become similar: vectors are less orthogonal than random ones.",
    empirical=True,
)
LOGITS = Claim(
    "logits-with-orthonormal-embeddings",
    "JoMA Thm 1",
    "Softmax logits follow from the MLP's weights as ½Σ(v² − ‖v‖² b̄) + c, with orthonormal embeddings.",
    empirical=True,
)


def judge(run: Run) -> list[Finding]:
    """The theory's own embeddings beside random and learned ones; and what learning them is good for."""
    return [
        shows(ORTHONORMAL, run, variant="orthonormal", twin="learned, few words"),
        shows(FROZEN, run, variant="frozen", twin="learned"),
        _better(run),
        _alike(run),
        _logits(run),
    ]


def _better(run: Run) -> Finding:
    expected = f"a lower validation loss after as many steps, by {BETTER} and by more than seeds differ (95 %)"
    if reason := lost(run, "learned", "frozen"):
        return unknown(BETTER_LEARNED, run, expected, reason)
    losses = {name: best_loss(run, name)[0] for name in ("learned", "frozen")}
    gain = over_seeds(losses["frozen"] - losses["learned"])
    return by_effect(
        BETTER_LEARNED,
        measured=_beyond_chance(gain) if learned(run, "learned") else 0.0,
        control=0.0,
        margin=BETTER,
        expected=expected,
        shown=f"loss {over_seeds(losses['learned'])}, lower by {gain}" + diverged(run, ["learned", "frozen"]),
        control_shown=f"frozen: loss {over_seeds(losses['frozen'])}",
    )


def _alike(run: Run) -> Finding:
    """Coherence, the mean |cos| between words, at the end of training against that of vectors that stayed random."""
    expected = (
        f"a mean |cos| between words above that of frozen random vectors by {ALIKE:.0%} and by more than seeds differ "
        "(95 %)"
    )
    if reason := lost(run, "learned"):  # vectors that are frozen are there in any case
        return unknown(ALIKE_LEARNED, run, expected, reason)
    ends = {name: curve(run, name, "coherence")[0, :, -1] for name in ("learned", "frozen", "orthonormal")}
    more = over_seeds(ends["learned"] / ends["frozen"] - 1)
    return by_effect(
        ALIKE_LEARNED,
        measured=_beyond_chance(more) if learned(run, "learned") else 0.0,
        control=0.0,
        margin=ALIKE,
        expected=expected,
        shown=f"{over_seeds(ends['learned'])}, more by {more.mean:.1%} ± {more.half_width:.1%}"
        + diverged(run, ["learned"]),
        control_shown=f"frozen random: {over_seeds(ends['frozen'])}; orthonormal: {ends['orthonormal'].mean():.1g}",
    )


def _logits(run: Run) -> Finding:
    """Theorem 1's estimate in the first layer: orthonormal vectors against random ones, frozen both."""
    expected = f"a correlation of at least {HIGH} over words, above that with random vectors and with log frequency"
    if "orthonormal/estimate/theorem" not in run:
        reason = "with several heads the theorem does not say which logits it means"
        return not_run(LOGITS, expected, reason, "joma verify embeddings")
    if reason := lost(run, "orthonormal", "frozen, few words"):
        return unknown(LOGITS, run, expected, reason)
    found = {name: curve(run, name, "estimate/theorem")[0, :, -1] for name in FEW_WORDS}
    frequency = over_seeds(curve(run, "orthonormal", "estimate/frequency")[0, :, -1])
    more = over_seeds(found["orthonormal"] - found["frozen, few words"])
    return by_effect(
        LOGITS,
        measured=_beyond_chance(more) if learned(run, "orthonormal") else 0.0,
        control=0.0,
        margin=MARGIN,
        expected=expected,
        quantitative=over_seeds(found["orthonormal"]).mean >= max(HIGH, abs(frequency.mean) + MARGIN),
        shown=f"correlation {over_seeds(found['orthonormal'])} with orthonormal vectors" + diverged(run, [*FEW_WORDS]),
        control_shown=f"with random ones {over_seeds(found['frozen, few words'])}, learned ones "
        f"{over_seeds(found['learned, few words'])}; of log frequency {frequency}",
    )


def _beyond_chance(found: Interval) -> float:
    return found.mean if found.mean > found.half_width else 0.0


def draw(run: Run) -> list[Drawing]:
    """Curves on all words and on few, and all drops and rebounds."""
    few = min(run.config["width"], int(run.value("corpus/sizes")[0]))
    return [
        draw_curves(run, {"All words": list(ALL_WORDS), f"{few} words": list(FEW_WORDS)}, "embeddings"),
        draw_summary(run, [*ALL_WORDS, *FEW_WORDS], "embeddings-summary"),
    ]


STUDY = Study(
    name="embeddings",
    title="Ablation: embeddings learned, frozen, orthonormal",
    version=2,
    claims=(ORTHONORMAL, FROZEN, BETTER_LEARNED, ALIKE_LEARNED, LOGITS),
    quick=AblationConfig(),
    paper=AblationConfig(**AT_PAPER_SCALE),
    run=trains(ALL_WORDS | FEW_WORDS),
    judge=judge,
    draw=draw,
    check=same_text,
    about=(
        "Figure 6's language model with learned embeddings and with random ones that stay as they start; and, on the "
        "text cut to as many words as the network is wide, with learned, frozen random and frozen orthonormal ones: "
        "the theory assumes the last. Orthonormal vectors have length 1, random ones start at 0.1 √(width/3)."
    ),
)
