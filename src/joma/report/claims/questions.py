"""The editor's choice, and nothing else: which claims answer a stranger's questions, and what may be called a surprise.

No number stands here. A sentence is shown only where the verdict on its claim is one of those named with it.
"""

from dataclasses import dataclass

from joma.claims.contract import Verdict

THEORY = (
    "A Transformer learns its attention and the MLP above it together, and JoMA gives the law of their joint motion.",
    "Strong features are learned first, so attention becomes sparse. Weaker ones follow, and it becomes dense again.",
    "Layer by layer, neurons come to stand for the hidden hierarchy behind the data.",
)
"""What the theory says, in three breaths."""


@dataclass(frozen=True)
class Question:
    """A question that one claim answers. {effect}, {control}, {more} and {seeds} are what paper scale measured."""

    asks: str
    claim: str
    text: str


@dataclass(frozen=True)
class Sentence:
    """A sentence that is true of a claim if its verdict is one of those given.

    {effect}, {opposite}, {control} and {printed} stand for numbers: the effect, the effect the other way round, the
    control, and what a mathematical claim has in its printed form. {scale} says " at paper scale" where they are.
    """

    claim: str
    verdicts: tuple[Verdict, ...]
    text: str


QUESTIONS = (
    Question("Does attention drop and then come back?", "fig6/fig6-one-layer",
             "attention entropy comes back by {effect} {seeds}; no rebound would be {control}."),
    Question("Does the rebound need the nonlinearity?", "nonlinearity/rebound-needs-nonlinearity",
             "with ReLU it comes back by {effect} {seeds}, with a linear MLP by {control}; the difference is {more}."),
    Question("Do higher layers come back by their own attention?", "rebound-cause/own-qk-higher-layers",
             "in the second of two layers own queries and keys change entropy by {effect} {seeds}, "
             "all weights below it by {control}; the difference is {more}."),
    Question("Can the theory foretell attention?", "forecast/theorem-1-foretells",
             "the skill of Theorem 1 over “no change” is {effect} {seeds}, that of the best control {control}; "
             "the difference is {more}."),
    Question("Do neurons learn the hidden tree?", "table1/lowest-latents-align",
             "a latent correlates with its best neuron by {effect} {seeds}, before training by {control}; "
             "the difference is {more}."),
)  # fmt: skip
THEOREMS = "Are the theorems right as printed?"  # answered by all mathematical claims of the page together
DRAWN_FOR_THEOREMS = ("thm2", "thm1-rates", "thm1")
"""Studies that have a printed form and its correction, the best one first."""
SHOWN_FOR_THEOREMS = "thm2/erf-invariant"  # the claim whose printed and corrected form are drawn

HEADLINES = (
    Sentence("fig6/fig6-one-layer", ("holds", "holds as corrected", "only qualitative"),
             "Attention does drop and come back, by {effect}{scale}"),
    Sentence("eq6/entropy-rebounds", ("holds", "holds as corrected"), "Attention’s entropy comes back by {effect}"),
)  # fmt: skip
"""The most telling empirical number: the first that is there."""

SURPRISES = (
    Sentence("nonlinearity/linear-mlp-stays-sparse", ("fails",),
             "Attention comes back without the nonlinearity, too: with a linear MLP by {opposite}."),
    Sentence("table1/lowest-latents-align", ("fails",),
             "Untrained neurons match the hidden latents better than trained ones: "
             "correlation {control} against {effect}."),
    Sentence("fig6/logits-of-a-language-model", ("fails",),
             "In a language model, word frequency predicts attention logits better than the theory: "
             "correlation {control} against {effect}."),
    Sentence("shallow-first/bottom-up", ("fails",),
             "The lowest level of a hierarchy is learned last, not first: later by {opposite}."),
    Sentence("thm2/who-wins", ("holds as corrected",),
             "The most salient token often loses: it wins {printed} of the random starts."),
    Sentence("thm2/one-hot", ("only qualitative",),
             "The weights do not become one-hot: the winner ends with {printed} of their sum."),
)  # fmt: skip
