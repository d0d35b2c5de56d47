"""A study on the page: its verdicts counted, and folded under them what came out with its figures, and all claims.

What is folded on a page of many studies lies in <noscript>. A browser that runs the page's script reads that as text,
which costs almost nothing, and the script makes it part of the page when a reader opens, searches or prints it. A
browser without scripts shows it as if the tag were not there. So nothing is written twice, and nothing is missing.
"""

from __future__ import annotations

import json
import re
from html import escape
from typing import TYPE_CHECKING

from joma.claims.contract import Finding
from joma.claims.rules import UNJUDGED
from joma.claims.sentences import show
from joma.claims.text_source import other_text
from joma.report.claims.layout import Entry, Section
from joma.report.claims.verdicts import count_claims, count_verdicts, css, mark, notable
from joma.report.figures import figure
from joma.report.markup import Anchors, command, duration, rows

if TYPE_CHECKING:
    from joma.claims.execute import Result
    from joma.report.claims.kept import KeptFinding

NOTABLE = 3
_COMMAND = re.compile(r"([A-Z_]+=\S+ )?(joma|python) ")


def study_section(section: Section, anchors: Anchors, *, folded: bool = False) -> str:
    """The section of a study. folded: it is one of many, and opens when a reader asks for it."""
    result, study, entries = section.result, section.result.study, section.entries
    body = _body(section, anchors)
    under = "What came out, figures and method" if result.pictures else "What came out and method"
    every = f"All {len(entries)} claims with their numbers" if len(entries) > 1 else "The one claim with its numbers"
    return _lines(
        f'<section class="study" id="{section.anchor}" aria-labelledby="{section.anchor}--title">',
        f'<p class="eyebrow"><span>{escape(study.name)}</span> <a href="#top">Top of the page</a></p>',
        f'<h2 id="{section.anchor}--title">{escape(study.title)}</h2>',
        f'<p class="notice v-fails">This study broke: {escape(result.error)}</p>' if result.error else "",
        f'<p class="counts">{_counts(section)}</p>' if entries else "",
        _fold("body", under, body, asleep=True) if folded else body,
        _fold("claims", every, "\n".join(map(claim_html, entries)), asleep=folded) if entries else "",
        "</section>",
    )


def claim_html(entry: Entry) -> str:
    """One claim: a line that says what came out, and folded under it all that speaks for it."""
    finding, claim = entry.finding, entry.finding.claim
    work, kind, number = claim.source.rsplit(" ", 2)  # never "Thm" without its number
    other = '<span class="paper">from another text</span>' if other_text(finding.provenance.text_sha256) else ""
    paper = (
        f'<span class="paper">at paper scale {mark(entry.kept.verdict)}{remarked(entry.kept)}</span>'
        if entry.kept
        else ""
    )
    fixed = f'<span class="corrected"><i>Corrected:</i> {escape(claim.corrected)}</span>' if claim.corrected else ""
    return (
        f'<details class="claim {css(finding.verdict)}" id="{entry.anchor}" data-verdict="{finding.verdict}">\n'
        f'<summary>{mark(finding.verdict)}{remarked(finding)} <span class="source">{escape(work)} '
        f'<span class="place">{escape(kind)} {escape(number)}</span></span>\n'
        f'<span class="says">{escape(claim.says)}</span>{fixed}{paper}{other}</summary>\n'
        f"{_numbers(entry)}\n</details>"
    )


def remarked(found: Finding | KeptFinding) -> str:
    """What the verdict alone does not tell, in small beside it."""
    return "".join(f' <span class="remark">{escape(word)}</span>' for word in found.remarks)


