"""One checkpoint of a series: what the record lacks of it is measured. The same code in every process.

Its tensors come one after the other, small ones of a shape together, then the running model. What comes of it can
travel as JSON: arrays go as their bytes, so that not a bit of them changes on the way.
"""

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from math import prod
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from joma.host.threads import cores, limited
from joma.measure.registry import Measure, WeightMeasure
from joma.scan.errors import Changed, CheckpointError, Fault, Unmeasurable
from joma.scan.formats.checkpoint import OF_TEXTS, Checkpoint
from joma.scan.formats.tensor_file import check_finite, check_matrix
from joma.scan.model.running import Between, statistics
from joma.scan.sources.series import Place, model_type
from joma.scan.sweep.integrity import checksum
from joma.scan.sweep.plan import CHECKSUM, Fingerprint, Plan, PlanRow, fault_of

SMALL_SIDE = 256  # matrices with a smaller side of at most this are measured exactly, in stacks
TOGETHER = 1 << 18  # numbers in a stack at most: memory stays near one tensor
LANES_TOGETHER = 1 << 25  # numbers in matrices that are measured side by side, at most
_PAGE = 4096  # bytes


@dataclass(frozen=True)
class Step:
    """What was found of one checkpoint.

    - values: what to record, by name
    - faults: what is wrong with it, or with a measure of it
    - notes: how it was read
    - left_out: why it cannot be used; None where it can
    - worked: whether anything had to be measured
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: str | None = None
    worked: bool = True

    def as_json(self) -> dict[str, Any]:
        return {
            "values": {name: _sent(value) for name, value in self.values.items()},
            "faults": [fault.as_json() for fault in self.faults],
            "notes": list(self.notes),
            "left_out": self.left_out,
            "worked": self.worked,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """What `as_json` gave."""
        return cls(
            {name: _received(value) for name, value in content["values"].items()},
            tuple(map(Fault.from_json, content["faults"])),
            tuple(content["notes"]),
            content["left_out"],
            content["worked"],
        )


def left_out(place: Place, error: CheckpointError) -> Step:
    """A checkpoint that cannot be used."""
    return Step(faults=(fault_of(place, error),), left_out=str(error))


def take_step(plan: Plan, place: Place, recorded: Mapping[str, Any], between: Between, *, lanes: int = 1) -> Step:
    """Measure what the record lacks of a checkpoint."""
    try:
        files = place.identity()
        if "identity" in recorded:
            # A checkpoint that was replaced cannot be added to what was recorded of it.
            must_be_the_same(plan, place, files, recorded)
        missing = [row for row in plan.rows if row.curve not in recorded]
        if not missing:
            return Step(worked=False)
        values, faults, notes = _measured(plan, place, missing, between, lanes)
    except CheckpointError as error:
        return left_out(place, error)
    if values:
        values |= {} if "identity" in recorded else {"identity": _as_bytes(files)}
    return Step(values, tuple(faults), notes)


def _as_bytes(text: str) -> np.ndarray:
    """Filled up, so that the steps of a series have one shape, as exports want them."""
    content = text.encode()
    return np.frombuffer(content.ljust(-(-len(content) // _PAGE) * _PAGE), np.uint8)


def must_be_the_same(plan: Plan, place: Place, files: str, recorded: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that is not the one that was measured.

    A date that has moved says nothing: then the tensors that were measured are read and compared by their checksums.
    """
    before, now = (json.loads(text) for text in (recorded["identity"], files))
    names = sorted({*before, *now} - (OF_TEXTS if plan.tokens is None else set()))
    for name in names:
        if before.get(name, [None])[0] != now.get(name, [None])[0]:
            raise _changed(name)
    if all(before[name] == now[name] for name in names):
        return
    with place.open() as checkpoint:
        for row in plan.fingerprints(CHECKSUM).values():
            for tensor, known in zip(row.tensors, recorded.get(row.curve, ()), strict=row.curve in recorded):
                if checksum(checkpoint.read(tensor)) != known:
                    raise _changed(checkpoint.file_of(tensor) or tensor)


