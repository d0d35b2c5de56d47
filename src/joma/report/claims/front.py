"""The first screen: what this run found in a sentence or two, and beside it, smaller, what paper scale found."""

from collections.abc import Sequence
from html import escape

from joma.claims.contract import Verdict
from joma.claims.rules import UNJUDGED
from joma.report.claims.headlines import MATHEMATICS, SURPRISES, THEORY, Found, filled_in, how_many_hold, outcomes
from joma.report.claims.layout import Entry, Section, entries
from joma.report.claims.verdicts import HOLDING, TEXT, count_claims, count_verdicts, notable, verdict_bar
from joma.report.markup import command, duration, prose

_SURPRISES = 3


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
    """What this run found, in one or two sentences."""
    verdicts = [entry.verdict for entry in claims]
    if {*verdicts} <= {*UNJUDGED}:
        return [f"No claim was judged: {count_verdicts(verdicts)}." if claims else "No claim was judged."]
    return _sentences([entry.finding for entry in claims])


def at_the_papers_sizes(claims: Sequence[Entry]) -> str:
    """The same of what is kept from paper scale; empty where nothing is."""
    kept = [entry.kept for entry in claims if entry.kept and entry.kept.verdict not in UNJUDGED]
    return f"At paper scale: {' '.join(_sentences(kept))}" if kept else ""


def _sentences(found: Sequence[Found]) -> list[str]:
    """The count of theorems, and the most telling empirical number: that of the first headline that has a sentence."""
    every = outcomes(found)
    sentences = [one.sentence for one in every if one.headline.claim == MATHEMATICS]
    numbers = [one.sentence for one in every if one.headline.claim != MATHEMATICS and one.tells]
    empirical = [one.verdict for one in found if one.claim.empirical and one.verdict not in UNJUDGED]
    if not numbers and empirical:
        numbers = [f"{how_many_hold('empirical claims', empirical)}."]
    return [*sentences, *numbers[:1]]


def holding(claims: Sequence[Entry]) -> str:
    """Does it hold? One line with a bar for each scale: of the same claims, so that the two can be compared."""
    rows = {"This run": [entry.verdict for entry in claims]}
    if any(entry.kept for entry in claims):
        rows["Paper scale"] = [entry.kept.verdict if entry.kept else "not run" for entry in claims]
    return "\n".join(_row(name, claims, verdicts) for name, verdicts in rows.items())


def _row(name: str, claims: Sequence[Entry], verdicts: Sequence[Verdict]) -> str:
    parts = []
    for what, empirical in (("theorems", False), ("experiments", True)):
        some = [one for one, entry in zip(verdicts, claims, strict=True) if entry.finding.claim.empirical == empirical]
        hold = sum(verdict in HOLDING for verdict in some)
        parts += [f"{hold} of {len(some)} {what} hold"] if some else []
    others = (("fails", "fail"), ("undecided", "undecided"), ("not run", "not run"))
    parts += [f"{verdicts.count(verdict)} {word}" for verdict, word in others if verdict in verdicts]
    return f'<li><span class="of">{name}</span> <b>{", ".join(parts)}</b>{verdict_bar(verdicts)}</li>'


def surprises(claims: Sequence[Entry]) -> list[str]:
    """At most three sentences: the editor's, where they are true of this run, else its most notable findings."""
    by_id = {entry.finding.id: entry.finding for entry in claims}
    known = [(one.text, by_id[one.claim]) for one in SURPRISES if one.claim in by_id
             and by_id[one.claim].verdict in one.verdicts]  # fmt: skip
    chosen = [text for one in known if (text := filled_in(*one))]
    if not chosen:
        decided = [one for one in claims if one.verdict not in (*UNJUDGED, "undecided")]
        found = sorted(decided, key=lambda one: notable(one.verdict))
        chosen = [f"{one.finding.claim.says} This {TEXT[one.verdict].one}." for one in found]
    return chosen[:_SURPRISES]
