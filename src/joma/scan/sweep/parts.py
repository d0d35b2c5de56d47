"""A sweep in several shares: each shard measures its own checkpoints, and all are judged together when they are merged.

Whether a checkpoint is what it claims to be shows only beside all others. So a shard measures and records, and the
second half of a sweep comes when the parts are merged. It needs no checkpoint any more: the plan that was settled, the
faults, and which file holds which tensor are enough, and every part leaves these.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from joma.host.errors import BadInput
from joma.host.file_kinds import RUN
from joma.host.files import atomically, make_folder
from joma.host.words import counted
from joma.runs import Run, RunError, merge_runs
from joma.scale.contents import Maybe, content_of, is_damaged, options_of
from joma.scale.parts import FILE, Part
from joma.scale.shards import Shard
from joma.scan.errors import CheckpointError, Fault
from joma.scan.formats.checkpoint import Weights
from joma.scan.result.curves import Scan
from joma.scan.sources.series import Place, Series
from joma.scan.sweep.elsewhere import Elsewhere
from joma.scan.sweep.plan import SKETCH, Plan, chosen
from joma.scan.sweep.record import remember
from joma.scan.sweep.sweeping import found_in, judge_steps, measure_steps

KIND = "scan"
_SHOWN = 12  # checkpoints of a shard that are named

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


def part_of(plan: Plan, shard: Shard, folder: Path, options: Mapping[str, Any]) -> Part:
    """The share of a shard: its checkpoints are dealt out in turn. options: what all shards must have in common."""
    for name in plan.pairs:
        why = f"{name} is of two neighbouring checkpoints, and those lie in different shards"
        raise BadInput(f"{why}; measure it without a shard, in the folder of the merged scan", argument="shard")
    work = [label_of(plan.series, place) for place in plan.series.places]
    return Part(folder, KIND, shard, options, work, shard.dealt(work))


def measure_part(
    plan: Plan, run: Run, part: Part, before: Part | None, *, jobs: int, report: Callable[[str], None],
    elsewhere: Elsewhere | None = None,
) -> Scan:  # fmt: skip
    """Measure the checkpoints of a part, and leave what merging needs. Steps are not compared with each other yet.

    before: what an earlier call left in the folder. jobs, report, elsewhere: as of a sweep.
    """
    mine = set(part.mine)
    own = tuple(place for place in plan.series.places if label_of(plan.series, place) in mine)
    known = notes_before(before)  # of steps that are recorded already
    share = replace(plan, series=replace(plan.series, places=own))
    faults, now = measure_steps(share, run, jobs=jobs, report=report, elsewhere=elsewhere)
    notes = {str(step): list(several) or known.get(str(step), []) for step, several in now.items()}
    part.finish(content_for(plan, run.path.name, own, faults, notes))
    return found_in(share, run, faults, [*plan.notes, *(note for several in notes.values() for note in several)])


def merge_scans(parts: Sequence[Part], out: Path, *, fresh: bool = False) -> Scan:
    """One record of all parts, judged as one sweep would have been.

    - parts: all shards of one scan, as `joma.scale.parts.belonging_together` gives them
    - out: the folder whose `runs` gets the record
    - fresh: replace a record that is there
    """
    left = left_by(parts)
    plan = left.plan
    if Path(left.run).name != left.run:
        is_damaged(parts[0], "it names a run outside of its folder")
    path = out / "runs" / left.run
    if path.exists() and not fresh:
        raise BadInput(f"{path} is there already; merge into another folder, or make it anew (fresh)", argument="fresh")
    whose = {label: at for at, part in enumerate(parts) for label in part.mine}
    steps = [(whose[label_of(plan.series, place)], place.step) for place in plan.series.places]
    notes = [note for place in plan.series.places for note in left.notes.get(str(place.step), ())]
    with ExitStack() as stack:
        runs = [stack.enter_context(Run.open(part.folder / "runs" / left.run)) for part in parts]
        for at, run in enumerate(runs):
            _must_hold(run, plan, [step for owner, step in steps if owner == at], left.faults)
        make_folder(path.parent)
        unfinished = stack.enter_context(atomically(path, RUN))  # a kill leaves nothing that looks like a record
        with merge_runs(unfinished, runs, steps) as run:
            found = judge_steps(plan, run, left.faults, notes, keep_suspicious=left.keep_suspicious)
            remember(run, found, plan.series.steps)
        Run.delete(path)
    return replace(found, run=path)


def _must_hold(run: Run, plan: Plan, steps: Sequence[int], faults: Sequence[Fault]) -> None:
    """Refuse a record that is of another scan, or that lacks what its shard measured: curves would get holes."""
    if run.study != KIND or run.config != plan.config():
        raise RunError(f"{run.path} is of another scan than {FILE} of its shard; measure this shard anew (fresh)")
    there = {name: set(run.steps(name).tolist()) for name in run.names()}
    wanted = [*(row.curve for row in plan.rows), "identity"]
    for step in steps:
        lacking = {name for name in wanted if step not in there.get(name, ())}
        why = {fault.measure for fault in faults if fault.step == step}
        if unexplained := sorted(lacking - _explained(lacking, why, plan)):
            what = f"is damaged: it lacks {unexplained[0]} of {plan.series.axis} {step}"
            raise RunError(f"{run.path} {what}; measure this shard anew (fresh)")


def _explained(lacking: set[str], why: set[str | None], plan: Plan) -> set[str]:
    """Those of the names that a step may lack. why: the measures that faults of the step speak of; None: all."""
    if None in why:
        return lacking
    found = {name for name in lacking if name in why or name.partition("/")[0] in why}
    for group in plan.groups:
        mine = {row.curve for row in plan.rows if row.group == group}
        measured = {row.curve for row in plan.curves if row.group == group}
        prints = mine - measured
        if prints <= lacking and (not measured or measured & why):  # what cannot be measured leaves no fingerprint
            found |= prints
    return found | {"identity"} if lacking >= {row.curve for row in plan.rows} else found


def share_in_words(part: Part) -> str:
    """Which checkpoints a shard measures, for whoever starts it."""
    more = f" and {len(part.mine) - _SHOWN:,} more" if len(part.mine) > _SHOWN else ""
    which = f": {', '.join(part.mine[:_SHOWN])}{more}" if part.mine else "; nothing is left for it to do"
    return f"shard {part.shard} has {len(part.mine):,} of {counted(len(part.work), 'checkpoint')}{which}"


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
