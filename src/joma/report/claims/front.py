"""The first screen: a headline counted from the findings, and the answers to four questions of a newcomer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from joma.claims.contract import Verdict
from joma.claims.rules import UNJUDGED
from joma.claims.sentences import show, worst
from joma.report.claims.layout import Entry, Section, entries
from joma.report.claims.questions import HEADLINES, SURPRISES, THEORY, Sentence
from joma.report.claims.verdicts import TEXT, count_claims, count_verdicts, effect_texts, notable, verdict_bar
from joma.report.markup import command, duration, prose

_HOLDING: tuple[Verdict, ...] = ("holds", "holds as corrected")
_SURPRISES = 3
PAPER, HERE = "paper scale", "this run"
_WHERE = {"": "", PAPER: " at paper scale", HERE: " in this run"}


def summary(sections: Sequence[Section], scale: str) -> str:
    """What was judged, in how many studies, at which scale and in what time."""
    if not sections:
        return ""
    count = f"{len(sections)} {'study' if len(sections) == 1 else 'studies'}"
    ran = [section.result for section in sections if section.result.run]
    seconds = sum(result.seconds for result in ran if not result.cached)
    cached = sum(result.cached for result in ran)
    facts = [f"{scale} scale" if scale in ("quick", "paper") else scale]
    facts += [f"{duration(seconds)} of computing"] if seconds else []
    facts += [f"{cached} taken from finished records"] if cached else []
    counted = count_claims(verdict for section in sections for verdict in section.verdicts)
    return prose(f"{counted}, in {count}, {', '.join(facts)}.")


def answers(sections: Sequence[Section]) -> str:
    """What the theory says, whether it holds, what is surprising, what one can do with it."""
    claims = list(entries(sections))
    parts = [("theory", "What does the theory say?", "".join(f"<p>{escape(line)}</p>" for line in THEORY))]
    if claims:
        parts.append(("holds", "Does it hold?", f'<ul class="holding">{holding(claims)}</ul>'))
    if found := surprises(claims):
        items = "".join(f"<li>{prose(sentence)}</li>" for sentence in found)
        parts.append(("surprise", "What is surprising?", f"<ul>{items}</ul>"))
    name = sections[0].result.study.name if len(sections) == 1 else "thm2"
    ways = {"Check a claim": f"joma verify {name}", "Measure your model": "joma scan CHECKPOINTS",
            "Use the theory": "from joma.theory import linear"}  # fmt: skip
    use = "".join(f"<p>{what}</p>{command(line)}" for what, line in ways.items())
    parts.append(("use", "What can I do with it?", use))
    return "\n".join(f'<section class="answer-{key}"><h2>{asks}</h2>{text}</section>' for key, asks, text in parts)


def troubles(sections: Sequence[Section]) -> str:
    """Studies that broke, named at the top as well."""
    return "\n".join(
        f'<p class="notice v-fails"><a href="#{section.anchor}">{escape(section.result.study.name)}</a> '
        f"broke: {escape(section.result.error)}</p>"
        for section in sections
        if section.result.error
    )


def headline(claims: Sequence[Entry]) -> list[str]:
    """What was found, in one or two sentences."""
    verdicts = [entry.verdict for entry in claims]
    if {*verdicts} <= {*UNJUDGED}:
        return [f"No claim was judged: {count_verdicts(verdicts)}." if claims else "No claim was judged."]
    mathematical = [entry for entry in claims if not entry.finding.claim.empirical]
    empirical = strongest([entry for entry in claims if entry.finding.claim.empirical])
    sentences = [theorems(mathematical)] if strongest(mathematical).judged else []
    if telling := next((text for sentence in HEADLINES if (text := fill(sentence, claims))), None):
        sentences.append(f"{telling}.")
    elif empirical.judged:
        sentences.append(f"{_how_many_hold('empirical claims', empirical)}.")
    return sentences


@dataclass(frozen=True)
class Row:
    """Verdicts of one scale, which are never counted together with those of another."""

    scale: str  # paper scale, or this run; empty where the page has one scale alone
    verdicts: tuple[Verdict, ...]

    @property
    def judged(self) -> list[Verdict]:
        """Without claims that have no evidence."""
        return [verdict for verdict in self.verdicts if verdict not in UNJUDGED]


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
    only = f", {corrected} only if corrected" if corrected and len(row.judged) > 1 else ""
    return f"{_how_many_hold('mathematical claims', row)}{only}."


def fill(sentence: Sentence, claims: Iterable[Entry]) -> str | None:
    """The sentence with its numbers; None where its claim is not on the page or came out differently."""
    entry = next((one for one in claims if one.finding.id == sentence.claim), None)
    if entry is None or entry.verdict not in sentence.verdicts:
        return None
    main, printed = entry.best.main, entry.finding.printed
    if "{printed}" in sentence.text and printed is None:  # what is kept at paper scale lacks this number
        return None
    numbers = {"scale": " at paper scale" if entry.at_paper_scale else ""}
    if main:
        numbers |= effect_texts(main)
    elif printed:
        test = worst(printed)
        numbers |= {"printed": show(test.value, test.unit)}
    return sentence.text.format(**numbers)


def holding(claims: Sequence[Entry]) -> str:
    """Does it hold? One line with a bar for mathematics and one for experiments, at each scale that there is."""
    parts = []
    for name, empirical in (("Mathematics", False), ("Experiments", True)):
        some = [one for one in claims if one.finding.claim.empirical == empirical]
        parts += [_holding_row(name, row, empirical=empirical) for row in rows(some) if row.verdicts]
    return "\n".join(parts)


def surprises(claims: Sequence[Entry]) -> list[str]:
    """At most three sentences: the editor's, where they are true of this page, else its most notable findings."""
    chosen = [text for sentence in SURPRISES if (text := fill(sentence, claims))]
    if not chosen:
        decided = [one for one in claims if one.verdict not in (*UNJUDGED, "undecided")]
        found = sorted(decided, key=lambda one: notable(one.verdict))
        chosen = [f"{one.finding.claim.says} This {TEXT[one.verdict].one}." for one in found]
    return chosen[:_SURPRISES]


def _holding_row(name: str, row: Row, *, empirical: bool) -> str:
    judged: list[str] = list(row.judged)
    hold = sum(verdict in _HOLDING for verdict in judged)
    text = f"{hold} of {len(judged)} hold" if judged else "not run"
    others = (("fails", "fail"), ("undecided", "undecided")) if empirical else (("holds as corrected", "corrected"),)
    for verdict, word in others:
        text += f", {judged.count(verdict)} {word}" if verdict in judged else ""
    title = f"{name}, {row.scale}" if row.scale else name
    return f'<li><span class="of">{escape(title)}</span> <b>{text}</b>{verdict_bar(row.verdicts)}</li>'


def _how_many_hold(what: str, row: Row) -> str:
    where, hold = _WHERE[row.scale], sum(verdict in _HOLDING for verdict in row.judged)
    if len(row.judged) == 1:
        return f"The one {what.removesuffix('s')} {TEXT[row.judged[0]].one}{where}"
    if hold == len(row.judged):
        return f"All {hold} {what} hold{where}"
    return f"{hold or 'None'} of {len(row.judged)} {what} {'holds' if hold == 1 else 'hold'}{where}"
