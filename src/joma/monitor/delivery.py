"""Where numbers go once they have left the device: into the record, to the sinks, past the alarms; in order.

The record is one `joma.runs.Run` that goes on when training does.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from joma.host.errors import BadInput
from joma.monitor.alarms import Alert
from joma.monitor.measures import Taken
from joma.monitor.sinks.guard import Sink, Sinks, report
from joma.monitor.tables import Packet, Per, Rows, Table, Tables, summary
from joma.monitor.watch import Watch
from joma.runs import Run
from joma.runs.dims import named
from joma.runs.following import ALARMS, MONITOR


class Delivery:
    """Hands out what was measured. A record or a sink that fails is given up; training goes on."""

    def __init__(self, watch: Watch, sinks: Iterable[Sink] | Sink, *, per: Per) -> None:
        self.latest: dict[str, Table] = {}
        self.alerts: list[Alert] = []
        self._watch, self._sinks, self._per = watch, Sinks(sinks), per
        self._record: Record | None = None
        self._pending: list[Packet] = []

    def open(self, out: "StrPath", config: dict[str, Any], rows: Mapping[str, Rows]) -> int | None:
        """Up to which step a record was written that goes on; its past is shown to the alarms. None: it is new."""
        self._record = Record.at(out, config)
        if self._record.last is None:
            return None
        try:
            self.show_past(rows)
        except BaseException:
            self._record.run.close()
            raise
        return self._record.last

    def show_past(self, rows: Mapping[str, Rows]) -> None:
        """Show the alarms what the record has of some series. rows: of each of them."""
        if self._record is not None:
            for step, tables in list(self._record.past(rows)):
                self._watch.new(step, tables)

    def send(self, step: int, taken: Taken, rows: Mapping[str, Rows]) -> None:
        """On the way from the device; there may be nothing, of updates before the second measuring."""
        if taken:
            self._pending.append(Packet(step, taken, {name: rows[name] for name in taken}))

    def deliver(self, *, wait: bool = False) -> None:
        """Record, send and judge what has arrived, in order. An alarm that stops does so when all is recorded."""
        found = []
        while self._pending and (wait or self._pending[0].arrived()):
            packet = self._pending.pop(0)
            step, tables = packet.step, packet.tables()
            self.latest |= tables
            self._recording(lambda record, step=step, now=tables: record.write(step, now), f"at step {step}")
            if self._sinks.working:
                self._sinks.send(step, summary(tables, self._per))
            new = self._watch.new(step, tables)
            self.alerts += new
            self._recording(lambda record, told=new: record.alarm(told), f"at step {step}")
            self._sinks.alert(new)
            found.append(new)
        for new in found:
            self._watch.act(new)

    def close(self, step: int, error: BaseException | None) -> None:
        """Hand out what is still on its way, and close the record, which can go on later."""
        try:
            self.deliver(wait=True)
        except Exception:
            if error is None:  # else the first error is the one to show
                raise
        finally:
            self._sinks.close()
            self._recording(lambda record: record.leave(step, error), "at the end")
            self._record = None

    def _recording(self, write: Callable[..., object], when: str) -> None:
        """A record that cannot be written, on a full disk, is given up: training goes on."""
        if self._record is None:
            return
        try:
            write(self._record)
        except Exception as error:
            record, self._record = self._record, None
            report(f"the record failed {when} and is given up, training continues: {error}")
            record.run.close()


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
    def at(cls, out: StrPath, config: Mapping[str, Any]) -> "Record":
        """A new one, or the one that is there, if it is of the same model class and probe batch."""
        if not Path(out).exists():
            return cls(Run.create(out, study=STUDY, config=config))
        with Run.open(out) as run:  # to read: what is opened to write is marked as running, and may be another's
            _must_be_the_same(run, config)
        return cls(Run.open(out, write=True))

    def write(self, step: int, tables: Tables) -> None:
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
