"""The first screen: the headline, and the answers to four questions of someone who has never heard of it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from joma.report.headline import headline, holding, surprises
from joma.report.layout import Section, entries
from joma.report.markup import command, duration
from joma.report.questions import THEORY
from joma.report.verdict_words import claims_counted

_SCALE = {"quick": "quick scale", "paper": "paper scale"}


def title(sections: Sequence[Section]) -> str:
    """The headline, a line per sentence."""
    return " ".join(f"<span>{escape(said)}</span>" for said in headline(list(entries(sections))))


def summary(sections: Sequence[Section], scale: str) -> str:
    """What was judged, in how many studies, at which scale and in what time."""
    if not sections:
        return ""
    counted = claims_counted(verdict for section in sections for verdict in section.verdicts)
    count = f"{len(sections)} {'study' if len(sections) == 1 else 'studies'}"
    ran = [section.result for section in sections if section.result.run]
    seconds = sum(result.seconds for result in ran if not result.cached)
    cached = sum(result.cached for result in ran)
    time = [f"{duration(seconds)} of computing"] if seconds else []
    time += [f"{cached} taken from finished records"] if cached else []
    return escape(f"{counted}, in {count}, {', '.join([_SCALE.get(scale, scale), *time])}.")


def answers(sections: Sequence[Section]) -> str:
    """What the theory says, whether it holds, what is surprising, what one can do with it."""
    claims = list(entries(sections))
    parts = [("theory", "What does the theory say?", "".join(f"<p>{escape(said)}</p>" for said in THEORY))]
    if claims:
        parts.append(("holds", "Does it hold?", f'<ul class="holding">{holding(claims)}</ul>'))
    if told := surprises(claims):
        items = "".join(f"<li>{escape(said)}</li>" for said in told)
        parts.append(("surprise", "What is surprising?", f"<ul>{items}</ul>"))
    parts.append(("use", "What can I do with it?", _use(sections)))
    return "\n".join(f'<section class="answer-{key}"><h2>{asks}</h2>{said}</section>' for key, asks, said in parts)


def troubles(sections: Sequence[Section]) -> str:
    """Studies that broke, said at the top as well."""
    broken = [section for section in sections if section.result.error]
    return "\n".join(
        f'<p class="notice v-fails"><a href="#{section.anchor}">{escape(section.result.study.name)}</a> '
        f"broke: {escape(section.result.error or '')}</p>"
        for section in broken
    )


def _use(sections: Sequence[Section]) -> str:
    name = sections[0].result.study.name if len(sections) == 1 else "thm2"
    ways = [
        ("Check a claim", f"joma verify {name}"),
        ("Measure your model", "joma scan CHECKPOINTS"),
        ("Use the theory", "from joma.theory import linear"),
    ]
    return "".join(f"<p>{what}</p>{command(line)}" for what, line in ways)
