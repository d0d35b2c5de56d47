"""The record of a monitored training: one `joma.runs.Run` that goes on when training does."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from joma.host.errors import BadInput
from joma.monitor.alarms import Alert
from joma.monitor.tables import Rows, Table, Tables
from joma.runs import Run
from joma.runs.dims import named
from joma.runs.following import ALARMS, MONITOR

STUDY = MONITOR
LEFT = "steps_taken"  # the series that says how far training was when the monitor was left
StrPath = str | os.PathLike[str]


class Record:
    """What was measured, every number of it, durably: a killed process leaves a whole record."""

    def __init__(self, run: Run) -> None:
        """run: open to write."""
        self.run = run
        steps = [step for name in run.names() if (step := run.last_step(name)) is not None]
        self.last: int | None = max(steps, default=None)

    @classmethod
    def at(cls, out: StrPath, config: Mapping[str, Any]) -> Record:
        """A new one, or the one that is there, if it is of the same model class and probe batch."""
        if not Path(out).exists():
            return cls(Run.create(out, study=STUDY, config=config))
        with Run.open(out) as run:  # to read: what is opened to write is marked as running, and may be another's
            _must_be_the_same(run, config)
        return cls(Run.open(out, write=True))

    def write(self, step: int, tables: Tables) -> None:
        """All series of one step, in one transaction."""
        values = {name: table.values for name, table in tables.items()}
        self.run.record(step, values, dims={name: table.rows.dims for name, table in tables.items()})
        self.last = step

    def alarm(self, alerts: Sequence[Alert]) -> None:
        """What the alarms found at one step, as bytes of JSON: `joma watch` shows it."""
        if alerts:
            found = [_plain(each) for each in alerts]
            self.run.append(ALARMS, alerts[0].step, np.frombuffer(json.dumps(found).encode(), np.uint8))

    def past(self, rows: Mapping[str, Rows]) -> Iterator[tuple[int, dict[str, Table]]]:
        """Every recorded step of the series that `rows` knows, in order."""
        by_step: dict[int, dict[str, Table]] = {}
        for name in (name for name in self.run.names() if name in rows):
            if self.run.dims(name) != named(rows[name].dims, name):
                what = "other layers or matrices"
                raise BadInput(f"out must be another file: {self.run.path} was recorded with {what}", argument="out")
            for step, values in zip(self.run.steps(name).tolist(), self.run.array(name), strict=True):
                by_step.setdefault(step, {})[name] = Table(values, rows[name])
        yield from sorted(by_step.items())

    def leave(self, step: int, error: BaseException | None) -> None:
        """Close it. It stays open to go on, so it is never finished; an error is kept as the reason."""
        try:
            if self.last is None or step > self.last:
                self.run.append(LEFT, step, step)
        finally:
            self.run.__exit__(None if error is None else type(error), error, None)


def _plain(alert: Alert) -> dict[str, Any]:
    """As JSON can say it, which has neither NaN nor infinity."""
    numbers = {"value": alert.value, "limit": alert.limit, "slope": alert.slope}
    kept = {name: each if each is not None and math.isfinite(each) else None for name, each in numbers.items()}
    where = {"measure": alert.measure, "layer": alert.layer, "head": alert.head}
    return {**where, **kept, "cause": alert.cause, "says": str(alert)}


def _must_be_the_same(run: Run, config: Mapping[str, Any]) -> None:
    if run.study != STUDY:
        raise BadInput(
            f"out must be a new file or the record of a monitor, {run.path} is of {run.study}", argument="out"
        )
    for name, what in (("model", "another model"), ("probe", "another probe batch")):
        if run.config.get(name) != config[name]:
            raise BadInput(f"out must be another file: {run.path} was recorded with {what}", argument="out")
