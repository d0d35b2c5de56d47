"""Scans on a page: for each the source, its steps, its figures and tables, what was left out, and its record."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from joma.host.words import counted
from joma.report.figures import figure
from joma.report.markup import Anchors, command
from joma.report.scan_tables import by_layer, covered, left_out
from joma.report.scan_words import MEANINGS, measure_title
from joma.report.scans import ShownScan
from joma.scan.result.curves import Scan

_MOST = 1000  # lines of what is beyond a threshold
NO_FIGURES = (
    '<p class="notice">This page has no figures, because matplotlib is not installed. Install it with '
    '<code>pip install "joma[viz]"</code> and give the command again: nothing is measured twice.</p>'
)


def scan_sections(scans: Sequence[ShownScan], anchors: Anchors) -> str:
    """All scans of a page of studies; nothing where there are none.

    >>> scan_sections([], Anchors())
    ''
    """
    if not scans:
        return ""
    count = "1 series of checkpoints was" if len(scans) == 1 else f"{len(scans)} series of checkpoints were"
    return "\n".join(
        [
            '<section id="scans" aria-labelledby="scans--title"><h2 id="scans--title">Scans</h2>',
            f"<p>{count} measured with <code>joma scan</code>. A scan measures and does not judge.</p>",
            *(_article(scan, anchors) for scan in scans),
            "</section>",
        ]
    )


def _article(scan: ShownScan, anchors: Anchors) -> str:
    anchor = anchors.take("scan", scan.source)
    if scan.error or scan.found is None:
        return (
            f'<article class="scan" id="{anchor}"><h3>{escape(scan.record)}</h3>'
            f'<p class="notice">This scan cannot be shown: {escape(scan.error or "it is empty")}.</p></article>'
        )
    measures = "".join(measured(scan, measure, anchors, "h4") for measure in scan.measures)
    head = f'<article class="scan" id="{anchor}"><h3>{escape(scan.source)}</h3><p>{escape(said(scan.found))}</p>'
    return "\n".join([head, troubles(scan), measures, beside(scan.found), record(scan), "</article>"])


def said(scan: Scan) -> str:
    """How many checkpoints there are, from when to when, and how many could be used."""
    if not scan.steps:
        return "No checkpoint could be used."
    first, last = scan.steps[0], scan.steps[-1]
    count = counted(len(scan.steps), "checkpoint")
    alone = len(scan.steps) == 1
    when = f"{count}, at {scan.axis} {first:,}" if alone else f"{count}, from {scan.axis} {first:,} to {last:,}"
    names = "; ".join(dict.fromkeys(measure_title(curve.measure) for curve in scan.curves.values()))
    return f"{when}. Measured: {names}."


def troubles(scan: ShownScan) -> str:
    """What a reader must know first: broken thresholds, warnings, missing figures, what was left out."""
    parts = []
    if scan.violations:
        lines = "".join(f"<li>{escape(line)}</li>" for line in scan.violations[:_MOST])
        more = len(scan.violations) - _MOST
        lines += f"<li>{counted(more, 'more number')}</li>" if more > 0 else ""
        parts.append(f'<div class="notice v-fails"><p>{counted(len(scan.violations), "number")} beyond a threshold:</p>'
                     f"<ul>{lines}</ul></div>")  # fmt: skip
    parts += [f'<p class="notice">Warning: {escape(one)}.</p>' for one in (scan.found.warnings if scan.found else ())]
    if scan.measures and not scan.pictures:
        parts.append(NO_FIGURES)
    if scan.found:
        parts.append(left_out(scan.found))
    return "\n".join(part for part in parts if part)


def measured(scan: ShownScan, measure: str, anchors: Anchors, heading: str) -> str:
    """One measure: what it is, its figures, and its numbers folded; unfolded where there is no figure."""
    assert scan.found is not None
    anchor = anchors.take("measure", measure)
    pictures = "".join(figure(one, anchors.take("figure", anchor)) for one in scan.pictures.get(measure, ()))
    tables = "".join(by_layer(scan.found, one) for one in scan.found.curves.values() if one.measure == measure)
    meaning = f"<p>{escape(MEANINGS[measure])}</p>" if measure in MEANINGS else ""
    unfolded = "" if pictures else " open"
    return (
        f'<section class="measure" id="{anchor}" aria-labelledby="{anchor}--title">'
        f'<{heading} id="{anchor}--title">{escape(measure_title(measure))}</{heading}>{meaning}{pictures}'
        f"<details{unfolded}><summary>Numbers by layer</summary>{tables}</details></section>"
    )


def beside(scan: Scan) -> str:
    """Coverage and notes."""
    notes = "".join(f"<li>{escape(note)}</li>" for note in scan.notes)
    return covered(scan) + (f'<ul class="notes">{notes}</ul>' if notes else "")


def record(scan: ShownScan) -> str:
    """The command and where the numbers are."""
    rows = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in scan.facts.items())
    return f'{command(scan.command)}<details class="record"><summary>Record</summary><dl>{rows}</dl></details>'
