"""One claim in its study's section: a line that says what came out, and folded under it all that speaks for it."""

from __future__ import annotations

import re
from html import escape

from joma.claims.contract import Claim, Finding
from joma.claims.text_source import other_text
from joma.report.layout import Entry
from joma.report.markup import value
from joma.report.verdict_words import css, mark

_COMMAND = re.compile(r"([A-Z_]+=\S+ )?(joma|python) ")


def claim(entry: Entry) -> str:
    """The claim, folded."""
    finding = entry.finding
    other = '<span class="paper">from another text</span>' if other_text(finding.provenance.text_sha256) else ""
    paper = f'<span class="paper">at paper scale {mark(entry.kept.verdict)}</span>' if entry.kept else ""
    return (
        f'<details class="claim {css(finding.verdict)}" id="{entry.anchor}" data-verdict="{finding.verdict}">\n'
        f"<summary>{mark(finding.verdict)} {_source(finding.claim)}\n"
        f'<span class="says">{escape(finding.claim.says)}</span>{_correction(finding.claim)}{paper}{other}</summary>\n'
        f"{_numbers(entry)}\n</details>"
    )


def measured(finding: Finding) -> tuple[float | str, str | None]:
    """What was measured; of a claim that was not run, the reason and, apart from it, the command.

    Advice that is no command, "a lower --rate", stays with the reason.
    """
    if finding.verdict != "not run":
        return finding.measured, None
    return (finding.reason, finding.command) if _COMMAND.match(finding.command) else (finding.measured, None)


def _source(source: Claim) -> str:
    work, kind, number = source.source.rsplit(" ", 2)  # never "Thm" without its number
    return f'<span class="source">{escape(work)} <span class="place">{escape(kind)} {escape(number)}</span></span>'


def _correction(source: Claim) -> str:
    return f'<span class="corrected"><i>Corrected:</i> {escape(source.corrected)}</span>' if source.corrected else ""


def _numbers(entry: Entry) -> str:
    finding = entry.finding
    given: list[tuple[str, float | str | None]] = [("Id", finding.id)]
    if finding.verdict == "not run":
        given += [("Reason", measured(finding)[0])]
    else:
        given += [("Expected", finding.expected), ("Measured", measured(finding)[0]), ("Control", finding.control)]
        given += [("Matters", finding.claim.matters), ("Tolerance", finding.tolerance)]
        given += [("Text", other_text(finding.provenance.text_sha256) or None)]
        given += [("Rests on", ", ".join(finding.claim.uses) or None)]
    if entry.kept:
        kept = entry.kept
        given += [("At paper scale", f"{kept.verdict} ({kept.machine}): {kept.measured}")]
    rows = "".join(f"<div><dt>{name}</dt><dd>{value(v)}</dd></div>" for name, v in given if v is not None)
    return f"<dl>{rows}</dl>"
