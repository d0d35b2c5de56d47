"""The report as one HTML file: what was found, each study with its figures and its claims, and how to repeat it.

The page asks for nothing from outside: style and script are inlined, figures are inline SVG, and its
Content-Security-Policy forbids loading anything and running any script but its own. All text that comes from
studies is escaped. Without JavaScript the page is complete; the script adds the search and the copy buttons, and lets
studies sleep until they are opened (see `study_section`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import joma
from joma.claims.contract import SCALES, VERDICTS, Verdict
from joma.host.files import write_text
from joma.report import front
from joma.report.cards import cards
from joma.report.facts import facts
from joma.report.figures import missing_figures
from joma.report.layout import Section, entries, lay_out
from joma.report.markup import Anchors, command
from joma.report.scan_section import scan_sections
from joma.report.scans import ShownScan, read_scan
from joma.report.strip import strip
from joma.report.study_section import study_section
from joma.report.templates import filled, head
from joma.report.verdict_words import WORDS, claims_counted, css, legend

if TYPE_CHECKING:
    from joma.claims.execute import Result

_ANCHORS = {
    "findings": "Findings",
    "studies": "Studies",
    "scans": "Scans",
    "claims": "Claims",
    "repeat": "Repeat and cite",
    **dict.fromkeys(("top", "answers", "theme", "search", "shown", "clear"), ""),
}
"""Ids that the template has, and what the contents call them."""


def write_report(
    results: Sequence[Result],
    out: Path,
    *,
    scale: str,
    scans: Sequence[Path] = (),
    made: datetime | None = None,
    command: str | None = None,
) -> Path:
    """Write `out`/report.html, whole or not at all, and return its path. `made` is the date it carries, else now.

    scans: runs of `joma scan`, as `joma.report.scan_runs` finds them. command: the one that made the page, where that
    was not `joma verify`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report([], Path(folder), scale="quick").name
    'report.html'
    """
    text = _page(results, scale, [read_scan(path) for path in scans], made or datetime.now().astimezone(), command)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "report.html"
    write_text(path, text)
    return path


def _page(results: Sequence[Result], scale: str, scans: Sequence[ShownScan], made: datetime, line: str | None) -> str:
    anchors = Anchors(*_ANCHORS)
    sections = lay_out(results, anchors)
    whole, line = _whole(scale, line)
    parts = {
        "findings": _part("findings", "What was measured", cards(sections, anchors), kind="cards"),
        "studies": _part("studies", "All studies", strip(sections, scale)),
        "scans": scan_sections(scans, anchors),
        "claims": _claims(sections),
    }
    shown = [*(name for name, html in parts.items() if html), "repeat"]
    return filled(
        "page.html",
        **parts,
        head=head("joma: claims and verdicts"),
        contents="\n".join(f'<li><a href="#{name}">{_ANCHORS[name]}</a></li>' for name in shown),
        headline=front.title(sections),
        summary=front.summary(sections, scale),
        troubles=front.troubles(sections) + missing_figures(results),
        answers=front.answers(sections),
        legend=legend(),
        sections="\n".join(study_section(section, anchors, folded=len(sections) > 1) for section in sections),
        whole=whole,
        command=command(line),
        facts=facts(results, scale, made),
        cite=f"joma {escape(joma.__version__)}, report of {made.day} {made:%B %Y}, scale: {escape(scale)}",
    )


def _part(anchor: str, title: str, content: str, kind: str = "") -> str:
    """A section of the page; nothing where it would be empty."""
    inner = f'<div class="{kind}">\n{content}\n</div>' if kind else content
    opening = f'<section id="{anchor}" aria-labelledby="{anchor}--title"><h2 id="{anchor}--title">{title}</h2>'
    return f"{opening}\n{inner}\n</section>" if content else ""


def _claims(sections: Sequence[Section]) -> str:
    """The search, which the script brings to life. One study alone needs none."""
    verdicts = [entry.finding.verdict for entry in entries(sections)]
    counts = Counter(verdicts)
    given = {
        "counted": claims_counted(verdicts),
        "chips": "\n".join(_chip(verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict]),
    }
    content = filled("search.html", **given) if len(sections) > 1 else ""
    return _part("claims", "All claims, study by study", content)


def _chip(verdict: Verdict, claims: int) -> str:
    glyph = f'<span aria-hidden="true">{WORDS[verdict].glyph}</span>'
    return (
        f'<button type="button" class="chip {css(verdict)}" data-verdict="{verdict}" aria-pressed="false">'
        f'{glyph} {verdict} <span class="count">{claims}</span></button>'
    )


def _whole(scale: str, line: str | None) -> tuple[str, str]:
    """How to get the whole page, as a sentence and its command: the one that made it, else `joma verify`."""
    if line:
        return "This page shows stored runs, judged and drawn again by:", line
    verify = f"joma verify --scale {scale}" if scale in SCALES else "joma verify"
    return "All studies at once, with a page like this one as the result:", verify
