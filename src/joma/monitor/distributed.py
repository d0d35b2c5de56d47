"""A monitor on several processes: each measures its share of the probe batch, and the first process records.

What a process sees adds up with what the others see (`pooled`, `sharded`). So one collective of one packed vector per
measuring gives the numbers of the whole batch. The vector begins with the step of every process, and whether its
measuring went wrong: processes that come from different steps notice it, and what fails on one ends on all.

Nothing here decides when to measure. All processes must come to the same step.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

from joma.host.arguments import shown
from joma.host.errors import BadInput
from joma.host.words import counted, short
from joma.monitor.batch import ProbeBatch, StepBatch
from joma.monitor.errors import MonitorError
from joma.monitor.graphs import Memory
from joma.monitor.inside import Round
from joma.monitor.matrices import Matrices
from joma.monitor.measures import MONITORED, Taken, take
from joma.monitor.names import Names
from joma.monitor.pooled import Layer, Seat, SeenByAll, empty_table, spread_table, table_of
from joma.monitor.sharded import SharedMatrices
from joma.monitor.watch import TrainingStopped
from joma.probes import Probe
from joma.probes._parallel import Team, is_split, must_be_supported, unwrapped

Found = TypeVar("Found")


class Both(NamedTuple):
    """What was seen at one measuring, of all processes."""

    attention: Any
    """A `Probe`, or what gives its numbers in the same form; None: no attention was measured."""
    weights: Taken
    """Series of the weights."""
    loss: Tensor | None
    """The mean of those that were given; None: none was."""


Seen = Both | None
"""None: another process has the numbers of all."""
Look = Callable[[], Probe | Round | None]
Batch = ProbeBatch | StepBatch | None
LONGEST = 300  # characters of a sentence that goes from process to process
_HEADER = 3  # numbers of each process: its step, whether it has a problem, whether it saw attention
_GROUPS: WeakKeyDictionary[Any, dict[tuple[int, ...], Any]] = WeakKeyDictionary()
"""Groups made here, by the group of all processes, which a program may end and begin anew."""


class _KnownToAll(MonitorError):
    """What all processes raise together."""


class OneProcess:
    """One process: nothing is shared."""

    first, stops, begun, is_alone = True, False, False, True
    """Whether this process records, whether an alarm stops the training, whether all have seen attention; no others."""

    def matrices(self, model: nn.Module, names: Names, memory: Memory | None) -> Matrices:
        """Those that this process measures. memory: as in `Ranks`."""
        return Matrices(model, names, memory)

    def meet(self, batch: Batch, matrices: Matrices, settings: Mapping[str, Any]) -> Batch:
        """What this process reads of the probe batch. settings: what must be the same on all."""
        return batch

    def held(self, due: list[str], matrices: Matrices) -> dict[str, Any]:
        matrices.look_again()
        return {name: each for one in due for name, each in take(one, matrices).items()}

    def measured(
        self, step: int, attention: list[str], look: Look, weights: list[str], matrices: Matrices,
        held: dict[str, Any], losses: list[Tensor],
    ) -> Seen:  # fmt: skip
        probe = look()
        if weights:
            matrices.look_again()
        found: Taken = {}
        for name in weights:
            found |= {name: held[name]} if name in held else take(name, matrices)
        return Both(probe, found, mean_of(losses) if losses else None)

    def by_first(self, do: Callable[[], Found]) -> Found:
        """What the first process finds when it does this; an error there is one on all."""
        return do()

    @contextmanager
    def stopping(self) -> Iterator[None]:
        yield

    def tells(self, error: Exception) -> bool:
        return True

    def must_wait(self, error: Exception) -> bool:
        """Whether an error must wait for the next measuring, where all processes hear of it."""
        return False


class SeveralProcesses(OneProcess):
    """Processes that train one model together."""

    is_alone = False

    def __init__(self, model: nn.Module, group: Any) -> None:
        """model: what is trained, on this process. group: the processes."""
        must_be_supported(model)
        self._model, self._group = unwrapped(model), group
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        if self._rank < 0:
            raise BadInput("group must have this process among its members", argument="group")
        self.first = self._rank == 0
        self._device = _device_of(group, self._model)
        self._layers: dict[str, Layer] = {}
        self._rows: ProbeBatch | None = None
        self._agreed = False
        self._late: Exception | None = None

    def matrices(self, model: nn.Module, names: Names, memory: Memory | None) -> Matrices:
        assert memory is None
        return SharedMatrices(model, names, self._group, self._device)

    def meet(self, batch: Batch, matrices: Matrices, settings: Mapping[str, Any]) -> Batch:
        assert isinstance(matrices, SharedMatrices)
        self._weights = [name for name in settings["measures"] if MONITORED[name].needs != "attention"]
        matrices.must_know(self._weights)
        if isinstance(batch, ProbeBatch):
            batch.must_suit(self._model)  # all of it: whoever is refused alone leaves the others waiting
        self._team, self.stops = Team(self._model), settings["on_alarm"] == "stop"
        mine = {**settings, "on_alarm": self.stops, "probe": batch and batch.digest, "model": matrices.names()}
        told = self._gathered((mine, self._team.ranks or (dist.get_rank(),), matrices.meshes()))
        _must_be_the_same([each[0] for each in told])
        matrices.settle([each[2] for each in told])
        self._teams = [each[1] for each in told]
        teams = sorted(set(self._teams))
        self._share, self._shares = teams.index(self._teams[self._rank]), len(teams)
        if isinstance(batch, ProbeBatch):  # else every process has its own rows
            batch = self._rows = share_of(batch, self._share, self._shares)
        return batch

    def held(self, due: list[str], matrices: Matrices) -> dict[str, Any]:
        assert isinstance(matrices, SharedMatrices)
        matrices.look_again()
        return dict(matrices.parts(due))

    def measured(
        self, step: int, attention: list[str], look: Look, weights: list[str], matrices: Matrices,
        held: dict[str, Any], losses: list[Tensor],
    ) -> Seen:  # fmt: skip
        assert isinstance(matrices, SharedMatrices)
        self._agreed = False
        matrices.look_again()
        probe, problem = _tried(look)
        # Also after a failure: the others wait for our part.
        parts, other = _tried(lambda: held | matrices.parts([name for name in weights if name not in held]))
        problem = self._late or problem or other
        if attention and not self._knows("spread" in attention):
            self._layers = self._all_layers(probe, problem)
            self.begun = bool(self._layers)
        table, other = _tried(lambda: self._table(probe if problem is None else None))
        problem = problem or other
        header = torch.zeros(self._size, _HEADER, dtype=torch.float64, device=self._device)
        header[self._rank] = torch.tensor([step, problem is not None, probe is not None])
        total = torch.tensor([0.0, len(losses)], dtype=torch.float64, device=self._device)
        total[0] += sum(each.to(total) for each in losses)
        sections = {
            "header": header,
            "loss": total,
            "attention": empty_table(self._layers, self._shares, self._device) if table is None else table,
            **{name: (parts or {}).get(name, matrices.nothing(name)) for name in self._weights},
        }
        if "spread" in attention:  # which is large; the sizes of the others do not depend on what is due
            sections["spread"] = spread_table(probe if problem is None else None, self._layers, self._device)
        summed = self._added_up(sections)
        self._must_agree(summed["header"].tolist(), problem)
        self._agreed = True
        if not self.first:
            return None
        seen = None
        if probe is not None:
            names, layers = self._modules(probe), [name for name in self._layers if name in probe.layers]
            seen = SeenByAll(self._layers, summed["attention"], summed.get("spread"), layers, names)
        loss = summed["loss"][0] / summed["loss"][1] if summed["loss"][1] else None
        found = matrices.whole({name: summed[name] for name in weights if name in (parts or {})})
        return Both(seen, found, loss)

    def by_first(self, do: Callable[[], Found]) -> Found:
        found, problem = _tried(do) if self.first else (None, None)
        told: list[Any] = self._from_first([found, None if problem is None else _sentence(problem)])
        if problem is not None:
            raise problem
        if told[1] is not None:
            raise MonitorError(f"rank 0: {told[1]}")
        return told[0]  # type: ignore[no-any-return]

    @contextmanager
    def stopping(self) -> Iterator[None]:
        alerts: list[Any] = []
        try:
            yield
        except TrainingStopped as stopped:
            if not self.stops:  # somebody's own function raised it
                raise
            alerts = stopped.alerts
        if not self.stops:
            return
        count = torch.tensor([len(alerts)], device=self._device)
        dist.broadcast(count, group=self._group, group_src=0)
        if int(count):
            raise TrainingStopped(self._from_first(alerts if self.first else [None] * int(count)))

    def tells(self, error: Exception) -> bool:
        return self.first or not isinstance(error, _KnownToAll)

    def must_wait(self, error: Exception) -> bool:
        if self._agreed:
            self._late = error
        return self._agreed

    def _knows(self, spread: bool) -> bool:
        """Whether all heads are known, and for the spread of logits how wide they are; the same on all processes."""
        return bool(self._layers) and not (spread and any(not each.width for each in self._layers.values()))

    def _table(self, probe: Probe | Round | None) -> Tensor | None:
        return None if probe is None else table_of(probe, self._layers, self._share, self._shares, self._device)

    def _added_up(self, sections: Mapping[str, Tensor]) -> dict[str, Tensor]:
        packed = torch.cat([each.reshape(-1) for each in sections.values()])
        try:
            dist.all_reduce(packed, group=self._group)
        except RuntimeError as error:
            together = "the processes did not come together, and Monitor.step must be called on all of them"
            raise MonitorError(f"{together}: {_sentence(error)}") from error
        pieces = packed.split([each.numel() for each in sections.values()])
        return {name: piece.view(each.shape) for (name, each), piece in zip(sections.items(), pieces, strict=True)}

    def _must_agree(self, header: list[list[float]], problem: Exception | None) -> None:
        steps = [int(step) for step, _, _ in header]
        if len(set(steps)) > 1:
            other = next(rank for rank, step in enumerate(steps) if step != steps[0])
            raise _KnownToAll(
                f"processes must measure at the same step, and rank {other} is at step {steps[other]} when rank 0 is "
                f"at {steps[0]}: call Monitor.step on all of them, as often"
            )
        failed = next((rank for rank, (_, flag, _) in enumerate(header) if flag), None)
        if failed is not None:
            told: list[Any] = [None if problem is None else _sentence(problem)]
            dist.broadcast_object_list(told, group=self._group, group_src=failed, device=self._device)
            raise _KnownToAll(f"rank {failed}: {told[0]}")
        blind = [rank for rank, (_, _, saw) in enumerate(header) if not saw]
        if 0 < len(blind) < self._size:
            raise _KnownToAll(f"rank {blind[0]} saw no attention at step {steps[0]}, and others did")

    def _gathered(self, mine: Any) -> list[Any]:
        told: list[Any] = [None] * self._size
        dist.all_gather_object(told, mine, group=self._group)
        return told

    def _from_first(self, told: list[Any]) -> list[Any]:
        dist.broadcast_object_list(told, group=self._group, group_src=0, device=self._device)
        return told

    def _all_layers(self, probe: Probe | Round | None, problem: Exception | None) -> dict[str, Layer]:
        seats, problem = (None, problem) if problem else _tried(lambda: self._seats(probe))
        told = self._gathered(_sentence(problem) if problem is not None else seats)
        if problem is not None:
            raise problem
        for rank, each in enumerate(told):
            if isinstance(each, str):
                raise MonitorError(f"rank {rank}: {each}")
            if list(each) != list(told[0]):
                raise MonitorError(f"rank {rank} has other attention layers than rank 0: {short(list(each), 200)}")
        team = [rank for rank in range(self._size) if self._teams[rank] == self._teams[self._rank]]
        return {name: Layer.among({rank: told[rank][name] for rank in team}, self._rank) for name in told[0]}

    def _modules(self, probe: Probe | Round) -> dict[nn.Module, str]:
        """By name, for what measures read of weights on this process alone: of weights in parts there is nothing."""
        split = any(map(is_split, self._model.parameters()))
        return {nn.Module(): name for name in probe.layers} if split else probe.names

    def _seats(self, probe: Probe | Round | None) -> dict[str, Seat]:
        if probe is None:
            return {}
        if self._rows is not None:
            _must_read_rows(self._rows, probe)
        widths = {name: each.mean.shape[-1] for name, each in probe.spread.items()}
        return {
            name: Seat(len(heads), self._team.part(name), probe.queries[name], widths.get(name, 0))
            for name, heads in probe.counted().items()
        }


def processes_of(model: nn.Module, group: Any = None) -> OneProcess:
    """What stands between a monitor and the other processes of its training; `OneProcess` where there are none.

    - model: what is trained, wrapped or not
    - group: the processes that train it; None: those of DistributedDataParallel, else all that torch.distributed knows
    """
    if not (dist.is_available() and dist.is_initialized()):
        _must_be_one_process(group)
        return OneProcess()
    if group is not None and not isinstance(group, dist.ProcessGroup):
        if group == dist.GroupMember.NON_GROUP_MEMBER:
            raise BadInput("group must have this process among its members", argument="group")
        raise BadInput(f"group must be a process group of torch.distributed, got {shown(group)}", argument="group")
    inner = getattr(model, "_orig_mod", model)
    own = inner.process_group if isinstance(inner, nn.parallel.DistributedDataParallel) else dist.group.WORLD
    ranks = dist.get_process_group_ranks(group or own)
    if len(ranks) == 1 and not any(map(is_split, model.parameters())):
        return OneProcess()
    return SeveralProcesses(model, group or _own_group(tuple(ranks)))


def share_of(batch: ProbeBatch, share: int, shares: int) -> ProbeBatch:
    """Some rows of every tensor of a batch that has as many as its first one; the digest stays that of all."""
    every = [*batch.args, *batch.kwargs.values()]
    rows = next((len(each) for each in every if isinstance(each, Tensor) and each.ndim), 0)
    if rows < shares:
        raise BadInput(
            f"probe must have a row for each of the {shares} shares that processes measure, got {counted(rows, 'row')}",
            argument="probe",
        )

    def some(value: Any) -> Any:
        cut = isinstance(value, Tensor) and value.ndim > 0 and len(value) == rows
        return value.tensor_split(shares)[share] if cut else value

    mine = copy(batch)
    mine.args = tuple(map(some, batch.args))
    mine.kwargs = {name: some(each) for name, each in batch.kwargs.items()}
    mine.labels = {name: some(each) for name, each in batch.labels.items()}
    return mine


def _must_read_rows(batch: ProbeBatch, probe: Probe | Round) -> None:
    """Refuse a model that has tokens first and rows second: its texts would have been cut."""
    first = next((each for each in (*batch.args, *batch.kwargs.values()) if isinstance(each, Tensor)), None)
    if first is None or first.ndim != 2 + first.is_floating_point():
        return
    rows, tokens = first.shape[:2]
    if rows != tokens and set(probe.queries.values()) == {rows}:
        raise MonitorError(
            "processes share the probe batch by its first dimension, and the model takes that for tokens: give a batch "
            "with rows first"
        )


def _must_be_one_process(group: Any) -> None:
    """Refuse a process of several that do not know each other yet: all of them would write one record."""
    started = dist.is_available() and dist.is_torchelastic_launched() and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if started or group is not None:
        what = "this process was started as one of several" if started else "group was given"
        raise BadInput(
            f"{what}, and torch.distributed is not initialised: call torch.distributed.init_process_group first",
            argument="group",
        )


def _own_group(ranks: tuple[int, ...]) -> Any:
    """A group for the monitor alone: whatever goes wrong, its numbers never meet the gradients of training."""
    known = _GROUPS.setdefault(dist.group.WORLD, {})
    if ranks not in known:
        known[ranks] = dist.new_group(list(ranks), use_local_synchronization=True)
    return known[ranks]


def _device_of(group: Any, model: nn.Module) -> torch.device:
    backend = str(dist.get_backend(group))
    if "nccl" in backend:
        return torch.device("cuda", torch.cuda.current_device())
    if "gloo" in backend:
        return torch.device("cpu")
    return next((each.device for each in model.parameters()), torch.device("cpu"))


def _must_be_the_same(told: list[dict[str, Any]]) -> None:
    for rank, each in enumerate(told):
        other = next((name for name in told[0] if each[name] != told[0][name]), None)
        if other is not None:
            raise BadInput(
                f"{other} must be the same on all processes, and that of rank {rank} differs from that of rank 0",
                argument=other,
            )


def mean_of(losses: list[Tensor]) -> Tensor:
    """Where the first of them lies."""
    return torch.stack([each.to(losses[0]) for each in losses]).mean()


def _tried(do: Callable[[], Found]) -> tuple[Found | None, Exception | None]:
    try:
        return do(), None
    except Exception as error:
        return None, error


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
