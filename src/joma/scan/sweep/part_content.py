"""What a shard of a scan leaves beside its record, and what merging makes of it.

Judging needs no checkpoint: the plan that was settled, the faults, and which file holds which tensor are enough.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from joma.host.errors import BadInput
from joma.scale.contents import Maybe, content_of, is_damaged, options_of
from joma.scale.parts import Part
from joma.scan.errors import CheckpointError, Fault
from joma.scan.formats.checkpoint import Weights
from joma.scan.sources.series import Place, Series
from joma.scan.sweep.plan import SKETCH, Plan, chosen

_SETTLED: dict[str, Any] = {
    "model_type": str | None, "groups": {str: [str]}, "known": {str: [str]}, "refused": {str: str},
    "coverage": {str: (int, int)}, "notes": [str], "warnings": [str], "seq_len": int | None, "not_taken": [str],
}  # fmt: skip
"""What a part keeps of a plan as it is, with its form."""
_FORM: dict[str, Any] = {
    "run": str,
    "plan": {"source": str, "axis": str, "places": [(int, int | None, str)], "measures": [str], **_SETTLED},
    "faults": [{"step": int, "checkpoint": str, "file": str | None, "tensor": str | None, "what": str,
                "measure": str | None}],
    "notes": {str: [str]},
    "weights": {str: {"files": [str], "index": Maybe({str: str})}},
}  # fmt: skip


def content_for(
    plan: Plan, run: str, places: Sequence[Place], faults: Sequence[Fault], notes: Mapping[str, Any]
) -> dict[str, Any]:
    """What a part leaves.

    - plan: what all shards settled on
    - run: the name of its record
    - places: its own checkpoints
    - faults, notes: what was found wrong with them; by step, how they were read
    """
    return {
        "run": run,
        "plan": _as_json(plan),
        "faults": [fault.as_json() for fault in faults],
        "notes": notes,
        "weights": {str(place.step): weights for place in places if (weights := _weights(plan, place))},
    }


def notes_before(part: Part | None) -> dict[str, list[str]]:
    """By step, how the checkpoints were read that an earlier call measured."""
    return {} if part is None or not part.content else dict(content_of(part, _FORM)["notes"])


@dataclass(frozen=True)
class Left:
    """What all parts of a scan left.

    - plan: what they settled on; its checkpoints cannot be opened any more
    - run: the name of every part's record
    - faults: what was found wrong with checkpoints
    - notes: by step, how they were read
    - keep_suspicious: whether steps stay that the fingerprints speak against
    """

    plan: Plan
    run: str
    faults: list[Fault]
    notes: Mapping[str, Sequence[str]]
    keep_suspicious: bool


def left_by(parts: Sequence[Part]) -> Left:
    """What the parts left; a sentence names the file that is damaged, or the two that do not belong together."""
    contents = [content_of(part, _FORM) for part in parts]
    first = contents[0]
    for part, content in zip(parts, contents, strict=True):
        if content["plan"] != first["plan"] or content["run"] != first["run"]:
            both = f"{parts[0].folder} and {part.folder} settled on different tensors"
            raise BadInput(f"these parts do not belong together: {both}; a checkpoint has changed between them")
    plan = _plan_of(parts[0], {step: found for content in contents for step, found in content["weights"].items()})
    faults = [Fault.from_json(fault) for content in contents for fault in content["faults"]]
    notes = {step: several for content in contents for step, several in content["notes"].items()}
    keep = options_of(parts[0], {"keep_suspicious": bool})["keep_suspicious"]
    return Left(plan, first["run"], faults, notes, keep)


def label_of(series: Series, place: Place) -> str:
    """What a shard calls a checkpoint in its list of work."""
    return f"{series.axis} {place.step} ({place.name})"


@dataclass(frozen=True)
class _Recorded:
    """A checkpoint as a part remembers it: nothing of it can be opened, which judging does not need."""

    step: int
    epoch: int | None
    name: str
    files: Weights

    def weights(self) -> Weights:
        return self.files

    def _gone(self) -> NoReturn:
        raise CheckpointError(f"{self.name} is known from its record alone")

    config = identity = open = folder = _gone


def _weights(plan: Plan, place: Place) -> dict[str, Any] | None:
    """Which files hold the tensors that judging can name."""
    with suppress(CheckpointError):  # a fault of its step says so
        found = place.weights()
        gated = {tensor for row in plan.fingerprints(SKETCH).values() for tensor in row.tensors}
        index = found.index and {tensor: file for tensor, file in found.index.items() if tensor in gated}
        return {"files": list(found.files), "index": index}
    return None


def _as_json(plan: Plan) -> dict[str, Any]:
    series = plan.series
    places = [[place.step, place.epoch, place.name] for place in series.places]
    settled = {name: _plain(getattr(plan, name)) for name in _SETTLED}
    return {"source": series.source, "axis": series.axis, "places": places, "measures": list(plan.measures), **settled}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _plan_of(part: Part, weights: Mapping[str, Any]) -> Plan:
    """The plan that a part settled on. weights: by step, which files hold its tensors."""
    said = part.content["plan"]
    none: dict[str, Any] = {"files": (), "index": None}
    places = tuple(
        _Recorded(step, epoch, name, Weights(tuple((at := weights.get(str(step), none))["files"]), at["index"]))
        for step, epoch, name in said["places"]
    )
    settled: dict[str, Any] = {name: said[name] for name in _SETTLED}
    for name in ("groups", "known", "coverage"):
        settled[name] = {key: tuple(each) for key, each in said[name].items()}
    for name in ("notes", "warnings", "not_taken"):
        settled[name] = tuple(said[name])
    series = Series(said["source"], places, said["axis"])
    if [label_of(series, place) for place in places] != list(part.work):
        is_damaged(part, "its plan has other checkpoints than its work")
    try:
        measures = chosen(said["measures"])
    except BadInput:
        is_damaged(part, "its plan has measures that there are not")
    return Plan(series, measures, shapes={}, device=torch.device("cpu"), tokens=None, **settled)
