"""Measuring every checkpoint of a series into a run, and reading the curves back."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Collection, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import zip_longest
from threading import Event
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.host.errors import BadInput
from joma.host.words import brief
from joma.runs import Dims, Run
from joma.scan.checkpoint import Checkpoint, Place
from joma.scan.errors import CheckpointError, Fault
from joma.scan.integrity import check_finite, check_matrix, checksum, sketch, suspicions
from joma.scan.measures import Between, ModelMeasure, WeightMeasure
from joma.scan.plan import Plan, fault_of

_Outcome = tuple[str, Fault | None]  # the line of progress, and what is wrong with the step
Report = Callable[[str], None]
VERSION = 1  # of what is recorded; raised when the numbers would differ
_SILENCE = 10.0  # seconds without a line, after which a checkpoint says how far it is


class _Stopped(Exception):
    """The sweep is over, and so is what a thread of it had under way."""


@dataclass(frozen=True)
class Curve:
    """One quantity over the usable steps: values (steps, ...), the tensors of its rows, the names of its columns.

    >>> curve = Curve(("h.0.mlp.c_fc.weight",), ("stable rank",), np.array([[4.0], [3.5]]))
    >>> curve.values[:, 0]
    array([4. , 3.5])
    """

    tensors: tuple[str, ...]
    columns: tuple[str, ...]
    values: np.ndarray

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True)
class Scan:
    """What a sweep of `source` found: curves over the usable steps, and the faults of the steps that were left out.

    >>> found = Scan("out/trainer", [0, 20], [Fault(10, "step10", None, None, "is cut off")], {})
    >>> found.as_json()["left_out"][0]["what"]
    'is cut off'
    """

    source: str
    steps: list[int]
    faults: list[Fault]
    curves: dict[str, Curve]

    def __repr__(self) -> str:
        return brief(self)

    def as_json(self) -> dict[str, Any]:
        """Numbers that JSON has no word for (a head that a layer does not have) become null."""
        curves = {
            name: {"tensors": curve.tensors, "columns": curve.columns, "values": _plain(curve.values)}
            for name, curve in self.curves.items()
        }
        left_out = [fault.as_json() for fault in self.faults]
        return {"source": self.source, "steps": self.steps, "curves": curves, "left_out": left_out}


def sweep(plan: Plan, run: Run, *, jobs: int = 1, report: Report = lambda line: None) -> Scan:
    """Measure the steps of `plan` that `run` does not hold yet, `jobs` of them at a time, and judge them all.

    Each step is recorded whole, when it is measured; what stops the sweep loses only steps that were under way.
    A checkpoint with a fault is reported, left out, and tried again by the next sweep. `report` gets a line for each
    step, beginning with "["; with one job also others, from within a step that takes long.

    >>> import tempfile
    >>> from pathlib import Path
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
    total = len(plan.series.places)
    with closing(_steps(plan, run, jobs, report)) as outcomes:
        for count, (place, (line, fault)) in enumerate(outcomes, 1):
            report(f"[{count}/{total}] step {place.step}  {line}")
            faults += [fault] if fault else []
    faults += _suspected(plan, run, {fault.step for fault in faults})
    left_out = {fault.step for fault in faults}
    steps = [place.step for place in plan.series.places if place.step not in left_out]
    return Scan(plan.series.source, steps, sorted(faults, key=lambda fault: fault.step), _curves(plan, run, steps))


