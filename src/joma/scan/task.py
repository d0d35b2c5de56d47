"""One checkpoint as a task for `joma.scale`: what a process elsewhere does. `joma.scan.scanning` names it."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from joma.host.progress import Progress
from joma.scan.errors import CheckpointError
from joma.scan.scanning import find_series
from joma.scan.sweep.elsewhere import fingerprint
from joma.scan.sweep.plan import Plan, plan
from joma.scan.sweep.step import take_step


def measure_checkpoint(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Measure one step of a series; gives a `Step` as JSON."""
    settled = _settled(json.dumps(arguments["asked"]))
    place = next((place for place in settled.series.places if place.step == arguments["step"]), None)
    if place is None or fingerprint(settled) != arguments["plan"]:
        what = "is not the same here as where the scan was begun; put it where every machine reads the same"
        raise CheckpointError(f"{settled.series.source} {what}")
    return take_step(settled, place, arguments["recorded"], lambda doing: progress(0.0, doing)).as_json()


@lru_cache(maxsize=4)
def _settled(asked: str) -> Plan:
    """The plan of a scan, settled once in every process."""
    wish = json.loads(asked)
    series = find_series(
        wish["source"], steps=wish["steps"], axis=wish["axis"], base=wish["base"], out=Path(wish["out"]),
        budget=wish["budget"],
    )  # fmt: skip
    paths: dict[str, Any] = {name: None if wish[name] is None else Path(wish[name]) for name in ("text", "tokenizer")}
    rest = {name: wish[name] for name in ("measures", "patterns", "groups", "root", "seq_len", "device")}
    return plan(series, **paths, **rest)
