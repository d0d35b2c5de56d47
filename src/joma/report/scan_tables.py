"""The tables of a scan: what was left out, which layers are covered, and the numbers layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from joma.claims.words import show
from joma.host.words import counted
from joma.report.markup import NOTHING
from joma.report.scan_words import group_title, layers_of
from joma.scan.errors import Fault
from joma.scan.result.curves import Curve, Scan

_MOST = 200  # rows of a table; more are counted


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "numbers") -> str:
    """A table in a box that scrolls by itself; the first cell of a row names it. Cells are HTML already.

    >>> table("Layers", ["layer", "value"], [["0", "1.5"]]).count("<td")
    1
    """
    several = list(rows)
    body = "".join(
        "<tr>" + f'<th scope="row">{cells[0]}</th>' + "".join(f"<td>{cell}</td>" for cell in cells[1:]) + "</tr>"
        for cells in several[:_MOST]
    )
    more = f"<p>{counted(len(several) - _MOST, 'more row')} not shown.</p>" if len(several) > _MOST else ""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    label = escape(caption, quote=True)
    return (
        f'<div class="{kind}" role="group" tabindex="0" aria-label="{label}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>{more}"
    )


def left_out(scan: Scan) -> str:
    """Steps and measures that are not in the curves, and why; nothing where all are."""
    rows = [[f"every {scan.axis}", escape(measure), escape(why)] for measure, why in scan.refused.items()]
    rows += [[_where(several[0]), _what(several[0]), _why(several)] for several in _by_place(scan.faults)]
    return table("Left out, and why", [scan.axis, "left out", "why"], rows, "numbers reasons") if rows else ""


def covered(scan: Scan) -> str:
    """How many layers each group of tensors covers; nothing where that is not known."""
    of = {curve.group: curve for curve in scan.curves.values() if curve.group}
    rows = [
        [escape(group), f"{k} of {n} layers", escape(of[group].tensors[0]) if group in of else NOTHING]
        for group, (k, n) in scan.coverage.items()
    ]
    return table("Layers that each group covers", ["group", "covers", "first tensor"], rows) if rows else ""


def by_layer(scan: Scan, curve: Curve) -> str:
    """First, last, lowest and highest number of every layer."""
    labels, values = layers_of(curve)
    name = f"{group_title(curve)}{', mean over heads' if curve.by_head and curve.group else ''}"
    first, last = (f"{scan.axis} {scan.steps[at]:,}" for at in (0, -1))
    title = f"{curve.measure}, {name}"
    if len(scan.steps) == 1:
        return table(title, ["layer", first], [[escape(n), _shown(v)] for n, v in zip(labels, values[0], strict=True)])
    rows = []
    for label, column in zip(labels, values.T, strict=True):
        ends = [_at(scan, column, find) for find in (np.nanargmin, np.nanargmax)]
        rows.append([escape(label), _shown(column[0]), _shown(column[-1]), *ends])
    return table(title, ["layer", first, last, "lowest", "highest"], rows)


def _at(scan: Scan, column: np.ndarray, find: Callable[[np.ndarray], Any]) -> str:
    if not np.isfinite(column).any():
        return NOTHING
    place = int(find(column))
    return f'{_shown(column[place])} <span class="at">at {scan.steps[place]:,}</span>'


def _shown(value: float) -> str:
    return show(float(value)) if np.isfinite(value) else NOTHING


def _by_place(faults: Sequence[Fault]) -> list[list[Fault]]:
    """Faults of one step and measure together."""
    found: dict[tuple[int, str | None], list[Fault]] = {}
    for fault in faults:
        found.setdefault((fault.step, fault.measure), []).append(fault)
    return list(found.values())


def _where(fault: Fault) -> str:
    return f'{fault.step:,} <span class="at">{escape(fault.checkpoint)}</span>'


def _what(fault: Fault) -> str:
    return escape(fault.measure or "the whole step")


def _why(several: Sequence[Fault]) -> str:
    first = several[0]
    tensor = f"{first.tensor}: " if first.tensor and first.tensor not in first.what else ""
    more = f" (and {counted(len(several) - 1, 'more tensor')})" if len(several) > 1 else ""
    return escape(f"{tensor}{first.what}{more}")
