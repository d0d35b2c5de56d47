"""A study on the page: its verdicts counted, and folded under them what came out with its figures, and all claims.

What is folded on a page of many studies lies in <noscript>. A browser that runs the page's script reads that as text,
which costs almost nothing, and the script makes it part of the page when a reader opens, searches or prints it. A
browser without scripts shows it as if the tag were not there. So nothing is written twice, and nothing is missing.
"""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING

from joma.report.claim import claim, measured
from joma.report.figures import figure
from joma.report.layout import Entry, Section
from joma.report.markup import Anchors, command, duration
from joma.report.verdict_words import claims_counted, css, in_words, mark, notable

if TYPE_CHECKING:
    from joma.claims.execute import Result

NOTABLE = 3


def study_section(section: Section, anchors: Anchors, *, folded: bool = False) -> str:
    """The whole section of a study. folded: it is one of many, and opens when a reader asks for it."""
    result, study = section.result, section.result.study
    body = _body(section, anchors)
    parts = [
        f'<section class="study" id="{section.anchor}" aria-labelledby="{section.anchor}--title">',
        f'<p class="eyebrow"><span>{escape(study.name)}</span> <a href="#top">Top of the page</a></p>',
        f'<h2 id="{section.anchor}--title">{escape(study.title)}</h2>',
        f'<p class="notice v-fails">This study broke: {escape(result.error)}</p>' if result.error else "",
        _counts(section),
        _fold("body", _opens(result), body, asleep=True) if folded else body,
        _claims(section, asleep=folded),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _body(section: Section, anchors: Anchors) -> str:
    result, study = section.result, section.result.study
    pictures = [figure(one, anchors.take("figure", study.name, one.name), anchors.take("f")) for one in result.pictures]
    parts = [
        _outcome(section, pictures[0] if pictures else ""),
        f'<div class="figures">{"".join(pictures[1:])}</div>' if pictures[1:] else "",
        f'<div class="method"><h3>How it was measured</h3><p>{escape(study.about)}</p></div>' if study.about else "",
        _commands(section),
        _record(result),
    ]
    return "\n".join(part for part in parts if part)


def _opens(result: Result) -> str:
    """What a reader finds under the fold."""
    return "What came out, figures and method" if result.pictures else "What came out and method"


def _fold(kind: str, title: str, content: str, *, asleep: bool) -> str:
    inside = f"<noscript>{content}</noscript>" if asleep else content
    return f'<details class="{kind}"><summary>{title}</summary>\n{inside}\n</details>'


def _counts(section: Section) -> str:
    if not section.entries:
        return ""
    paper = f" At paper scale {in_words(section.paper_verdicts)}." if section.paper_verdicts else ""
    return f'<p class="counts">{_came_out(section)}{paper}</p>'


def _outcome(section: Section, picture: str) -> str:
    if not section.entries:
        return picture
    chosen = sorted(section.entries, key=lambda one: notable(one.verdict))[:NOTABLE]
    told = picture and any(entry.at_paper_scale for entry in chosen)
    note = '<p class="at">These are verdicts of paper scale. The figures show this run.</p>' if told else ""
    words = f'<div class="came-out"><ul class="notable">{"".join(map(_notable, chosen))}</ul>{note}</div>'
    return f'<div class="outcome">{words}{picture}</div>'


def _came_out(section: Section) -> str:
    counted = claims_counted(section.verdicts)
    if set(section.verdicts) == {"not run"}:
        return f"{counted}."
    scale = "In this run " if section.paper_verdicts else ""
    return f"{counted}. {scale}{in_words(verdict for verdict in section.verdicts if verdict != 'not run')}."


def _notable(entry: Entry) -> str:
    """Verdict, claim and the numbers that decide."""
    scale = " at paper scale" if entry.at_paper_scale else ""
    said = f'<a href="#{entry.anchor}">{escape(entry.finding.claim.says)}</a>'
    brief = f'<span class="brief">{escape(entry.brief)}</span>'
    return f'<li class="{css(entry.verdict)}">{mark(entry.verdict)}<span class="at">{scale}</span> {said} {brief}</li>'


def _claims(section: Section, *, asleep: bool) -> str:
    if not section.entries:
        return ""
    count = len(section.entries)
    title = "The one claim with its numbers" if count == 1 else f"All {count} claims with their numbers"
    return _fold("claims", title, "\n".join(map(claim, section.entries)), asleep=asleep)


def _commands(section: Section) -> str:
    result = section.result
    elsewhere = sorted({run for entry in section.entries if (run := measured(entry.finding)[1])})
    if result.run is None and elsewhere:
        return "\n".join(['<h3 class="small">Run it</h3>', *map(command, elsewhere)])
    parts = [f'<h3 class="small">{"Repeat it" if result.run else "Run it"}</h3>', command(result.command)]
    if elsewhere:
        parts += ['<h3 class="small">Run what was not run</h3>', *map(command, elsewhere)]
    return "\n".join(parts)


def _record(result: Result) -> str:
    given = {name: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for name, v in result.config.items()}
    if result.run:
        when = f"{duration(result.seconds)}, when it ran" if result.cached else duration(result.seconds)
        given |= {"time": when, "record": result.run.name}
    given["study version"] = str(result.study.version)
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in given.items())
    return f'<details class="record"><summary>Configuration and record</summary><dl>{rows}</dl></details>'