def _numbers(entry: Entry) -> str:
    finding, claim, kept = entry.finding, entry.finding.claim, entry.kept
    given: dict[str, float | str | None] = {"Id": finding.id}
    if finding.verdict in UNJUDGED:
        given["Reason"] = finding.reason if _elsewhere(finding) else finding.measured
    else:
        given |= {"Expected": finding.expected, "Measured": finding.measured, "Control": finding.control}
        given |= {"The same control in": ", ".join(finding.shares) or None}
        given |= {"Matters": claim.matters, "q": finding.q, "Tolerance": finding.tolerance}
        given |= {"Text": other_text(finding.provenance.text_sha256) or None}
        given |= {"Rests on": ", ".join(claim.uses) or None}
    if kept:
        measured = kept.measured if isinstance(kept.measured, str) else show(kept.measured)
        given["At paper scale"] = f"{kept.full_verdict}, {kept.provenance.machine}: {measured}"
    shown = {name: escape(v) if isinstance(v, str) else show(v) for name, v in given.items() if v is not None}
    return f"<dl>{rows(shown)}</dl>"


def _elsewhere(finding: Finding) -> str:
    """The command that would run a claim that was not run. Advice that is no command stays with the reason."""
    return finding.command if finding.verdict in UNJUDGED and _COMMAND.match(finding.command) else ""


def _body(section: Section, anchors: Anchors) -> str:
    result, study = section.result, section.result.study
    pictures = [figure(one, anchors.take("figure", study.name, one.name), anchors.take("f")) for one in result.pictures]
    return _lines(
        _outcome(section, pictures[0] if pictures else ""),
        f'<div class="figures">{"".join(pictures[1:])}</div>' if pictures[1:] else "",
        f'<div class="method"><h3>How it was measured</h3><p>{escape(study.about)}</p></div>' if study.about else "",
        _commands(section),
        _record(result),
    )


def _lines(*parts: str) -> str:
    return "\n".join(filter(None, parts))


def _fold(kind: str, title: str, content: str, *, asleep: bool) -> str:
    inside = f"<noscript>{content}</noscript>" if asleep else content
    return f'<details class="{kind}"><summary>{title}</summary>\n{inside}\n</details>'


def _counts(section: Section) -> str:
    counted = f"{count_claims(section.verdicts)}."
    if not {*section.verdicts} <= {*UNJUDGED}:
        judged = count_verdicts(verdict for verdict in section.verdicts if verdict not in UNJUDGED)
        counted += f" {'In this run ' if section.paper_verdicts else ''}{judged}."
    return counted + (f" At paper scale {count_verdicts(section.paper_verdicts)}." if section.paper_verdicts else "")


def _outcome(section: Section, picture: str) -> str:
    if not section.entries:
        return picture
    chosen = sorted(section.entries, key=lambda one: notable(one.verdict))[:NOTABLE]
    items = ""
    for entry in chosen:  # verdict, claim and the numbers that decide
        at = ""
        if entry.kept and entry.differs:
            at = f'<span class="at">At paper scale: {mark(entry.kept.verdict)} {escape(entry.kept.brief)}</span>'
        claim = f'<a href="#{entry.anchor}">{escape(entry.finding.claim.says)}</a>'
        brief = f'<span class="brief">{escape(entry.finding.brief)}</span>'
        items += (
            f'<li class="{css(entry.verdict)}">{mark(entry.verdict)}{remarked(entry.finding)} {claim} {brief}{at}</li>'
        )
    return f'<div class="outcome"><div class="came-out"><ul class="notable">{items}</ul></div>{picture}</div>'


def _commands(section: Section) -> str:
    result, parts = section.result, list[str]()
    elsewhere = sorted({run for entry in section.entries if (run := _elsewhere(entry.finding))})
    if result.run or not elsewhere:
        parts = [f'<h3 class="small">{"Repeat it" if result.run else "Run it"}</h3>', command(result.command)]
    if elsewhere:
        title = "Run what was not run" if parts else "Run it"
        parts += [f'<h3 class="small">{title}</h3>', *map(command, elsewhere)]
    return "\n".join(parts)


def _record(result: Result) -> str:
    given = {name: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for name, v in result.config.items()}
    if result.run:
        given |= {"time": duration(result.seconds) + ", when it ran" * result.cached, "record": result.run.name}
    given["study version"] = str(result.study.version)
    shown = rows({escape(name): escape(text) for name, text in given.items()})
    return f'<details class="record"><summary>Configuration and record</summary><dl>{shown}</dl></details>'
