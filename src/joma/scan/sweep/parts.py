"""A sweep in several shares: each shard measures its own checkpoints, and all are judged together when they are merged.

Whether a checkpoint is what it claims to be shows only beside all others. So a shard measures and records, and the
second half of a sweep comes when the parts are merged. It needs no checkpoint any more: the parts say what it asks for.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from joma.host.errors import BadInput
from joma.host.file_kinds import RUN
from joma.host.files import atomically, make_folder
from joma.host.words import counted
from joma.runs import Run, RunError, merge_runs
from joma.scale.contents import is_damaged
from joma.scale.parts import FILE, Part
from joma.scale.shards import Shard
from joma.scan.errors import Fault
from joma.scan.result.curves import Scan
from joma.scan.sweep.elsewhere import Elsewhere
from joma.scan.sweep.part_content import content_for, label_of, left_by, notes_before
from joma.scan.sweep.plan import Plan
from joma.scan.sweep.record import remember
from joma.scan.sweep.sweeping import found_in, judge_steps, measure_steps

KIND = "scan"
_SHOWN = 12  # checkpoints of a shard that are named


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
