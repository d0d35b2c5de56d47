"""The figures of scans: for every measure its curves and how far layers moved, and two scans on one axis."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from joma.claims.execute import Picture
from joma.figures import scans as drawn
from joma.figures.reading import course, listing, number
from joma.measure.registry import MEASURES, axis_of
from joma.report.figures import draw_picture
from joma.report.scans.allocation import allocation_pictures
from joma.report.scans.curves import curve_title, group_title, layers_of, measure_title, steps_axis, uniform_entropy
from joma.report.scans.spread import split_picture
from joma.scan.result.curves import Curve, Scan, mean_of

_MOST = 6  # groups whose course stands in a caption


def pictures_of(scan: Scan, measure: str) -> tuple[Picture, ...]:
    """All figures of one measure: curves, or layers where there is one checkpoint; changes; heads and experts."""
    curves = [curve for curve in scan.curves.values() if curve.measure == measure]
    if measure == "allocation":
        return allocation_pictures(scan, curves)
    if measure == "spread" and {curve.group for curve in curves} == set(MEASURES["spread"].columns):
        found = [split_picture(scan, curves)]
    else:
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
    titles = {name: curve_title(scans[0].curves[name]) for name in both}
    means = []
    for name, title in titles.items():
        each = [f"{who} {_mean_course(scan, scan.curves[name])}" for scan, who in zip(scans, names, strict=True)]
        means.append(f"{title}, mean over layers: {'; '.join(each)}.")
    if all(len(scan.steps) > 1 for scan in scans):
        pairs = [(_panel(scans[0], scans[0].curves[name]), _panel(scans[1], scans[1].curves[name])) for name in both]
        caption = f"{names[0]} (blue) and {names[1]} (ochre): the mean over layers thick, every layer thin. {means[0]}"
        caption += "".join(_reference_text(one.reference) for one, other in pairs if one.reference == other.reference)
        alt = f"One panel per curve. {' '.join(means)}"
        return (draw_picture("compared", caption, alt, drawn.compared, pairs, names),)
    lines = [
        (title, [_line(scan.curves[name], who, -1) for scan, who in zip(scans, names, strict=True)])
        for name, title in titles.items()
    ]
    caption = f"The last checkpoints of {names[0]} and {names[1]}, layer by layer."
    alt = f"One panel per curve, layers to the right. {' '.join(means)}"
    return (draw_picture("compared", caption, alt, drawn.by_layer, lines),)


def _over_steps(scan: Scan, curves: Sequence[Curve]) -> Picture:
    panels = [_panel(scan, curve) for curve in curves]
    alt = ["One panel per group, one line per layer."]
    for panel in panels:
        ends = dict.fromkeys((0, len(panel.rows) - 1))
        each = (f"{panel.rows[at]} {course(panel.steps, panel.values[:, at])}" for at in ends)
        alt.append(f"{panel.title}: {'; '.join(each)}.")
    names = [group_title(curve) if curve.group else "all heads" for curve in curves[:_MOST]]
    moves = [f"{name} {_mean_course(scan, curve)}" for name, curve in zip(names, curves, strict=False)]
    moves += [f"{len(curves) - _MOST} more are in the table below"] if len(curves) > _MOST else []
    layered = any(len(panel.rows) > 1 for panel in panels)
    which = ", one line per layer, from the first (blue) to the last (ochre). Mean over layers" if layered else ""
    caption = f"{measure_title(curves[0].measure)} over {len(scan.steps)} checkpoints{which}: {'; '.join(moves)}."
    caption += _reference_text(panels[0].reference) + _null_text(curves)
    return draw_picture(f"{curves[0].measure}-curves", caption, " ".join(alt), drawn.curves_by_layer, panels)


def _over_layers(scan: Scan, curves: Sequence[Curve]) -> Picture:
    measure = curves[0].measure
    lines = [_line(curve, group_title(curve), 0) for curve in curves]
    title, uniform = axis_of(measure), _uniform(scan, curves[0])
    ranges = "; ".join(f"{name} {_range(values)}" for name, _, values in lines)
    alt = f"{title} at step {scan.steps[0]:,}, layers to the right, one line per group. {ranges}."
    caption = f"{measure_title(measure)} of the one checkpoint, layer by layer: {ranges}."
    caption += _reference_text(uniform) + _null_text(curves)
    references = {title: uniform} if uniform else None
    return draw_picture(f"{measure}-layers", caption, alt, drawn.by_layer, [(title, lines)], references)


def _null_text(curves: Sequence[Curve]) -> str:
    """Of exponents: how many are told from those of Gaussian matrices, with their interval, at the last step."""
    parts = []
    for curve in curves[:_MOST] if curves[0].measure == "alpha" and len(curves[0].columns) > 1 else ():
        last = curve.cells[-1][np.isfinite(curve.cells[-1]).all(-1)]
        if len(last):
            value, low, high, gaussian, least, most = np.median(last, axis=0)
            apart = int(((last[:, 2] < last[:, 4]) | (last[:, 1] > last[:, 5])).sum())
            numbers = f"{number(value)} [{number(low)}, {number(high)}], Gaussian {number(gaussian)}"
            named = group_title(curve)
            parts.append(f"{named} {numbers} [{number(least)}, {number(most)}], {apart} of {len(last)} matrices differ")
    where = " Medians over layers at the last step, with 95 % intervals, beside Gaussian matrices of the same shape"
    return f"{where}: {'; '.join(parts)}." if parts else ""


def _changes(scan: Scan, curves: Sequence[Curve]) -> Picture:
    panels = []  # where and when layers moved, which curves at different levels hide
    for panel in (_panel(scan, curve) for curve in curves if len(layers_of(curve)[0]) > 1):
        first = panel.values[np.isfinite(panel.values).argmax(axis=0), np.arange(panel.values.shape[1])]
        panels.append(replace(panel, values=panel.values - first, reference=None))
    moves = {panel.title: _moves(panel) for panel in panels}
    alt = "One heat map per group, checkpoints to the right, layers upwards: change since the first checkpoint. "
    alt += " ".join(f"{title}: {moved}." for title, moved in moves.items())
    brief = "; ".join(f"{title.rpartition(', ')[2]} {moved}" for title, moved in moves.items())
    holes = " Grey: left out." if any(not np.isfinite(panel.values).all() for panel in panels) else ""
    caption = f"How far each layer has moved since the first checkpoint (red: up, blue: down).{holes} {brief}."
    return draw_picture(f"{curves[0].measure}-heat", caption, alt, drawn.changes_over_steps, panels)


def _heads(scan: Scan, curve: Curve) -> Picture:
    unit, group = curve_title(curve), f"-{curve.group}" if curve.group else ""
    moments = _moments(curve)
    shown = [(f"step {scan.steps[at]:,}", curve.cells[at]) for at in moments]
    last = curve.cells[moments[-1]]
    layer, head = np.unravel_index(np.nanargmin(last), last.shape)
    least = f"{number(float(last[layer, head]))} in layer {layer}, head {head}"
    alt = f"{unit} of every layer and head, as colours, at {listing(title for title, _ in shown)}. "
    alt += f"At the last of them the lowest is {least}."
    caption = f"{unit[:1].upper()}{unit[1:]} by layer and head. The lowest at the last step is {least}."
    axes = {"rows": _numbers([row.label for row in curve.rows]), "columns": curve.columns}
    return draw_picture(f"{curve.measure}{group}-heads", caption, alt, drawn.tables_of_colour, shown, **axes,
                        across="head", unit=unit)  # fmt: skip


def _experts(scan: Scan, curve: Curve) -> Picture:
    unit = axis_of(curve.measure)
    layers = sorted({row.layer for row in curve.rows if row.layer is not None})
    experts = sorted({row.expert for row in curve.rows if row.expert is not None})
    shown, moments = [], _moments(curve)
    for at in dict.fromkeys((moments[0], moments[-1])):
        table = np.full((len(layers), len(experts)), np.nan)
        for row, value in zip(curve.rows, curve.by_row[at], strict=True):
            if row.layer is not None and row.expert is not None:
                table[layers.index(row.layer), experts.index(row.expert)] = value
        shown.append((f"{curve.group}, step {scan.steps[at]:,}", table))
    every = ", ".join(f"{title}: {_range(table)}" for title, table in shown)
    alt = f"{unit} of every layer and expert, as colours. {every}."
    axes = {"rows": list(map(str, layers)), "columns": list(map(str, experts)), "across": "expert", "unit": unit}
    name = f"{curve.measure}-{curve.group}"
    return draw_picture(name, f"Experts, by layer. {every}.", alt, drawn.tables_of_colour, shown, **axes)


def _panel(scan: Scan, curve: Curve) -> drawn.Panel:
    labels, values = layers_of(curve)
    axis, steps = steps_axis(scan)
    return drawn.Panel(curve_title(curve), steps, labels, values, axis, _uniform(scan, curve))


def _line(curve: Curve, name: str, step: int) -> tuple[str, list[str], np.ndarray]:
    labels, values = layers_of(curve)
    return name, _numbers(labels), values[step]


def _uniform(scan: Scan, curve: Curve) -> tuple[str, float] | None:
    """What uniform attention gives, for a panel of entropy; None where it is not known."""
    level = uniform_entropy(scan) if curve.measure == "entropy" else None
    return None if level is None else ("uniform", level)


def _reference_text(reference: tuple[str, float] | None) -> str:
    if reference is None:
        return ""
    return f" Dotted: uniform attention, {number(reference[1], 'nats')} (the mean of the logarithm of the keys seen)."


def _mean_course(scan: Scan, curve: Curve) -> str:
    return course(scan.steps, mean_of(layers_of(curve)[1], axis=1))


def _moves(panel: drawn.Panel) -> str:
    if not np.isfinite(panel.values).any():
        return "has no values"
    moves = []
    for verb, sign, at in (("rises", 1, np.nanargmax(panel.values)), ("falls", -1, np.nanargmin(panel.values))):
        step, row = divmod(int(at), panel.values.shape[1])
        if (by := sign * float(panel.values[step, row])) > 0:
            when = f"{panel.axis.split()[-1]} {panel.steps[step]:,}"
            moves.append(f"{verb} most in {panel.rows[row]}, by {number(by)} at {when}")
    return " and ".join(moves) or "does not change"


def _moments(curve: Curve) -> list[int]:
    """Up to three steps that have numbers: the first, the middle and the last."""
    there = [at for at, cells in enumerate(curve.cells) if np.isfinite(cells).any()]
    return sorted({there[0], there[len(there) // 2], there[-1]})


def _range(values: np.ndarray) -> str:
    fine = np.asarray(values)[np.isfinite(values)]
    return f"from {number(float(fine.min()))} to {number(float(fine.max()))}" if fine.size else "without numbers"


def _numbers(labels: Sequence[str]) -> list[str]:
    return [label.removeprefix("layer ") for label in labels]
