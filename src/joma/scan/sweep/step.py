"""One checkpoint of a series: what of it is missing in the record is measured. The same code in every process.

What comes of it can travel as JSON: arrays go as their bytes, so that not a bit of them changes on the way.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.scan.errors import CheckpointError, Fault
from joma.scan.model.running import Between
from joma.scan.sources.series import Place
from joma.scan.sweep.plan import Plan, fault_of
from joma.scan.sweep.reading import measured


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


def take_step(plan: Plan, place: Place, recorded: Mapping[str, int], between: Between, *, lanes: int = 1) -> Step:
    """Measure what the record lacks of a checkpoint.

    - plan: what is measured
    - place: the checkpoint
    - recorded: what the record holds of it: names, of the identity with its value
    - between: called on the way, with what comes next
    - lanes: how many large matrices may be measured at a time
    """
    try:
        digest = hashlib.sha256(os.fsencode(place.identity())).digest()
        identity = int.from_bytes(digest[:8], "little", signed=True)  # as a number that a run can hold
        if recorded.get("identity", identity) != identity:
            # A checkpoint that was replaced cannot be added to what was recorded of it.
            raise CheckpointError("its files have changed since it was measured; measure it again from the start")
        missing = [name for name in plan.wanted() if name not in recorded]
        if not missing:
            return Step(worked=False)
        values, faults, notes = measured(plan, place, missing, between, lanes=lanes)
    except CheckpointError as error:
        return left_out(place, error)
    if values:
        values |= {} if "identity" in recorded else {"identity": identity}
    return Step(values, tuple(faults), notes)


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