def _steps(plan: Plan, run: Run, jobs: int, report: Report) -> Generator[tuple[Place, _Outcome]]:
    """Every place with what became of it, in order."""
    recorded, stop = _recorded(plan, run), Event()
    if jobs == 1:  # without threads, an interrupt stops at once
        for place in plan.series.places:
            yield place, _step(plan, run, place, recorded[place.step], _between(place, stop, report))
        return

    def step(place: Place) -> _Outcome:
        return _step(plan, run, place, recorded[place.step], _between(place, stop, lambda line: None))

    pool = ThreadPoolExecutor(jobs, thread_name_prefix="joma-scan")
    try:
        futures = [pool.submit(step, place) for place in plan.series.places]
        for place, future in zip(plan.series.places, futures, strict=True):
            yield place, future.result()
    finally:  # after an error or an interrupt nothing new is started, and what is under way ends at its next tensor
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _between(place: Place, stop: Event, report: Report) -> Between:
    """What the work on a checkpoint calls on its way: it ends the work once `stop` is set, and breaks long silence."""
    told = perf_counter()

    def between(doing: str) -> None:
        nonlocal told
        if stop.is_set():
            raise _Stopped
        if perf_counter() - told > _SILENCE:
            report(f"step {place.step}  {doing}")
            told = perf_counter()

    return between


def _step(plan: Plan, run: Run, place: Place, recorded: set[str], between: Between) -> _Outcome:
    """Measure one checkpoint as far as the run lacks it; the line of progress, and the fault if there is one."""
    start = perf_counter()
    try:
        identity = _identity(place)
        if "identity" in recorded and int(run.at("identity", place.step)) != identity:
            # A checkpoint that was replaced cannot be added to what was recorded of it.
            raise CheckpointError("its files have changed since it was measured; measure it again from the start")
        missing = [name for name in plan.wanted() if name not in recorded]
        if not missing:
            return "recorded already", None
        try:
            values = _measured(plan, place, missing, between)
        except CheckpointError:
            raise
        except ValueError as error:  # a measure refuses what was read, numbers that overflow say
            raise CheckpointError(str(error)) from None
        values = values if "identity" in recorded else {**values, "identity": identity}
        run.record(place.step, values, dims=_dims(plan, values))
    except CheckpointError as error:
        fault = fault_of(place, error)
        return f"left out: {fault.what}", fault
    shown = [f"{name} {_range(value)}" for name, value in values.items() if name.partition("/")[0] in plan.measures]
    return f"{perf_counter() - start:.1f} s  {', '.join(shown)}", None


def _measured(plan: Plan, place: Place, missing: Collection[str], between: Between) -> dict[str, Any]:
    values: dict[str, Any] = {}
    kind = place.model_type()
    if None not in (kind, plan.model_type) and kind != plan.model_type:
        raise CheckpointError(f"its architecture is {kind}, the series is {plan.model_type}")
    with place.open() as checkpoint:
        for group in plan.groups:
            mine = [name for name in missing if plan.wanted()[name] == group and name not in plan.tokens]
            if mine:
                values |= _group(plan, checkpoint, group, mine, between)
    for name, measure in plan.measures.items():
        if isinstance(measure, ModelMeasure) and name in missing:
            with place.folder() as folder:
                values[name] = measure.call(folder, plan.tokens[name], plan.device, between)
    return values


def _dims(plan: Plan, names: Iterable[str]) -> dict[str, Dims]:
    """What the dimensions of each recorded name stand for."""
    found: dict[str, Dims] = {"identity": ()}
    for name in names:
        measure, _, group = name.partition("/")
        known = plan.measures.get(measure)
        if isinstance(known, ModelMeasure):
            found[name] = ("layer", "head")
        elif group:
            columns = known.columns if known is not None else ()
            more = {"entry": None} if measure == "sketch" else {"quantity": columns} if len(columns) > 1 else {}
            found[name] = {"tensor": plan.groups[group], **more}
    return {name: found[name] for name in names}


