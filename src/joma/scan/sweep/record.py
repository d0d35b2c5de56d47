"""A scan as its run keeps it: the curves, and what was left out of them and why."""

import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from joma.runs import Run, RunError
from joma.scan.errors import Fault
from joma.scan.names.architecture import layers, rows_of
from joma.scan.result.curves import Curve, Scan
from joma.scan.sweep.pairs import finest, is_pair, pair_curves

ABOUT = "about"
"""The series that tells what was left out, as bytes of JSON: one entry per sweep that changed it; the last counts."""
NO_CURVES = ("sketch", "checksum", "identity", ABOUT)
"""Series that measure nothing."""


def remember(run: Run, found: Scan, looked_at: Sequence[int]) -> None:
    """Keep what a sweep left out, with its curves. looked_at: its steps; of others what was known stays."""
    before = _about(run)
    faults = [fault for fault in before.get("faults", []) if fault["step"] not in set(looked_at)]
    about: dict[str, Any] = {
        "faults": sorted([*faults, *(fault.as_json() for fault in found.faults)], key=lambda fault: fault["step"]),
        "refused": {**before.get("refused", {}), **found.refused},
        "notes": list(dict.fromkeys([*before.get("notes", []), *found.notes])),
        "coverage": {**before.get("coverage", {}), **{group: list(pair) for group, pair in found.coverage.items()}},
        "epochs": {**before.get("epochs", {}), **{str(step): epoch for step, epoch in found.epochs.items()}},
    }
    warnings = list(dict.fromkeys([*before.get("warnings", []), *found.warnings]))
    about |= {"warnings": warnings} if warnings else {}
    not_taken = list(dict.fromkeys([*before.get("not_taken", []), *found.not_taken]))
    about |= {"not_taken": not_taken} if not_taken else {}
    counted_in = found.counted_in or before.get("counted_in")
    about |= {"counted_in": counted_in} if counted_in else {}
    seq_len = before.get("seq_len") if found.seq_len is None else found.seq_len
    about |= {"seq_len": seq_len} if seq_len else {}
    for name in {curve.measure for curve in found.curves.values()}:
        about["refused"].pop(name, None)
    if about != before:
        last = run.last_step(ABOUT)
        run.append(ABOUT, 0 if last is None else last + 1, np.frombuffer(json.dumps(about).encode(), dtype=np.uint8))


def stored_scan(run: Run) -> Scan:
    """The scan that a run holds, with every measure and every step that was not left out.

    Runs of the first version are read too; they do not tell what was left out. RunError where it is no scan, or was
    tampered with.
    """
    if run.study != "scan":
        raise RunError(f"{run.path.name} is a run of {run.study!r} and no scan")
    try:
        return _stored(run)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        raise RunError(f"{run.path.name} is not a run as joma scan writes it") from None


def _stored(run: Run) -> Scan:
    config: dict[str, Any] = run.config
    about = _about(run)
    faults = [Fault.from_json(fault) for fault in about.get("faults", ())]
    left_out = {fault.step for fault in faults if fault.measure is None}
    every = [name for name in run.names() if name.partition("/")[0] not in NO_CURVES]
    names = [name for name in every if not is_pair(name)]
    paired = finest(run, filter(is_pair, every), left_out)
    there = {name: [step for step in run.steps(name).tolist() if step not in left_out] for name in names}
    ends = {step for pairs in paired.values() for pair in pairs for step in pair}
    steps = sorted({*ends, *(step for several in there.values() for step in several)})
    groups, measured = config["groups"], {name: at for name, at in there.items() if at}
    curves = {n: read_curve(run, n, steps, at, groups.get(n.partition("/")[2], ())) for n, at in measured.items()}
    for name, pairs in paired.items():
        curves |= pair_curves(run, (name,), pairs, steps)
    return Scan(
        str(config["source"]), steps, faults, curves,
        {int(step): int(epoch) for step, epoch in about.get("epochs", {}).items()},
        {str(name): str(why) for name, why in about.get("refused", {}).items()},
        tuple(map(str, about.get("notes", ()))),
        {group: (int(k), int(n)) for group, (k, n) in about.get("coverage", {}).items()}, config.get("model_type"),
        tuple(map(str, about.get("warnings", ()))),
        seq_len if isinstance(seq_len := about.get("seq_len"), int) else None,
        len({*steps, *(fault.step for fault in faults)}), run.path,
        tuple(map(str, about.get("not_taken", ()))),
        str(about["counted_in"]) if "counted_in" in about else None,
    )  # fmt: skip


def _about(run: Run) -> dict[str, Any]:
    about, last = None, run.last_step(ABOUT)
    if last is None:
        return {}
    with suppress(ValueError, RecursionError):
        about = json.loads(run.at(ABOUT, last).astype(np.uint8).tobytes())
    if not isinstance(about, dict):
        raise RunError(f"{run.path.name} is damaged: what it tells of its scan cannot be read")
    return about


def read_curve(run: Run, name: str, steps: Sequence[int], there: Collection[int], tensors: Sequence[str] = ()) -> Curve:
    """A recorded curve over `steps`. there: the steps at which it was measured. tensors: its rows, in old runs."""
    measure, _, group = name.partition("/")
    place = {step: at for at, step in enumerate(run.steps(name).tolist())}
    have = [at for at, step in enumerate(steps) if step in there]
    read = np.asarray(run.array(name), dtype=float)[[place[steps[at]] for at in have]]
    if read.ndim not in (2, 3):
        raise RunError(f"{run.path.name}: {name} has {read.ndim - 1} dimensions, and a curve has layers and columns")
    values = np.full((len(steps), *read.shape[1:]), np.nan)
    values[have] = read
    dims, count = run.dims(name), values.shape[1]
    named = [str(tensor) for tensor in dims.get("tensor") or (() if "layer" in dims else tensors)]
    rows = rows_of(named) if len(named) == count else layers(count)
    labels = list(dims.values())[-1] if read.ndim == 3 else (measure.replace("_", " "),)
    columns = tuple(map(str, labels)) if labels else tuple(str(at) for at in range(values.shape[-1]))
    return Curve(measure, group or None, rows, columns, values, heads="head" in dims)
