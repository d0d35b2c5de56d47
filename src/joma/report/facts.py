"""When, with what and where the page was made: the versions and machines are those that the runs noted down."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

import joma
from joma.runs import Run, RunError

if TYPE_CHECKING:
    from joma.claims.execute import Result

_SCALE = {"quick": "quick (a laptop, seconds to minutes)", "paper": "paper (the source’s own sizes)"}


def facts(results: Sequence[Result], scale: str, made: datetime) -> str:
    """The rows of a description list."""
    versions, machines = [], []
    for result in results:
        if noted := _noted(result):
            versions.append(", ".join(f"{name} {number[:12]}" for name, number in noted[0].items() if number))
            machines.append(", ".join(_part(name, what) for name, what in noted[1].items() if what is not None))
    rows = [
        ("Made", [f"{made.day} {made:%B %Y, %H:%M %Z}".strip()]),
        ("joma", [joma.__version__]),
        ("Scale", [_SCALE.get(scale, scale)]),
        ("Machine", list(dict.fromkeys(machines))),
        ("Versions", list(dict.fromkeys(versions))),
    ]
    shown = ((name, "".join(f"<dd>{escape(text)}</dd>" for text in texts)) for name, texts in rows if texts)
    return "\n".join(f"<div><dt>{name}</dt>{texts}</div>" for name, texts in shown)


def _part(name: str, what: object) -> str:
    return f"{what} cores" if name == "cores" else str(what)


def _noted(result: Result) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Versions and machine of a run; None where the record is gone: a page can be made without it."""
    if result.run is None:
        return None
    try:
        with Run.open(result.run) as run:
            return dict(run.versions), dict(run.machine)
    except RunError:
        return None