def _group(
    plan: Plan, checkpoint: Checkpoint, group: str, missing: Collection[str], between: Between
) -> dict[str, np.ndarray]:
    """The missing numbers of one group of tensors, read one after the other."""
    rows: dict[str, list[Any]] = {name: [] for name in missing}
    measures = {f"{name}/{group}": measure for name, measure in plan.measures.items()}
    tensors = plan.groups[group]
    for tensor, following in zip_longest(tensors, tensors[1:]):
        between(f"about to read {tensor}")
        w = _read(plan, checkpoint, tensor)
        if following is not None:
            checkpoint.prefetch(following)
        shared: dict[Any, Any] = {}
        for name in missing:
            measure = measures.get(name)
            if isinstance(measure, WeightMeasure):
                if measure.compute not in shared:
                    shared[measure.compute] = measure.compute(w, _generator(tensor, plan.device))
                numbers = measure.pick(shared[measure.compute])
                rows[name].append(numbers[0] if len(numbers) == 1 else numbers)
            elif name.startswith("sketch/"):
                rows[name].append(sketch(w).cpu().numpy())
            elif name.startswith("checksum/"):
                rows[name].append(checksum(w))
        del w, shared  # before the next is read: memory stays near one tensor
    return {name: np.array(row) for name, row in rows.items()}


def _read(plan: Plan, checkpoint: Checkpoint, tensor: str) -> Tensor:
    """One tensor on the device, after checking that it is what the series holds under that name."""
    stored, file = checkpoint.stored(tensor), checkpoint.file_of(tensor)
    if stored.shape != plan.shapes[tensor]:
        raise CheckpointError(
            f"{tensor} has shape {stored.shape}, in the rest of the series it has {plan.shapes[tensor]}",
            file=file,
            tensor=tensor,
        )
    check_matrix(stored, tensor, file)
    w = checkpoint.read(tensor).to(plan.device)
    check_finite(w, tensor, file)
    return w


def _suspected(plan: Plan, run: Run, left_out: Collection[int]) -> list[Fault]:
    """What the fingerprints of the whole series give away."""
    places = {place.step: place for place in plan.series.places if place.step not in left_out}
    steps = list(places)
    sketches: dict[str, np.ndarray] = {}
    checksums: dict[str, np.ndarray] = {}
    for group, names in plan.groups.items() if steps else ():
        sketched = np.stack([run.at(f"sketch/{group}", step) for step in steps])
        summed = np.stack([run.at(f"checksum/{group}", step) for step in steps])
        for at, name in enumerate(names):
            sketches[name], checksums[name] = sketched[:, at], summed[:, at]
    found = suspicions(steps, sketches, checksums)
    weights = {step: places[step].weights() for step, _, _ in found}
    return [Fault(step, places[step].name, weights[step].file_of(tensor), tensor, what) for step, tensor, what in found]


def _curves(plan: Plan, run: Run, steps: list[int]) -> dict[str, Curve]:
    curves: dict[str, Curve] = {}
    for name, group in plan.wanted().items() if steps else ():
        measure = plan.measures.get(name.partition("/")[0])
        if measure is None:
            continue
        columns = measure.columns if isinstance(measure, WeightMeasure) else ()
        tensors = plan.groups[group] if isinstance(measure, WeightMeasure) else ()
        curves[name] = Curve(tensors, columns, np.stack([run.at(name, step) for step in steps]))
    return curves


def _recorded(plan: Plan, run: Run) -> dict[int, set[str]]:
    """What the run holds of each step."""
    found: dict[int, set[str]] = {place.step: set() for place in plan.series.places}
    for name in [*plan.wanted(), "identity"]:
        for step in run.steps(name) if name in run else ():
            found.get(int(step), set()).add(name)
    return found


def _identity(place: Place) -> int:
    """The place's identity as a number that a run can hold."""
    return int.from_bytes(hashlib.sha256(os.fsencode(place.identity())).digest()[:8], "little", signed=True)


def _generator(tensor: str, device: torch.device) -> torch.Generator:
    """A stream of its own for each tensor, so that a number does not depend on what else was measured."""
    return torch.Generator(device).manual_seed(zlib.crc32(tensor.encode()))


def _range(value: Any) -> str:
    numbers = np.asarray(value.cpu() if isinstance(value, Tensor) else value)
    low, high = np.nanmin(numbers), np.nanmax(numbers)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _plain(values: np.ndarray) -> Any:
    if values.ndim == 0:
        return float(values) if np.isfinite(values) else None
    return [_plain(value) for value in values]
