"""A sweep in several shares: each shard measures its own checkpoints, and all are judged together when they are merged.

Whether a checkpoint is what it claims to be shows only beside all others. So a shard measures and records, and the
second half of a sweep comes when the parts are merged. It needs no checkpoint any more: the parts say what it asks for.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from joma.host.errors import BadInput
from joma.host.files import atomically
from joma.host.words import counted
from joma.runs import Run, merge_runs
from joma.scale.parts import FILE, Part
from joma.scale.shards import Shard
from joma.scan.errors import CheckpointError, Fault
from joma.scan.formats.checkpoint import Weights
from joma.scan.measures import chosen
from joma.scan.result.curves import Scan
from joma.scan.sources.series import Place, Series
from joma.scan.sweep.elsewhere import Elsewhere
from joma.scan.sweep.plan import Plan
from joma.scan.sweep.record import remember
from joma.scan.sweep.sweeping import found_in, judge_steps, measure_steps

KIND = "scan"
_SHOWN = 12  # checkpoints of a shard that are named


def part_of(plan: Plan, shard: Shard, folder: Path, options: Mapping[str, Any]) -> Part:
    """The share of a shard: its checkpoints are dealt out in turn. options: what all shards must have in common."""
    for name in plan.pair_measures():
        why = f"{name} is of two neighbouring checkpoints, and those lie in different shards"
        raise BadInput(f"{why}; measure it without a shard, in the folder of the merged scan", argument="shard")
    work = [_label(plan.series, place) for place in plan.series.places]
    return Part(folder, KIND, shard, options, work, shard.dealt(work))


def measure_part(
    plan: Plan, run: Run, part: Part, before: Part | None, *, jobs: int, report: Callable[[str], None],
    elsewhere: Elsewhere | None = None,
) -> Scan:  # fmt: skip
    """Measure the checkpoints of a part, and leave what merging needs. Steps are not compared with each other yet.

    before: what an earlier call left in the folder. jobs, report, elsewhere: as of a sweep.
    """
    own = replace(plan, series=replace(plan.series, places=tuple(_own(plan.series, part))))
    faults, now = measure_steps(own, run, jobs=jobs, report=report, elsewhere=elsewhere)
    known = {} if before is None else dict(before.content.get("notes", {}))  # of steps that are recorded already
    notes = {str(step): list(several) or known.get(str(step), []) for step, several in now.items()}
    content = {
        "run": run.path.name,
        "plan": _as_json(plan),
        "faults": [fault.as_json() for fault in faults],
        "notes": notes,
        "weights": {str(place.step): weights for place in own.series.places if (weights := _weights(own, place))},
    }
    part.finish(content)
    return found_in(own, run, faults, [*plan.notes, *(note for several in notes.values() for note in several)])


def merge_scans(parts: Sequence[Part], out: Path, *, fresh: bool = False) -> Scan:
    """One record of all parts, judged as one sweep would have been.

    - parts: all shards of one scan, as `joma.scale.parts.belonging_together` gives them
    - out: the folder whose `runs` gets the record
    - fresh: replace a record that is there
    """
    try:
        plan, name = _plan_of(parts), str(parts[0].content["run"])
        faults = [Fault.from_json(fault) for part in parts for fault in part.content["faults"]]
        notes = {step: several for part in parts for step, several in part.content["notes"].items()}
        keep_suspicious = bool(parts[0].options["keep_suspicious"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{FILE} of a shard cannot be read as that of a scan; give the shards' commands again") from None
    if Path(name).name != name:
        raise BadInput(f"{parts[0].folder / FILE} names a run outside of its folder")
    path = out / "runs" / name
    if path.exists() and not fresh:
        raise BadInput(f"{path} is there already; merge into another folder, or make it anew (fresh)", argument="fresh")
    whose = {label: at for at, part in enumerate(parts) for label in part.mine}
    steps = [(whose[_label(plan.series, place)], place.step) for place in plan.series.places]
    every = [note for place in plan.series.places for note in notes.get(str(place.step), ())]
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        runs = [stack.enter_context(Run.open(part.folder / "runs" / name)) for part in parts]
        unfinished = stack.enter_context(atomically(path))  # a kill on the way leaves nothing that looks like a record
        with merge_runs(unfinished, runs, steps) as run:
            found = judge_steps(plan, run, faults, every, keep_suspicious=keep_suspicious)
            remember(run, found, plan.series.steps)
        Run.delete(path)
    return replace(found, run=path)


def share_in_words(part: Part) -> str:
    """Which checkpoints a shard measures, for whoever starts it."""
    more = f" and {len(part.mine) - _SHOWN:,} more" if len(part.mine) > _SHOWN else ""
    which = f": {', '.join(part.mine[:_SHOWN])}{more}" if part.mine else "; nothing is left for it to do"
    return f"shard {part.shard} has {len(part.mine):,} of {counted(len(part.work), 'checkpoint')}{which}"


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


def _label(series: Series, place: Place) -> str:
    return f"{series.axis} {place.step} ({place.name})"


def _own(series: Series, part: Part) -> list[Place]:
    mine = set(part.mine)
    return [place for place in series.places if _label(series, place) in mine]


def _weights(plan: Plan, place: Place) -> dict[str, Any] | None:
    """Which files hold the tensors that judging can name."""
    with suppress(CheckpointError):  # a fault of its step says so
        found = place.weights()
        gated = {tensor for group in plan.groups for tensor in plan.gated(group)}
        index = found.index and {tensor: file for tensor, file in found.index.items() if tensor in gated}
        return {"files": list(found.files), "index": index}
    return None


_SETTLED = ("model_type", "groups", "known", "refused", "coverage", "notes", "warnings", "seq_len", "not_taken")
"""What a part keeps of a plan as it is."""


def _as_json(plan: Plan) -> dict[str, Any]:
    series = plan.series
    places = [[place.step, place.epoch, place.name] for place in series.places]
    settled = {name: _plain(getattr(plan, name)) for name in _SETTLED}
    return {"source": series.source, "axis": series.axis, "places": places, "measures": list(plan.measures), **settled}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _plan_of(parts: Sequence[Part]) -> Plan:
    """The plan that all shards settled on, with what they know of their checkpoints."""
    first = parts[0].content["plan"]
    for part in parts[1:]:
        if part.content["plan"] != first:
            both = f"{parts[0].folder} and {part.folder} settled on different tensors"
            raise BadInput(f"these parts do not belong together: {both}; a checkpoint has changed between them")
    known = {step: found for part in parts for step, found in part.content["weights"].items()}
    none: dict[str, Any] = {"files": (), "index": None}
    places = tuple(
        _Recorded(step, epoch, name, Weights(tuple((at := known.get(str(step), none))["files"]), at["index"]))
        for step, epoch, name in first["places"]
    )
    settled: dict[str, Any] = {name: first[name] for name in _SETTLED}
    for name in ("groups", "known", "coverage"):
        settled[name] = {key: tuple(each) for key, each in first[name].items()}
    for name in ("notes", "warnings", "not_taken"):
        settled[name] = tuple(first[name])
    series = Series(first["source"], places, first["axis"])
    return Plan(series, chosen(first["measures"]), shapes={}, device=torch.device("cpu"), tokens=None, **settled)
