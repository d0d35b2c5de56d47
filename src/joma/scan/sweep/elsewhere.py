"""Checkpoints that other processes measure: each is a task, and what it gives comes back as a `Step`."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from joma.scale.task import Done, Executor, Going, Task
from joma.scan.errors import CheckpointError
from joma.scan.sweep.plan import Plan
from joma.scan.sweep.step import Step, left_out

_BASE = 1 << 30  # bytes that a process holds before it reads anything: torch, and room for a text
_COPIES = 4  # of the largest tensor, in float32: as read, as measured, and what the measure makes of it


@dataclass(frozen=True)
class Elsewhere:
    """Where a sweep measures its checkpoints.

    - executor: carries tasks out
    - function: "module:name" of what is called for each
    - asked: what that function needs to settle the same plan again, as JSON
    - gpus: GPUs per checkpoint
    """

    executor: Executor
    function: str
    asked: Mapping[str, Any]
    gpus: int = 0

    def events(
        self, plan: Plan, recorded: Mapping[int, Mapping[str, Any]]
    ) -> Generator[tuple[int, str | Step]]:  # fmt: skip
        """For every step with what the record holds of it: words on the way, and at last what was found."""
        places = {place.step: place for place in plan.series.places}
        tasks = [
            Task(
                f"{plan.series.axis} {step}",
                {"asked": dict(self.asked), "plan": fingerprint(plan), "step": step, "recorded": dict(holds)},
                gpus=self.gpus,
                memory=memory_of(plan),
            )
            for step, holds in recorded.items()
        ]
        if not tasks:
            return
        events = self.executor.events(self.function, tasks)
        try:
            for event in events:
                step = event.task.arguments["step"]
                if isinstance(event, Going):
                    yield step, event.doing
                elif isinstance(event, Done):
                    yield step, Step.from_json(event.value)
                else:
                    yield step, left_out(places[step], CheckpointError(event.reason))
        finally:
            getattr(events, "close", lambda: None)()  # now, and not when it is thrown away: processes wait for it


def fingerprint(plan: Plan) -> str:
    """A hash of all that decides which numbers a checkpoint gives: two processes with the same measure the same."""
    tokens = None if plan.tokens is None else zlib.crc32(plan.tokens.numpy().tobytes())
    groups = [[name, list(tensors)] for name, tensors in plan.groups.items()]
    shapes = [[name, list(shape)] for name, shape in plan.shapes.items()]
    facts = [list(plan.measures), plan.model_type, groups, shapes, tokens, plan.seq_len]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def memory_of(plan: Plan) -> int:
    """Bytes that measuring a checkpoint may take; 0 where the model is run, whose size is not known here."""
    if plan.tokens is not None:
        return 0
    return _BASE + 4 * _COPIES * max(map(prod, plan.shapes.values()), default=0)
