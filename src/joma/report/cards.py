"""Six cards under the headline: a figure, a question, and the answer in a sentence made from its finding.

Picture and sentence are of one scale. Where paper scale answers, the picture is of its kept curves, which travel with
the package; where nothing is kept to draw, there is no picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from joma.claims.contract import Verdict
from joma.report.figures import is_readable, small_figure
from joma.report.headline import PAPER, strongest, theorems
from joma.report.layout import Entry, Section
from joma.report.markup import Anchors
from joma.report.panel import Panel, kept_panels
from joma.report.panel_svg import panel_html
from joma.report.questions import DRAWN_FOR_THEOREMS, QUESTIONS, SHOWN_FOR_THEOREMS, THEOREMS, Question
from joma.report.verdict_words import WORDS, css, notable
from joma.runs import Run, RunError

CARDS = 6


@dataclass(frozen=True)
class Card:
    """What one card says. `section` is the study that it leads to."""

    asks: str
    verdict: Verdict
    answer: str
    """In one word or two."""
    numbers: str
    beside: str
    """In small: what the run of this page says, where the numbers are from another, or an example."""
    section: Section
    target: str
    """The anchor it leads to."""
    shows: str
    """The id of the claim that its picture is of."""
    at_paper_scale: bool
    """Whether the answer is that of the kept run at paper scale."""


def cards(sections: Sequence[Section], anchors: Anchors) -> str:
    """The editor's questions where the page has their claims, then its most notable findings.

    A page of one study has none: its section says the same, with the same figure, in the same place.

    >>> cards([], Anchors())
    ''
    """
    if len(sections) < 2:
        return ""
    chosen = [card for question in QUESTIONS if (card := _asked(question, sections))]
    chosen += filter(None, [_theorems(sections)])
    for card in _notable(sections, {card.section.anchor for card in chosen}):
        if len(chosen) >= CARDS:
            break
        chosen.append(card)
    return "\n".join(_html(card, anchors) for card in chosen[:CARDS])


def _asked(question: Question, sections: Sequence[Section]) -> Card | None:
    for section in sections:
        for entry in section.entries:
            if entry.finding.id == question.claim:
                words = WORDS[entry.verdict].answer
                numbers = _numbers(question, entry)
                return Card(
                    question.asks,
                    entry.verdict,
                    words,
                    numbers,
                    _here(entry),
                    section,
                    entry.anchor,
                    entry.finding.id,
                    entry.at_paper_scale,
                )
    return None


def _numbers(question: Question, entry: Entry) -> str:
    """The effect beside its control. The editor's words are for paper scale: elsewhere another case may decide."""
    found = entry.measured
    if found is None or not entry.at_paper_scale:
        return f"In this run: {entry.brief}."
    effect = f"At paper scale {question.number} {found.effect_words} {found.seeds_words}"
    return f"{effect}; {question.control} {found.control_words}."


def _here(entry: Entry) -> str:
    if not entry.at_paper_scale:
        return ""
    return f"This run: {entry.finding.verdict} ({entry.finding.brief})."


def _theorems(sections: Sequence[Section]) -> Card | None:
    """All mathematical claims of the page as one card, with the figure of a study that has corrections."""
    held = {section.anchor: [one for one in section.entries if not one.finding.claim.empirical] for section in sections}
    several = [entry for found in held.values() for entry in found]
    row = strongest(several)
    if not row.judged:
        return None
    by_name = {section.result.study.name: section for section in sections if held[section.anchor]}
    shown = next((by_name[name] for name in DRAWN_FOR_THEOREMS if name in by_name), next(iter(by_name.values())))
    verdicts = row.judged
    corrected = verdicts.count("holds as corrected")
    left = sum(verdict not in ("holds", "holds as corrected") for verdict in verdicts)
    verdict: Verdict = "holds as corrected" if corrected else "only qualitative" if left else "holds"
    answer = "Yes." if verdict == "holds" else "Not all." if verdicts.count("holds") else "No."
    beside, at_paper_scale = _example(shown), row.scale == PAPER
    return Card(
        THEOREMS, verdict, answer, theorems(several), beside, shown, shown.anchor, SHOWN_FOR_THEOREMS, at_paper_scale
    )


def _example(section: Section) -> str:
    """A printed form and its correction."""
    fixed = (one.finding.claim for one in section.entries if one.verdict == "holds as corrected")
    claim = next((claim for claim in fixed if not claim.empirical), None)
    return f"For example: {claim.says} Corrected: {claim.corrected}" if claim else ""


def _notable(sections: Sequence[Section], taken: set[str]) -> Iterator[Card]:
    """The most notable finding of every study that has no card yet."""
    best = [
        (min(section.entries, key=lambda one: notable(one.verdict)), section)
        for section in sections
        if section.entries and section.anchor not in taken
    ]
    for entry, section in sorted(best, key=lambda pair: notable(pair[0].verdict)):
        if entry.verdict != "not run":
            yield Card(
                entry.finding.claim.says,
                entry.verdict,
                f"This {WORDS[entry.verdict].one}.",
                f"{'At paper scale' if entry.at_paper_scale else 'In this run'}: {entry.brief}.",
                _here(entry),
                section,
                entry.anchor,
                entry.finding.id,
                entry.at_paper_scale,
            )


def _picture(card: Card, anchors: Anchors) -> str:
    """The panel of the scale that answers; of this run also its own figure, if it is readable at a card's size."""
    if card.at_paper_scale:
        kept = kept_panels().get(card.shows)
        return panel_html(kept, "Paper scale") if kept and _is_of(card) else ""
    panel = _own_panel(card) if _is_of(card) else None
    if panel:
        return panel_html(panel, "This run")
    return "".join(small_figure(one, anchors.take("f")) for one in card.section.result.pictures[:1] if is_readable(one))


def _is_of(card: Card) -> bool:
    """Whether the claim that is shown belongs to the study that the card leads to."""
    return card.shows.partition("/")[0] == card.section.result.study.name


def _own_panel(card: Card) -> Panel | None:
    from joma.report.panel_readings import panel_of  # brings in the studies that it reads

    path = card.section.result.run
    if path is None:
        return None
    try:
        with Run.open(path) as run:
            return panel_of(card.shows, run)
    except (RunError, KeyError, ValueError, IndexError):  # a record that has gone or holds less: the card does without
        return None


def _html(card: Card, anchors: Anchors) -> str:
    study = card.section.result.study
    anchor = anchors.take("card", study.name)
    drawn = _picture(card, anchors)
    figure = f'<div class="thumb">{drawn}</div>' if drawn else ""
    beside = f'<p class="beside">{escape(card.beside)}</p>' if card.beside else ""
    return (
        f'<article class="card {css(card.verdict)}" id="{anchor}">{figure}\n<h3>{escape(card.asks)}</h3>\n'
        f'<p><strong class="answer">{escape(card.answer)}</strong> {escape(card.numbers)}</p>{beside}\n'
        f'<p class="more"><a href="#{card.target}">{escape(study.title)}</a></p></article>'
    )
