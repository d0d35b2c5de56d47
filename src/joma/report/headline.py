"""The findings of the page in sentences: the headline, what holds, and what is surprising. All numbers are counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from joma.claims.contract import Verdict
from joma.claims.words import show, worst
from joma.report.layout import Entry
from joma.report.questions import HEADLINES, SURPRISES, Said
from joma.report.verdict_words import WORDS, bar, in_words, notable

_HOLDING: tuple[Verdict, ...] = ("holds", "holds as corrected")
_SURPRISES = 3


def headline(claims: Sequence[Entry]) -> list[str]:
    """What was found, in one or two sentences.

    >>> headline([])
    ['No claim was judged.']
    """
    judged = [entry for entry in claims if entry.verdict != "not run"]
    if not judged:
        return [f"No claim was judged: {in_words(_verdicts(claims))}." if claims else "No claim was judged."]
    mathematical = [entry for entry in judged if not entry.finding.claim.empirical]
    empirical = [entry for entry in judged if entry.finding.claim.empirical]
    sentences = [theorems(mathematical)] if mathematical else []
    telling = next((words for said in HEADLINES if (words := tell(said, claims))), None)
    if telling:
        sentences.append(f"{telling}.")
    elif empirical:
        sentences.append(_of("empirical claims", empirical))
    return sentences


def theorems(mathematical: Sequence[Entry]) -> str:
    """How many mathematical claims hold, and how many of them only when corrected."""
    corrected = _verdicts(mathematical).count("holds as corrected")
    sentence = _of("mathematical claims", mathematical).removesuffix(".")
    if not corrected or len(mathematical) == 1:
        return f"{sentence}."
    return f"{sentence}, {corrected} of them only after a correction."


def tell(said: Said, claims: Iterable[Entry]) -> str | None:
    """The sentence with its numbers; None where its claim is not on the page or came out differently."""
    entry = next((one for one in claims if one.finding.id == said.claim), None)
    if entry is None or entry.verdict not in said.verdicts:
        return None
    if "{printed}" in said.sentence and entry.finding.printed is None:  # what is kept at paper scale lacks this number
        return None
    return said.sentence.format(**_numbers(entry), scale=" at paper scale" if entry.at_paper_scale else "")


def holding(claims: Sequence[Entry]) -> str:
    """Does it hold? One line with a bar for mathematics, for this run's experiments and for those at paper scale."""
    mathematical = [one.finding.verdict for one in claims if not one.finding.claim.empirical]
    empirical = [one.finding.verdict for one in claims if one.finding.claim.empirical]
    kept = [one.kept.verdict for one in claims if one.finding.claim.empirical and one.kept]
    here = "Experiments, this run" if kept else "Experiments"
    rows = [("Mathematics", mathematical), (here, empirical), ("Experiments, paper scale", kept)]
    shown = ((name, verdicts) for name, verdicts in rows if verdicts)
    return "\n".join(_holding_row(name, verdicts, empirical=name != "Mathematics") for name, verdicts in shown)


def surprises(claims: Sequence[Entry]) -> list[str]:
    """At most three sentences: the editor's, where they are true of this page, else its most notable findings."""
    told = [words for said in SURPRISES if (words := tell(said, claims))][:_SURPRISES]
    if told:
        return told
    found = sorted((one for one in claims if one.verdict not in ("not run", "undecided")), key=_by_notability)
    return [f"{one.finding.claim.says} This {WORDS[one.verdict].one}." for one in found[:_SURPRISES]]


def _by_notability(entry: Entry) -> int:
    return notable(entry.verdict)


def _holding_row(name: str, verdicts: Sequence[Verdict], *, empirical: bool) -> str:
    judged: list[str] = [verdict for verdict in verdicts if verdict != "not run"]
    hold = sum(verdict in _HOLDING for verdict in judged)
    said = f"{hold} of {len(judged)} hold" if judged else "not run"
    others = (("fails", "fail"), ("undecided", "undecided")) if empirical else (("holds as corrected", "corrected"),)
    for verdict, word in others:
        said += f", {judged.count(verdict)} {word}" if verdict in judged else ""
    return f'<li><span class="of">{escape(name)}</span> <b>{said}</b>{bar(verdicts)}</li>'


def _of(what: str, judged: Sequence[Entry]) -> str:
    hold = sum(verdict in _HOLDING for verdict in _verdicts(judged))
    if len(judged) == 1:
        return f"The one {what.removesuffix('s')} {WORDS[judged[0].verdict].one}."
    if hold == len(judged):
        return f"All {hold} {what} hold."
    return f"{hold or 'None'} of {len(judged)} {what} {'holds' if hold == 1 else 'hold'}."


def _verdicts(claims: Iterable[Entry]) -> list[Verdict]:
    return [entry.verdict for entry in claims]


def _numbers(entry: Entry) -> dict[str, str]:
    found, printed = entry.measured, entry.finding.printed
    if found:
        return {"effect": found.effect_words, "opposite": found.opposite_words, "control": found.control_words}
    if printed is None:
        return {}
    test = worst(printed)
    return {"printed": show(test.value, test.unit)}
