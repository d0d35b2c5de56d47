"""What a live page is told of runs that it knows: what changed, and never the whole entry again.

A run that grows by a step changes a few numbers. Its config, its machine, the labels of its layers and the alarms of
earlier steps were told before.
"""

from collections.abc import Mapping
from typing import Any

Entry = Mapping[str, Any]
_COUNTED = ("steps", "first", "last", "cursor")  # of a series; its name and dimensions stay
_PARTS = ("series", "alarms")


def news_of(told: Mapping[str, Entry], now: Mapping[str, Entry]) -> dict[str, list[Any]]:
    """What a page that was told `told` has to hear to know `now`: whole runs, and changes of runs; by their ids."""
    found: dict[str, list[Any]] = {"runs": [], "changes": []}
    for id, entry in now.items():
        before = told.get(id)
        if before is entry:
            continue
        change = _change(before, entry) if before is not None else None
        if change is None:
            found["runs"].append(entry)
        else:
            found["changes"].append({"id": id, **change})
    return found


def _change(before: Entry, entry: Entry) -> dict[str, Any] | None:
    """What changed of a run; None where it has become another one, and has to be told whole."""
    if _kind(before) is None or _kind(before) != _kind(entry):
        return None
    now = {key: value for key, value in entry.items() if key not in _PARTS and before.get(key) != value}
    series = {
        one["name"]: {key: one[key] for key in _COUNTED}
        for old, one in zip(before["series"], entry["series"], strict=True)
        if old != one
    }
    return {"now": now, "series": series, "alarms": _alarms(before["alarms"], entry["alarms"])}


def _kind(entry: Entry) -> Any:
    """What stays while a run grows; None of one that cannot be read."""
    if "fault" in entry:
        return None
    return entry["identity"], set(entry), [(one["name"], one["dims"]) for one in entry["series"]]


def _alarms(before: list[Any], now: list[Any]) -> dict[str, Any]:
    gone = next(gone for gone in range(len(before) + 1) if now[: len(before) - gone] == before[gone:])
    return {"gone": gone, "more": now[len(before) - gone :]}
