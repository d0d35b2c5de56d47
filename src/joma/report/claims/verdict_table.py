"""All studies in one table: what came out in this run and at paper scale, and how long it took."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from joma.report.claims.layout import Entry, Section, entries
from joma.report.claims.verdicts import mark, marks
from joma.report.markup import NOTHING, duration


def verdict_table(sections: Sequence[Section], scale: str) -> str:
    """The table, one row per study, and in words where the two scales disagree. One study alone needs no table.

    >>> verdict_table([], "quick")
    ''
    """
    differences = disagreement(list(entries(sections)))
    if len(sections) < 2:
        return differences
    paper = any(section.paper_verdicts for section in sections)
    here = {"quick": "Quick scale", "paper": "Paper scale"}.get(scale, "This page")
    columns = ["Study", here, *(["Paper scale, kept"] if paper else []), "Time"]
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    rows = "\n".join(_row(section, here, paper=paper) for section in sections)
    return (
        f"{differences}\n"
        f'<table class="verdict-table"><caption class="unseen">All studies and their verdicts</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>"
    )


def disagreement(claims: Sequence[Entry]) -> str:
    """Where a kept run at paper scale came out differently: how many claims, which, and what to believe."""
    both = [entry for entry in claims if entry.compared]
    differ = [entry for entry in both if entry.finding.verdict != entry.verdict]
    if not both:
        return ""
    if not differ:
        many = f"All {len(both)} claims" if len(both) > 1 else "The one claim"
        return f"<p>{many} that {'are' if len(both) > 1 else 'is'} kept at paper scale came out the same there.</p>"
    unsure = sum(entry.finding.verdict == "undecided" for entry in differ)
    count = f"{len(differ)} of {len(both)} claims come" if len(both) > 1 else "the one claim that is kept comes"
    found = f"At paper scale {count} out differently."
    if unsure:
        found += f" This run leaves {unsure} of these undecided."
    items = "".join(
        f'<li><a href="#{entry.anchor}">{escape(entry.finding.id)}</a> here {mark(entry.finding.verdict)}, '
        f"at paper scale {mark(entry.verdict)}</li>"
        for entry in differ
    )
    return (
        f"<p>{found} The paper scale is the stronger evidence.</p>\n"
        f'<details class="differ"><summary>Which claims differ</summary><ul>{items}</ul></details>'
    )


def _row(section: Section, here: str, *, paper: bool) -> str:
    result, study = section.result, section.result.study
    title = f'<a href="#{section.anchor}">{escape(study.title)}</a> <span class="name">{escape(study.name)}</span>'
    found = '<span class="verdict v-fails">broke</span>' if result.error else marks(section.verdicts)
    cells = [f'<th scope="row">{title}</th>', f'<td data-label="{here}">{found}</td>']
    if paper:
        kept = marks(section.paper_verdicts) if section.paper_verdicts else NOTHING
        cells.append(f'<td data-label="Paper scale">{kept}</td>')
    cached = ' <span class="name">cached</span>' if result.cached else ""
    time = NOTHING if result.run is None else duration(result.seconds) + cached
    cells.append(f'<td class="time" data-label="Time">{time}</td>')
    return f"<tr>{''.join(cells)}</tr>"
