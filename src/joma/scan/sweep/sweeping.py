"""Measuring every checkpoint of a series into a run, and reading the curves back."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from itertools import product
from math import prod
from threading import Event
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from joma.host.errors import BadInput
from joma.host.threads import cores, limited
from joma.runs import Run
from joma.scan.errors import Fault
from joma.scan.model.running import Between
from joma.scan.result.curves import Scan, mean_of
from joma.scan.sources.series import EPOCH, STEP, Place, some
from joma.scan.sweep.elsewhere import Elsewhere
from joma.scan.sweep.integrity import Prints, equal_steps, not_yet_trained, suspicions
from joma.scan.sweep.pairs import Chain, TimeLeft, pair_curves
from joma.scan.sweep.plan import CHECKSUM, SKETCH, Plan
from joma.scan.sweep.reading import Step, take_step
from joma.scan.sweep.record import read_curve

Report = Callable[[str], None]
VERSION = 5  # of what is recorded; raised when the numbers, or what a checkpoint is known again by, would differ
_SILENCE = 10.0  # seconds without a line, after which a checkpoint says how far it is
_TINY = 1 << 18  # numbers: where no matrix has more, a second thread only costs time
_LANES = 8  # large matrices at a time, at most, where a measure gains by that
_SHOWN = 4  # groups in a line of progress


class _Stopped(Exception):
    """The sweep is over, and so is what a thread of it had under way."""


class _Outcome(NamedTuple):
    """What became of one checkpoint: the line of progress, what is wrong, how it was read, whether it took any work."""

    line: str
    faults: Sequence[Fault] = ()
    notes: tuple[str, ...] = ()
    worked: bool = True


def sweep(
    plan: Plan, run: Run, *, jobs: int = 1, keep_suspicious: bool = False, report: Report = lambda line: None,
    elsewhere: Elsewhere | None = None,
) -> Scan:  # fmt: skip
    """Measure the steps of `plan` that `run` does not hold yet, `jobs` of them at a time, and judge them all.

    Each step is recorded in one piece, when it is measured; what stops the sweep loses only steps that were under way.
    Measures of two neighbouring checkpoints come last, one pair after the other, whatever `jobs` is.
    A checkpoint with a fault is reported, left out, and tried again by the next sweep. A measure that cannot be taken
    of a checkpoint is left out alone: the others stay. keep_suspicious: steps that the fingerprints speak against
    stay in the curves, and are noted. `report` gets a line for each step, beginning with "["; with one job also
    others, from within a step that takes long. elsewhere: measures the steps in other processes; `jobs` is then not
    used.

    >>> import tempfile, torch
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
        raise BadInput(f"jobs must be at least 1, got {jobs}", argument="jobs")
    faults, notes = measure_steps(plan, run, jobs=jobs, report=report, elsewhere=elsewhere)
    every = [note for several in notes.values() for note in several]
    return judge_steps(plan, run, faults, every, keep_suspicious=keep_suspicious, report=report)


def measure_steps(
    plan: Plan, run: Run, *, jobs: int = 1, report: Report = lambda line: None, elsewhere: Elsewhere | None = None
) -> tuple[list[Fault], dict[int, tuple[str, ...]]]:
    """The first half of `sweep`: measure and record. Returns what is wrong, and by step how it was read."""
    faults: list[Fault] = []
    notes: dict[int, tuple[str, ...]] = {}
    left = TimeLeft(len(plan.series.places))
    # Tiny matrices are measured by one thread: others would wait for it, and for each other.
    tiny = plan.tokens is None and all(prod(shape) <= _TINY for shape in plan.shapes.values())
    with limited(1) if tiny else nullcontext(), closing(_steps(plan, run, jobs, report, elsewhere)) as outcomes:
        for place, outcome in outcomes:
            moment = f"[{left.done + 1}/{left.total}] {plan.series.axis} {place.step}"
            report(f"{moment}  {outcome.line}{left.after(outcome.worked)}")
            faults += outcome.faults
            notes[place.step] = outcome.notes
    return faults, notes


def judge_steps(
    plan: Plan, run: Run, faults: Iterable[Fault], notes: Iterable[str], *, keep_suspicious: bool = False,
    report: Report = lambda line: None,
) -> Scan:  # fmt: skip
    """The second half of `sweep`: compare the steps with each other, measure pairs of them, and read the curves."""
    faults, notes = list(faults), [*plan.notes, *notes]
    compared = _prints(plan, run, [place.step for place in _usable(plan, faults)])
    equal = equal_steps(compared)
    notes += [*_untrained(plan, compared), *_equal(plan, equal)]
    suspected = _suspected(plan, compared, equal)
    notes += [f"kept although suspicious: {fault}" for fault in suspected if keep_suspicious]
    faults += [] if keep_suspicious else suspected
    usable = _usable(plan, faults)
    pairs = plan.pairs if usable else ()
    chains = [Chain(plan, run, name, _between(name, Event(), report)).sweep(usable, report) for name in pairs]
    faults += [fault for chain in chains for fault in chain.faults]
    notes += [note for chain in chains for note in chain.notes]
    faults.sort(key=lambda fault: fault.step)
    return found_in(plan, run, faults, notes, chains)


