"""Many networks of one shape trained at once, as one batched program.

Members differ in seed, learning rate, data or labels and never see one another: given the same batches, each follows
the path it would follow alone, to rounding. On a GPU a step is compiled and captured as a CUDA graph; on a CPU it is
the same code, batched. Whatever a step needs depends on its number alone, so a run that was killed goes on from its
checkpoint to the numbers it would have had.
"""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from joma.models.products import half_products
from joma.runs import Run
from joma.training.checkpoints import Checkpoint
from joma.training.cross_entropy import half_logits
from joma.training.engine import Engine
from joma.training.optimizers import Optimizer

Precision = Literal["float32", "tf32", "half-logits", "half"]
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Ensemble:
    """What is trained: members, each with its data, its loss and its learning rate.

    The callables are given the numbers of the members they are asked for, because an ensemble that does not fit in
    memory is split into groups that take turns between measuring points. `train` has an example of a whole run.

    >>> from joma.models import Decoder, DecoderConfig
    >>> from joma.training import next_token_loss
    >>> text = torch.zeros(4, 10, dtype=torch.long)
    >>> ensemble = Ensemble(
    ...     members=2,
    ...     networks=lambda members: Decoder(DecoderConfig(vocabulary=7), seeds=members),
    ...     batch=lambda step, members: (text[:, :-1], text[:, 1:]),
    ...     loss=next_token_loss,
    ...     optimizer=Optimizer("adam", rate=1e-3),
    ...     steps=10,
    ...     measure_at=(0, 5),
    ... )
    >>> ensemble.points
    [0, 5, 10]
    """

    members: int
    networks: Callable[[Sequence[int]], Any]
    """Makes the networks of these members: an nn.Module such as `joma.models.Decoder`, whose parameters have the
    member first and whose buffer `seeds` has one int32 a member. Each depends on nothing but its own number."""
    batch: Callable[[int, Sequence[int]], tuple[Tensor, ...]]
    """The data of a step, counted from 0, for these members, on the device."""
    loss: Callable[..., Tensor]
    """loss(networks, batch, noise) -> (members,); `noise` is what `joma.models.dropout` takes as key."""
    optimizer: Optimizer
    steps: int
    measures: Mapping[str, Callable[[Any, Sequence[int]], Tensor | Mapping[str, Tensor]]] = field(default_factory=dict)
    """Called with networks and members at every measuring point, without gradients; (members, ...) each. What one
    pass finds can be given together, as a mapping: its parts are recorded as name/part."""
    measure_at: Sequence[int] = ()
    """Measure after so many steps; 0 is the untrained network. The last step always belongs to it."""
    device: str = "cpu"
    precision: Precision = "float32"
    """Of matrix products on a GPU. tf32: factors are rounded to ten bits; half-logits: and logits are float16; half:
    all factors are float16, see `joma.models.products`."""
    together: int | None = None
    """How many members to train at once; as many as memory allows unless given."""

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ValueError(f"an ensemble needs at least one member, got {self.members}")
        if not self.steps >= 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if self.together is not None and self.together < 1:
            raise ValueError(f"together must be at least 1, got {self.together}")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision must be one of {', '.join(get_args(Precision))}, got {self.precision!r}")
        if self.device.split(":")[0] not in ("cpu", "cuda"):
            raise ValueError(f"device must be cpu or cuda, got {self.device!r}")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise ValueError(f"device {self.device!r} was asked for, but this machine has no CUDA GPU")
        if self.device == "cpu" and self.precision != "float32":
            raise ValueError(f"precision {self.precision!r} is a choice for a GPU; on a CPU it is float32")
        if any(not 0 <= step <= self.steps for step in self.measure_at):
            raise ValueError(f"measure_at must lie between 0 and {self.steps}, got {list(self.measure_at)}")
        self.optimizer.rates(self.members)

    @property
    def points(self) -> list[int]:
        """The measuring points."""
        return sorted({*self.measure_at, self.steps})


