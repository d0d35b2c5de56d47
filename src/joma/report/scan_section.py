"""The section of scans: for each the source, its steps, its curves and its record."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from joma.report.figures import figure
from joma.report.markup import Anchors, command
from joma.report.scan_figure import title
from joma.report.scans import Scan


def scan_sections(scans: Sequence[Scan], anchors: Anchors) -> str:
    """All scans of the page; nothing where there are none.

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
            *(_scan(scan, anchors) for scan in scans),
            "</section>",
        ]
    )


def _scan(scan: Scan, anchors: Anchors) -> str:
    anchor = anchors.take("scan", scan.source)
    if scan.error:
        return (
            f'<article class="scan" id="{anchor}"><h3>{escape(scan.record)}</h3>'
            f'<p class="notice">This scan cannot be shown: {escape(scan.error)}.</p></article>'
        )
    pictures = "".join(figure(one, anchors.take("figure", anchor)) for one in scan.pictures)
    rows = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in scan.facts.items())
    return "\n".join(
        [
            f'<article class="scan" id="{anchor}"><h3>{escape(scan.source)}</h3>',
            f"<p>{escape(_said(scan))}</p>",
            pictures,
            command(scan.command),
            f'<details class="record"><summary>Record</summary><dl>{rows}</dl></details></article>',
        ]
    )


def _said(scan: Scan) -> str:
    steps = scan.steps
    when = f"1 checkpoint, at step {steps[0]:,}" if len(steps) == 1 else (
        f"{len(steps)} checkpoints, from step {steps[0]:,} to {steps[-1]:,}"
    )  # fmt: skip
    return f"{when}. Measured: {'; '.join(title(curve.name) for curve in scan.curves)}."
