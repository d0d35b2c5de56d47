"""What the page of an atlas says of one series: its curves with intervals over runs, drawn and by layer."""

from collections.abc import Sequence
from html import escape

import numpy as np

from joma.figures import scans as drawn
from joma.figures.reading import number
from joma.host.words import counted
from joma.measure.registry import MEASURES
from joma.report.figures import can_draw, draw_picture, figure
from joma.report.markup import NOTHING, Anchors
from joma.report.scans import sections
from joma.report.scans.curves import curve_title, measure_title, steps_axis
from joma.scan.atlas import LEVEL, Measured, OverRuns, left_out, over_runs
from joma.scan.result.curves import Scan


def contents(one: Measured, anchors: Anchors) -> str:
    """Figures and tables of a series."""
    curves = over_runs(one.scans)
    sources = ", ".join(escape(found.source) for found in one.scans)
    shared = {len(found.steps) for found in one.scans} | {len(curve.steps) for curve in curves.values()}
    parts = [f"<p>{counted(len(one.scans), 'run')}: {sources}.</p>"]
    if not curves:
        return parts[0] + '<p class="notice">These runs have no step or no curve in common.</p>'
    if len(one.scans) == 1:
        parts.append("<p>One run has no interval.</p>")
    if len(shared) > 1:
        parts.append("<p>Steps that one of the runs lacks are left out.</p>")
    by_measure: dict[str, list[OverRuns]] = {}
    for curve in curves.values():
        by_measure.setdefault(curve.curve.measure, []).append(curve)
    for measure, several in by_measure.items():
        anchor = anchors.take("measure", f"{one.series.name}-{measure}")
        parts.append(f'<section class="measure" id="{anchor}"><h3>{escape(measure_title(measure))}</h3>')
        parts.append(f"<p>{escape(MEASURES[measure].meaning)}</p>" if measure in MEASURES else "")
        parts.append(_picture(one.scans[0], several, anchor) if can_draw() else "")
        tables = "".join(_table(one.scans[0], curve) for curve in several)
        parts.append(f"<details><summary>Numbers by layer</summary>{tables}</details></section>")
    return "\n".join(parts)


def missing(measured: Sequence[Measured]) -> str:
    """What is left out of the page, and why; nothing where all is there."""
    lines = [f"<li>{escape(line)}</li>" for one in measured for line in left_out(one)]
    return f'<div class="notice"><p>Left out, or incomplete:</p><ul>{"".join(lines)}</ul></div>' if lines else ""


def _picture(scan: Scan, curves: Sequence[OverRuns], anchor: str) -> str:
    axis, _ = steps_axis(scan)
    panels = [
        (drawn.Panel(curve_title(one.curve), one.steps, list(one.rows), one.mean, axis), one.low, one.high)
        for one in curves
    ]
    ends = "; ".join(f"{curve_title(one.curve)} {_cell(one, 0, -1)} to {_cell(one, -1, -1)}" for one in curves)
    caption = (
        f"Mean over layers (thick), first and last layer (thin); bands: {100 * LEVEL:g} % intervals over runs. {ends}."
    )
    alt = f"One panel per curve, checkpoints to the right. Mean over layers from the first to the last: {ends}."
    name = f"{curves[0].curve.measure}-over-runs"
    return figure(draw_picture(name, caption, alt, drawn.bands_over_steps, panels), f"{anchor}--figure")


def _table(scan: Scan, one: OverRuns) -> str:
    first, last = (f"{scan.axis} {one.steps[at]:,}" for at in (0, -1))
    rows = []
    for row, label in enumerate(one.rows):
        known = np.isfinite(one.mean[:, row])
        least = int(np.nanargmin(one.mean[:, row])) if known.any() else None
        lowest = (
            NOTHING if least is None else f'{_cell(one, least, row)} <span class="at">at {one.steps[least]:,}</span>'
        )
        rows.append([escape(label), _cell(one, 0, row), _cell(one, -1, row), lowest])
    return sections.table(curve_title(one.curve), ["layer", first, last, "lowest"], rows)


def _cell(one: OverRuns, step: int, row: int) -> str:
    """A mean followed by its interval, where there is one."""
    mean, low, high = (float(part[step, row]) for part in (one.mean, one.low, one.high))
    if not np.isfinite(mean):
        return NOTHING
    return number(mean) if not np.isfinite([low, high]).all() else f"{number(mean)} [{number(low)}, {number(high)}]"
