"""How the page speaks of verdicts: a sign, a word for one and for many, what it means, and counts of them in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from joma.claims.contract import VERDICTS, Verdict


@dataclass(frozen=True)
class Words:
    """How the page speaks of a verdict. The sign makes sure that colour is never the only one."""

    glyph: str
    one: str
    many: str
    answer: str
    """To a question that the claim would answer with yes."""
    means: str


WORDS: dict[Verdict, Words] = {
    "holds": Words(
        "✓",
        "holds",
        "hold",
        "Yes.",
        "True as the source states it, by the test and the tolerance written in the study.",
    ),
    "holds as corrected": Words(
        "†",
        "holds as corrected",
        "hold as corrected",
        "Yes, after a correction.",
        "The printed form fails its test. The corrected form, given with the claim, passes.",
    ),
    "only qualitative": Words(
        "≈",
        "is only qualitative",
        "are only qualitative",
        "Only in part.",
        "The direction is right. The size or the form that the source gives is not.",
    ),
    "not above its control": Words(
        "≤",
        "is not above its control",
        "are not above their controls",
        "No sign of it.",
        "The interval over seeds leaves no room for an effect that would matter.",
    ),
    "undecided": Words(
        "?",
        "is undecided",
        "are undecided",
        "Undecided.",
        "The interval holds both no effect and one that would matter. More seeds or a larger run would tell.",
    ),
    "fails": Words(
        "✗",
        "fails",
        "fail",
        "No.",
        "The opposite was measured, or no form of the claim passes its test.",
    ),
    "not run": Words(
        "–",
        "was not run",
        "were not run",
        "Not run here.",
        "Nothing was measured or learned. The reason and the command are given.",
    ),
}

_NOTABLE: tuple[Verdict, ...] = (
    "fails",
    "not above its control",
    "only qualitative",
    "holds as corrected",
    "holds",
    "undecided",
    "not run",
)


def notable(verdict: Verdict) -> int:
    """The smaller, the more a reader wants to know of it: what contradicts the source comes first.

    >>> notable("fails") < notable("holds") < notable("undecided")
    True
    """
    return _NOTABLE.index(verdict)


def css(verdict: Verdict) -> str:
    """The class that gives an element the verdict's colour.

    >>> css("not run")
    'v-not-run'
    """
    return "v-" + verdict.replace(" ", "-")


def mark(verdict: Verdict) -> str:
    """The verdict as the page shows it: sign and word, in its colour."""
    glyph = f'<span class="glyph" aria-hidden="true">{WORDS[verdict].glyph}</span>'
    return f'<span class="verdict {css(verdict)}">{glyph} <span class="word">{verdict}</span></span>'


def marks(verdicts: Iterable[Verdict]) -> str:
    """How many of which, in signs to look at and in words to hear."""
    counts = Counter(verdicts)
    shown = (
        f'<span class="{css(verdict)}" title="{verdict}"><span aria-hidden="true">{WORDS[verdict].glyph}</span>'
        f'{counts[verdict]}<span class="unseen"> {verdict}</span></span>'
        for verdict in VERDICTS
        if counts[verdict]
    )
    return f'<span class="marks">{" ".join(shown)}</span>'


def bar(verdicts: Iterable[Verdict]) -> str:
    """The shares of verdicts as one coloured line, for the eye only."""
    counts = Counter(verdicts)
    parts = (
        f'<span class="{css(v)}" style="flex-grow:{counts[v]}" title="{counts[v]} {v}"></span>'
        for v in VERDICTS
        if counts[v]
    )
    return f'<span class="bar" aria-hidden="true">{"".join(parts)}</span>'


def legend() -> str:
    """Signs and colours in one line, and what they mean folded under it."""
    signs = " ".join(mark(verdict) for verdict in VERDICTS)
    means = "\n".join(f"<div><dt>{mark(verdict)}</dt><dd>{WORDS[verdict].means}</dd></div>" for verdict in VERDICTS)
    return f'<details class="legend"><summary>Verdicts {signs}</summary>\n<dl>\n{means}\n</dl></details>'


def in_words(verdicts: Iterable[Verdict]) -> str:
    """Verdicts counted, as part of a sentence.

    >>> in_words(["holds", "holds", "fails"])
    '2 hold, 1 fails'
    """
    counts = Counter(verdicts)
    parts = (
        f"{counts[verdict]} {words.one if counts[verdict] == 1 else words.many}"
        for verdict, words in WORDS.items()
        if counts[verdict]
    )
    return ", ".join(parts)


def claims_counted(verdicts: Iterable[Verdict]) -> str:
    """How many claims, judged and not run.

    >>> claims_counted(["holds", "not run"])
    '2 claims: 1 judged, 1 not run'
    >>> claims_counted(["fails"])
    '1 claim, judged'
    """
    every = list(verdicts)
    waiting = every.count("not run")
    claims = f"{len(every)} {'claim' if len(every) == 1 else 'claims'}"
    if not every or waiting == len(every):
        return f"{claims}, none judged"
    if not waiting:
        return f"{claims}, {'judged' if len(every) == 1 else 'all judged'}"
    return f"{claims}: {len(every) - waiting} judged, {waiting} not run"
