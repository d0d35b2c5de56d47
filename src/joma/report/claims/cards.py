"""Six cards under the headline: a figure, a question, and the answer in a sentence made from its finding.

The first picture is of the scale that the sentence is of. Where paper scale answers, that are its kept curves, which
travel with the package, and those of this run stand beside them; where nothing is kept to draw, there is no picture.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from joma.claims.contract import Verdict
from joma.claims.rules import UNJUDGED
from joma.report.claims.front import PAPER, strongest, theorems
from joma.report.claims.layout import Entry, Section
from joma.report.claims.panels import Panel, kept_panels, panels_html
from joma.report.claims.questions import DRAWN_FOR_THEOREMS, QUESTIONS, SHOWN_FOR_THEOREMS, THEOREMS, Question
from joma.report.claims.verdicts import TEXT, css, effect_texts, notable
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
    note: str  # in small: what the run of this page says, where the numbers are from another, or an example
    section: Section
    target: str  # the anchor it leads to
    shows: str  # the id of the claim that its picture is of
    at_paper_scale: bool  # whether the answer is that of the kept run at paper scale


def cards(sections: Sequence[Section], anchors: Anchors) -> str:
    """The editor's questions where the page has their claims, then its most notable findings.

    A page of one study has none: its section says the same, with the same figure, in the same place.
    """
    if len(sections) < 2:
        return ""
    by_id = {entry.finding.id: (entry, section) for section in reversed(sections) for entry in section.entries}
    chosen = [_asked(question, *by_id[question.claim]) for question in QUESTIONS if question.claim in by_id]
    chosen += filter(None, [_theorems(sections)])
    chosen += _notable(sections, {card.section.anchor for card in chosen})
    return "\n".join(_html(card, anchors) for card in chosen[:CARDS])


def _card(asks: str, answer: str, numbers: str, entry: Entry, section: Section) -> Card:
    finding, at_paper_scale = entry.finding, entry.at_paper_scale
    here = f"This run: {finding.verdict} ({finding.brief})." if at_paper_scale else ""
    doubts = [word for word in entry.best.remarks if word == "fragile" or word.startswith("q ")]
    numbers += f" The verdict is marked: {', '.join(doubts)}." if doubts else ""
    return Card(asks, entry.verdict, answer, numbers, here, section, entry.anchor, finding.id, at_paper_scale)


def _asked(question: Question, entry: Entry, section: Section) -> Card:
    """The effect and its control. The editor's sentence is for paper scale: elsewhere another case may decide."""
    main, numbers = entry.best.main, f"In this run: {entry.best.brief}."
    if main is not None and entry.at_paper_scale:
        numbers = f"At paper scale {question.text.format(**effect_texts(main))}"
    return _card(question.asks, TEXT[entry.verdict].answer, numbers, entry, section)


def _theorems(sections: Sequence[Section]) -> Card | None:
    """All mathematical claims of the page as one card, with the figure of a study that has corrections."""
    held = {section.anchor: [one for one in section.entries if not one.finding.claim.empirical] for section in sections}
    several = [entry for found in held.values() for entry in found]
    row = strongest(several)
    if not row.judged:
        return None
    by_name = {section.result.study.name: section for section in sections if held[section.anchor]}
    shown = next((by_name[name] for name in DRAWN_FOR_THEOREMS if name in by_name), next(iter(by_name.values())))
    corrected, left = "holds as corrected" in row.judged, set(row.judged) - {"holds", "holds as corrected"}
    verdict: Verdict = "holds as corrected" if corrected else "only qualitative" if left else "holds"
    answer = "Yes." if verdict == "holds" else "Not all." if "holds" in row.judged else "No."
    fixed = (one.finding.claim for one in shown.entries if one.verdict == "holds as corrected")
    example = next((claim for claim in fixed if not claim.empirical), None)
    note = f"For example: {example.says} Corrected: {example.corrected}" if example else ""
    numbers, at_paper_scale = theorems(several), row.scale == PAPER
    return Card(THEOREMS, verdict, answer, numbers, note, shown, shown.anchor, SHOWN_FOR_THEOREMS, at_paper_scale)


def _notable(sections: Sequence[Section], taken: set[str]) -> Iterator[Card]:
    """The most notable finding of every study that has no card yet."""
    free = [section for section in sections if section.entries and section.anchor not in taken]
    best = [(min(section.entries, key=lambda one: notable(one.verdict)), section) for section in free]
    for entry, section in sorted(best, key=lambda pair: notable(pair[0].verdict)):
        if entry.verdict not in UNJUDGED:
            numbers = f"{'At paper scale' if entry.at_paper_scale else 'In this run'}: {entry.best.brief}."
            yield _card(entry.finding.claim.says, f"This {TEXT[entry.verdict].one}.", numbers, entry, section)


def _picture(card: Card, anchors: Anchors) -> str:
    """The panel of the scale that answers, and beside that of paper scale the one of this run; where this run answers
    and has no panel, its own figure, if it is readable at a card's size.
    """
    result = card.section.result
    own = card.shows.partition("/")[0] == result.study.name  # the claim that is shown is of the study it leads to
    kept = kept_panels().get(card.shows) if own and card.at_paper_scale else None
    if card.at_paper_scale and kept is None:
        return ""
    here = _panel_of_run(card) if own else None
    found = {scale: panel for scale, panel in (("Paper scale", kept), ("This run", here)) if panel}
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
