"""The figure of `joma scan --measures spread`: what the variance of logits consists of, layer by layer."""

from collections.abc import Sequence

import numpy as np

from joma.claims.execute import Picture
from joma.figures import scans as drawn
from joma.figures.reading import course, number
from joma.figures.style import BLUE, GREY, ORANGE
from joma.measure.registry import MEASURES
from joma.report.figures import draw_picture
from joma.report.scans.curves import layers_of, steps_axis
from joma.scan.result.curves import Curve, Scan

COLOURS = {"shared": BLUE, "specific": ORANGE, "cross": GREY}
WHOLE = "variance"
_PANELS = 6  # layers that have a panel of their own


def split_picture(scan: Scan, curves: Sequence[Curve]) -> Picture:
    """Shared, specific and cross stacked: areas over the steps, or bars by layer where there is one checkpoint."""
    by_name = {curve.group: curve for curve in curves}
    labels, _ = layers_of(by_name[WHOLE])
    parts = np.stack([layers_of(by_name[name])[1] for name in (*COLOURS, WHOLE)], axis=-1)  # (steps, layers, 4)
    unit, texts = f"variance of logits ({MEASURES['spread'].unit})", _texts(scan, labels, parts)
    ends = np.where(np.isfinite(parts[..., -1]).any(axis=0), np.nan_to_num(parts[-1, :, -1]), -1.0)
    largest = texts[int(ends.argmax())]
    about = "The variance of a query's logits over its keys, mean over heads, and what it consists of"
    if len(scan.steps) == 1:
        caption = f"{about}, layer by layer. Largest, {largest}"
        alt = f"Bars, layers to the right, stacked by part. {' '.join(texts)}"
        ways, rows = [("one checkpoint", parts[0, :, :-1])], [label.removeprefix("layer ") for label in labels]
        options = {"rows": rows, "colours": COLOURS, "unit": unit}
        return draw_picture("spread-split", caption, alt, drawn.stacked_parts, ways, **options)
    axis, steps = steps_axis(scan)
    chosen = np.unique(np.linspace(0, len(labels) - 1, min(len(labels), _PANELS)).round().astype(int)).tolist()
    panels = [drawn.Panel(labels[at], steps, [*COLOURS, WHOLE], parts[:, at], axis) for at in chosen]
    caption = f"{about}, over {len(scan.steps)} checkpoints. Largest in the end, {largest}"
    alt = f"One panel per layer, parts stacked as areas. {' '.join(texts[at] for at in chosen)}"
    return draw_picture("spread-split", caption, alt, drawn.areas_over_steps, panels, colours=COLOURS, unit=unit)


def _texts(scan: Scan, labels: Sequence[str], parts: np.ndarray) -> list[str]:
    """Of every layer: how its variance went, and its parts at the last step that has numbers."""
    found = []
    for at, label in enumerate(labels):
        there = np.flatnonzero(np.isfinite(parts[:, at]).all(axis=1))
        if not len(there):
            found.append(f"{label}: no numbers.")
            continue
        several = len(scan.steps) > 1
        went = course(scan.steps, parts[:, at, -1]) if several else f"is {number(float(parts[0, at, -1]))}"
        each = zip(COLOURS, parts[there[-1], at].tolist(), strict=False)
        ends = ", ".join(f"{name} {number(value)}" for name, value in each)
        found.append(f"{label}: the variance {went}; {'in the end ' if several else ''}{ends}.")
    return found
