"""The machine that makes steps: networks and optimizer state on one device, and one batched program over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from joma.models.dropout import keys

if TYPE_CHECKING:
    from joma.training.ensemble import Ensemble

WARM_UP = 3
"""Steps made before the graph is captured: compilers tune, libraries allocate their workspaces."""


class Engine:
    """A group of members in training. `become` puts one in, `state` takes it out."""

    def __init__(self, ensemble: Ensemble, members: Sequence[int]) -> None:
        self.ensemble, self.members = ensemble, members
        self.device = torch.device(ensemble.device)
        self.networks = ensemble.networks(members).to(self.device)
        for name, parameter in self.networks.named_parameters():
            if len(parameter) != len(members):
                raise ValueError(f"{name} has {len(parameter)} members, {len(members)} were asked for")
        self.parameters = list(self.networks.parameters())
        self.moments = ensemble.optimizer.start(self.parameters)
        self.step = torch.zeros((), dtype=torch.int32, device=self.device)
        self.age = torch.zeros((), dtype=torch.float64, device=self.device)
        self.rates = torch.zeros(len(members), dtype=torch.float64, device=self.device)
        self.full_rates = torch.zeros_like(self.rates)
        self.loss_sum = torch.zeros(len(members), dtype=torch.float64, device=self.device)
        self.loss_count = torch.zeros(len(members), dtype=torch.int64, device=self.device)
        self.diverged_at = torch.full((len(members),), -1, dtype=torch.int64, device=self.device)
        self.program = _Captured(self._step) if self.device.type == "cuda" else self._step
        self.loss, self.update = ensemble.loss, ensemble.optimizer.update
        if self.device.type == "cuda":
            torch.compiler.reset()  # a process that trains many shapes would otherwise run into the recompile limit
            self.loss = torch.compile(ensemble.loss, dynamic=False)
            self.update = torch.compile(ensemble.optimizer.update, dynamic=False)
        self.fresh = True

    def become(self, members: Sequence[int], state: Mapping[str, Tensor] | None) -> None:
        """Be these members, in that state; without one, at their beginning."""
        rates = self.ensemble.optimizer.rates(self.ensemble.members)
        self.full_rates.copy_(torch.tensor([rates[member] for member in members], dtype=torch.float64))
        self.rates.copy_(self.full_rates)
        if state is not None:
            for name, tensor in self._tensors().items():
                tensor.copy_(state[name])
        elif not self.fresh:
            self.networks.load_state_dict(self.ensemble.networks(members).state_dict())
            for tensor in (*(m for moment in self.moments for m in moment), self.loss_sum, self.loss_count):
                tensor.zero_()
            self.diverged_at.fill_(-1)
        self.members, self.fresh = members, False

    def state(self) -> dict[str, Tensor]:
        """All that changes, in main memory."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self._tensors().items()}

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"networks.{name}": tensor for name, tensor in self.networks.state_dict().items()}
        for order, moment in enumerate(self.moments):
            tensors |= {f"moment{order}.{i}": tensor for i, tensor in enumerate(moment)}
        return tensors | {name: getattr(self, name) for name in ("loss_sum", "loss_count", "diverged_at")}

    def advance(self, first: int, last: int) -> Iterator[int]:
        """Make the steps from `first` up to `last`, now and then yielding the number made."""
        if first < last and (first == 0 or first in self.ensemble.points):
            self.loss_sum.zero_()
            self.loss_count.zero_()
        stride = 100 if self.device.type == "cuda" else 10  # asking a GPU for a number makes it wait
        renew = self.ensemble.optimizer.renew_every
        decay = self.ensemble.optimizer.decay_every
        for step in range(first, last):
            if decay is not None and (step == first or step % decay == 0):
                self.rates.copy_(self.full_rates * self.ensemble.optimizer.decay ** (step // decay))
            if renew is not None and step % renew == 0:
                for moment in self.moments:
                    torch._foreach_zero_(moment)
            self.step.fill_(step)
            self.age.fill_(1 + (step if renew is None else step % renew))
            self.program(self.ensemble.batch(step, self.members))
            if (step + 1) % stride == 0 or step + 1 == last:
                yield step + 1

    def _step(self, batch: tuple[Tensor, ...]) -> None:
        losses = self.loss(self.networks, batch, keys(self.networks.seeds, self.step))
        gradients = torch.autograd.grad(losses.sum(), self.parameters)
        with torch.no_grad():
            self.update([p.detach() for p in self.parameters], gradients, self.moments, self.rates, self.age)
            self.loss_sum += losses
            self.loss_count += 1
            first = (self.diverged_at < 0) & ~losses.isfinite()
            self.diverged_at.copy_(torch.where(first, self.step, self.diverged_at))

    def measure(self) -> dict[str, Tensor]:
        """Everything that is recorded at a measuring point, (members, ...) each."""
        found: dict[str, Tensor] = {}
        with torch.no_grad():
            for name, measure in self.ensemble.measures.items():
                value = measure(self.networks, self.members)
                parts = (
                    {f"{name}/{part}": v for part, v in value.items()} if isinstance(value, Mapping) else {name: value}
                )
                for part, values in parts.items():
                    if len(values) != len(self.members):
                        raise ValueError(f"measure {part!r} gave {len(values)} values for {len(self.members)} members")
                    found[part] = values.detach().cpu()
        return found | {
            "train_loss": (self.loss_sum / self.loss_count).cpu(),
            "diverged_at": self.diverged_at.cpu(),
        }

    def mean_loss(self) -> float:
        """Over members and the steps since the last measuring point."""
        return float((self.loss_sum / self.loss_count).nanmean())


class _Captured:
    """A step as a CUDA graph: after a few steps of warming up it is recorded once and then replayed."""

    def __init__(self, step: Any) -> None:
        self.step, self.made = step, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.batch: tuple[Tensor, ...] = ()
        self.stream = torch.cuda.Stream()

    def __call__(self, batch: tuple[Tensor, ...]) -> None:
        if not self.batch:
            self.batch = tuple(tensor.contiguous().clone() for tensor in batch)
        for kept, new in zip(self.batch, batch, strict=True):
            kept.copy_(new)
        if self.graph is not None:
            self.graph.replay()
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.step(self.batch)
        torch.cuda.current_stream().wait_stream(self.stream)
        self.made += 1
        if self.made == WARM_UP:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):  # recorded, not run; on the very tensors it was compiled for
                self.step(self.batch)
