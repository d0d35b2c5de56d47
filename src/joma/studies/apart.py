"""A study carried out in a process of its own: what goes there, and what comes back. All of it is plain JSON.

Nothing heavy loads before a result is there: the processes start while this one still loads.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.host.progress import Progress
from joma.studies import load, room

if TYPE_CHECKING:
    from joma.claims.execute import Result

FUNCTION = f"{__name__}:carry_out"
"""What `joma.scale.local.side_by_side` is to call."""


def order(name: str, scale: str, out: Path, *, fresh: bool = False) -> dict[str, Any]:
    """What `carry_out` needs to know.

    >>> order("thm2", "quick", Path("joma-out"))["study"]
    'thm2'
    """
    return {"study": name, "scale": scale, "out": str(out), "fresh": fresh}


def kin(name: str) -> str:
    """What a study loads that takes long to load, so that one process can carry out all that do.

    >>> kin("fig7"), kin("thm2")
    ('transformers', '')
    """
    return "transformers" if room(name) == "checkpoints" else ""


def carry_out(order: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Run, judge and draw; in the other process."""
    from joma.claims.execute import attempt

    study = load(order["study"])
    config = study.preset(order["scale"])
    result = attempt(study, config, Path(order["out"]), alone=False, fresh=order["fresh"], progress=progress)
    return {
        "config": result.config,
        "seconds": result.seconds,
        "findings": [finding.as_json() for finding in result.findings],
        "pictures": [asdict(picture) for picture in result.pictures],
        "command": result.command,
        "run": None if result.run is None else str(result.run),
        "error": result.error,
        "cached": result.cached,
    }


def result_of(name: str, answer: dict[str, Any]) -> Result:
    """The result that `carry_out` gave, in this process."""
    from joma.claims.execute import Picture, Result
    from joma.claims.finding import Finding

    return Result(
        study=load(name),
        config=answer["config"],
        seconds=answer["seconds"],
        findings=[Finding.from_json(finding) for finding in answer["findings"]],
        pictures=[Picture(**picture) for picture in answer["pictures"]],
        command=answer["command"],
        run=None if answer["run"] is None else Path(answer["run"]),
        error=answer["error"],
        cached=answer["cached"],
    )


def lost(name: str, scale: str, reason: str) -> Result:
    """The result of a study whose process did not live to give one."""
    from joma.claims.execute import broken

    study = load(name)
    return replace(broken(study, study.preset(scale), RuntimeError()), error=reason)
