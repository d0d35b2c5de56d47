"""The editor's choice: six headlines, each decided by one claim, and what may be called a surprise.

The README begins with the headlines at paper scale, the report and the terminal with what the reader's own run found
of them. No number stands here. A sentence is shown only where the verdict on its claim is one of those named with it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from joma.claims.contract import Finding, Verdict
from joma.claims.rules import UNJUDGED
from joma.claims.sentences import show, worst
from joma.report.claims.kept import KeptFinding
from joma.report.claims.verdicts import HOLDING, TEXT, effect_texts

Found = Finding | KeptFinding

THEORY = (
    "A Transformer learns its attention and the MLP above it together, and JoMA gives the law of their joint motion.",
    "Strong features are learned first, so attention becomes sparse. Weaker ones follow, and it becomes dense again.",
    "Layer by layer, neurons come to stand for the hidden hierarchy behind the data.",
)
"""What the theory says, in three breaths."""


@dataclass(frozen=True)
class Headline:
    """A question of a newcomer and the claim that answers it; where the claim holds, the answer is yes.

    {effect}, {opposite} and {control} stand for what was measured: the effect, the effect the other way round, and the
    control.
    """

    asks: str
    claim: str
    """Its id; of the first headline all mathematical claims together."""
    page: str
    """Of the manual, where the README's sentence leads."""
    sentences: Mapping[Verdict, str] = field(default_factory=dict)
    """Of verdicts that need more than yes or no."""


MATHEMATICS = "mathematics"

HEADLINES = (
    Headline("Are the theorems right as printed?", MATHEMATICS, "errata"),
    Headline(
        "Does attention entropy fall and then recover?", "fig6/fig6-one-layer", "figure6",
        dict.fromkeys(("holds", "only qualitative"), "Attention entropy falls and then recovers, by {effect}"),
    ),
    Headline(
        "Does attention stay sparse with a linear MLP?", "nonlinearity/linear-mlp-stays-sparse", "ablations",
        {"fails": "Attention entropy also recovers with a linear MLP, by {opposite}"},
    ),
    Headline(
        "Does holding the size of the logits fixed remove the recovery?", "dilution/logits-shrink",
        "why-attention-comes-back",
        {"holds": "Holding the size of the logits fixed removes the recovery: {effect} of it"},
    ),
    Headline(
        "Do neurons learn the hidden tree?", "table1/lowest-latents-align", "table1",
        dict.fromkeys(("not above its control", "fails"), "Untrained networks match Table 1 as well as trained ones: "
                      "correlation {control} against {effect}"),
    ),
    Headline("Is full rank better than GaLore?", "galore-table/full-rank-is-best", "galore-table",
             {"fails": "GaLore beats full rank by {opposite}"}),
)  # fmt: skip

DRAWN_FOR_THEOREMS = ("thm2", "thm1-rates", "thm1")
"""Studies that have a printed form and its correction, the best one first."""
SHOWN_FOR_THEOREMS = "thm2/erf-invariant"  # the claim whose printed and corrected form are drawn


@dataclass(frozen=True)
class Sentence:
    """A sentence that is true of a claim if its verdict is one of those given.

    {printed} stands for what a mathematical claim has in its printed form; for others see `Headline`.
    """

    claim: str
    verdicts: tuple[Verdict, ...]
    text: str


SURPRISES = (
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


@dataclass(frozen=True)
class Outcome:
    """What some findings say of a headline."""

    headline: Headline
    verdict: Verdict
    sentence: str
    tells: bool
    """Whether the sentence was written for this verdict; else it is the question, its answer and the numbers."""


def outcomes(findings: Iterable[Found]) -> list[Outcome]:
    """The headlines whose claims are among the findings, in their order, each with what came of it."""
    every = list(findings)
    found = {one.id: one for one in reversed(every)}
    judged = [one.verdict for one in every if not one.claim.empirical and one.verdict not in UNJUDGED]
    first = [Outcome(HEADLINES[0], together(judged), theorems(judged), tells=True)] if judged else []
    return first + [_outcome(one, found[one.claim]) for one in HEADLINES if one.claim in found]


def _outcome(headline: Headline, found: Found) -> Outcome:
    text = headline.sentences.get(found.verdict, "")
    sentence = f"{filled_in(text, found)}."
    if not text:
        sentence = f"{headline.asks} {TEXT[found.verdict].answer}"
        sentence += "" if found.verdict in UNJUDGED else f" {found.brief}."
    return Outcome(headline, found.verdict, sentence, tells=bool(text))


def filled_in(text: str, found: Found) -> str:
    """The text with the finding's numbers; empty where one of them is not known."""
    numbers = effect_texts(found.main) if found.main else {}
    if isinstance(found, Finding) and found.printed and found.printed.tests:
        test = worst(found.printed)
        numbers["printed"] = show(test.value, test.unit)
    try:
        return text.format(**numbers)
    except KeyError:
        return ""


def together(judged: Sequence[Verdict]) -> Verdict:
    """One verdict on several mathematical claims."""
    if "holds as corrected" in judged:
        return "holds as corrected"
    return "only qualitative" if {*judged} - {"holds"} else "holds"


def theorems(judged: Sequence[Verdict]) -> str:
    """How many mathematical claims hold, and how many of them only when corrected."""
    corrected = judged.count("holds as corrected")
    only = f", {corrected} only if corrected" if corrected and len(judged) > 1 else ""
    return f"{how_many_hold('mathematical claims', judged)}{only}."


def how_many_hold(what: str, judged: Sequence[Verdict]) -> str:
    """In words, without the full stop.

    >>> how_many_hold("claims", ["holds", "fails"]), how_many_hold("claims", ["fails"])
    ('1 of 2 claims holds', 'The one claim fails')
    """
    hold = sum(verdict in HOLDING for verdict in judged)
    if len(judged) == 1:
        return f"The one {what.removesuffix('s')} {TEXT[judged[0]].one}"
    if hold == len(judged):
        return f"All {hold} {what} hold"
    return f"{hold or 'None'} of {len(judged)} {what} {'holds' if hold == 1 else 'hold'}"
