"""Measuring one checkpoint: its tensors one after the other, small ones of a shape together, then the running model."""

import zlib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.host.threads import cores, limited
from joma.measure.registry import WeightMeasure
from joma.scan.errors import CheckpointError, Fault, Unmeasurable
from joma.scan.formats.checkpoint import Checkpoint
from joma.scan.formats.tensor_file import check_finite, check_matrix
from joma.scan.model.running import Between, statistics
from joma.scan.sources.series import Place, model_type
from joma.scan.sweep.integrity import checksum, sketch
from joma.scan.sweep.plan import Plan, fault_of

SMALL_SIDE = 256  # matrices with a smaller side of at most this are measured exactly, in stacks
TOGETHER = 1 << 18  # numbers in a stack at most: memory stays near one tensor
LANES_TOGETHER = 1 << 25  # numbers in matrices that are measured side by side, at most


def measured(
    plan: Plan, place: Place, missing: Collection[str], between: Between, *, lanes: int = 1
) -> tuple[dict[str, Any], list[Fault], tuple[str, ...]]:
    """The missing numbers of a checkpoint, the measures that could not be taken of it, and how it was read.

    lanes: how many large matrices may be measured at a time, where a measure gains by that.
    Raises CheckpointError where the checkpoint itself cannot be used.
    """
    values: dict[str, Any] = {}
    faults: list[Fault] = []
    kind, source = model_type(place), plan.wanted()
    if None not in (kind, plan.model_type) and kind != plan.model_type:
        raise CheckpointError(f"its architecture is {kind}, the series is {plan.model_type}")
    by_group = {group: [name for name in missing if source[name] == group] for group in plan.groups}
    read = [group for group, mine in by_group.items() if mine]
    with place.open() as checkpoint:
        checkpoint.expect([plan.groups[group] for group in read])
        for group in read:
            found, wrong = _group(plan, checkpoint, group, by_group[group], between, lanes)
            values |= found
            faults += [fault_of(place, error, name) for name, error in wrong.items()]
        notes = checkpoint.notes()
    running = {name: statistic for name, statistic in plan.model_names().items() if name in missing}
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
    plan: Plan, checkpoint: Checkpoint, group: str, missing: Collection[str], between: Between, lanes: int
) -> tuple[dict[str, np.ndarray], dict[str, CheckpointError]]:
    """The missing numbers of one group of tensors, and what is wrong by name. NaN in a tensor spoils all of them."""
    rows: dict[str, list[Any]] = {name: [] for name in missing}
    wrong: dict[str, CheckpointError] = {}
    measures = {name: measure for name, measure in plan.weight_names(group).items() if name in missing}
    gated = set(plan.gated(group))
    lanes = lanes if any(measure.side_by_side for measure in measures.values()) else 1
    try:
        for names, tensors in _stacks(plan, checkpoint, plan.groups[group], between, lanes):
            for w in (w for tensor, w in zip(names, tensors, strict=True) if tensor in gated):
                if f"sketch/{group}" in rows:
                    rows[f"sketch/{group}"].append(sketch(w).cpu().numpy())
                if f"checksum/{group}" in rows:
                    rows[f"checksum/{group}"].append(checksum(w))
            _measure(measures, names, tensors, plan.device, rows, wrong)
    except Unmeasurable as error:
        return {}, dict.fromkeys(measures, error)
    return {name: np.array(row) for name, row in rows.items() if name not in wrong}, wrong


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
    """One tensor on the device, after checking that it is what the series holds under that name."""
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
