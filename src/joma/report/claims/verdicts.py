"""How the page shows verdicts: a sign, a word for one and for many, what it means, and counts of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from joma.claims.contract import VERDICTS, Verdict


@dataclass(frozen=True)
class VerdictText:
    """What the page writes for a verdict. The sign makes sure that colour is never the only one."""

    glyph: str
    one: str
    many: str
    answer: str
    """To a question that the claim would answer with yes."""


TEXT: dict[Verdict, VerdictText] = {
    "holds": VerdictText("✓", "holds", "hold", "Yes."),
    "holds as corrected": VerdictText("†", "holds as corrected", "hold as corrected", "Yes, after a correction."),
    "only qualitative": VerdictText("≈", "is only qualitative", "are only qualitative", "Only in part."),
    "not above its control": VerdictText(
        "≤", "is not above its control", "are not above their controls", "No sign of it."
    ),
    "undecided": VerdictText("?", "is undecided", "are undecided", "Undecided."),
    "fails": VerdictText("✗", "fails", "fail", "No."),
    "not run": VerdictText("–", "was not run", "were not run", "Not run here."),
}
_MEANS: dict[Verdict, str] = {
    "holds": "True as the source states it, by the test and the tolerance written in the study.",
    "holds as corrected": "The printed form fails its test. The corrected form, given with the claim, passes.",
    "only qualitative": "The direction is right. The size or the form that the source gives is not.",
    "not above its control": "The interval over seeds leaves no room for an effect that would matter.",
    "undecided": "The interval holds both no effect and one that would matter. More seeds or a larger run would tell.",
    "fails": "The opposite was measured, or no form of the claim passes its test.",
    "not run": "Nothing was measured or learned. The reason and the command are given.",
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
    glyph = f'<span class="glyph" aria-hidden="true">{TEXT[verdict].glyph}</span>'
    return f'<span class="verdict {css(verdict)}">{glyph} <span class="word">{verdict}</span></span>'


def marks(verdicts: Iterable[Verdict]) -> str:
    """How many of which, in signs to look at and in words to hear."""
    shown = (
        f'<span class="{css(verdict)}" title="{verdict}"><span aria-hidden="true">{TEXT[verdict].glyph}</span>'
        f'{count}<span class="unseen"> {verdict}</span></span>'
        for verdict, count in _counts(verdicts)
    )
    return f'<span class="marks">{" ".join(shown)}</span>'


def verdict_bar(verdicts: Iterable[Verdict]) -> str:
    """The shares of verdicts as one coloured line, for the eye only."""
    parts = (
        f'<span class="{css(verdict)}" style="flex-grow:{count}" title="{count} {verdict}"></span>'
        for verdict, count in _counts(verdicts)
    )
    return f'<span class="bar" aria-hidden="true">{"".join(parts)}</span>'


def chips(verdicts: Iterable[Verdict]) -> str:
    """One button per verdict, with which a reader chooses what is shown."""
    return "\n".join(
        f'<button type="button" class="chip {css(verdict)}" data-verdict="{verdict}" aria-pressed="false">'
        f'<span aria-hidden="true">{TEXT[verdict].glyph}</span> {verdict} <span class="count">{count}</span></button>'
        for verdict, count in _counts(verdicts)
    )


def legend() -> str:
    """Signs and colours in one line, and what they mean folded under it."""
    signs = " ".join(mark(verdict) for verdict in VERDICTS)
    means = "\n".join(f"<div><dt>{mark(verdict)}</dt><dd>{_MEANS[verdict]}</dd></div>" for verdict in VERDICTS)
    return f'<details class="legend"><summary>Verdicts {signs}</summary>\n<dl>\n{means}\n</dl></details>'


def count_verdicts(verdicts: Iterable[Verdict]) -> str:
    """Verdicts counted, as part of a sentence.

    >>> count_verdicts(["holds", "holds", "fails"])
    '2 hold, 1 fails'
    """
    return ", ".join(f"{n} {TEXT[verdict].one if n == 1 else TEXT[verdict].many}" for verdict, n in _counts(verdicts))


def count_claims(verdicts: Iterable[Verdict]) -> str:
    """How many claims, judged and not run.

    >>> count_claims(["holds", "not run"])
    '2 claims: 1 judged, 1 not run'
    >>> count_claims(["fails"])
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


def _counts(verdicts: Iterable[Verdict]) -> list[tuple[Verdict, int]]:
    counts = Counter(verdicts)
    return [(verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict]]