def train(
    ensemble: Ensemble,
    run: Run,
    *,
    name: str = "",
    progress: Progress = lambda share, doing: None,
    checkpoint_every: float = 120.0,
) -> None:
    """Train, recording under `name`/ the measures, `train_loss` and `diverged_at`, (members, ...) each.

    train_loss is the mean since the last measuring point (NaN at step 0); diverged_at the step at which a member's
    loss stopped being finite, or -1: such a member is marked and the others go on. A checkpoint is kept beside the
    run, written about every `checkpoint_every` seconds and removed at the end.

    >>> import tempfile
    >>> from joma.models import Decoder, DecoderConfig
    >>> from joma.training import next_token_loss
    >>> text = torch.arange(40).view(4, 10) % 7
    >>> ensemble = Ensemble(
    ...     members=2,
    ...     networks=lambda members: Decoder(DecoderConfig(vocabulary=7, width=8, mlp=8), seeds=members),
    ...     batch=lambda step, members: (text[:, :-1], text[:, 1:]),
    ...     loss=next_token_loss,
    ...     optimizer=Optimizer("adam", rate=(1e-3, 1e-2)),
    ...     steps=5,
    ...     measure_at=(0,),
    ... )
    >>> with tempfile.TemporaryDirectory() as folder, Run.create(f"{folder}/a.sqlite", study="x", config={}) as run:
    ...     train(ensemble, run)
    ...     run.steps("train_loss").tolist(), run.array("diverged_at")[-1].tolist()
    ([0, 5], [-1, -1])
    """
    prefix = f"{name}/" if name else ""
    if run.last_step(f"{prefix}diverged_at") == ensemble.steps:
        Checkpoint(run, name, ensemble.members).remove()  # there still if the end of the run was its last record
        return
    together = ensemble.together or fitting(ensemble)
    while True:
        try:
            with products(ensemble.precision):
                _train(ensemble, run, prefix, Checkpoint(run, name, together), progress, checkpoint_every)
            return
        except torch.OutOfMemoryError:
            if together == 1:
                raise
        # Outside the handler, where nothing of the attempt is alive any more. What was recorded is not recorded again.
        together = -(-together // 2)
        torch.cuda.empty_cache()
        progress(0.0, f"out of memory: going on with {together} networks at a time")


def _train(ensemble: Ensemble, run: Run, prefix: str, checkpoint: Checkpoint, progress: Progress, every: float) -> None:
    turns = _Turns(ensemble, checkpoint)
    tell = _Teller(ensemble, turns.mean_step, progress)
    saved = monotonic()
    for point in ensemble.points:
        if max(turns.at) > point:
            continue  # the checkpoint is past it, so it was recorded
        measured: list[dict[str, Tensor]] = []
        for group in range(len(turns.at)):
            engine = turns.take(group)
            for step in engine.advance(turns.at[group], point):
                turns.at[group] = step
                tell(turns.mean_step, engine)
                if monotonic() - saved > every:
                    turns.save()
                    saved = monotonic()
            measured.append(engine.measure())
        recorded = run.last_step(f"{prefix}diverged_at")
        if recorded is None or recorded < point:
            joined = {f"{prefix}{key}": torch.cat([part[key] for part in measured]) for key in measured[0]}
            run.record(point, joined)
    checkpoint.remove()


class _Turns:
    """The groups of an ensemble, of which one at a time is on the device; the others are parked in main memory."""

    def __init__(self, ensemble: Ensemble, checkpoint: Checkpoint) -> None:
        self.ensemble, self.checkpoint = ensemble, checkpoint
        count = -(-ensemble.members // checkpoint.together)
        bounds = [round(i * ensemble.members / count) for i in range(count + 1)]  # sizes differ by one at most
        self.groups = [range(a, b) for a, b in itertools.pairwise(bounds)]
        self.at, self.parked = checkpoint.load(count)
        self.engines: dict[int, Engine] = {}  # by size: a compiled step serves all groups of its size
        self.current: int | None = None

    @property
    def mean_step(self) -> float:
        return sum(self.at) / len(self.at)

    def take(self, group: int) -> Engine:
        """The engine with this group in it."""
        if self.current is not None and self.current != group:
            self._park()
        members = self.groups[group]
        if self.current != group:
            if len(members) not in self.engines:
                self.engines[len(members)] = Engine(self.ensemble, members)
            self.engines[len(members)].become(members, self.parked.pop(group, None))
            self.current = group
        return self.engines[len(members)]

    def save(self) -> None:
        """Write the checkpoint."""
        self._park()
        self.checkpoint.save(self.at, self.parked)
        if self.current is not None:
            del self.parked[self.current]

    def _park(self) -> None:
        assert self.current is not None
        self.parked[self.current] = self.engines[len(self.groups[self.current])].state()


class _Teller:
    """Tells the progress, with an estimate of the time left."""

    def __init__(self, ensemble: Ensemble, first: float, progress: Progress) -> None:
        self.ensemble, self.first, self.progress = ensemble, first, progress
        self.began = self.last = monotonic()

    def __call__(self, step: float, engine: Engine) -> None:
        now = monotonic()
        if now - self.last < 0.2:
            return
        self.last = now
        steps, loss = self.ensemble.steps, engine.mean_loss()
        left = (now - self.began) / max(step - self.first, 1) * (steps - step)
        wait = f"{left:.0f} s" if left < 100 else f"{left / 60:.0f} min"
        shown = f", loss {loss:.3f}" if math.isfinite(loss) else ""
        self.progress(step / steps, f"{self.ensemble.members} networks, step {step:.0f} of {steps}{shown}, {wait} left")


AT_ONCE = 48 * 2**20
"""Bytes of the widest layer, on a CPU: beyond it caches stop helping, and one after the other is as fast."""


def fitting(ensemble: Ensemble) -> int:
    """How many members to try at once. A GPU says itself when it is full; a CPU must be asked beforehand."""
    if ensemble.device.startswith("cuda"):
        return ensemble.members
    parameters = list(ensemble.networks([0]).parameters())
    one: int = sum(p.numel() * p.element_size() for p in parameters)
    # Of all memory and not of what is free just now: the split must be the same when a run is taken up again.
    memory: int = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    # weights, gradients, two moments, and as much again for what passes through
    in_memory = memory // (8 * one)
    widest: int = max(max(p.shape) * p.element_size() for p in parameters)
    in_cache = AT_ONCE // (ensemble.batch(0, [0])[0].numel() * widest)
    return max(1, min(ensemble.members, in_memory, in_cache))


@contextmanager
def products(precision: Precision) -> Iterator[None]:
    """How matrix products are made while an ensemble trains.

    On a CPU without oneDNN: on Arm it takes fifty times as long when the second factor of many small products is a
    transposed view, as the keys of attention are.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    try:
        with half_logits(precision.startswith("half")), half_products(precision == "half"), warnings.catch_warnings():
            for said in ("TF32 acceleration on top of oneDNN", "TensorFloat32 tensor cores"):
                warnings.filterwarnings("ignore", said)  # advice on a choice that was made here
            warnings.filterwarnings("ignore", module="torch._inductor")
            with torch.backends.mkldnn.flags(enabled=False):
                yield
    finally:
        torch.set_float32_matmul_precision(before)
