"""Where numbers go once they have left the device: into the record, to the sinks, past the alarms; in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from joma.monitor.alarms import Alert
from joma.monitor.measures import Taken
from joma.monitor.record import Record, StrPath
from joma.monitor.sinks.guard import Sink, Sinks, report
from joma.monitor.tables import Packet, Rows, Table, every_number, summary
from joma.monitor.watch import Watch


class Delivery:
    """Hands out what was measured. A record or a sink that fails is given up; training goes on."""

    def __init__(self, watch: Watch, sinks: Iterable[Sink] | Sink, *, heads: bool) -> None:
        """Nothing is open yet.

        - watch: the alarms
        - sinks, heads: as in `Monitor`
        """
        self.latest: dict[str, Table] = {}
        self.alerts: list[Alert] = []
        self._watch, self._sinks, self._heads = watch, Sinks(sinks), heads
        self._record: Record | None = None
        self._pending: list[Packet] = []

    def open(self, out: StrPath, config: dict[str, Any], rows: Mapping[str, Rows]) -> int | None:
        """Up to which step a record was written that goes on; its past is shown to the alarms. None: it is new.

        - out: the file of the record
        - config: what must be the same in a record that goes on
        - rows: of every series
        """
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
        """On the way from the device; there may be nothing, of updates before the second measuring.

        - step: of training
        - taken: numbers by series
        - rows: of every series
        """
        if taken:
            self._pending.append(Packet(step, taken, {name: rows[name] for name in taken}))

    def deliver(self, *, wait: bool = False) -> None:
        """Record, send and judge what has arrived, in order. An alarm that stops does so when all is recorded.

        - wait: whether for what is still on its way
        """
        found = []
        while self._pending and (wait or self._pending[0].arrived()):
            packet = self._pending.pop(0)
            step, tables = packet.step, packet.tables()
            self.latest |= tables
            self._recording(lambda record, step=step, now=tables: record.write(step, now), f"at step {step}")
            if self._sinks.working:
                self._sinks.send(step, summary(tables) | (every_number(tables) if self._heads else {}))
            new = self._watch.new(step, tables)
            self.alerts += new
            self._recording(lambda record, told=new: record.alarm(told), f"at step {step}")
            self._sinks.alert(new)
            found.append(new)
        for new in found:
            self._watch.act(new)

    def close(self, step: int, error: BaseException | None) -> None:
        """Hand out what is still on its way, and close the record, which can go on later.

        - step: the last one
        - error: what ended the training; None: nothing
        """
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
            report(f"the record failed {when} and is given up, training goes on: {error}")
            record.run.close()