def _usable(plan: Plan, faults: Iterable[Fault]) -> list[Place]:
    left_out = {fault.step for fault in faults if fault.measure is None}
    return [place for place in plan.series.places if place.step not in left_out]


def _steps(
    plan: Plan, run: Run, jobs: int, report: Report, elsewhere: Elsewhere | None
) -> Generator[tuple[Place, _Outcome]]:
    recorded, stop = recorded_of(plan, run), Event()
    if elsewhere is not None:
        yield from _elsewhere(plan, run, elsewhere, recorded, report)
        return
    if jobs == 1:  # without threads, an interrupt stops at once
        lanes = min(cores(), _LANES) if plan.device.type == "cpu" else 1
        for place in plan.series.places:
            between = _between(f"step {place.step}", stop, report)
            yield place, _kept(plan, run, place, take_step(plan, place, recorded[place.step], between, lanes=lanes))
        return

    def step(place: Place) -> _Outcome:
        between = _between("", stop, lambda line: None)
        return _kept(plan, run, place, take_step(plan, place, recorded[place.step], between))

    pool = ThreadPoolExecutor(jobs, thread_name_prefix="joma-scan")
    try:
        futures = [pool.submit(step, place) for place in plan.series.places]
        for place, future in zip(plan.series.places, futures, strict=True):
            yield place, future.result()
    finally:  # after an error or an interrupt nothing new is started, and what is under way ends at its next tensor
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _elsewhere(
    plan: Plan, run: Run, elsewhere: Elsewhere, recorded: dict[int, dict[str, Any]], report: Report
) -> Generator[tuple[Place, _Outcome]]:
    """Steps that other processes measure.

    Each is recorded when it comes, so that nothing is lost where this process ends early. It is told in the order of
    the series, so that the lines are always the same.
    """
    told = _between("elsewhere", Event(), report)
    wanted, names = {row.curve for row in plan.rows}, [place.step for place in plan.series.places]
    missing = [place for place in plan.series.places if not wanted <= recorded[place.step].keys()]
    outcomes = {
        place.step: _kept(plan, run, place, take_step(plan, place, recorded[place.step], told))
        for place in plan.series.places
        if place not in missing
    }
    places, at = {place.step: place for place in missing}, 0
    events = elsewhere.events(plan, {place.step: recorded[place.step] for place in missing})
    with closing(events):
        for step, news in events:
            if isinstance(news, str):
                told(f"{len(outcomes)} of {len(names)} measured; {plan.series.axis} {step}: {news}")
                continue
            outcomes[step] = _kept(plan, run, places[step], news)
            while at < len(names) and names[at] in outcomes:
                yield plan.series.places[at], outcomes[names[at]]
                at += 1
    yield from ((place, outcomes[place.step]) for place in plan.series.places[at:])


def _between(moment: str, stop: Event, report: Report) -> Between:
    """What the work on a checkpoint calls on its way: it ends the work once `stop` is set, and breaks long silence."""
    last = perf_counter()

    def between(doing: str) -> None:
        nonlocal last
        if stop.is_set():
            raise _Stopped
        if perf_counter() - last > _SILENCE:
            report(f"{moment}  {doing}")
            last = perf_counter()

    return between


def _kept(plan: Plan, run: Run, place: Place, found: Step) -> _Outcome:
    if found.left_out is not None:
        return _Outcome(f"left out: {found.left_out}", found.faults)
    if not found.worked:
        return _Outcome("recorded already", worked=False)
    if found.values:
        run.record(
            place.step, found.values, dims={row.curve: row.dims for row in plan.rows if row.curve in found.values}
        )
    return _Outcome(_line(plan, found.values, found.faults), found.faults, found.notes)


def _line(plan: Plan, values: Mapping[str, Any], faults: Sequence[Fault]) -> str:
    """What a step measured: the mean over layers of each curve, and which curves it lacks."""
    means: dict[str, list[str]] = {}
    for name, value in ((row.curve, values[row.curve]) for row in plan.curves if row.curve in values):
        measure, _, group = name.partition("/")
        heads = isinstance(value, Tensor)  # of several quantities the first; of heads all
        numbers = np.asarray(value.cpu() if heads else value, dtype=float)
        numbers = numbers if heads or numbers.ndim < 2 else numbers[:, 0]
        means.setdefault(measure, []).append(f"{group} {mean_of(numbers.reshape(1, -1), axis=1)[0]:.4g}".strip())
    many = {name.partition("/")[0] for name, value in values.items() if len(np.atleast_1d(value)) > 1}
    words = []
    for measure, several in means.items():
        more = f", {len(several) - _SHOWN} more" if len(several) > _SHOWN else ""
        over = ", mean over layers" if measure in many else ""
        words.append(f"{measure}{over}: {', '.join(several[:_SHOWN])}{more}")
    words += [f"left out: {name}" for name in dict.fromkeys(fault.measure for fault in faults if fault.measure)]
    return "; ".join(words) or "nothing new"


