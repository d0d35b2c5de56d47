"""A monitor of a training run: every so many steps it reads one probe batch with the model and writes down what it saw.

Between two measurings nothing is attached to the model: no hook, no wrapper. So leaving has nothing to take away.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import nn

from joma.host.arguments import integer, shown
from joma.host.errors import BadInput, asked_for
from joma.host.words import short
from joma.monitor.alarms import Alarm, Alert, OnAlarm, Watch
from joma.monitor.attention import first_pass, watched_pass
from joma.monitor.batch import ProbeBatch
from joma.monitor.matrices import Matrices
from joma.monitor.measures import DEFAULT, MEASURES, Taken, intervals_of
from joma.monitor.names import Names, Patterns, unwrapped
from joma.monitor.record import Record, StrPath
from joma.monitor.sinks.guard import Sink, Sinks, report
from joma.monitor.tables import Packet, Rows, Table, summary
from joma.probes import Probe


class Monitor:
    """Watches attention and weights of a model while it trains, and leaves the training as it is, bit for bit.

    Used as a context manager around a training loop, with one `step()` after every step of the optimizer. It measures
    once when the block is entered, and refuses there what cannot work.

    - model: what is trained; a compiled one is measured uncompiled, one inside `nn.DataParallel` on its own device
    - probe: what it reads at every measuring: token ids, a tensor, a tuple of tensors, or a mapping from the names
      of its arguments to tensors. Labels are left out unless the model needs them. The batch is copied
    - every: steps between two measurings
    - measures: names of `joma.monitor.MEASURES`; a mapping gives each its own interval, None for that of `every`
    - include, exclude: patterns of names, with `*`, of attention modules and matrices that are followed
    - sinks: callables (step, values), which get smallest, mean and largest number per layer
    - out: the file of the record, which gets every number; one that is there goes on. None: no record
    - alarms: None for `joma.monitor.usual_alarms()`; an empty list for none
    - on_alarm: "log" writes a line, "stop" raises `TrainingStopped`, a function is called with each `Alert`
    - start: the number of steps before the first one here; None: where the record ends, and 0 without one

    >>> from torch.nn import TransformerEncoderLayer
    >>> model = TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> with Monitor(model, probe=torch.zeros(1, 4, 8), every=10) as monitor:
    ...     for _ in range(20):
    ...         monitor.step()  # after optimizer.step()
    >>> monitor.step_number, monitor.latest["effective_keys"].values.round(6).tolist()
    (20, [[4.0, 4.0]])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        probe: Any,
        every: int = 100,
        measures: Iterable[str] | Mapping[str, int | None] = DEFAULT,
        include: Patterns = None,
        exclude: Patterns = None,
        sinks: Iterable[Sink] | Sink = (),
        out: StrPath | None = None,
        alarms: Sequence[Alarm] | Alarm | None = None,
        on_alarm: OnAlarm = "log",
        start: int | None = None,
    ) -> None:
        """The parameters are those of the class; nothing is measured before the block is entered."""
        _must_be_alone()
        if not isinstance(model, nn.Module):
            raise BadInput(f"model must be a torch module, got {shown(model)}", argument="model")
        self.model: nn.Module = unwrapped(model)
        self.intervals = intervals_of(measures, every)
        self._batch, self._sinks = ProbeBatch(probe), Sinks(sinks)
        self._names = Names(include, exclude)
        self._matrices = Matrices(self.model, self._names)
        self._watch = Watch(alarms, on_alarm, self.intervals)
        if out is not None and not isinstance(out, str | os.PathLike):
            raise BadInput(f"out must be the path of a file, got {shown(out)}", argument="out")
        self._out, self._start = out, start
        if start is not None:
            with asked_for():
                integer(start, "start", 0)
        self.step_number = start or 0
        """Steps of the optimizer so far."""
        self.latest: dict[str, Table] = {}
        """The latest table of every series."""
        self.alerts: list[Alert] = []
        """What the alarms found since the block was entered."""
        self._record: Record | None = None
        self._rows: dict[str, Rows] = {}
        self._attention = Rows(())
        self._pending: list[Packet] = []
        self.recorded = -1
        """Up to which step the record had been written when it was opened; -1: it is new."""
        self._used = self._entered = self._failed = False

    def __repr__(self) -> str:
        what = ", ".join(f"{name} every {steps}" for name, steps in self.intervals.items())
        return f"Monitor({short(type(self.model).__name__)}, step {self.step_number}: {what}"[:118] + ")"

    def __enter__(self) -> Monitor:
        """Measure once, so that what cannot work is refused before training begins."""
        if self._used:
            raise BadInput(
                "this Monitor was entered before: make a new one, with the same out it goes on in its record"
            )
        self._used = True
        self._must_have_matrices()
        first = self._measured(list(self.intervals), first=True)
        self._rows = self._rows_of_all(first)
        self._open_record()
        self._entered = True
        if self.recorded < self.step_number:
            self._send(first)
            self._deliver_first()
        return self

    def step(self, step: int | None = None) -> None:
        """Say that the optimizer made a step: call it once per step, however many batches it took.

        step: its number, where the loop knows it; None: one more than before. Numbers must rise.
        """
        if not self._entered:
            raise BadInput("Monitor.step must be called inside the block: `with Monitor(...) as monitor:`")
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return  # what a CUDA graph records would be replayed without us
        before, self.step_number = self.step_number, self._next(step)
        self._deliver()
        due = [name for name, steps in self.intervals.items() if self.step_number // steps > before // steps]
        if due and self.step_number > self.recorded and not self._failed:
            self._measure(due)
            self._deliver()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Hand out what is still on its way, and close the record, which can go on later."""
        self._entered = False
        try:
            self._deliver(wait=True)
        except Exception:
            if error is None:  # else the first error is the one to show
                raise
        finally:
            self._sinks.close()
            if self._record is not None:
                self._recording(lambda record: record.leave(self.step_number, error), "at the end")
            self._record = None

    def _next(self, step: int | None) -> int:
        if step is None:
            return self.step_number + 1
        with asked_for():
            integer(step, "step", 0)
        if step <= self.step_number:
            raise BadInput(f"step must rise from one call to the next, got {step} after {self.step_number}")
        return int(step)

    def _measure(self, due: list[str]) -> None:
        """Measure; what goes wrong ends the measuring, and never the training."""
        try:
            self._send(self._measured(due))
        except Exception as error:
            self._failed = True
            why = " ".join(str(error).split())
            report(f"step {self.step_number}: measuring failed and ends here, training goes on: {why}")

    def _measured(self, due: list[str], *, first: bool = False) -> Taken:
        """The series of the measures that are due, of what is followed."""
        taken: Taken = {}
        attention = [MEASURES[name] for name in due if MEASURES[name].needs == "attention"]
        if attention:
            read = first_pass if first else watched_pass
            probe = read(self.model, self._batch, spread="spread" in due)
            for measure in attention:
                taken |= {name: self._followed(each) for name, each in measure.take(probe).items()}
            if first:
                self._attention = self._rows_of_attention(probe, taken)
        matrices = [MEASURES[name] for name in due if MEASURES[name].needs == "matrices"]
        if matrices:
            self._matrices.look_again()
        for measure in matrices:
            taken |= measure.take(self._matrices)
        return taken

    def _followed(self, by_layer: dict[str, Any]) -> dict[str, Any]:
        return {name: each for name, each in by_layer.items() if name in self._names}

    def _rows_of_attention(self, probe: Probe, taken: Taken) -> Rows:
        heads = {name: len(each) for series in taken.values() for name, each in series.items()}
        if not heads:
            raise BadInput(
                f"include and exclude leave out all attention: there are {short(probe.layers, 200)}; "
                "measures=['stable_rank', 'norm'] needs none",
                argument="include",
            )
        return Rows(tuple(heads), tuple(heads.values()), tuple(probe.queries[name] for name in heads))

    def _rows_of_all(self, first: Taken) -> dict[str, Rows]:
        """What the rows of every series are; that of updates has no numbers yet."""
        matrices = Rows(tuple(self._matrices.by_name))
        of_weights = [name for name in self.intervals if MEASURES[name].needs == "matrices"]
        return {name: self._attention for name in first if name not in of_weights} | dict.fromkeys(of_weights, matrices)

    def _must_have_matrices(self) -> None:
        wanted = [name for name in self.intervals if MEASURES[name].needs == "matrices"]
        if wanted and not self._matrices.by_name:
            raise BadInput(
                f"{wanted[0]} needs a weight matrix, and {type(self.model).__name__} has none that is followed: looked "
                "for were parameters of two dimensions that are no embedding",
                argument="measures",
            )

    def _open_record(self) -> None:
        """Go on where the record ends, with alarms that have seen all of it."""
        if self._out is None:
            return
        config = {"model": type(self.model).__name__, "probe": self._batch.digest, "measures": self.intervals}
        self._record = Record.at(self._out, config)
        if self._record.last is None:
            return
        for step, tables in self._past(self._record):
            self._watch.new(step, tables)
        self.recorded = self._record.last
        self.step_number = self.recorded if self._start is None else self._start
        if self.step_number < self.recorded:
            report(f"{self._out} has steps up to {self.recorded} already: they are not measured again")

    def _past(self, record: Record) -> list[tuple[int, dict[str, Table]]]:
        try:
            return list(record.past(self._rows))
        except BaseException:
            record.run.close()
            raise

    def _send(self, taken: Taken) -> None:
        """On the way from the device; there may be nothing, of updates before the second measuring."""
        if taken:
            self._pending.append(Packet(self.step_number, taken, {name: self._rows[name] for name in taken}))

    def _deliver_first(self) -> None:
        try:
            self._deliver()
        except BaseException as error:  # an alarm that stops: a block that is not entered is not left either
            self.__exit__(type(error), error, None)
            raise

    def _deliver(self, *, wait: bool = False) -> None:
        """Record, send and judge what has arrived, in order. An alarm that stops does so when all is recorded."""
        found = []
        while self._pending and (wait or self._pending[0].arrived()):
            packet = self._pending.pop(0)
            tables = packet.tables()
            self.latest |= tables
            self._recording(
                lambda record, step=packet.step, now=tables: record.write(step, now), f"at step {packet.step}"
            )
            if self._sinks.working:
                self._sinks.send(packet.step, summary(tables))
            new = self._watch.new(packet.step, tables)
            self.alerts += new
            self._recording(lambda record, told=new: record.alarm(told), f"at step {packet.step}")
            found.append(new)
        for new in found:
            self._watch.act(new)

    def _recording(self, write: Any, when: str) -> None:
        """A record that cannot be written, on a full disk, is given up: training goes on."""
        if self._record is None:
            return
        try:
            write(self._record)
        except Exception as error:
            record, self._record = self._record, None
            report(f"the record failed {when} and is given up, training goes on: {error}")
            record.run.close()


def _must_be_alone() -> None:
    """One process: what several processes measure would have to be put together."""
    here = torch.distributed.is_available() and torch.distributed.is_initialized()
    if here and torch.distributed.get_world_size() > 1:
        raise BadInput("Monitor measures in one process alone, and this training has several")
