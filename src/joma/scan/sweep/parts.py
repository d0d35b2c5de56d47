"""A sweep in several shares: each shard measures its own checkpoints, and all are judged together when they are merged.

Whether a checkpoint is what it claims to be shows only beside all others. So a shard measures and records, and the
second half of a sweep comes when the parts are merged. It needs no checkpoint any more: the plan that was settled, the
faults, and which file holds which tensor are enough, and every part leaves these.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from joma.scan.sources.series import Closed, Place, Series
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
    """Measure the checkpoints of a part, and leave what merging needs. Steps are not compared with each other yet."""
    mine = set(part.mine)
    own = tuple(place for place in plan.series.places if label_of(plan.series, place) in mine)
    # Of steps that are recorded already.
    known = {} if before is None or not before.content else content_of(before, _FORM)["notes"]
    share = replace(plan, series=replace(plan.series, places=own))
    faults, now = measure_steps(share, run, jobs=jobs, report=report, elsewhere=elsewhere)
    notes = {str(step): list(several) or known.get(str(step), []) for step, several in now.items()}
    series = plan.series
    places = [(place.step, place.epoch, place.name) for place in series.places]
    settled = {"source": series.source, "axis": series.axis, "places": places, "measures": list(plan.measures)}
    settled |= {name: getattr(plan, name) for name in _SETTLED}
    weights = {str(place.step): found for place in own if (found := _weights(plan, place))}
    left = {"run": run.path.name, "plan": settled, "notes": notes, "weights": weights}
    part.finish({**left, "faults": [fault.as_json() for fault in faults]})
    return found_in(share, run, faults, [*plan.notes, *(note for several in notes.values() for note in several)])


def merge_scans(parts: Sequence[Part], out: Path, *, fresh: bool = False) -> Scan:
    """One record of all parts, judged as one sweep would have been."""
    contents = [content_of(part, _FORM) for part in parts]
    first = contents[0]
    for part, content in zip(parts, contents, strict=True):
        if content["plan"] != first["plan"] or content["run"] != first["run"]:
            both = f"{parts[0].folder} and {part.folder} settled on different tensors"
            raise BadInput(f"these parts do not belong together: {both}; a checkpoint has changed between them")
    plan = _plan_of(parts[0], {step: found for content in contents for step, found in content["weights"].items()})
    faults = [Fault.from_json(fault) for content in contents for fault in content["faults"]]
    by_step = {step: several for content in contents for step, several in content["notes"].items()}
    keep = options_of(parts[0], {"keep_suspicious": bool})["keep_suspicious"]
    name = first["run"]
    if Path(name).name != name:
        is_damaged(parts[0], "it names a run outside of its folder")
    path = out / "runs" / name
    if path.exists() and not fresh:
        raise BadInput(f"{path} is there already; merge into another folder, or make it anew (fresh)", argument="fresh")
    whose = {label: at for at, part in enumerate(parts) for label in part.mine}
    steps = [(whose[label_of(plan.series, place)], place.step) for place in plan.series.places]
    notes = [note for place in plan.series.places for note in by_step.get(str(place.step), ())]
    with ExitStack() as stack:
        runs = [stack.enter_context(Run.open(part.folder / "runs" / name)) for part in parts]
        for at, run in enumerate(runs):
            _must_hold(run, plan, [step for owner, step in steps if owner == at], faults)
        make_folder(path.parent)
        unfinished = stack.enter_context(atomically(path, RUN))  # a kill leaves nothing that looks like a record
        with merge_runs(unfinished, runs, steps) as run:
            found = judge_steps(plan, run, faults, notes, keep_suspicious=keep)
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


def label_of(series: Series, place: Place) -> str:
    """What a shard calls a checkpoint in its list of work."""
    return f"{series.axis} {place.step} ({place.name})"


def _weights(plan: Plan, place: Place) -> dict[str, Any] | None:
    with suppress(CheckpointError):  # a fault of its step says so
        found = place.weights()
        gated = {tensor for row in plan.fingerprints(SKETCH).values() for tensor in row.tensors}
        index = found.index and {tensor: file for tensor, file in found.index.items() if tensor in gated}
        return {"files": list(found.files), "index": index}
    return None


def _plan_of(part: Part, weights: Mapping[str, Any]) -> Plan:
    """The plan that a part settled on; its checkpoints cannot be opened. weights: by step, which files hold them."""
    kept = part.content["plan"]
    files = {step: Weights(tuple(found["files"]), found["index"]) for step, found in weights.items()}
    none = Weights(())
    why = "is known from its record alone"
    places = tuple(Closed(step, epoch, name, why, files.get(str(step), none)) for step, epoch, name in kept["places"])
    series = Series(kept["source"], places, kept["axis"])
    if [label_of(series, place) for place in places] != list(part.work):
        is_damaged(part, "its plan has other checkpoints than its work")
    try:
        measures = chosen(kept["measures"])
    except BadInput:
        is_damaged(part, "its plan has measures that there are not")
    settled: dict[str, Any] = {name: _as_tuples(kept[name]) for name in _SETTLED}
    return Plan(series, measures, shapes={}, device=torch.device("cpu"), tokens=None, **settled)


def _as_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_tuples(each) for key, each in value.items()}
    return tuple(value) if isinstance(value, list) else value