def found_in(plan: Plan, run: Run, faults: list[Fault], notes: Iterable[str], chains: Sequence[Chain] = ()) -> Scan:
    """The curves over the steps that have at least one of them."""
    usable = [place.step for place in _usable(plan, faults)]
    names = [row.curve for row in plan.curves]
    there = {name: set(run.steps(name).tolist()) if name in run else set() for name in names}
    paired = {step for chain in chains for pair in chain.pairs for step in pair}
    steps = [step for step in usable if step in paired or any(step in read for read in there.values())]
    curves = {name: read_curve(run, name, steps, read) for name, read in there.items() if read & set(steps)}
    for chain in chains:
        curves |= pair_curves(run, chain.curves, chain.pairs, steps)
    known = {place.step: place.epoch for place in plan.series.places if place.epoch is not None}
    return Scan(
        plan.series.source, steps, faults, curves, known, plan.refused, tuple(dict.fromkeys(notes)), plan.coverage,
        plan.model_type, plan.warnings, plan.seq_len, len(plan.series.places), not_taken=plan.not_taken,
        counted_in=None if plan.series.axis in (STEP, EPOCH) else plan.series.axis,
    )  # fmt: skip


def recorded_of(plan: Plan, run: Run) -> dict[int, dict[str, Any]]:
    """What the run holds of each step: names, of the identity and of checksums with their values."""
    found: dict[int, dict[str, Any]] = {place.step: {} for place in plan.series.places}
    sums = {row.curve for row in plan.fingerprints(CHECKSUM).values()}
    for name in (row.curve for row in plan.rows if row.curve in run):
        values = run.array(name).tolist() if name in sums else None
        for at, step in enumerate(run.steps(name).tolist()):
            found.get(step, {})[name] = values[at] if values else 1
    for step in run.steps("identity").tolist() if "identity" in run else ():
        if step in found:
            found[step]["identity"] = run.at("identity", step).tobytes().decode()
    return found


def _prints(plan: Plan, run: Run, used: Sequence[int]) -> list[Prints]:
    """All fingerprints of the steps that are used. A group that lacks a step is judged by the steps that it has."""
    prints = [plan.fingerprints(kind) for kind in (SKETCH, CHECKSUM)]
    alike: dict[tuple[int, ...], list[str]] = {}
    for group, row in prints[0].items():
        if row.curve in run:
            read = set(run.steps(row.curve).tolist())
            alike.setdefault(tuple(step for step in used if step in read), []).append(group)
    found: list[Prints] = []
    for steps, groups in alike.items():
        taken: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] = ({}, {})
        for group, (into, rows) in product(groups, zip(taken, prints, strict=True)):
            curve, tensors = rows[group].curve, rows[group].tensors
            place = {step: at for at, step in enumerate(run.steps(curve).tolist())}
            values = run.array(curve)[[place[step] for step in steps]]
            into.update({name: values[:, at] for at, name in enumerate(tensors)})
        found += [(list(steps), *taken)] if steps else []
    return found


def _suspected(plan: Plan, compared: Sequence[Prints], equal: Mapping[int, int]) -> list[Fault]:
    places = {place.step: place for place in plan.series.places}
    found = [one for each in compared for one in suspicions(each, equal)]
    weights = {step: places[step].weights() for step, _, _ in found}
    return [Fault(step, places[step].name, weights[step].file_of(tensor), tensor, what) for step, tensor, what in found]


def _equal(plan: Plan, equal: Mapping[int, int]) -> list[str]:
    alike: dict[int, list[str]] = {}
    for place in plan.series.places:
        alike.setdefault(equal.get(place.step, place.step), []).append(f"{place.step} ({place.name})")
    what = f"equal weights, in all that was read: {plan.series.axis}s"
    return [f"{what} {some(names)}" for names in alike.values() if len(names) > 1]


def _untrained(plan: Plan, compared: Sequence[Prints]) -> list[str]:
    until: dict[int, list[str]] = {}
    for each in compared:
        for name, step in not_yet_trained(each).items():
            until.setdefault(step, []).append(name)
    notes = []
    for step, names in sorted(until.items()):
        more = f" and {len(names) - 1} more tensors" if len(names) > 1 else ""
        notes.append(f"not yet trained: {names[0]}{more} stay as they began up to {plan.series.axis} {step}")
    return notes
