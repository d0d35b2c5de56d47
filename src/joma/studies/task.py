"""A study as a task for `joma.scale`: what goes to its process, and what comes back. All of it is plain JSON.

Nothing heavy loads before a result is there: the processes start while this one still loads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.host.errors import BadInput
from joma.host.progress import Progress
from joma.scale.sharing import must_be_shared
from joma.scale.task import Task
from joma.studies import foreign, load, room

if TYPE_CHECKING:
    from joma.claims.contract import Study
    from joma.claims.execute import Result

FUNCTION = f"{__name__}:carry_out"  # what an executor of `joma.scale` is to call


def study_task(
    name: str, scale: str, out: Path, *, fresh: bool = False, mark: str = "", changes: Mapping[str, Any] | None = None
) -> Task:
    """The task of carrying out one study, with what `carry_out` needs to know.

    - name, scale: the study, and its size
    - out: the folder that its files go to
    - fresh: whether it is run again where a run is there
    - changes: options that differ from those of that size
    - mark: a file that `out` must hold where the study is carried out, see `joma.scale.sharing`

    >>> study_task("fig7", "quick", Path("joma-out")).arguments["study"]
    'fig7'
    """
    arguments = {"study": name, "scale": scale, "out": str(out), "fresh": fresh, "mark": mark}
    arguments |= {"changes": dict(changes)} if changes else {}
    # These load a library that takes long to load: one process can carry out all that do.
    shared_load = "transformers" if room(name) == "checkpoints" else ""
    return Task(name, arguments, shared_load, gpus=_gpus(name) if scale == "paper" else 0)


def _gpus(name: str) -> int:
    try:
        return int(str(getattr(load(name).paper, "device", "cpu")).startswith("cuda"))
    except BadInput:
        return 0


def carry_out(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Run, judge and draw; in the other process."""
    from joma.claims.execute import attempt

    if arguments["mark"]:
        must_be_shared(Path(arguments["out"]), arguments["mark"])
    study = load(arguments["study"])
    config = replace(study.preset(arguments["scale"]), **arguments.get("changes", {}))
    result = attempt(study, config, Path(arguments["out"]), alone=False, fresh=arguments["fresh"], progress=progress)
    return answer_of(result)


def answer_of(result: Result) -> dict[str, Any]:
    """A result as plain JSON; `result_of` makes a result of it again."""
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


def result_of(study: Study, answer: Mapping[str, Any]) -> Result:
    """The result that `carry_out` gave, in this process."""
    from joma.claims.execute import Picture, Result
    from joma.claims.finding import Finding

    return Result(
        study=study,
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

    study = loaded(name)
    return replace(broken(study, study.preset(scale), RuntimeError()), error=reason)


def loaded(name: str) -> Study:
    """The study of a name, or its name alone where it cannot be loaded: its process has said why."""
    try:
        return load(name)
    except BadInput:
        return foreign.described(name)
