"""The parts of a page that show a scan: its measures with figures and tables, what was left out, and its record."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from joma.claims.sentences import show
from joma.host.words import counted
from joma.measure.registry import MEASURES
from joma.report.figures import figure, no_figures
from joma.report.markup import NOTHING, Anchors, command, prose, rows, section
from joma.report.scans.curves import group_title, layers_of, measure_title
from joma.report.scans.shown import ShownScan
from joma.scan.errors import Fault
from joma.scan.result.curves import Curve, Scan

_MOST_BEYOND, _MOST_ROWS = 1000, 200  # lines of what is beyond a threshold, rows of a table; more are counted
NO_FIGURES = no_figures("nothing is measured twice.")


def scan_sections(scans: Sequence[ShownScan], anchors: Anchors) -> str:
    """All scans of a page of studies; nothing where there are none."""
    if not scans:
        return ""
    count = "1 series of checkpoints was" if len(scans) == 1 else f"{len(scans)} series of checkpoints were"
    intro = f"<p>{count} measured with <code>joma scan</code>. A scan measures and does not judge.</p>"
    return section("scans", "Scans", "\n".join([intro, *(_article(scan, anchors) for scan in scans)]))


def _article(scan: ShownScan, anchors: Anchors) -> str:
    anchor = anchors.take("scan", scan.source)
    if scan.error or scan.found is None:
        why = f'<p class="notice">This scan cannot be shown: {escape(scan.error or "it is empty")}.</p>'
        return f'<article class="scan" id="{anchor}"><h3>{escape(scan.record)}</h3>{why}</article>'
    measures = "".join(measure_section(scan, measure, anchors, "h4") for measure in scan.measures)
    head = f'<article class="scan" id="{anchor}"><h3>{escape(scan.source)}</h3><p>{prose(summary(scan.found))}</p>'
    return "\n".join([head, notices(scan), measures, what_was_read(scan.found), record(scan), "</article>"])


def summary(scan: Scan) -> str:
    """How many checkpoints there are, from when to when, and what was measured."""
    if not scan.steps:
        return "No checkpoint could be used."
    first, last = scan.steps[0], scan.steps[-1]
    when = f"at {scan.axis} {first:,}" if len(scan.steps) == 1 else f"from {scan.axis} {first:,} to {last:,}"
    names = "; ".join(dict.fromkeys(measure_title(curve.measure) for curve in scan.curves.values()))
    return f"{counted(len(scan.steps), 'checkpoint')}, {when}. Measured: {names}."


def notices(scan: ShownScan) -> str:
    """What a reader must know first: broken thresholds, warnings, missing figures, what was left out."""
    parts = []
    if scan.violations:
        lines = "".join(f"<li>{escape(line)}</li>" for line in scan.violations[:_MOST_BEYOND])
        more = len(scan.violations) - _MOST_BEYOND
        lines += f"<li>{counted(more, 'more number')}</li>" if more > 0 else ""
        parts.append(f'<div class="notice v-fails"><p>{counted(len(scan.violations), "number")} beyond a threshold:</p>'
                     f"<ul>{lines}</ul></div>")  # fmt: skip
    parts += [f'<p class="notice">Warning: {escape(one)}.</p>' for one in (scan.found.warnings if scan.found else ())]
    parts += [NO_FIGURES] if scan.measures and not scan.pictures else []
    parts += [_left_out(scan.found)] if scan.found else []
    return "\n".join(filter(None, parts))


def measure_section(scan: ShownScan, measure: str, anchors: Anchors, heading: str) -> str:
    """One measure: what it is, its figures, and its numbers folded; unfolded where there is no figure."""
    assert scan.found is not None
    anchor = anchors.take("measure", measure)
    pictures = "".join(figure(one, anchors.take("figure", anchor)) for one in scan.pictures.get(measure, ()))
    tables = "".join(_by_layer(scan.found, one) for one in scan.found.curves.values() if one.measure == measure)
    meaning = f"<p>{escape(MEASURES[measure].meaning)}</p>" if measure in MEASURES else ""
    unfolded = "" if pictures else " open"
    return (
        f'<section class="measure" id="{anchor}" aria-labelledby="{anchor}--title">'
        f'<{heading} id="{anchor}--title">{escape(measure_title(measure))}</{heading}>{meaning}{pictures}'
        f"<details{unfolded}><summary>Numbers by layer</summary>{tables}</details></section>"
    )


def what_was_read(scan: Scan) -> str:
    """How many layers each group of tensors covers, where that is known, and notes."""
    of = {curve.group: curve for curve in scan.curves.values() if curve.group}
    covered = [
        [escape(group), f"{k} of {n} layers", escape(of[group].tensors[0]) if group in of else NOTHING]
        for group, (k, n) in scan.coverage.items()
    ]
    head = ["group", "covers", "first tensor"]
    notes = "".join(f"<li>{escape(note)}</li>" for note in scan.notes)
    layers = table("Layers that each group covers", head, covered) if covered else ""
    return layers + (f'<ul class="notes">{notes}</ul>' if notes else "")


def record(scan: ShownScan) -> str:
    """The command and where the numbers are."""
    facts = rows({escape(name): escape(fact) for name, fact in scan.facts.items()})
    return f'{command(scan.command)}<details class="record"><summary>Record</summary><dl>{facts}</dl></details>'


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "numbers") -> str:
    """A table in a box that scrolls by itself; the first cell of a row names it. Cells are HTML already."""
    several = list(rows)
    body = "".join(
        f'<tr><th scope="row">{cells[0]}</th>' + "".join(f"<td>{cell}</td>" for cell in cells[1:]) + "</tr>"
        for cells in several[:_MOST_ROWS]
    )
    left = len(several) - _MOST_ROWS
    more = f"<p>{counted(left, 'more row')} not shown.</p>" if left > 0 else ""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    return (
        f'<div class="{kind}" role="group" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>{more}"
    )


def shown(value: float) -> str:
    """A number of a cell; a dash where there is none."""
    return show(float(value)) if np.isfinite(value) else NOTHING


def _left_out(scan: Scan) -> str:
    """Steps and measures that are not in the curves, and why; nothing where all are."""
    rows = [[f"every {scan.axis}", escape(measure), escape(why)] for measure, why in scan.refused.items()]
    together: dict[tuple[int, str | None], list[Fault]] = {}
    for fault in scan.faults:
        together.setdefault((fault.step, fault.measure), []).append(fault)
    for first, *more in together.values():
        where = f'{first.step:,} <span class="at">{escape(first.checkpoint)}</span>'
        tensor = f"{first.tensor}: " if first.tensor and first.tensor not in first.what else ""
        others = f" (and {counted(len(more), 'more tensor')})" if more else ""
        rows.append([where, escape(first.measure or "the whole step"), escape(f"{tensor}{first.what}{others}")])
    return table("Left out, and why", [scan.axis, "left out", "why"], rows, "numbers reasons") if rows else ""


def _by_layer(scan: Scan, curve: Curve) -> str:
    labels, values = layers_of(curve)
    heads = ", mean over heads" if curve.by_head and curve.group else ""
    title = f"{curve.measure}, {group_title(curve)}{heads}"
    first, last = (f"{scan.axis} {scan.steps[at]:,}" for at in (0, -1))
    if len(scan.steps) == 1:
        return table(title, ["layer", first], [[escape(n), shown(v)] for n, v in zip(labels, values[0], strict=True)])

    def at(column: np.ndarray, find: Callable[[np.ndarray], Any]) -> str:
        if not np.isfinite(column).any():
            return NOTHING
        place = int(find(column))
        return f'{shown(column[place])} <span class="at">at {scan.steps[place]:,}</span>'

    rows = [[escape(label), shown(each[0]), shown(each[-1]), at(each, np.nanargmin), at(each, np.nanargmax)]
            for label, each in zip(labels, values.T, strict=True)]  # fmt: skip
    return table(title, ["layer", first, last, "lowest", "highest"], rows)
