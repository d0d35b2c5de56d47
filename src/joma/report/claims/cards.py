"""Six cards under the headline: a figure, a question, and the answer of this run in a sentence made from its finding.

What paper scale answered stands below it in small. The first picture is of this run, beside it that of paper scale,
whose curves travel with the package.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from joma.claims.contract import Verdict
from joma.claims.rules import UNJUDGED
from joma.report.claims.headlines import (
    DRAWN_FOR_THEOREMS,
    HEADLINES,
    MATHEMATICS,
    SHOWN_FOR_THEOREMS,
    Found,
    Headline,
    outcomes,
    theorems,
    together,
)
from joma.report.claims.layout import Entry, Section
from joma.report.claims.panels import Panel, kept_panels, panels_html
from joma.report.claims.verdicts import TEXT, css, notable
from joma.report.figures import is_readable, picture_html
from joma.report.markup import Anchors, prose
from joma.runs import Run, RunError

CARDS = 6


@dataclass(frozen=True)
class Card:
    """What one card says. `section` is the study that it leads to."""

    asks: str
    verdict: Verdict
    answer: str  # in one word or two
    numbers: str
    note: str  # in small: what paper scale says, or an example
    section: Section
    target: str  # the anchor it leads to
    shows: str  # the id of the claim that its picture is of


def cards(sections: Sequence[Section], anchors: Anchors) -> str:
    """The headlines where the page has their claims, then its most notable findings.

    A page of one study has none: its section says the same, with the same figure, in the same place.
    """
    if len(sections) < 2:
        return ""
    by_id = {entry.finding.id: (entry, section) for section in reversed(sections) for entry in section.entries}
    chosen = [*filter(None, [_theorems(sections)])]
    chosen += [_asked(headline, *by_id[headline.claim]) for headline in HEADLINES if headline.claim in by_id]
    chosen += _notable(sections, {card.section.anchor for card in chosen})
    return "\n".join(_html(card, anchors) for card in chosen[:CARDS])


def _asked(headline: Headline, entry: Entry, section: Section) -> Card:
    numbers = _numbers(headline, entry.finding)
    doubts = [word for word in entry.finding.remarks if word == "fragile" or word.startswith("q ")]
    numbers += f" The verdict is marked: {', '.join(doubts)}." if doubts else ""
    note = ""
    if entry.kept and entry.kept.verdict not in UNJUDGED:
        note = f"At paper scale: {entry.kept.full_verdict}. {_numbers(headline, entry.kept)}"
    answer = TEXT[entry.verdict].answer
    return Card(headline.asks, entry.verdict, answer, numbers, note, section, entry.anchor, entry.finding.id)


def _numbers(headline: Headline, found: Found) -> str:
    """The sentence of a headline; where it has none for this verdict, the numbers that decide."""
    (outcome,) = (one for one in outcomes([found]) if one.headline == headline)
    return outcome.sentence if outcome.tells else f"{found.brief[:1].upper()}{found.brief[1:]}."


def _theorems(sections: Sequence[Section]) -> Card | None:
    """All mathematical claims of the page as one card, with the figure of a study that has corrections."""
    held = {section.anchor: [one for one in section.entries if not one.finding.claim.empirical] for section in sections}
    judged = [one.verdict for found in held.values() for one in found if one.verdict not in UNJUDGED]
    if not judged:
        return None
    by_name = {section.result.study.name: section for section in sections if held[section.anchor]}
    shown = next((by_name[name] for name in DRAWN_FOR_THEOREMS if name in by_name), next(iter(by_name.values())))
    verdict = together(judged)
    answer = "Yes." if verdict == "holds" else "Not all." if "holds" in judged else "No."
    fixed = (one.finding.claim for one in shown.entries if one.verdict == "holds as corrected")
    example = next((claim for claim in fixed if not claim.empirical), None)
    note = f"For example: {example.says} Corrected: {example.corrected}" if example else ""
    asks = next(headline.asks for headline in HEADLINES if headline.claim == MATHEMATICS)
    return Card(asks, verdict, answer, theorems(judged), note, shown, shown.anchor, SHOWN_FOR_THEOREMS)


def _notable(sections: Sequence[Section], taken: set[str]) -> Iterator[Card]:
    free = [section for section in sections if section.entries and section.anchor not in taken]
    best = [(min(section.entries, key=lambda one: notable(one.verdict)), section) for section in free]
    for entry, section in sorted(best, key=lambda pair: notable(pair[0].verdict)):
        if entry.verdict not in UNJUDGED:
            asks, answer, numbers = entry.finding.claim.says, f"This {TEXT[entry.verdict].one}.", entry.finding.brief
            yield Card(asks, entry.verdict, answer, f"{numbers}.", "", section, entry.anchor, entry.finding.id)


def _picture(card: Card, anchors: Anchors) -> str:
    """The panel of this run and beside it that of paper scale; where this run has none, its own figure, if it is
    readable at a card's size.
    """
    result = card.section.result
    own = card.shows.partition("/")[0] == result.study.name  # the claim that is shown is of the study it leads to
    here = _panel_of_run(card) if own else None
    kept = kept_panels().get(card.shows) if own and " --scale paper" not in result.command else None
    found = {scale: panel for scale, panel in (("This run", here), ("Paper scale", kept)) if panel}
    if found:
        return panels_html(found)
    return "".join(picture_html(one, anchors.take("f")) for one in result.pictures[:1] if is_readable(one))


def _panel_of_run(card: Card) -> Panel | None:
    result = card.section.result
    if not result.run:
        return None
    from joma.report.claims.panel_readers import panel_of  # brings in the studies that it reads

    try:
        with Run.open(result.run) as run:
            return panel_of(card.shows, run)
    except (RunError, KeyError, ValueError, IndexError):  # a record that has gone or holds less
        return None


def _html(card: Card, anchors: Anchors) -> str:
    study = card.section.result.study
    anchor = anchors.take("card", study.name)
    drawn = _picture(card, anchors)
    figure = f'<div class="thumb">{drawn}</div>' if drawn else ""
    note = f'<p class="note">{prose(card.note)}</p>' if card.note else ""
    return (
        f'<article class="card {css(card.verdict)}" id="{anchor}">{figure}\n<h3>{prose(card.asks)}</h3>\n'
        f'<p><strong class="answer">{escape(card.answer)}</strong> {prose(card.numbers)}</p>{note}\n'
        f'<p class="more"><a href="#{card.target}">{escape(study.title)}</a></p></article>'
    )
