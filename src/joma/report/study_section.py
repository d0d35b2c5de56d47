"""A study on the page: what came out and its first figure, then the method, all claims, the command, the record."""

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


def study_section(section: Section, anchors: Anchors) -> str:
    """The whole section of a study."""
    result, study = section.result, section.result.study
    pictures = [figure(one, anchors.take("figure", study.name, one.name)) for one in result.pictures]
    parts = [
        f'<section class="study" id="{section.anchor}" aria-labelledby="{section.anchor}--title">',
        f'<p class="eyebrow"><span>{escape(study.name)}</span> <a href="#top">Top of the page</a></p>',
        f'<h2 id="{section.anchor}--title">{escape(study.title)}</h2>',
        f'<p class="notice v-fails">This study broke: {escape(result.error)}</p>' if result.error else "",
        _outcome(section, pictures[0] if pictures else ""),
        f'<div class="figures">{"".join(pictures[1:])}</div>' if pictures[1:] else "",
        f'<div class="method"><h3>How it was measured</h3><p>{escape(study.about)}</p></div>' if study.about else "",
        _claims(section),
        _commands(section),
        _record(result),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _outcome(section: Section, picture: str) -> str:
    if not section.entries:
        return picture
    chosen = sorted(section.entries, key=lambda one: notable(one.verdict))[:NOTABLE]
    said = "".join(map(_notable, chosen))
    counts = f"<p>{_came_out(section)}</p>"
    if section.paper_verdicts:
        counts += f"<p>At paper scale {in_words(section.paper_verdicts)}.</p>"
    words = f'<div class="came-out">{counts}<ul class="notable">{said}</ul></div>'
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


def _claims(section: Section) -> str:
    if not section.entries:
        return ""
    count = len(section.entries)
    title = "The one claim with its numbers" if count == 1 else f"All {count} claims with their numbers"
    return (
        f'<details class="claims"><summary>{title}</summary>\n'
        + "\n".join(map(claim, section.entries))
        + "\n</details>"
    )


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
