"""The machine that makes steps: networks and optimizer state on one device, and one batched program over them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from joma.host.words import counted
from joma.models.dropout import keys
from joma.models.parts import compiled_parts
from joma.training.optimizers import by_parameter

if TYPE_CHECKING:
    from joma.training.ensemble import Ensemble

WARM_UP = 3  # steps made before the graph is captured: compilers tune, libraries allocate their workspaces


class Engine:
    """A group of members in training. `load_members` puts one in, `state` takes it out.

    On a GPU all its work is on a stream of its own, so that several engines can work at once: graphs captured on one
    stream would share the workspaces of matrix products. An `urgent` one goes first where kernels of several wait.
    """

    def __init__(self, ensemble: Ensemble, members: Sequence[int], *, urgent: bool = False) -> None:
        self.ensemble, self.members = ensemble, members
        self.device = torch.device(ensemble.device)
        self.stream = torch.cuda.Stream(self.device, priority=-urgent) if self.device.type == "cuda" else None
        if self.stream is not None:
            torch.cuda.synchronize(self.device)  # batches may still be on their way, on another stream
        with self._at_work():
            count = len(members)
            self.networks = ensemble.networks(members).to(self.device)
            for name, parameter in self.networks.named_parameters():
                if len(parameter) != count:
                    raise ValueError(f"{name} has {counted(len(parameter), 'member')}, but {count} were asked for")
            self.parameters, self.still = _what_learns(self.networks, ensemble.frozen)
            self.moments = ensemble.optimizer.start(self.parameters)
            self.step = torch.zeros((), dtype=torch.int32, device=self.device)
            self.age = torch.zeros((), dtype=torch.float64, device=self.device)
            self.rates = torch.zeros(count, dtype=torch.float64, device=self.device)
            self.full_rates, self.loss_sum = torch.zeros_like(self.rates), torch.zeros_like(self.rates)
            self.warm_up = torch.ones_like(self.rates)
            self.loss_count = torch.zeros(count, dtype=torch.int64, device=self.device)
            self.diverged_at = torch.full_like(self.loss_count, -1)
            self.before = {name: p.clone() for name, p in self._weights().items()} if ensemble.between else {}
        self.captured = None if self.stream is None else _Captured(self.stream)
        self.compiler = None if self.stream is None else "inductor"
        self.update = ensemble.optimizer.update
        if self.compiler is not None:
            self.update = torch.compile(self.update, dynamic=False, backend=self.compiler)
        self.fresh = True

    def _at_work(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def load_members(
        self, members: Sequence[int], state: Mapping[str, Tensor] | None, origin: Mapping[str, Tensor] | None = None
    ) -> None:
        """Put these members in, in that state; without one, at their beginning: in the state `origin`, if given."""
        with self._at_work():
            rates = self.ensemble.optimizer.rates(self.ensemble.members)
            self.full_rates.copy_(torch.tensor([rates[member] for member in members], dtype=torch.float64))
            self.rates.copy_(self.full_rates)
            warm_ups = self.ensemble.optimizer.warm_ups(self.ensemble.members)
            self.warm_up.copy_(torch.tensor([max(1, warm_ups[member]) for member in members], dtype=torch.float64))
            if state is not None:
                for name, tensor in self._tensors().items():
                    tensor.copy_(state[name])
            else:
                if not self.fresh:
                    self.networks.load_state_dict(self.ensemble.networks(members).state_dict())
                    for tensor in (*self.moments, self.loss_sum, self.loss_count):
                        tensor.zero_()
                    self.diverged_at.fill_(-1)
                if origin is not None:
                    self._inherit(origin)
                self._look_back()
            for place in self.still:
                place.kept.copy_(place.parameter[place.index])
            self.members, self.fresh = members, False

    def _inherit(self, origin: Mapping[str, Tensor]) -> None:
        """Take over weights, moments and who has diverged; buffers stay as its own networks have them."""
        renew = self.ensemble.origin is not None and self.ensemble.origin.renew
        mine = self._kept(moments=not renew)
        orders = [{name.partition(".")[0] for name in some if name.startswith("moment")} for some in (mine, origin)]
        if not renew and orders[0] != orders[1]:
            raise ValueError("the branch begins with the state of another kind of optimizer: its origin must renew")
        for name, tensor in mine.items():
            if name not in origin and name.startswith("moment"):
                continue  # of what was frozen until now the optimizer has no state
            if name not in origin or origin[name].shape != tensor.shape:
                there = f"has shape {tuple(origin[name].shape)}" if name in origin else "is missing"
                wrong = f"{name} of shape {tuple(tensor.shape)} {there} there"
                raise ValueError(f"the state that the branch begins from does not fit its networks: {wrong}")
            tensor.copy_(origin[name])

    def _kept(self, *, moments: bool = True) -> dict[str, Tensor]:
        weights = {f"networks.{name}": tensor for name, tensor in self._weights().items()}
        return weights | (self._moments() if moments else {}) | {"diverged_at": self.diverged_at}

    def _look_back(self) -> None:
        """The weights as they are now are those that `between` compares with."""
        weights = self._weights()
        for name, kept in self.before.items():
            kept.copy_(weights[name])

    def _weights(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.networks.named_parameters()}

    def to_keep(self) -> dict[str, Tensor]:
        """What branches begin from, in main memory."""
        with self._at_work():
            return {name: tensor.to("cpu", copy=True) for name, tensor in self._kept().items()}

    def state(self) -> dict[str, Tensor]:
        """All that changes, in main memory."""
        with self._at_work():
            return {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._tensors().items()}

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"networks.{name}": tensor for name, tensor in self.networks.state_dict().items()}
        tensors |= self._moments() | {f"before.{name}": tensor for name, tensor in self.before.items()}
        return tensors | {name: getattr(self, name) for name in ("loss_sum", "loss_count", "diverged_at")}

    def _moments(self) -> dict[str, Tensor]:
        """By the number of their parameter among all: in a twin some of them do not learn."""
        number = {id(p): i for i, p in enumerate(self.networks.parameters())}
        return {
            f"moment{order}.{number[id(p)]}": tensor
            for order, moment in enumerate(self.moments)
            for p, tensor in zip(self.parameters, by_parameter(moment, self.parameters), strict=True)
        }

    def advance(self, first: int, last: int) -> Iterator[int]:
        """Make the steps from `first` up to `last`, now and then yielding the number made."""
        # Asking a GPU for a number makes it wait; but it takes only so many launches ahead, and while one engine
        # waits to hand in more the others starve.
        stride = 10 if self.stream is None else 20
        for step in range(first, last):
            with self._at_work():
                self._make(step, begins=step == first)
            if (step + 1) % stride == 0 or step + 1 == last:
                yield step + 1

    def _make(self, step: int, *, begins: bool) -> None:
        """Make one step; `begins`: after this one was put in, or measured."""
        optimizer = self.ensemble.optimizer
        if begins and (step == 0 or step in self.ensemble.points):
            self.loss_sum.zero_()
            self.loss_count.zero_()
            self._look_back()
        every = optimizer.decay_every
        decays = every is not None and (begins or step % every == 0)
        if decays or step <= max(optimizer.warm_ups(self.ensemble.members)):
            decayed = 1.0 if every is None else optimizer.decay ** (step // every)
            warm = ((1 + step) / self.warm_up).clamp(max=1.0)
            self.rates.copy_(self.full_rates * decayed * warm)
        renew_every, origin = optimizer.renew_every, self.ensemble.origin
        age = step if renew_every is None else step % renew_every  # steps since the optimizer's state was new
        if origin is not None and origin.renew:
            age = min(age, step - origin.at)
        if age == 0:
            for moment in self.moments:
                moment.zero_()
        self.step.fill_(step)
        self.age.fill_(1 + age)
        if self.ensemble.tend is not None:
            with torch.no_grad():
                self.ensemble.tend(self.networks, step)
        batch = self.ensemble.batch(step, self.members)
        if self.captured is None:
            self._step(batch)
        else:
            self.captured(self._step, batch)

    def _step(self, batch: tuple[Tensor, ...]) -> None:
        with compiled_parts(self.compiler):
            losses = self.ensemble.loss(self.networks, batch, keys(self.networks.seeds, self.step))
        gradients = list(torch.autograd.grad(losses.sum(), self.parameters))
        with torch.no_grad():
            for place in self.still:  # as if the part were no parameter
                gradients[place.number] = gradients[place.number].clone()
                gradients[place.number][place.index] = 0.0
            self.update([p.detach() for p in self.parameters], gradients, self.moments, self.rates, self.age)
            for place in self.still:  # undo what momentum or weight decay did to it
                place.parameter[place.index] = place.kept
            self.loss_sum += losses
            self.loss_count += 1
            first = (self.diverged_at < 0) & ~losses.isfinite()
            self.diverged_at.copy_(torch.where(first, self.step, self.diverged_at))

    def measure(self) -> dict[str, Tensor]:
        """Everything that is recorded at a measuring point, (members, ...) each."""
        found: dict[str, Tensor] = {}
        with self._at_work(), torch.no_grad():
            measures, between = self.ensemble.measures.items(), self.ensemble.between.items()
            for name, value in chain(
                ((name, measure(self.networks, self.members)) for name, measure in measures),
                ((name, change(self.networks, self.before, self.members)) for name, change in between),
            ):
                parts = {f"{name}/{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {name: value}
                for part, values in parts.items():
                    if len(values) != len(self.members):
                        got = f"{counted(len(values), 'value')} for {counted(len(self.members), 'member')}"
                        raise ValueError(f"measure {part!r} gave {got}")
                    # A copy: what a measure gives may be the weights themselves, and the next group takes their place.
                    found[part] = values.detach().to("cpu", copy=True)
            found["train_loss"] = (self.loss_sum / self.loss_count).cpu()
            found["diverged_at"] = self.diverged_at.to("cpu", copy=True)
        return found

    def mean_loss(self) -> float:
        """Over members and the steps since the last measuring point."""
        with self._at_work():
            return float((self.loss_sum / self.loss_count).nanmean())


class _Still(NamedTuple):
    """A part of a parameter that does not learn while the rest of it does, and what it is kept at."""

    number: int
    parameter: Tensor
    index: Any
    kept: Tensor


def _what_learns(networks: Any, frozen: Sequence[Any]) -> tuple[list[Tensor], list[_Still]]:
    named = dict(networks.named_parameters())
    parts = [(one, None) if isinstance(one, str) else tuple(one) for one in frozen]
    for name, _ in parts:
        if name not in named:
            raise ValueError(f"frozen must name parameters of the networks, {', '.join(named)}, got {name!r}")
    frozen_names = {name for name, index in parts if index is None}
    learns = [name for name in named if name not in frozen_names]
    if not learns:
        raise ValueError("frozen must leave something to learn: it names every parameter")
    still = [
        _Still(learns.index(name), (parameter := named[name].detach()), index, parameter[index].clone())
        for name, index in parts
        if index is not None and name in learns
    ]
    return [named[name] for name in learns], still


class _Captured:
    """A step as a CUDA graph: after a few steps of warming up it is recorded once and then replayed.

    It does not hold the step, which belongs to an engine that holds this: they would live until cycles are looked for.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream, self.made = stream, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.batch: tuple[Tensor, ...] = ()

    def __call__(self, step: Callable[[tuple[Tensor, ...]], None], batch: tuple[Tensor, ...]) -> None:
        if not self.batch:
            self.batch = tuple(tensor.contiguous().clone() for tensor in batch)
        for kept, new in zip(self.batch, batch, strict=True):
            kept.copy_(new)
        if self.graph is not None:
            self.graph.replay()
            return
        step(self.batch)
        self.made += 1
        if self.made == WARM_UP:
            self.graph = torch.cuda.CUDAGraph()
            # A graph that Python finds dead while another is captured would be destroyed then and spoil it.
            gc.collect()
            was_on = gc.isenabled()
            gc.disable()
            try:
                with torch.cuda.graph(self.graph, stream=self.stream):
                    step(self.batch)  # recorded, not run; on the very tensors it was compiled for
            finally:
                if was_on:
                    gc.enable()


@contextmanager
def room_to_compile() -> Iterator[None]:
    """Within, many steps can be compiled. What was compiled before is forgotten on entering.

    Else a process that trains many shapes would run into torch's limit and go on uncompiled.
    """
    import torch._dynamo.config

    torch.compiler.reset()
    with torch._dynamo.config.patch(recompile_limit=64):
        yield
