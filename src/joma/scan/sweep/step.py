"""One checkpoint of a series: what of it is missing in the record is measured. The same code in every process.

What comes of it can travel as JSON: arrays go as their bytes, so that not a bit of them changes on the way.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.scan.errors import CheckpointError, Fault
from joma.scan.formats.checkpoint import OF_TEXTS
from joma.scan.model.running import Between
from joma.scan.sources.series import Place
from joma.scan.sweep.integrity import checksum
from joma.scan.sweep.plan import Plan, fault_of
from joma.scan.sweep.reading import measured

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

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Step:
        """What `as_json` gave."""
        return Step(
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
    """Measure what the record lacks of a checkpoint.

    - plan: what is measured
    - place: the checkpoint
    - recorded: what the record holds of it: names, of the identity and of checksums with their values
    - between: called on the way, with what comes next
    - lanes: how many large matrices may be measured at a time
    """
    try:
        files = place.identity()
        if "identity" in recorded:
            # A checkpoint that was replaced cannot be added to what was recorded of it.
            must_be_the_same(plan, place, files, recorded)
        missing = [name for name in plan.wanted() if name not in recorded]
        if not missing:
            return Step(worked=False)
        values, faults, notes = measured(plan, place, missing, between, lanes=lanes)
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

    - plan, place, recorded: as in `take_step`
    - files: what the checkpoint is known by now
    """
    before, now = (json.loads(text) for text in (recorded["identity"], files))
    names = sorted({*before, *now} - (OF_TEXTS if plan.tokens is None else set()))
    for name in names:
        if before.get(name, [None])[0] != now.get(name, [None])[0]:
            raise _changed(name)
    if all(before[name] == now[name] for name in names):
        return
    with place.open() as checkpoint:
        for group in plan.groups:
            sums = recorded.get(f"checksum/{group}")
            for tensor, known in zip(plan.gated(group), sums or (), strict=sums is not None):
                if checksum(checkpoint.read(tensor)) != known:
                    raise _changed(checkpoint.file_of(tensor) or tensor)


def _changed(file: str) -> CheckpointError:
    return CheckpointError(f"{file} has changed since it was measured; measure it anew (fresh)", file=file)


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
