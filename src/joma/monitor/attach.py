"""A monitor of a training run: every so many steps it reads one probe batch with the model and writes down what it saw.

Between two measurings nothing is attached to the model: no hook, no wrapper. So leaving has nothing to take away. Where
the batches of training are measured, hooks are there from the step before until the step is told.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, get_args

import torch
from torch import Tensor, nn

from joma.host.arguments import integer, shown
from joma.host.errors import BadInput, JomaError, as_bad_input
from joma.host.words import short
from joma.monitor.alarms import Alarm, Alert
from joma.monitor.batch import (
    ProbeBatch,
    StepBatch,
    first_pass,
    must_be_autocast,
    must_be_replay,
    must_have_one_way,
    watched_pass,
)
from joma.monitor.delivery import Delivery, StrPath
from joma.monitor.distributed import Seen, processes_of
from joma.monitor.graphs import Memory
from joma.monitor.inside import Inside, Round
from joma.monitor.measures import DEFAULT, MONITORED, Taken, intervals_of, take
from joma.monitor.names import Names, Patterns
from joma.monitor.pooled import SeenByAll
from joma.monitor.replay import Replay
from joma.monitor.routers import Routers
from joma.monitor.sinks.guard import Sink, report
from joma.monitor.tables import LOSS, Per, Rows, Table
from joma.monitor.watch import OnAlarm, Watch
from joma.probes import Probe
from joma.probes._parallel import class_name, is_compiled, unwrapped
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
    - sinks: callables (step, values), which get one number of every series
    - per: "layer" gives sinks the smallest, mean and largest number of every layer instead, "head" those and the
      number of every head, expert and matrix
    - out: the file of the record, which gets every number; one that is there goes on. None: no record
    - alarms: None for `joma.monitor.usual_alarms()`; an empty list for none
    - on_alarm: "log" writes a line, "stop" raises `TrainingStopped`, a function is called with each `Alert`
      (one that raises is reported once, and alarms are logged from then on)
    - start: the number of steps before the first one here; None: where the record ends, and 0 without one
    - group: the processes that train together, each with a monitor; None: those of DistributedDataParallel, else all.
      Each measures its share of the batch. The first one has the record, the sinks, the alarms and `latest`
    - autocast: the type that your forward passes have under `torch.autocast`, such as torch.bfloat16, so that the pass
      over the probe batch has it too; None: as where `step()` is called
    - replay: whether the pass over the probe batch is recorded as a CUDA graph, which costs the host almost nothing
      and holds its memory. Refused where a pass changes buffers, draws random numbers or cannot be recorded

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
        per: Per = "model",
        out: StrPath | None = None,
        alarms: Sequence[Alarm] | Alarm | None = None,
        on_alarm: OnAlarm = "log",
        start: int | None = None,
        group: Any = None,
        autocast: torch.dtype | None = None,
        replay: bool = False,
    ) -> None:
        """The parameters are those of the class; nothing is measured before the block is entered."""
        must_have_one_way(probe, inside)
        if not isinstance(model, nn.Module):
            raise BadInput(f"model must be a torch module, got {shown(model)}", argument="model")
        self.model: nn.Module = unwrapped(model)
        self.intervals = intervals_of(measures, every)
        if per not in get_args(Per):
            raise BadInput(f"per must be one of {', '.join(get_args(Per))}, got {shown(per)}", argument="per")
        must_be_autocast(autocast, inside)
        must_be_replay(replay, has_batch=not inside and not isinstance(probe, str))
        self._autocast = autocast
        self._names = Names(include, exclude)
        self._adapters = checked_adapters(attention)
        self._inside: Inside | None = None
        self._batch: ProbeBatch | StepBatch | None = None
        if inside:
            options = {"spread": "spread" in self.intervals, "compiled": is_compiled(model)}
            self._inside = Inside(self.model, self._names, attention=self._adapters, **options)
        elif isinstance(probe, str) and probe == "step":
            with as_bad_input():
                self._batch = StepBatch(self.model, integer(rows, "rows", 1))
        else:
            self._batch = ProbeBatch(probe)
        self._processes = processes_of(model, group)
        self._routers = self._finding_routers(replay) if "router_load" in self.intervals else None
        memory = Memory() if replay else None
        self._replay = self._replaying(memory) if memory is not None else None
        self._matrices = self._processes.matrices(self.model, self._names, memory)
        self._watch = Watch(alarms, on_alarm, self.intervals)
        self._delivery = Delivery(self._watch, sinks, per=per)
        if out is not None and not isinstance(out, str | os.PathLike):
            raise BadInput(f"out must be the path of a file, got {shown(out)}", argument="out")
        self._out, self._start = out, start
        if start is not None:
            with as_bad_input():
                integer(start, "start", 0)
        self.step_number = start or 0
        """Steps of the optimizer so far."""
        self.latest: dict[str, Table] = self._delivery.latest
        """The latest table of every series."""
        self.alerts: list[Alert] = self._delivery.alerts
        """What the alarms found since the block was entered."""
        self._rows: dict[str, Rows] = {}
        self._attention: Rows | None = None
        self._held: Taken = {}  # of gradients, which were measured before they were cleared
        self._losses: list[Any] = []  # of the steps since the last measuring
        self._told_losses: list[tuple[int, Any]] = []  # with the step that each belongs to
        self.recorded = -1
        """Up to which step the record had been written when it was opened; -1: it is new."""
        self._stride = 1
        self._used = self._entered = self._failed = self._had_gradients = False

    def __repr__(self) -> str:
        what = ", ".join(f"{name} every {steps}" for name, steps in self.intervals.items())
        return f"Monitor({short(type(self.model).__name__)}, step {self.step_number}: {what}"[:118] + ")"

    def __enter__(self) -> Self:
        """Measure once, so that what cannot work is refused before training begins."""
        if self._used:
            raise BadInput(
                "this Monitor was entered before: make a new one, with the same out it goes on in its record"
            )
        self._used = True
        self._matrices.must_have(self.intervals)
        now = [name for name in self.intervals if MONITORED[name].needs != "attention" or self._has_probe]
        settings = {"measures": self.intervals, "start": self._start, "on_alarm": self._watch.on_alarm}
        self._batch = self._processes.meet(self._batch, self._matrices, settings)
        seen = self._seen(now, first=True)
        if self._replay is not None and seen is not None and seen.attention is not None:
            self._replay.probe()  # what cannot be recorded is refused here
        self.step_number, self.recorded = self._processes.by_first(lambda: self._opened(now, seen))
        self._entered = True
        if self._inside is not None:
            self._inside.enter()
        if self.recorded < self.step_number:
            self._deliver_first()
        self._arm()
        return self

    def step(self, batch: Any = None, step: int | None = None, *, loss: Any = None) -> None:
        """Say that the optimizer made a step: call it once per step, however many batches it took.

        - batch: with probe="step", what the model was trained on in this step, as it is called with it; None: what its
          pass was seen to get. Otherwise the number of the step, as `step`
        - step: its number, where the loop knows it; None: one more than before. Numbers must rise
        - loss: of this step, a number or a tensor of one: the record gets the mean of those since the last measuring
        """
        if not self._entered:
            raise BadInput("Monitor.step must be called inside the block: `with Monitor(...) as monitor:`")
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return  # what a CUDA graph records would be replayed without us
        if step is None and (isinstance(batch, int) or not isinstance(self._batch, StepBatch)):
            batch, step = None, batch
        before, self.step_number = self.step_number, self._next(step)
        self._stride = self.step_number - before
        number = None if loss is None else _one_number(loss)
        if number is not None and self.step_number > self.recorded and not self._failed:
            self._losses.append(number)
        self._delivery.deliver()
        due = [name for name, steps in self.intervals.items() if self.step_number // steps > before // steps]
        if due and self.step_number > self.recorded and not self._failed:
            self._must_have_gradients(due)
            self._measure(due, batch)
            with self._processes.stopping():
                self._delivery.deliver(wait=self._processes.stops)
        self._arm()

    def record_loss(self, loss: Any) -> None:
        """Put a loss into the record as it is, at the step that was made last: for trainers that log their own mean.

        - loss: a number or a tensor of one
        """
        number = _one_number(loss)
        if self._entered and not self._failed and self.step_number > self.recorded:
            self._told_losses.append((self.step_number, number))

    def gradients(self) -> None:
        """Measure gradients now, for the step that comes: for loops that clear them before they call `step`.

        Call it before the optimizer's step or after it. Where no measure of gradients is due, nothing happens.
        """
        if not self._entered or self._failed:
            return
        due = self._due_next("gradients")
        if due and not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
            self._held = self._processes.held(due, self._matrices)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Hand out what is still on its way, and close the record, which can go on later."""
        self._entered = False
        self._send_losses()
        self._disarm()
        self._replay = None
        self._matrices.leave()
        if self._inside is not None:
            self._inside.leave()
        self._delivery.close(self.step_number, error)

    def _next(self, step: int | None) -> int:
        if step is None:
            return self.step_number + 1
        with as_bad_input():
            integer(step, "step", 0)
        if step <= self.step_number:
            raise BadInput(f"step must rise from one call to the next, got {step} after {self.step_number}")
        return int(step)

    @property
    def _has_probe(self) -> bool:
        return isinstance(self._batch, ProbeBatch)

    def _finding_routers(self, replay: bool) -> Routers:
        if not self._has_probe or not self._processes.is_alone or replay:
            needs = "router_load needs a batch as probe, one process, and no replay"
            raise BadInput(f"{needs}: leave it out of measures", argument="measures")
        return Routers(self.model, self._names)

    def _replaying(self, memory: Memory) -> Replay:
        if not isinstance(self._batch, ProbeBatch) or not self._processes.is_alone:
            raise BadInput("replay=True is for one process, and several train here: leave it out", argument="replay")
        options = {"spread": "spread" in self.intervals, "attention": self._adapters}
        return Replay(self.model, self._batch, self._autocast, memory, **options)

    def _due_next(self, needs: str) -> list[str]:
        """Measures that are due at the next step, if it comes as far after this one as this one came."""
        now, coming = self.step_number, self.step_number + self._stride
        due = [name for name, steps in self.intervals.items() if coming // steps > now // steps]
        return [name for name in due if MONITORED[name].needs == needs and coming > self.recorded]

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
        begun = self._begun or self._has_probe  # then all was tried when the block was entered
        try:
            seen = self._seen(due, batch=batch)
            self._send_losses()
            self._send(self._taken(due, seen))
        except Exception as error:
            if self._processes.must_wait(error):
                return
            self._failed = True
            self._disarm()
            if isinstance(error, JomaError) and not begun:
                raise  # what cannot work is refused at the first step whose batch is seen
            why = " ".join(str(error).split())
            if self._processes.tells(error):
                report(f"step {self.step_number}: measuring failed and ends here, training continues: {why}")

    @property
    def _begun(self) -> bool:
        return self._attention is not None or self._processes.begun

    def _seen(self, due: list[str], *, first: bool = False, batch: Any = None) -> Seen:
        """What the measures that are due are taken from. None: another process has the numbers of all."""
        held, self._held = self._held, {}
        weights = [name for name in due if MONITORED[name].needs not in ("attention", "routers")]
        if first:
            weights = [name for name in weights if MONITORED[name].needs != "gradients"]  # of a step before the block
        attention = [name for name in self._together(due) if MONITORED[name].needs == "attention"]
        look = lambda: self._looked(due, batch)
        losses, self._losses = self._losses, []
        return self._processes.measured(self.step_number, attention, look, weights, self._matrices, held, losses)

    def _together(self, due: list[str]) -> list[str]:
        """What is taken of attention: all of it in a training pass, where a round takes several steps."""
        return list(self.intervals) if self._inside is not None and self._attends(due) else due

    def _taken(self, due: list[str], seen: Seen, *, first: bool = False) -> Taken:
        if seen is None:
            return {}
        taken: Taken = {}
        if seen.attention is not None and self._attends(due):
            for one in (name for name in self._together(due) if MONITORED[name].needs == "attention"):
                for name, each in take(one, seen.attention).items():
                    taken[name] = {layer: numbers for layer, numbers in each.items() if layer in self._names}
            if self._attention is None:
                self._attention = self._rows_of_attention(seen.attention, taken)
            if late := [name for name in taken if name not in self._rows]:
                self._begin_late(first, late)
        if "router_load" in due and self._routers is not None:
            taken["router_load"] = self._routers.router_load()
            self._rows["router_load"] = self._routers.rows
        loss = {} if seen.loss is None else {"loss": dict.fromkeys(LOSS.names, seen.loss)}
        return loss | taken | seen.weights

    def _looked(self, due: list[str], batch: Any) -> Probe | Round | None:
        """What measures of attention are taken from; None where none are due, or a round is not over."""
        if self._routers is not None and "router_load" in due:
            with self._routers.watching():
                return self._read(due, batch)
        return self._read(due, batch) if self._attends(due) else None

    def _attends(self, due: list[str]) -> bool:
        return any(MONITORED[name].needs == "attention" for name in due)

    def _read(self, due: list[str], batch: Any) -> Probe | Round | None:
        if self._inside is not None:
            return self._inside.seen()
        if self._replay is not None and self._begun:
            return self._replay.probe()
        assert self._batch is not None
        read = watched_pass if self._begun else first_pass
        given = self._batch.rows_of(batch) if isinstance(self._batch, StepBatch) else self._batch
        return read(self.model, given, spread="spread" in due, attention=self._adapters, autocast=self._autocast)

    def _begin_late(self, entering: bool, series: list[str]) -> None:
        """Attention that is seen for the first time in training: its rows, and its past in a record that goes on."""
        if entering or self._attention is None:
            return
        rows = dict.fromkeys(series, self._attention)
        self._rows |= rows
        if self.recorded >= 0:
            self._delivery.show_past(rows)

    def _rows_of_attention(self, probe: Probe | Round | SeenByAll, taken: Taken) -> Rows:
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
        passes = ("attention", "routers")
        found = self._rows | {"loss": LOSS}  # of routers
        for name in (name for name in self.intervals if MONITORED[name].needs not in passes):
            kinds = ("layer",) if name == "gradient_norm" else None
            found[name] = Rows(self._matrices.rows(name), kinds=kinds)
        if self._attention is not None:
            found = {name: self._attention for name in first if name not in found} | found
        return found

    def _must_have_gradients(self, due: list[str]) -> None:
        """Refuse a loop that has cleared them, at the first step where they are due."""
        wanted = [name for name in due if MONITORED[name].needs == "gradients" and name not in self._held]
        first, self._had_gradients = not self._had_gradients, self._had_gradients or bool(wanted)
        if wanted and first and all(each.grad is None for each in self.model.parameters()):
            raise BadInput(
                f"{wanted[0]} needs gradients, and at step {self.step_number} there are none: call monitor.step() "
                "before they are cleared, or monitor.gradients() before optimizer.step()",
                argument="measures",
            )

    def _opened(self, due: list[str], seen: Seen) -> tuple[int, int]:
        first = self._taken(due, seen, first=True)
        self._rows = self._rows_of_all(first)
        self._open_record()
        if self.recorded < self.step_number:
            self._send(first)
        return self.step_number, self.recorded

    def _open_record(self) -> None:
        """Go on where the record ends, with alarms that have seen all of it."""
        if self._out is None:
            return
        probe = "inside" if self._batch is None else self._batch.digest
        config = {"model": class_name(self.model), "probe": probe, "measures": self.intervals}
        last = self._delivery.open(self._out, config, self._rows)
        if last is None:
            return
        self.recorded = last
        self.step_number = self.recorded if self._start is None else self._start
        if self.step_number < self.recorded:
            report(f"{self._out} has steps up to {self.recorded} already: they are not measured again")

    def _send_losses(self) -> None:
        """What a trainer has logged, where this process records."""
        told, self._told_losses = self._told_losses, []
        for step, number in told if self._processes.first else ():
            self._delivery.send(step, {"loss": dict.fromkeys(LOSS.names, number)}, self._rows)

    def _send(self, taken: Taken) -> None:
        self._delivery.send(self.step_number, taken, self._rows)

    def _deliver_first(self) -> None:
        try:
            with self._processes.stopping():
                self._delivery.deliver(wait=self._processes.stops)
        except BaseException as error:  # an alarm that stops: a block that is not entered is not left either
            self.__exit__(type(error), error, None)
            raise


def _one_number(loss: Any) -> Tensor:
    """A loss without its graph; where it lies on a GPU, nothing waits for it."""
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss.detach().reshape(()).to(torch.promote_types(loss.dtype, torch.float32), copy=True)
    if isinstance(loss, int | float) and not isinstance(loss, bool):
        return torch.tensor(float(loss), dtype=torch.float64)
    raise BadInput(f"loss must be a number or a tensor of one, got {shown(loss)}", argument="loss")
