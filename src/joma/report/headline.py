"""The findings of the page in sentences: the headline, what holds, and what is surprising. All numbers are counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from joma.claims.contract import Verdict
from joma.claims.words import show, worst
from joma.report.layout import Entry
from joma.report.questions import HEADLINES, SURPRISES, Said
from joma.report.verdict_words import WORDS, bar, in_words, notable

_HOLDING: tuple[Verdict, ...] = ("holds", "holds as corrected")
_SURPRISES = 3
PAPER, HERE = "paper scale", "this run"
_WHERE = {"": "", PAPER: " at paper scale", HERE: " in this run"}


def headline(claims: Sequence[Entry]) -> list[str]:
    """What was found, in one or two sentences.

    >>> headline([])
    ['No claim was judged.']
    """
    judged = [entry for entry in claims if entry.verdict != "not run"]
    if not judged:
        return [f"No claim was judged: {in_words(_verdicts(claims))}." if claims else "No claim was judged."]
    mathematical = [entry for entry in claims if not entry.finding.claim.empirical]
    empirical = [entry for entry in claims if entry.finding.claim.empirical]
    sentences = [theorems(mathematical)] if strongest(mathematical).judged else []
    telling = next((words for said in HEADLINES if (words := tell(said, claims))), None)
    if telling:
        sentences.append(f"{telling}.")
    elif strongest(empirical).judged:
        sentences.append(f"{_of('empirical claims', strongest(empirical))}.")
    return sentences


@dataclass(frozen=True)
class Row:
    """Verdicts of one scale, which are never counted together with those of another."""

    scale: str
    """paper scale, or this run; empty where the page has one scale alone."""
    verdicts: tuple[Verdict, ...]

    @property
    def judged(self) -> list[Verdict]:
        """Without claims that were not run."""
        return [verdict for verdict in self.verdicts if verdict != "not run"]


def rows(claims: Sequence[Entry]) -> list[Row]:
    """The verdicts on these claims by scale, the stronger evidence first."""
    kept = tuple(one.kept.verdict for one in claims if one.kept)
    here = tuple(one.finding.verdict for one in claims)
    return [Row(PAPER, kept), Row(HERE, here)] if kept else [Row("", here)]


def strongest(claims: Sequence[Entry]) -> Row:
    """The scale that judged most of these claims; paper scale if both judged as many."""
    return max(rows(claims), key=lambda row: len(row.judged))


def theorems(mathematical: Sequence[Entry]) -> str:
    """How many mathematical claims hold at one scale, which is named, and how many of them only when corrected."""
    row = strongest(mathematical)
    corrected = row.judged.count("holds as corrected")
    sentence = _of("mathematical claims", row)
    if not corrected or len(row.judged) == 1:
        return f"{sentence}."
    return f"{sentence}, {corrected} only if corrected."


def tell(said: Said, claims: Iterable[Entry]) -> str | None:
    """The sentence with its numbers; None where its claim is not on the page or came out differently."""
    entry = next((one for one in claims if one.finding.id == said.claim), None)
    if entry is None or entry.verdict not in said.verdicts:
        return None
    if "{printed}" in said.sentence and entry.finding.printed is None:  # what is kept at paper scale lacks this number
        return None
    return said.sentence.format(**_numbers(entry), scale=" at paper scale" if entry.at_paper_scale else "")


def holding(claims: Sequence[Entry]) -> str:
    """Does it hold? One line with a bar for mathematics and one for experiments, at each scale that there is."""
    parts = []
    for name, empirical in (("Mathematics", False), ("Experiments", True)):
        some = [one for one in claims if one.finding.claim.empirical == empirical]
        parts += [_holding_row(name, row, empirical=empirical) for row in rows(some) if row.verdicts]
    return "\n".join(parts)


def surprises(claims: Sequence[Entry]) -> list[str]:
    """At most three sentences: the editor's, where they are true of this page, else its most notable findings."""
    told = [words for said in SURPRISES if (words := tell(said, claims))][:_SURPRISES]
    if told:
        return told
    found = sorted((one for one in claims if one.verdict not in ("not run", "undecided")), key=_by_notability)
    return [f"{one.finding.claim.says} This {WORDS[one.verdict].one}." for one in found[:_SURPRISES]]


def _by_notability(entry: Entry) -> int:
    return notable(entry.verdict)


def _holding_row(name: str, row: Row, *, empirical: bool) -> str:
    judged: list[str] = list(row.judged)
    hold = sum(verdict in _HOLDING for verdict in judged)
    said = f"{hold} of {len(judged)} hold" if judged else "not run"
    others = (("fails", "fail"), ("undecided", "undecided")) if empirical else (("holds as corrected", "corrected"),)
    for verdict, word in others:
        said += f", {judged.count(verdict)} {word}" if verdict in judged else ""
    title = f"{name}, {row.scale}" if row.scale else name
    return f'<li><span class="of">{escape(title)}</span> <b>{said}</b>{bar(row.verdicts)}</li>'


def _of(what: str, row: Row) -> str:
    """How many hold and where, without a full stop."""
    where = _WHERE[row.scale]
    hold = sum(verdict in _HOLDING for verdict in row.judged)
    if len(row.judged) == 1:
        return f"The one {what.removesuffix('s')} {WORDS[row.judged[0]].one}{where}"
    if hold == len(row.judged):
        return f"All {hold} {what} hold{where}"
    return f"{hold or 'None'} of {len(row.judged)} {what} {'holds' if hold == 1 else 'hold'}{where}"


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
