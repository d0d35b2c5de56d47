"""The figures of scans: for every measure its curves and how far layers moved, and two scans on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from joma.claims.execute import Picture
from joma.figures import scans as drawn
from joma.figures.reading import course, listing, number
from joma.figures.style import house_style, to_svg
from joma.report.scan_allocation import allocation_pictures
from joma.report.scan_words import UNITS, axis_name, curve_title, group_title, layers_of, measure_title, uniform_entropy
from joma.scan.result.curves import Curve, Scan, mean_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOMENTS = 3  # first, middle and last step
_TOLD = 6  # groups whose course is told in a caption


def pictures_of(scan: Scan, measure: str) -> tuple[Picture, ...]:
    """All figures of one measure: curves, or layers where there is one checkpoint; changes; heads and experts."""
    curves = [curve for curve in scan.curves.values() if curve.measure == measure]
    if measure == "allocation":
        return allocation_pictures(scan, curves)
    found = [_over_steps(scan, curves) if len(scan.steps) > 1 else _over_layers(scan, curves)]
    if len(scan.steps) > 1 and any(len(layers_of(curve)[0]) > 1 for curve in curves):
        found.append(_changes(scan, curves))
    found += [_heads(scan, curve) for curve in curves if curve.by_head and len(curve.columns) > 1]
    found += [_experts(scan, curve) for curve in curves if len({row.expert for row in curve.rows}) > 1]
    return tuple(found)


def compared_pictures(scans: tuple[Scan, Scan], names: tuple[str, str]) -> tuple[Picture, ...]:
    """Curves that both scans have, on one axis: over steps if both have several, else the last one by layer."""
    both = [name for name in scans[0].curves if name in scans[1].curves]
    if not both:
        return ()
    means = [_told(name, scans, names) for name in both]
    if all(len(scan.steps) > 1 for scan in scans):
        pairs = [_pair(scans, name) for name in both]
        with house_style():
            svg = _svg(drawn.compared(pairs, names), alt := f"One panel per curve. {' '.join(means)}")
        caption = f"{names[0]} (blue) and {names[1]} (ochre): the mean over layers thick, every layer thin. {means[0]}"
        caption += "".join(_referred(one.reference) for one, other in pairs if one.reference == other.reference)
        return (Picture("compared", caption, svg, alt),)
    shown = [
        (curve_title(scans[0].curves[name]), [_last(scan, name, who) for scan, who in zip(scans, names, strict=True)])
        for name in both
    ]
    with house_style():
        svg = _svg(drawn.by_layer(shown), alt := f"One panel per curve, layers to the right. {' '.join(means)}")
    return (Picture("compared", f"The last checkpoints of {names[0]} and {names[1]}, layer by layer.", svg, alt),)


def _svg(figure: Figure, alt: str) -> str:
    return to_svg(figure, title=alt)


def _over_steps(scan: Scan, curves: Sequence[Curve]) -> Picture:
    panels = [_panel(scan, curve) for curve in curves]
    alt = " ".join(["One panel per group, one line per layer.", *(_ends_said(panel) for panel in panels)])
    with house_style():
        svg = _svg(drawn.curves_by_layer(panels), alt)
    moves = [f"{group_title(curve) if curve.group else 'all heads'} {_course(scan, curve)}" for curve in curves[:_TOLD]]
    moves += [f"{len(curves) - _TOLD} more are in the table below"] if len(curves) > _TOLD else []
    layered = any(len(panel.rows) > 1 for panel in panels)
    which = ", one line per layer, from the first (blue) to the last (ochre). Mean over layers" if layered else ""
    caption = f"{measure_title(curves[0].measure)} over {len(scan.steps)} checkpoints{which}: {'; '.join(moves)}."
    caption += _referred(panels[0].reference)
    return Picture(f"{curves[0].measure}-curves", caption, svg, alt)


def _over_layers(scan: Scan, curves: Sequence[Curve]) -> Picture:
    lines = []
    for curve in curves:
        labels, values = layers_of(curve)
        lines.append((group_title(curve), _numbers(labels), values[0]))
    title, uniform = UNITS.get(curves[0].measure, curves[0].measure), _uniform(scan, curves[0])
    said = [f"{name} {_range(values)}" for name, _, values in lines]
    alt = f"{title} at step {scan.steps[0]:,}, layers to the right, one line per group. {'; '.join(said)}."
    with house_style():
        svg = _svg(drawn.by_layer([(title, lines)], {title: uniform} if uniform else None), alt)
    caption = f"{measure_title(curves[0].measure)} of the one checkpoint, layer by layer: {'; '.join(said)}."
    caption += _referred(uniform)
    return Picture(f"{curves[0].measure}-layers", caption, svg, alt)


def _changes(scan: Scan, curves: Sequence[Curve]) -> Picture:
    """Where and when layers moved, which curves at different levels hide."""
    panels = [_since_the_first(_panel(scan, curve)) for curve in curves if len(layers_of(curve)[0]) > 1]
    alt = " ".join(
        [
            "One heat map per group, checkpoints to the right, layers upwards: change since the first checkpoint.",
            *(f"{panel.title}: {_moves(panel)}." for panel in panels),
        ]
    )
    with house_style():
        svg = _svg(drawn.changes_over_steps(panels), alt)
    brief = [f"{_short(panel)} {_moves(panel)}" for panel in panels]
    holes = " Grey: left out." if any(not np.isfinite(panel.values).all() for panel in panels) else ""
    legend = f"How far each layer has moved since the first checkpoint (red: up, blue: down).{holes}"
    caption = f"{legend} {'; '.join(brief)}."
    return Picture(f"{curves[0].measure}-heat", caption, svg, alt)


def _heads(scan: Scan, curve: Curve) -> Picture:
    unit, named = curve_title(curve), f"-{curve.group}" if curve.group else ""
    shown = [(f"step {scan.steps[at]:,}", curve.cells[at]) for at in _moments(curve)]
    rows = _numbers([row.label for row in curve.rows])
    least = _least(curve.cells[_moments(curve)[-1]])
    alt = f"{unit} of every layer and head, as colours, at {listing(title for title, _ in shown)}. "
    alt += f"At the last of them the lowest is {least}."
    with house_style():
        figure = drawn.tables_of_colour(shown, rows=rows, columns=curve.columns, across="head", unit=unit)
        svg = _svg(figure, alt)
    caption = f"{unit[:1].upper()}{unit[1:]} by layer and head. The lowest at the last step is {least}."
    return Picture(f"{curve.measure}{named}-heads", caption, svg, alt)


def _experts(scan: Scan, curve: Curve) -> Picture:
    unit = UNITS.get(curve.measure, curve.measure)
    layers = sorted({row.layer for row in curve.rows if row.layer is not None})
    experts = sorted({row.expert for row in curve.rows if row.expert is not None})
    shown = []
    for at in dict.fromkeys((_moments(curve)[0], _moments(curve)[-1])):
        table = np.full((len(layers), len(experts)), np.nan)
        for row, value in zip(curve.rows, curve.by_row[at], strict=True):
            if row.layer is not None and row.expert is not None:
                table[layers.index(row.layer), experts.index(row.expert)] = value
        shown.append((f"{curve.group}, step {scan.steps[at]:,}", table))
    every = ", ".join(f"{title}: {_range(table)}" for title, table in shown)
    alt = f"{unit} of every layer and expert, as colours. {every}."
    with house_style():
        rows, columns = [str(layer) for layer in layers], [str(expert) for expert in experts]
        svg = _svg(drawn.tables_of_colour(shown, rows=rows, columns=columns, across="expert", unit=unit), alt)
    return Picture(f"{curve.measure}-{curve.group}", f"Experts, by layer. {every}.", svg, alt)


def _panel(scan: Scan, curve: Curve) -> drawn.Panel:
    labels, values = layers_of(curve)
    steps = [scan.epochs[step] for step in scan.steps] if axis_name(scan) == "epoch" else scan.steps
    return drawn.Panel(curve_title(curve), steps, labels, values, axis_name(scan), _uniform(scan, curve))


def _since_the_first(panel: drawn.Panel) -> drawn.Panel:
    """The change of each layer since its first number."""
    there = np.isfinite(panel.values)
    first = panel.values[there.argmax(axis=0), np.arange(panel.values.shape[1])]
    return replace(panel, values=panel.values - first, reference=None)


def _uniform(scan: Scan, curve: Curve) -> tuple[str, float] | None:
    """What uniform attention gives, for a panel of entropy; None where it is not known."""
    level = uniform_entropy(scan) if curve.measure == "entropy" else None
    return None if level is None else ("uniform", level)


def _referred(reference: tuple[str, float] | None) -> str:
    if reference is None:
        return ""
    return f" Dotted: uniform attention, {number(reference[1], 'nats')} (the mean of the logarithm of the keys seen)."


def _short(panel: drawn.Panel) -> str:
    """The group alone."""
    return panel.title.rpartition(", ")[2]


def _pair(scans: tuple[Scan, Scan], name: str) -> tuple[drawn.Panel, drawn.Panel]:
    return _panel(scans[0], scans[0].curves[name]), _panel(scans[1], scans[1].curves[name])


def _last(scan: Scan, name: str, who: str) -> tuple[str, list[str], np.ndarray]:
    labels, values = layers_of(scan.curves[name])
    return who, _numbers(labels), values[-1]


def _told(name: str, scans: tuple[Scan, Scan], names: tuple[str, str]) -> str:
    both = [f"{who} {_course(scan, scan.curves[name])}" for scan, who in zip(scans, names, strict=True)]
    return f"{curve_title(scans[0].curves[name])}, mean over layers: {'; '.join(both)}."


def _course(scan: Scan, curve: Curve) -> str:
    return course(scan.steps, mean_of(layers_of(curve)[1], axis=1))


def _ends_said(panel: drawn.Panel) -> str:
    ends = dict.fromkeys((0, len(panel.rows) - 1))
    told = [f"{panel.rows[at]} {course(panel.steps, panel.values[:, at])}" for at in ends]
    return f"{panel.title}: {'; '.join(told)}."


def _moves(panel: drawn.Panel) -> str:
    """The largest rise and the largest fall of a panel of changes."""
    if not np.isfinite(panel.values).any():
        return "has no values"
    said = []
    for verb, sign, at in (("rises", 1, np.nanargmax(panel.values)), ("falls", -1, np.nanargmin(panel.values))):
        step, row = divmod(int(at), panel.values.shape[1])
        if (by := sign * float(panel.values[step, row])) > 0:
            when = f"{panel.axis.split()[-1]} {panel.steps[step]:,}"
            said.append(f"{verb} most in {panel.rows[row]}, by {number(by)} at {when}")
    return " and ".join(said) or "does not change"


def _least(table: np.ndarray) -> str:
    layer, head = np.unravel_index(np.nanargmin(table), table.shape)
    return f"{number(float(table[layer, head]))} in layer {layer}, head {head}"


def _moments(curve: Curve) -> list[int]:
    """Up to three steps that have numbers: the first, the middle and the last."""
    there = [at for at, cells in enumerate(curve.cells) if np.isfinite(cells).any()]
    return sorted({there[0], there[len(there) // 2], there[-1]})[:_MOMENTS]


def _range(values: np.ndarray) -> str:
    fine = np.asarray(values)[np.isfinite(values)]
    return f"from {number(float(fine.min()))} to {number(float(fine.max()))}" if fine.size else "without numbers"


def _numbers(labels: Sequence[str]) -> list[str]:
    return [label.removeprefix("layer ") for label in labels]
