"""Checkpoints that other processes measure: each is a task, and what it gives comes back as a `Step`."""

import hashlib
import json
import zlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from joma.host.progress import Progress
from joma.scale.task import Done, Executor, Going, Task
from joma.scan.errors import CheckpointError
from joma.scan.sources.places import Which, find_series
from joma.scan.sweep.plan import Plan, What, plan
from joma.scan.sweep.reading import Step, left_out, take_step

FUNCTION = f"{__name__}:measure_checkpoint"

_BASE = 1 << 30  # bytes that a process holds before it reads anything: torch, and room for a text
_COPIES = 4  # of the largest tensor, in float32: as read, as measured, and what the measure makes of it


@dataclass(frozen=True)
class Elsewhere:
    """Where a sweep measures its checkpoints.

    - executor: carries tasks out
    - asked: what `measure_checkpoint` needs to settle the same plan again, as JSON
    - gpus: GPUs per checkpoint
    """

    executor: Executor
    asked: Mapping[str, Any]
    gpus: int = 0

    def events(
        self, settled: Plan, recorded: Mapping[int, Mapping[str, Any]]
    ) -> Generator[tuple[int, str | Step]]:  # fmt: skip
        """For every step with what the record holds of it: words on the way, and at last what was found."""
        places = {place.step: place for place in settled.series.places}
        tasks = [
            Task(
                f"{settled.series.axis} {step}",
                {"asked": dict(self.asked), "plan": fingerprint(settled), "step": step, "recorded": dict(holds)},
                gpus=self.gpus,
                memory=memory_of(settled),
            )
            for step, holds in recorded.items()
        ]
        if not tasks:
            return
        events = self.executor.events(FUNCTION, tasks)
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


def measure_checkpoint(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Measure one step of a series, in a process elsewhere; gives a `Step` as JSON."""
    settled = _settled(json.dumps(arguments["asked"]))
    place = next((place for place in settled.series.places if place.step == arguments["step"]), None)
    if place is None or fingerprint(settled) != arguments["plan"]:
        what = "is not the same here as where the scan was begun; put it where every machine reads the same"
        raise CheckpointError(f"{settled.series.source} {what}")
    return take_step(settled, place, arguments["recorded"], lambda doing: progress(0.0, doing)).as_json()


@lru_cache(maxsize=4)
def _settled(asked: str) -> Plan:
    wish = json.loads(asked)
    series = find_series(wish["source"], Which(**wish["which"]), Path(wish["out"]))
    return plan(series, What(**wish["what"]), device=wish["device"])


def fingerprint(settled: Plan) -> str:
    """A hash of all that decides which numbers a checkpoint gives: two processes with the same measure the same."""
    tokens = None if settled.tokens is None else zlib.crc32(settled.tokens.numpy().tobytes())
    groups = [[name, list(tensors)] for name, tensors in settled.groups.items()]
    shapes = [[name, list(shape)] for name, shape in settled.shapes.items()]
    facts = [list(settled.measures), settled.model_type, groups, shapes, tokens, settled.seq_len]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def memory_of(settled: Plan) -> int:
    """Bytes that measuring a checkpoint may take; 0 where the model is run, whose size is not known here."""
    if settled.tokens is not None:
        return 0
    return _BASE + 4 * _COPIES * max(map(prod, settled.shapes.values()), default=0)
