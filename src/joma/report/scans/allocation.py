"""The figures of `joma scan --measures allocation`: which parameters made entropy and loss move, over the steps."""

from collections.abc import Mapping, Sequence

import numpy as np

from joma.claims.execute import Picture
from joma.figures import scans as drawn
from joma.figures.reading import course, listing, number
from joma.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, RED
from joma.report.figures import draw_picture
from joma.report.scans.curves import steps_axis
from joma.scan.names.parameters import kind_of
from joma.scan.result.curves import Curve, Scan

OWN, OTHERS = "QK of this layer", "QK of other layers"
COLOURS = {
    OWN: BLUE, OTHERS: "#d74396", "QKV": BLUE, "embeddings": ORANGE, "value and output": PURPLE, "MLP": GREEN,
    "norms": GREY, "output": RED, "other": "#ab880e",
}  # fmt: skip
"""Of kinds of parameters, the same in every panel."""
CHANGE = "whole change"
_PANELS = 5  # layers that have a panel of their own; the loss has one more
_BEFORE = 3  # columns before those of the groups: change, error, since


def allocation_pictures(scan: Scan, curves: Sequence[Curve]) -> tuple[Picture, ...]:
    """Parts added up over the steps, for a few layers and the loss; then all layers, on the way down and back."""
    by_name = {curve.group: curve for curve in curves}
    parts = _over_steps(scan, by_name)
    return (parts, _ways(by_name["entropy"])) if "entropy" in by_name else (parts,)


def _over_steps(scan: Scan, curves: dict[str | None, Curve]) -> Picture:
    panels = []
    for name, curve in curves.items():
        count = len(curve.rows)  # all, or some that lie evenly from the first to the last
        for row in np.unique(np.linspace(0, count - 1, min(count, _PANELS)).round().astype(int)).tolist():
            title = f"entropy, {curve.rows[row].label}" if name == "entropy" else "loss"
            panels.append(_panel(scan, curve, row, title))
    shown = {kind: colour for kind, colour in COLOURS.items() if any(kind in panel.rows for panel in panels)}
    texts = []
    for panel in panels:  # the course of the sum, and the parts that moved it most, by their ends
        ends = {name: float(end) for name, end in zip(panel.rows, panel.values[-1], strict=True) if name != CHANGE}
        change = course(panel.steps, panel.values[:, -1], "nats")
        texts.append(f"{panel.title}: the change {change}, of which {_most(ends) or 'nothing'}.")
    worst = max(float(np.nanmax(curve.cells[:, :, 1])) for curve in curves.values())
    closing = f"The parts miss no interval's change by more than {number(worst, 'nats')}."
    caption = f"Which parameters made entropy and loss move, added up over the checkpoints. {texts[0]} {closing}"
    alt = f"One panel per layer and one of the loss, one line per kind of parameters, added up. {' '.join(texts)}"
    return draw_picture("allocation-parts", caption, alt, drawn.parts_over_steps, panels, colours=shown,
                        unit="nats, added up")  # fmt: skip


def _ways(curve: Curve) -> Picture:
    kinds, parts = _by_kind(curve)
    level = np.nancumsum(curve.cells[:, :, 0], axis=0)  # (steps, layers), from 0 on
    after = np.arange(len(level))[:, None] > level.argmin(axis=0)  # (steps, layers)
    halves = {"until the entropy is lowest": ~after, "from there to the last checkpoint": after}
    inside = {title: np.where(half[:, :, None], np.nan_to_num(parts), 0.0) for title, half in halves.items()}
    ways = [(title, values.sum(axis=0)) for title, values in inside.items()]  # (layers, kinds)
    ways = [way for way in ways if np.abs(way[1]).max() > 0] or ways[:1]
    used = [at for at in range(len(kinds)) if any(np.abs(values[:, at]).max() > 0 for _, values in ways)]
    ways = [(title, values[:, used]) for title, values in ways]
    colours = {kinds[at]: COLOURS.get(kinds[at], GREY) for at in used}
    moved = " ".join(f"{title[:1].upper()}{title[1:]}: {_mean_text(list(colours), values)}." for title, values in ways)
    alt = f"Bars, layers to the right, stacked by kind of parameters, one panel per way. {moved}"
    caption = f"The same by layer, before and after the checkpoint at which the layer's mean entropy is lowest. {moved}"
    return draw_picture("allocation-ways", caption, alt, drawn.stacked_parts, ways, colours=colours,
                        rows=[str(row.layer) for row in curve.rows], unit="change of entropy (nats)")  # fmt: skip


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
    axis, steps = steps_axis(scan)
    return drawn.Panel(title, steps, [*(kinds[at] for at in used), CHANGE], summed[:, [*used, -1]], axis)


def _mean_text(kinds: Sequence[str], values: np.ndarray) -> str:
    mean = dict(zip(kinds, values.mean(axis=0).tolist(), strict=True))
    if not any(mean.values()):
        return "nothing moved"
    return f"mean over layers {_signed(sum(mean.values()))} nats, of which {_most(mean)}"


def _most(parts: Mapping[str, float]) -> str:
    largest = sorted(parts, key=lambda name: -abs(parts[name]))[:3]
    return listing(f"{name} {_signed(parts[name])}" for name in largest) if parts else ""


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + number(value)
