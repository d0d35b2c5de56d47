"""Measuring every checkpoint of a series into a run, and reading the curves back."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from math import prod
from threading import Event
from time import perf_counter
from typing import Any

import numpy as np
from torch import Tensor

from joma.host.errors import BadInput
from joma.host.threads import cores, limited
from joma.measure.registry import WeightMeasure
from joma.runs import Dims, Run
from joma.scan.checkpoint import Place
from joma.scan.curves import Curve, Scan, mean_of
from joma.scan.errors import CheckpointError, Fault
from joma.scan.gate import at_steps, prints, suspected, untrained
from joma.scan.looks import fault_of
from joma.scan.names.rows import layers, rows_of
from joma.scan.pairs import Chain, pair_curves, sweep_pairs
from joma.scan.plan import Plan
from joma.scan.reading import measured
from joma.scan.running import Between
from joma.scan.time_left import TimeLeft

Report = Callable[[str], None]
VERSION = 2  # of what is recorded; raised when the numbers would differ
_SILENCE = 10.0  # seconds without a line, after which a checkpoint says how far it is
_TINY = 1 << 18  # numbers: where no matrix has more, a second thread only costs time
_LANES = 8  # large matrices at a time, at most, where a measure gains by that
_SHOWN = 4  # groups in a line of progress


class _Stopped(Exception):
    """The sweep is over, and so is what a thread of it had under way."""


@dataclass(frozen=True)
class _Outcome:
    """What became of one checkpoint: the line of progress, what is wrong, how it was read, whether it took any work."""

    line: str
    faults: list[Fault] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    worked: bool = True


def sweep(
    plan: Plan,
    run: Run,
    *,
    jobs: int = 1,
    keep_suspicious: bool = False,
    report: Report = lambda line: None,
) -> Scan:
    """Measure the steps of `plan` that `run` does not hold yet, `jobs` of them at a time, and judge them all.

    Each step is recorded whole, when it is measured; what stops the sweep loses only steps that were under way.
    Measures of two neighbouring checkpoints come last, one pair after the other, whatever `jobs` is.
    A checkpoint with a fault is reported, left out, and tried again by the next sweep. A measure that cannot be taken
    of a checkpoint is left out alone: the others stay. keep_suspicious: steps that the fingerprints speak against
    stay in the curves, and are noted. `report` gets a line for each step, beginning with "["; with one job also
    others, from within a step that takes long.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import torch
    >>> from safetensors.torch import save_file
    >>> from joma.scan import open_series, plan
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (0, 10):
    ...         save_file({"h.0.mlp.c_fc.weight": torch.eye(4) + step}, f"{folder}/step{step}.safetensors")
    ...     settled = plan(open_series(folder, downloads=Path(folder)))
    ...     with Run.create(f"{folder}/scan.sqlite", study="scan", config=settled.config()) as run:
    ...         found = sweep(settled, run)
    >>> found.steps, found.curves["stable_rank/mlp"].values.round(3).tolist()
    ([0, 10], [[4.0], [1.002]])
    """
    if jobs < 1:
        raise BadInput(f"jobs must be at least 1, got {jobs}")
    faults: list[Fault] = []
    notes = list(plan.notes)
    left = TimeLeft(len(plan.series.places))
    with _threads(plan), closing(_steps(plan, run, jobs, report)) as outcomes:
        for place, outcome in outcomes:
            moment = f"[{left.done + 1}/{left.total}] {plan.series.axis} {place.step}"
            report(f"{moment}  {outcome.line}{left.after(outcome.worked)}")
            faults += outcome.faults
            notes += outcome.notes
    compared = prints(plan, run, {fault.step for fault in faults if fault.measure is None})
    notes += untrained(plan, compared)
    if keep_suspicious:
        notes += [f"kept although suspicious: {fault}" for fault in suspected(plan, compared)]
    else:
        faults += suspected(plan, compared)
    left_out = {fault.step for fault in faults if fault.measure is None}
    usable = [place for place in plan.series.places if place.step not in left_out]
    chains = [
        sweep_pairs(plan, run, name, usable, report, _between(name, Event(), report))
        for name in (plan.pair_measures() if usable else ())
    ]
    faults += [fault for chain in chains for fault in chain.faults]
    notes += [note for chain in chains for note in chain.notes]
    faults.sort(key=lambda fault: fault.step)
    return _found(plan, run, faults, tuple(dict.fromkeys(notes)), chains)


def _threads(plan: Plan) -> AbstractContextManager[None]:
    """Tiny matrices are measured by one thread: others would wait for it, and for each other."""
    tiny = plan.tokens is None and all(prod(shape) <= _TINY for shape in plan.shapes.values())
    return limited(1) if tiny else nullcontext()


def _steps(plan: Plan, run: Run, jobs: int, report: Report) -> Generator[tuple[Place, _Outcome]]:
    """Every place with what became of it, in order."""
    recorded, stop = _recorded(plan, run), Event()
    if jobs == 1:  # without threads, an interrupt stops at once
        lanes = min(cores(), _LANES) if plan.device.type == "cpu" else 1
        for place in plan.series.places:
            yield (
                place,
                _step(plan, run, place, recorded[place.step], _between(f"step {place.step}", stop, report), lanes),
            )
        return

    def step(place: Place) -> _Outcome:
        return _step(plan, run, place, recorded[place.step], _between("", stop, lambda line: None))

    pool = ThreadPoolExecutor(jobs, thread_name_prefix="joma-scan")
    try:
        futures = [pool.submit(step, place) for place in plan.series.places]
        for place, future in zip(plan.series.places, futures, strict=True):
            yield place, future.result()
    finally:  # after an error or an interrupt nothing new is started, and what is under way ends at its next tensor
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _between(moment: str, stop: Event, report: Report) -> Between:
    """What the work on a checkpoint calls on its way: it ends the work once `stop` is set, and breaks long silence."""
    told = perf_counter()

    def between(doing: str) -> None:
        nonlocal told
        if stop.is_set():
            raise _Stopped
        if perf_counter() - told > _SILENCE:
            report(f"{moment}  {doing}")
            told = perf_counter()

    return between


def _step(plan: Plan, run: Run, place: Place, recorded: dict[str, int], between: Between, lanes: int = 1) -> _Outcome:
    """Measure one checkpoint as far as the run lacks it."""
    try:
        identity = _identity(place)
        if recorded.get("identity", identity) != identity:
            # A checkpoint that was replaced cannot be added to what was recorded of it.
            raise CheckpointError("its files have changed since it was measured; measure it again from the start")
        missing = [name for name in plan.wanted() if name not in recorded]
        if not missing:
            return _Outcome("recorded already", worked=False)
        values, faults, notes = measured(plan, place, missing, between, lanes=lanes)
    except CheckpointError as error:
        return _Outcome(f"left out: {error}", [fault_of(place, error)])
    if values:
        told = values if "identity" in recorded else {**values, "identity": identity}
        run.record(place.step, told, dims=_dims(plan, told))
    return _Outcome(_line(plan, values, faults), faults, notes)


def _line(plan: Plan, values: dict[str, Any], faults: list[Fault]) -> str:
    """What a step measured: the mean over layers of each curve, and which curves it lacks."""
    means: dict[str, list[str]] = {}
    for name in plan.curve_names():
        if name in values:
            measure, _, group = name.partition("/")
            means.setdefault(measure, []).append(f"{group} {_mean(values[name]):.4g}".strip())
    many = {name.partition("/")[0] for name, value in values.items() if len(np.atleast_1d(value)) > 1}
    said = [
        f"{measure}{', mean over layers' if measure in many else ''}: {_few(several)}"
        for measure, several in means.items()
    ]
    said += [f"left out: {name}" for name in dict.fromkeys(fault.measure for fault in faults if fault.measure)]
    return "; ".join(said) or "nothing new"


def _few(several: list[str]) -> str:
    more = f", {len(several) - _SHOWN} more" if len(several) > _SHOWN else ""
    return ", ".join(several[:_SHOWN]) + more


def _mean(value: Any) -> float:
    """Over layers and heads; of several quantities the first."""
    numbers = np.asarray(value.cpu() if isinstance(value, Tensor) else value, dtype=float)
    by_layer = numbers[:, 0] if numbers.ndim == 2 and not isinstance(value, Tensor) else numbers
    return float(mean_of(by_layer.reshape(1, -1), axis=1)[0])


def _dims(plan: Plan, names: Iterable[str]) -> dict[str, Dims]:
    """What the dimensions of each recorded name stand for."""
    found: dict[str, Dims] = {"identity": (), **dict.fromkeys(plan.model_names(), ("layer", "head"))}
    for group, tensors in plan.groups.items():
        for name, measure in plan.weight_names(group).items():
            found[name] = {"tensor": tensors, **({"quantity": measure.columns} if len(measure.columns) > 1 else {})}
        found[f"sketch/{group}"] = {"tensor": plan.gated(group), "entry": None}
        found[f"checksum/{group}"] = {"tensor": plan.gated(group)}
    return {name: found[name] for name in names}


def _found(plan: Plan, run: Run, faults: list[Fault], notes: tuple[str, ...], chains: Sequence[Chain]) -> Scan:
    """The curves over the steps that have at least one of them."""
    left_out = {fault.step for fault in faults if fault.measure is None}
    usable = [place.step for place in plan.series.places if place.step not in left_out]
    there = {name: set(run.steps(name).tolist()) if name in run else set() for name in plan.curve_names()}
    paired = {step for chain in chains for pair in chain.pairs for step in pair}
    steps = [step for step in usable if step in paired or any(step in read for read in there.values())]
    curves = {name: _curve(plan, run, name, steps, read) for name, read in there.items() if read & set(steps)}
    for chain in chains:
        curves |= pair_curves(run, chain.curves, chain.pairs, steps)
    epochs = {place.step: place.epoch for place in plan.series.places}
    known = {step: epoch for step, epoch in epochs.items() if epoch is not None}
    return Scan(
        plan.series.source, steps, faults, curves, known, plan.refused, notes, plan.coverage, plan.model_type,
        plan.warnings, plan.seq_len,
    )  # fmt: skip


def _curve(plan: Plan, run: Run, name: str, steps: list[int], there: set[int]) -> Curve:
    have = [step for step in steps if step in there]
    read = at_steps(run, name, have)
    values = np.full((len(steps), *read.shape[1:]), np.nan)
    values[[steps.index(step) for step in have] if len(have) < len(steps) else slice(None)] = read
    measure, _, group = name.partition("/")
    known = plan.measures[measure]
    if isinstance(known, WeightMeasure):
        return Curve(measure, group, rows_of(plan.groups[group]), known.columns, values)
    heads = tuple(str(head) for head in range(values.shape[2]))
    return Curve(measure, group or None, layers(values.shape[1]), heads, values, heads=True)


def _recorded(plan: Plan, run: Run) -> dict[int, dict[str, int]]:
    """What the run holds of each step: names, of the identity with its value."""
    found: dict[int, dict[str, int]] = {place.step: {} for place in plan.series.places}
    for name in plan.wanted():
        for step in run.steps(name).tolist() if name in run else ():
            found.get(step, {})[name] = 1
    if "identity" in run:
        for step, identity in zip(run.steps("identity").tolist(), run.array("identity").tolist(), strict=True):
            found.get(step, {})["identity"] = identity
    return found


def _identity(place: Place) -> int:
    """The place's identity as a number that a run can hold."""
    return int.from_bytes(hashlib.sha256(os.fsencode(place.identity())).digest()[:8], "little", signed=True)
