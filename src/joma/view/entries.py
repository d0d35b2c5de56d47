"""What a page is told of a run before it asks for numbers: who made it, when, how it stands, which series it has."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joma.runs import Run, RunError
from joma.runs.dims import Named
from joma.runs.following import ALARMS, written_at
from joma.runs.tail import Held, rows_after

SCAN = "scan"
_NO_MEASURES = ("steps_taken",)  # of a monitor: how far training was when it was left
MOST_ALARMS = 500
"""That a page is told of; the last ones."""


def entry_of(id: str, path: Path, run: Run, writer: int | None, series: list[dict[str, Any]]) -> dict[str, Any]:
    """One run in the index. series: as `series_of` or a scan gives them."""
    return {
        "id": id, "name": path.name, "study": run.study, "status": run.status, "reason": run.reason,
        "state": state_of(run.status, run.reason, writer), "created": run.created, "written": written_at(path),
        "seed": run.seed, "config": run.config, "machine": run.machine, "versions": run.versions,
        "last": max((each["last"] for each in series), default=None), "series": series, "alarms": [],
        "alarm_count": 0, "left_out": [],
    }  # fmt: skip


def state_of(status: str, reason: str | None, writer: int | None) -> str:
    """In words, as `joma watch` has them."""
    if status == "failed":
        return f"failed: {reason}"
    return status if status != "running" else "not being written" if writer is None else "being written"


def series_of(found: Mapping[str, Held]) -> list[dict[str, Any]]:
    """The series of a run that measure something: not bytes, which are words or checksums, and not nothing."""
    return [
        one_series(name, each.dims or {}, each.shape, each.steps, each.first, each.last, cursor=each.row)
        for name, each in found.items()
        if each.dtype != "uint8" and 0 not in each.shape and name not in _NO_MEASURES
    ]


def one_series(
    name: str, dims: Named, shape: tuple[int, ...], steps: int, first: int, last: int, *, cursor: int
) -> dict[str, Any]:
    """A series in the index."""
    sizes = [
        {"name": dim, "size": size, "labels": None if labels is None else list(map(str, labels))}
        for (dim, labels), size in zip(dims.items(), shape, strict=True)
    ]
    return {"name": name, "dims": sizes, "steps": steps, "first": first, "last": last, "cursor": cursor}


def alarms_after(run: Run, row: int) -> list[dict[str, Any]]:
    """What a monitor's alarms found and wrote behind row number `row`: step, measure, layer, head, and the sentence."""
    found: list[dict[str, Any]] = []
    steps, arrays, _ = rows_after(run, ALARMS, row)
    for step, array in zip(steps, arrays, strict=True):
        try:
            each = json.loads(array.tobytes())
            found += [
                {"step": step, "says": str(one["says"]), **{key: one.get(key) for key in ("measure", "layer", "head")}}
                for one in each
            ]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise RunError(f"{run.path} is damaged: its alarms at step {step} cannot be read") from None
    return found
