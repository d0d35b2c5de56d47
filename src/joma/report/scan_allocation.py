"""The figures of `joma scan --measures allocation`: which parameters made entropy and loss move, over the steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joma.claims.execute import Picture
from joma.figures import scans as drawn
from joma.figures.reading import course, listing, number
from joma.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, house_style, to_svg
from joma.report.scan_words import axis_name
from joma.scan.names.parameters import kind_of
from joma.scan.result.curves import Curve, Scan

OWN, OTHERS = "QK of this layer", "QK of other layers"
COLOURS = {
    OWN: BLUE,
    OTHERS: "#d74396",
    "QKV": BLUE,
    "embeddings": ORANGE,
    "value and output": PURPLE,
    "MLP": GREEN,
    "norms": GREY,
    "output": RED,
    "other": "#ab880e",
}
"""Of kinds of parameters, the same in every panel."""
CHANGE = "whole change"
_PANELS = 5  # layers that have a panel of their own; the loss has one more
_BEFORE = 3  # columns before those of the groups: change, error, since


def allocation_pictures(scan: Scan, curves: Sequence[Curve]) -> tuple[Picture, ...]:
    """Parts added up over the steps, for a few layers and the loss; then all layers, on the way down and back."""
    by_name = {curve.group: curve for curve in curves}
    found = [_over_steps(scan, by_name)]
    if "entropy" in by_name:
        found.append(_ways(scan, by_name["entropy"]))
    return tuple(found)


def _over_steps(scan: Scan, curves: dict[str | None, Curve]) -> Picture:
    panels = []
    for name, curve in curves.items():
        for row in _few(len(curve.rows)):
            title = f"entropy, {curve.rows[row].label}" if name == "entropy" else "loss"
            panels.append(_panel(scan, curve, row, title))
    shown = {kind: colour for kind, colour in COLOURS.items() if any(kind in panel.rows for panel in panels)}
    said = [_told(panel) for panel in panels]
    alt = f"One panel per layer and one of the loss, one line per kind of parameters, added up. {' '.join(said)}"
    with house_style():
        svg = to_svg(drawn.parts_over_steps(panels, colours=shown, unit="nats, added up"), title=alt)
    caption = (
        f"Which parameters made entropy and loss move, added up over the checkpoints. {said[0]} {_closing(curves)}"
    )
    return Picture("allocation-parts", caption, svg, alt)


def _ways(scan: Scan, curve: Curve) -> Picture:
    """Before and after the lowest entropy of each layer."""
    kinds, parts = _by_kind(curve)
    level = np.nancumsum(curve.cells[:, :, 0], axis=0)  # (steps, layers), from 0 on
    lowest = level.argmin(axis=0)
    after = np.arange(len(level))[:, None] > lowest  # (steps, layers)
    ways = [
        ("until the entropy is lowest", _total(parts, ~after)),
        ("from there to the last checkpoint", _total(parts, after)),
    ]
    ways = [way for way in ways if np.abs(way[1]).max() > 0] or ways[:1]
    used = [at for at in range(len(kinds)) if any(np.abs(values[:, at]).max() > 0 for _, values in ways)]
    ways = [(title, values[:, used]) for title, values in ways]
    colours = {kinds[at]: COLOURS.get(kinds[at], GREY) for at in used}
    said = [f"{title[:1].upper()}{title[1:]}: {_largest(list(colours), values)}." for title, values in ways]
    alt = f"Bars, layers to the right, stacked by kind of parameters, one panel per way. {' '.join(said)}"
    with house_style():
        rows = [str(row.layer) for row in curve.rows]
        svg = to_svg(drawn.stacked_parts(ways, rows=rows, colours=colours, unit="change of entropy (nats)"), title=alt)
    caption = "The same by layer, before and after the checkpoint at which the layer's mean entropy is lowest. "
    return Picture("allocation-ways", caption + " ".join(said), svg, alt)


def _total(parts: np.ndarray, where: np.ndarray) -> np.ndarray:
    """(layers, kinds): parts (steps, layers, kinds) added up over the steps of each layer that are meant."""
    total: np.ndarray = np.where(where[:, :, None], np.nan_to_num(parts), 0.0).sum(axis=0)
    return total


def _by_kind(curve: Curve) -> tuple[list[str], np.ndarray]:
    """Kinds of parameters as a row sees them, and (steps, rows, kinds) what came through each."""
    groups = curve.columns[_BEFORE:]
    seen = [[_as_seen(group, row.layer) for group in groups] for row in curve.rows]
    kinds = [kind for kind in COLOURS if any(kind in each for each in seen)]
    parts = np.zeros((len(curve.values), len(curve.rows), len(kinds)))
    for row, each in enumerate(seen):
        for at, kind in enumerate(each):
            parts[:, row, kinds.index(kind)] += curve.cells[:, row, _BEFORE + at]
    return kinds, parts


def _as_seen(group: str, layer: int | None) -> str:
    """The kind of a group, for a row that is of a layer, or of none."""
    mine, kind = kind_of(group)
    if kind == "QK":
        return OWN if mine == layer else OTHERS
    kind = "norms" if kind == "last norm" else kind
    return kind if kind in COLOURS else "other"


def _panel(scan: Scan, curve: Curve, row: int, title: str) -> drawn.Panel:
    kinds, parts = _by_kind(curve)
    values = np.concatenate([parts[:, row], curve.cells[:, row, :1]], axis=1)
    summed = np.cumsum(np.nan_to_num(values), axis=0)
    used = [at for at in range(len(kinds)) if np.abs(summed[:, at]).max() > 0]
    steps = [scan.epochs[step] for step in scan.steps] if axis_name(scan) == "epoch" else scan.steps
    return drawn.Panel(title, steps, [*(kinds[at] for at in used), CHANGE], summed[:, [*used, -1]], axis_name(scan))


def _few(count: int) -> list[int]:
    """Rows that are shown: all, or some that lie evenly from the first to the last."""
    return sorted(set(np.linspace(0, count - 1, min(count, _PANELS)).round().astype(int).tolist()))


def _told(panel: drawn.Panel) -> str:
    """The course of the whole, and the parts that moved it most, by their ends."""
    ends = {name: float(end) for name, end in zip(panel.rows, panel.values[-1], strict=True) if name != CHANGE}
    most = sorted(ends, key=lambda name: -abs(ends[name]))[:3]
    parts = listing(f"{name} {_signed(ends[name])}" for name in most) if most else "nothing"
    return f"{panel.title}: the change {course(panel.steps, panel.values[:, -1], 'nats')}, of which {parts}."


def _largest(kinds: Sequence[str], values: np.ndarray) -> str:
    """What moved the mean over layers most."""
    mean = dict(zip(kinds, values.mean(axis=0).tolist(), strict=True))
    most = sorted(mean, key=lambda kind: -abs(mean[kind]))[:3]
    if not most or not any(mean.values()):
        return "nothing moved"
    return f"mean over layers {_signed(sum(mean.values()))} nats, of which " + listing(
        f"{kind} {_signed(mean[kind])}" for kind in most
    )


def _closing(curves: dict[str | None, Curve]) -> str:
    worst = max(float(np.nanmax(curve.cells[:, :, 1])) for curve in curves.values())
    return f"The parts miss no interval's change by more than {number(worst, 'nats')}."


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + number(value)
