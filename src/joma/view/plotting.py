"""Runs and scans as figures of matplotlib: their curves by layer, in the look of the report."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from joma.claims.execute import Result
from joma.figures.scans import Panel, curves_by_layer
from joma.figures.style import house_style
from joma.host.errors import BadInput
from joma.host.extras import how_to_install
from joma.host.words import did_you_mean
from joma.measure.registry import axis_of
from joma.runs import Run
from joma.scan.result.curves import Scan
from joma.view.thinning import mean_over

_MOST, _MOST_LINES = 6, 48


def plotted(thing: Run | Scan | Result, names: Sequence[str] = ()) -> Any:
    """A figure of a run or a scan; of a result, the figures of its study.

    thing: what is drawn. names: series; all that have several steps, at most six, unless some are named.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Run.create(f"{folder}/a", study="demo", config={}) as run:
    ...     for step in range(3):
    ...         run.append("entropy", step, [[1.0, 2.0]], dims=("layer", "head"))
    ...     len(plotted(run).axes)
    1
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise BadInput(f"figures need matplotlib: {how_to_install('viz')}") from None
    if isinstance(thing, Result):
        return _of_result(thing)
    known = _panels_of_run(thing) if isinstance(thing, Run) else _panels_of_scan(thing)
    for name in names:
        if name not in known:
            raise BadInput(f"there is no series {name!r} to draw; {did_you_mean(name, known, 'see what it holds')}")
    chosen = list(names) or [name for name, (several, _) in known.items() if several][:_MOST]
    if not chosen:
        raise BadInput("nothing here has several steps; name the series to draw")
    with house_style():
        return curves_by_layer([known[name][1]() for name in chosen])


_Panels = dict[str, tuple[bool, Callable[[], Panel]]]
"""By name, whether there are several steps to draw, and what makes the panel when it is drawn."""


def _panels_of_run(run: Run) -> _Panels:
    from joma.runs.tail import held
    from joma.view.entries import series_of

    listed = series_of(held(run))
    return {each["name"]: (each["steps"] > 1, partial(_panel, run, each)) for each in listed}


def _panel(run: Run, each: dict[str, Any]) -> Panel:
    """One line per layer, or per place along the first dimension; the mean over what else there is."""
    steps, values = run.steps(each["name"]), np.asarray(run.array(each["name"]), float)
    dims = [dim["name"] for dim in each["dims"]]
    kept = dims.index("layer") if "layer" in dims else 0
    lines = mean_over(values, tuple(at + 1 for at in range(len(dims)) if at != kept)).reshape(len(steps), -1)
    dim: dict[str, Any] = each["dims"][kept] if dims else {"labels": [each["name"]]}
    labels = dim["labels"] or [f"{dim['name']} {at}" for at in range(dim["size"])]
    shown = slice(_MOST_LINES)
    return Panel(axis_of(each["name"]), steps.tolist(), labels[shown], lines[:, shown])


def _panels_of_scan(scan: Scan) -> _Panels:
    def panel(name: str) -> Panel:
        curve = scan.curves[name]
        title = ", ".join(filter(None, (axis_of(curve.measure), curve.group)))
        return Panel(title, scan.steps, [row.label for row in curve.rows], curve.by_row)

    return {name: (len(scan.steps) > 1, partial(panel, name)) for name in scan.curves}


def _of_result(result: Result) -> list[Any]:
    if result.run is None:
        raise BadInput("this study was not run, so there is nothing to draw")
    with Run.open(result.run) as run, house_style(), run.remembering():
        return [drawing.figure for drawing in result.study.draw(run)]