def _changed(file: str) -> Changed:
    return Changed(f"{file} has changed since it was measured", file=file)


def changes(plan: Plan, recorded: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    """The checkpoints that are not those that were measured, by step, with what has changed.

    recorded: of each step what `take_step` takes.
    """
    found: dict[int, str] = {}
    for place in plan.series.places:
        with suppress(CheckpointError):  # what cannot be read is a fault of its step
            try:
                if "identity" in recorded[place.step]:
                    must_be_the_same(plan, place, place.identity(), recorded[place.step])
            except Changed as error:
                found[place.step] = f"{place.name} was measured again: {error}"
    return found


def _measured(
    plan: Plan, place: Place, missing: Sequence[PlanRow], between: Between, lanes: int
) -> tuple[dict[str, Any], list[Fault], tuple[str, ...]]:
    """The missing numbers of a checkpoint, the measures that could not be taken of it, and how it was read.

    Raises CheckpointError where the checkpoint itself cannot be used.
    """
    values: dict[str, Any] = {}
    faults: list[Fault] = []
    kind = model_type(place)
    if None not in (kind, plan.model_type) and kind != plan.model_type:
        raise CheckpointError(f"its architecture is {kind}, the series is {plan.model_type}")
    by_group = {group: [row for row in missing if row.group == group] for group in plan.groups}
    by_group = {group: rows for group, rows in by_group.items() if rows}
    with place.open() as checkpoint:
        checkpoint.expect([plan.groups[group] for group in by_group])
        for group, rows in by_group.items():
            found, wrong = _group(plan, checkpoint, plan.groups[group], rows, between, lanes)
            values |= found
            faults += [fault_of(place, error, name) for name, error in wrong.items()]
        notes = checkpoint.notes()
    running = {row.curve: row.measure.curves[row.curve] for row in missing
               if row.group is None and isinstance(row.measure, Measure)}  # fmt: skip
    try:
        if running:
            assert plan.tokens is not None  # without a text no such measure is planned
            with place.folder() as folder:
                wanted = set(running.values())
                by_name = statistics(folder, plan.tokens, plan.device, between, wanted, seq_len=plan.seq_len)
            values |= {name: by_name[statistic] for name, statistic in running.items()}
    except CheckpointError as error:
        measures = dict.fromkeys(name.partition("/")[0] for name in running)
        faults += [fault_of(place, error, measure) for measure in measures]
    return values, faults, notes


def _group(
    plan: Plan, checkpoint: Checkpoint, group: Sequence[str], rows: Sequence[PlanRow], between: Between, lanes: int
) -> tuple[dict[str, np.ndarray], dict[str, CheckpointError]]:
    numbers: dict[str, list[Any]] = {row.curve: [] for row in rows}
    wrong: dict[str, CheckpointError] = {}
    measures = {row.curve: row.measure for row in rows if isinstance(row.measure, WeightMeasure)}
    prints = [(row.curve, row.measure, set(row.tensors)) for row in rows if isinstance(row.measure, Fingerprint)]
    lanes = lanes if any(measure.side_by_side for measure in measures.values()) else 1
    try:
        for names, tensors in _stacks(plan, checkpoint, group, between, lanes):
            for curve, fingerprint, gated in prints:
                mine = (w for tensor, w in zip(names, tensors, strict=True) if tensor in gated)
                numbers[curve] += map(fingerprint.compute, mine)
            _measure(measures, names, tensors, plan.device, numbers, wrong)
    except Unmeasurable as error:
        return {}, dict.fromkeys(measures, error)
    return {name: np.array(row) for name, row in numbers.items() if name not in wrong}, wrong


def _stacks(
    plan: Plan, checkpoint: Checkpoint, tensors: Sequence[str], between: Between, lanes: int
) -> Iterator[tuple[list[str], list[Tensor]]]:
    """The tensors in order: small neighbours of one shape and type together, others by lanes. One read ahead."""
    names: list[str] = []
    held: list[Tensor] = []
    for tensor, following in zip_longest(tensors, tensors[1:]):
        between(f"about to read {tensor}")
        w = _read(plan, checkpoint, tensor)
        if following is not None:
            checkpoint.prefetch(following)
        most = TOGETHER if _small(w.shape) else LANES_TOGETHER
        same = bool(held) and held[0].shape == w.shape and held[0].dtype == w.dtype
        if held and not (same and (len(held) + 1) * w.numel() <= most):
            yield names, held
            names, held = [], []
        names.append(tensor)
        held.append(w)
        del w  # memory stays near one tensor
        if not _small(held[0].shape) and len(held) >= lanes:
            yield names, held
            names, held = [], []
    if held:
        yield names, held


def _small(shape: Sequence[int]) -> bool:
    return min(shape) <= SMALL_SIDE and prod(shape) <= TOGETHER


def _measure(
    measures: dict[str, WeightMeasure], names: list[str], tensors: list[Tensor], device: torch.device,
    rows: dict[str, list[Any]], wrong: dict[str, CheckpointError],
) -> None:  # fmt: skip
    shared: dict[Any, list[Any]] = {}
    for name, measure in measures.items():
        if name in wrong:
            continue
        tensor: str | None = names[0] if len(names) == 1 else None
        try:
            if measure.compute not in shared:
                shared[measure.compute] = _results(measure, names, tensors, device)
            for tensor, found in zip(names, shared[measure.compute], strict=True):  # noqa: B007 - for the message
                numbers = measure.pick(found)  # one of a matrix, or several
                rows[name].append(numbers[0] if len(numbers) == 1 else numbers)
        except Unmeasurable as error:
            wrong[name] = error
        except ValueError as error:  # a measure refuses what was read, numbers that overflow say
            wrong[name] = Unmeasurable(str(error), tensor=tensor)


def _results(measure: WeightMeasure, names: list[str], tensors: list[Tensor], device: torch.device) -> list[Any]:
    if measure.stacked is not None and _small(tensors[0].shape):
        return measure.stacked(torch.stack(tensors))
    # A stream of its own for each tensor, so that a number does not depend on what else was measured.
    generators = [torch.Generator(device).manual_seed(zlib.crc32(name.encode())) for name in names]
    if len(tensors) == 1 or not measure.side_by_side:
        return list(map(measure.compute, tensors, generators))
    with limited(max(1, cores() // len(tensors))), ThreadPoolExecutor(len(tensors)) as lanes:
        return list(lanes.map(measure.compute, tensors, generators))


def _read(plan: Plan, checkpoint: Checkpoint, tensor: str) -> Tensor:
    stored, file = checkpoint.stored(tensor), checkpoint.file_of(tensor)
    if stored.shape != plan.shapes[tensor]:
        what = f"{tensor} has shape {stored.shape}, in the rest of the series it has {plan.shapes[tensor]}"
        raise CheckpointError(what, file=file, tensor=tensor)
    check_matrix(stored, tensor, file)
    w = checkpoint.read(tensor).to(plan.device)
    try:
        check_finite(w, tensor, file)
    except CheckpointError as error:
        raise Unmeasurable(str(error), file=file, tensor=tensor) from None
    return w


def _sent(value: Any) -> dict[str, Any]:
    heads = isinstance(value, Tensor)  # what is by head comes as a tensor, and is told by that
    array = value.detach().cpu().numpy() if heads else np.asarray(value)
    plain = array.astype(array.dtype.newbyteorder("<"), copy=False)
    data = base64.b64encode(plain.tobytes()).decode("ascii")
    return {"dtype": array.dtype.name, "shape": list(array.shape), "heads": heads, "data": data}


def _received(sent: Mapping[str, Any]) -> Any:
    kind = np.dtype(sent["dtype"])
    flat = np.frombuffer(base64.b64decode(sent["data"]), kind.newbyteorder("<")).astype(kind)
    array = flat.reshape(sent["shape"])
    return torch.from_numpy(array) if sent["heads"] else array
