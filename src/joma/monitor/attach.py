"""A monitor of a training run: every so many steps it reads one probe batch with the model and writes down what it saw.

Between two measurings nothing is attached to the model: no hook, no wrapper. So leaving has nothing to take away. Where
the batches of training are measured, hooks are there from the step before until the step is told.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import nn

from joma.host.arguments import integer, shown
from joma.host.errors import BadInput, JomaError, asked_for
from joma.host.words import short
from joma.monitor.alarms import Alarm, Alert, OnAlarm, Watch
from joma.monitor.attention import first_pass, watched_pass
from joma.monitor.batch import ProbeBatch, StepBatch
from joma.monitor.inside import Inside, Round, is_compiled
from joma.monitor.matrices import Matrices
from joma.monitor.measures import DEFAULT, MEASURES, Taken, intervals_of
from joma.monitor.names import Names, Patterns, unwrapped
from joma.monitor.record import Record, StrPath
from joma.monitor.refusals import must_be_alone, must_have_one_way, must_have_weights
from joma.monitor.sinks.guard import Sink, Sinks, report
from joma.monitor.tables import Packet, Rows, Table, summary
from joma.probes import Probe
from joma.probes.adapters import Adapters, checked_adapters


class Monitor:
    """Watches attention and weights of a model while it trains, and leaves the training as it is, bit for bit.

    Used as a context manager around a training loop, with one `step()` after every step of the optimizer. It measures
    once when the block is entered, and refuses there what cannot work.

    - model: what is trained; a compiled one is measured uncompiled, one inside `nn.DataParallel` on its own device
    - probe: what it reads at every measuring: token ids, a tensor, a tuple of tensors, or a mapping from the names
      of its arguments to tensors. Labels are left out unless the model needs them. The batch is copied. "step": the
      first `rows` rows of the batch of that step
    - inside: measure in the training pass itself, one layer at each measuring in turn; there is no probe then. All
      measures of attention are taken together, at the smallest of their intervals
    - rows: how many rows of a step's batch are read
    - attention: how modules attend that joma does not see, as in `joma.probes.collect_plain`
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
        probe: Any = None,
        inside: bool = False,
        rows: int = 8,
        attention: Adapters | None = None,
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
        must_be_alone()
        must_have_one_way(probe, inside)
        if not isinstance(model, nn.Module):
            raise BadInput(f"model must be a torch module, got {shown(model)}", argument="model")
        self.model: nn.Module = unwrapped(model)
        self.intervals = intervals_of(measures, every)
        self._sinks = Sinks(sinks)
        self._names = Names(include, exclude)
        self._adapters = checked_adapters(attention)
        self._inside: Inside | None = None
        self._batch: ProbeBatch | StepBatch | None = None
        if inside:
            options = {"spread": "spread" in self.intervals, "compiled": is_compiled(model)}
            self._inside = Inside(self.model, self._names, attention=self._adapters, **options)
        elif isinstance(probe, str) and probe == "step":
            with asked_for():
                self._batch = StepBatch(self.model, integer(rows, "rows", 1))
        else:
            self._batch = ProbeBatch(probe)
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
        self._attention: Rows | None = None
        self._held: Taken = {}  # of gradients, which were measured before they were cleared
        self._pending: list[Packet] = []
        self.recorded = -1
        """Up to which step the record had been written when it was opened; -1: it is new."""
        self._stride = 1
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
        must_have_weights(self.intervals, self._matrices, type(self.model).__name__)
        now = [name for name in self.intervals if MEASURES[name].needs != "attention" or self._has_probe]
        first = self._measured(now, first=True)
        self._rows = self._rows_of_all(first)
        self._open_record()
        self._entered = True
        if self._inside is not None:
            self._inside.enter()
        if self.recorded < self.step_number:
            self._send(first)
            self._deliver_first()
        self._arm()
        return self

    def step(self, batch: Any = None, step: int | None = None) -> None:
        """Say that the optimizer made a step: call it once per step, however many batches it took.

        - batch: with probe="step", what the model was trained on in this step, as it is called with it; None: what its
          pass was seen to get. Otherwise the number of the step, as `step`
        - step: its number, where the loop knows it; None: one more than before. Numbers must rise
        """
        if not self._entered:
            raise BadInput("Monitor.step must be called inside the block: `with Monitor(...) as monitor:`")
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return  # what a CUDA graph records would be replayed without us
        if step is None and (isinstance(batch, int) or not isinstance(self._batch, StepBatch)):
            batch, step = None, batch
        before, self.step_number = self.step_number, self._next(step)
        self._stride = self.step_number - before
        self._deliver()
        due = [name for name, steps in self.intervals.items() if self.step_number // steps > before // steps]
        if due and self.step_number > self.recorded and not self._failed:
            self._must_have_gradients(due)
            self._measure(due, batch)
            self._deliver()
        self._arm()

    def gradients(self) -> None:
        """Measure gradients now, for the step that comes: for loops that clear them before they call `step`.

        Call it before the optimizer's step or after it. Where no measure of gradients is due, nothing happens.
        """
        if not self._entered or self._failed:
            return
        due = self._due_next("gradients")
        if due and not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
            self._matrices.look_again()
            self._held = {name: each for one in due for name, each in MEASURES[one].take(self._matrices).items()}

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Hand out what is still on its way, and close the record, which can go on later."""
        self._entered = False
        self._disarm()
        if self._inside is not None:
            self._inside.leave()
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

    @property
    def _has_probe(self) -> bool:
        """Whether there is a batch to read when the block is entered."""
        return isinstance(self._batch, ProbeBatch)

    def _due_next(self, needs: str) -> list[str]:
        """Measures that are due at the next step, if it comes as far after this one as this one came."""
        now, coming = self.step_number, self.step_number + self._stride
        due = [name for name, steps in self.intervals.items() if coming // steps > now // steps]
        return [name for name in due if MEASURES[name].needs == needs and coming > self.recorded]

    def _arm(self) -> None:
        """Get ready for the pass of the next step, where that is to be measured."""
        source = self._inside or (self._batch if isinstance(self._batch, StepBatch) else None)
        if source is not None and not self._failed and self._due_next("attention"):
            source.arm()

    def _disarm(self) -> None:
        for source in (self._inside, self._batch):
            if isinstance(source, Inside | StepBatch):
                source.disarm()

    def _measure(self, due: list[str], batch: Any = None) -> None:
        """Measure; what goes wrong ends the measuring, and never the training."""
        begun = self._attention is not None
        try:
            self._send(self._measured(due, batch=batch))
        except Exception as error:
            self._failed = True
            self._disarm()
            if isinstance(error, JomaError) and not begun:
                raise  # what cannot work is refused at the first step whose batch is seen
            why = " ".join(str(error).split())
            report(f"step {self.step_number}: measuring failed and ends here, training goes on: {why}")

    def _measured(self, due: list[str], *, first: bool = False, batch: Any = None) -> Taken:
        """The series of the measures that are due, of what is followed."""
        taken: Taken = {}
        probe = self._looked(due, batch)
        if probe is not None:
            wanted = due if self._inside is None else list(self.intervals)
            for measure in (MEASURES[name] for name in wanted if MEASURES[name].needs == "attention"):
                taken |= {name: self._followed(each) for name, each in measure.take(probe).items()}
            if self._attention is None:
                self._attention = self._rows_of_attention(probe, taken)
                self._begin_late(first, list(taken))
        others = [MEASURES[name] for name in due if MEASURES[name].needs != "attention"]
        if others:
            self._matrices.look_again()
        held, self._held = self._held, {}
        for measure in others:
            if not (first and measure.needs == "gradients"):  # those of a step before the block
                taken |= {measure.name: held[measure.name]} if measure.name in held else measure.take(self._matrices)
        return taken

    def _looked(self, due: list[str], batch: Any) -> Probe | Round | None:
        """What measures of attention are taken from; None where none are due, or a round is not over."""
        if not any(MEASURES[name].needs == "attention" for name in due):
            return None
        if self._inside is not None:
            return self._inside.seen()
        assert self._batch is not None
        read = first_pass if self._attention is None else watched_pass
        given = self._batch.rows_of(batch) if isinstance(self._batch, StepBatch) else self._batch
        return read(self.model, given, spread="spread" in due, attention=self._adapters)

    def _begin_late(self, entering: bool, series: list[str]) -> None:
        """Attention that is seen for the first time in training: its rows, and its past in a record that goes on."""
        if entering or self._attention is None:
            return
        rows = dict.fromkeys(series, self._attention)
        self._rows |= rows
        if self._record is not None and self.recorded >= 0:
            for step, tables in self._record.past(rows):
                self._watch.new(step, tables)

    def _followed(self, by_layer: dict[str, Any]) -> dict[str, Any]:
        return {name: each for name, each in by_layer.items() if name in self._names}

    def _rows_of_attention(self, probe: Probe | Round, taken: Taken) -> Rows:
        heads = {name: len(each) for series in taken.values() for name, each in series.items()}
        if not heads:
            raise BadInput(
                f"include and exclude leave out all attention: there are {short(probe.layers, 200)}; "
                "measures=['stable_rank', 'norm'] needs none",
                argument="include",
            )
        return Rows(tuple(heads), tuple(heads.values()), tuple(probe.queries[name] for name in heads))

    def _rows_of_all(self, first: Taken) -> dict[str, Rows]:
        """What the rows of every series are; that of updates has no numbers yet, nor has attention in training."""
        matrices, embeddings = Rows(tuple(self._matrices.by_name)), Rows(tuple(self._matrices.embeddings))
        needs = {name: MEASURES[name].needs for name in self.intervals}
        found = {
            name: embeddings if each == "embeddings" else matrices
            for name, each in needs.items()
            if each != "attention"
        }
        if self._attention is not None:
            found = {name: self._attention for name in first if name not in found} | found
        return found

    def _must_have_gradients(self, due: list[str]) -> None:
        """Refuse a loop that has cleared them, at the first step where they are due."""
        wanted = [name for name in due if MEASURES[name].needs == "gradients" and name not in self._held]
        if wanted and wanted[0] not in self.latest and all(each.grad is None for each in self.model.parameters()):
            raise BadInput(
                f"{wanted[0]} needs gradients, and at step {self.step_number} there are none: call monitor.step() "
                "before they are cleared, or monitor.gradients() before optimizer.step()",
                argument="measures",
            )

    def _open_record(self) -> None:
        """Go on where the record ends, with alarms that have seen all of it."""
        if self._out is None:
            return
        probe = "inside" if self._batch is None else self._batch.digest
        config = {"model": type(self.model).__name__, "probe": probe, "measures": self.intervals}
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
