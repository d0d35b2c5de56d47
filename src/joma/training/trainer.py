"""Training ensembles into a run: measuring points, checkpoints, progress, memory.

On a GPU a step is compiled and captured as a CUDA graph, and several ensembles advance side by side, each on a stream
of its own: the kernels of a few networks are too small to fill the device. On a CPU one comes after the other.
"""

import gc
import itertools
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from time import monotonic

import torch

from joma.host.interrupts import signals_noted
from joma.host.products import float32_products
from joma.host.progress import Progress, silent
from joma.host.words import counted
from joma.models.products import half_products
from joma.runs import Run
from joma.training._telling import Teller
from joma.training.checkpoints import Checkpoint, KeptState
from joma.training.cross_entropy import half_logits
from joma.training.engine import Engine, room_to_compile
from joma.training.ensemble import Ensemble, Precision

SAVING = 0.01
"""The part of the time that may go into checkpoints: what takes long to write is written less often."""


def train(
    ensemble: Ensemble, run: Run, *, name: str = "", progress: Progress = silent, checkpoint_every: float = 120.0
) -> None:
    """Train, recording under `name`/ the measures, `train_loss` and `diverged_at`, (members, ...) each.

    train_loss is the mean loss of the steps since the last measuring point. At step 0 no step has been made, so its
    first value is NaN. diverged_at is the step at which a member's loss stopped being finite, or -1: such a member is
    marked and the others go on. Until the end a checkpoint is kept beside the run. It is written about every
    `checkpoint_every` seconds (less often if that took more than a hundredth of the time), and at Ctrl-C or SIGTERM.

    >>> import tempfile
    >>> from joma.models import Decoder, DecoderConfig
    >>> from joma.training import Optimizer, next_token_loss
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
    train_all({name: ensemble}, run, progress=progress, checkpoint_every=checkpoint_every)


def train_all(
    ensembles: Mapping[str, Ensemble],
    run: Run,
    *,
    side_by_side: bool | None = None,
    progress: Progress = silent,
    checkpoint_every: float = 120.0,
) -> None:
    """Train several ensembles, each as `train` does, under its name. What is recorded already is not trained again.

    A branch begins when its origin has been trained (see `joma.training.branch`).

    side_by_side: all at once, or one after the other. Unless said, at once if all are on a GPU; where its memory does
    not hold them, one after the other. What is recorded does not depend on it, but for rounding on a GPU.

    >>> import tempfile
    >>> from joma.models import Decoder, DecoderConfig
    >>> from joma.training import Optimizer, next_token_loss
    >>> text = torch.arange(40).view(4, 10) % 7
    >>> def ensemble(layers: int) -> Ensemble:
    ...     config = DecoderConfig(vocabulary=7, width=8, mlp=8, layers=layers)
    ...     return Ensemble(
    ...         members=2,
    ...         networks=lambda members: Decoder(config, seeds=members),
    ...         batch=lambda step, members: (text[:, :-1], text[:, 1:]),
    ...         loss=next_token_loss,
    ...         optimizer=Optimizer("adam", rate=1e-3),
    ...         steps=5,
    ...     )
    >>> with tempfile.TemporaryDirectory() as folder, Run.create(f"{folder}/a.sqlite", study="x", config={}) as run:
    ...     train_all({"shallow": ensemble(1), "deep": ensemble(3)}, run)
    ...     run.names()
    ['shallow/train_loss', 'shallow/diverged_at', 'deep/train_loss', 'deep/diverged_at']
    """
    on_gpu = [ensemble.device.startswith("cuda") for ensemble in ensembles.values()]
    side_by_side = all(on_gpu) if side_by_side is None else side_by_side
    left, waves = dict(ensembles), []  # every branch in a wave after its origin's; those of one wave do not wait
    while left:
        wave = {name: one for name, one in left.items() if one.origin is None or one.origin.of not in left}
        if not wave:
            raise ValueError(f"{', '.join(left)} branch off one another: one of them must begin without an origin")
        left = {name: one for name, one in left.items() if name not in wave}
        waves.append({name: _fitted(name, one, ensembles) for name, one in wave.items()})
    teller = Teller(ensembles, progress)
    with room_to_compile() if any(on_gpu) else nullcontext():
        for wave in waves:
            _train_wave(wave, run, teller, checkpoint_every, side_by_side=side_by_side)


def _fitted(name: str, one: Ensemble, ensembles: Mapping[str, Ensemble]) -> Ensemble:
    origin = one.origin
    if origin is None or origin.of not in ensembles:
        return one
    base = ensembles[origin.of]
    begins = f"{name} begins at step {origin.at} of {origin.of}"
    if origin.at not in base.keep_at:
        raise ValueError(f"{begins}, which keeps {list(base.keep_at)}: that step must be in its keep_at")
    if one.members != base.members:
        raise ValueError(f"{begins}, which has {counted(base.members, 'member')}, not {one.members}")
    if one.optimizer.state_kind == base.optimizer.state_kind:
        return one
    return replace(one, origin=replace(origin, renew=True))


def _train_wave(
    ensembles: Mapping[str, Ensemble], run: Run, teller: Teller, every: float, *, side_by_side: bool
) -> None:
    if side_by_side and len(ensembles) > 1:
        try:
            _advance(ensembles, run, teller, every)
            return
        except torch.OutOfMemoryError:
            pass
        _free_memory()  # outside the handler: there the exception keeps all of it alive
        teller.progress(teller.share, "out of memory: going on with one ensemble after the other")
    for name, ensemble in ensembles.items():
        together = None
        while True:  # in groups that fit into memory: their size is halved until they do
            try:
                _advance({name: ensemble}, run, teller, every, together)
                break
            except torch.OutOfMemoryError:
                together = together or ensemble.together or fitting(ensemble)
                if together == 1:
                    raise
            together = -(-together // 2)
            _free_memory()
            teller.progress(teller.share, f"out of memory: going on with {counted(together, 'network')} at a time")


def _free_memory() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def _advance(
    ensembles: Mapping[str, Ensemble], run: Run, teller: Teller, every: float, together: int | None = None
) -> None:
    trainings = {name: _Training(name, ensemble, run, together) for name, ensemble in ensembles.items()}
    for name, training in trainings.items():
        teller.begin(name, training.mean_step, anew=training.begins_anew)
    slowest = max(ensembles, key=teller.part.__getitem__)  # the others end up waiting for it
    going = {
        name: training.advance(every, urgent=name == slowest, saving=SAVING / len(trainings))
        for name, training in trainings.items()
    }
    with signals_noted() as noted:
        while going and not noted:
            for name in list(going):
                with products(ensembles[name].precision):
                    # The loss is asked for before more steps are handed in: it then waits for those of the turn
                    # before, while the others' are at work.
                    teller.tell(name, list(going), trainings[name].mean_loss)
                    if next(going[name], None) is None:
                        del going[name]
                teller.step[name] = trainings[name].mean_step
                if noted:
                    break
            teller.start_clock()
        if noted:
            for training in trainings.values():
                training.save()


class _Training:
    def __init__(self, name: str, ensemble: Ensemble, run: Run, together: int | None = None) -> None:
        self.ensemble, self.run, self.prefix = ensemble, run, f"{name}/" if name else ""
        together = together or ensemble.together or fitting(ensemble)
        count = -(-ensemble.members // together)
        bounds = [round(i * ensemble.members / count) for i in range(count + 1)]  # sizes differ by one at most
        self.groups = [range(a, b) for a, b in itertools.pairwise(bounds)]
        self.name, self.checkpoint = name, Checkpoint(run, name, together)
        self.at, self.parked = self.checkpoint.load(count, ensemble.first)
        if self._recorded == ensemble.steps:
            self.at = [ensemble.steps] * count
        self.begins_anew = self.checkpoint.unreadable and self._recorded < ensemble.steps
        self.engines: dict[int, Engine] = {}  # by size: a compiled step serves all groups of its size
        self.current: int | None = None

    @property
    def _recorded(self) -> int:
        last = self.run.last_step(f"{self.prefix}diverged_at")
        return -1 if last is None else last

    @property
    def mean_step(self) -> float:
        return sum(self.at) / len(self.at)

    def mean_loss(self) -> float:
        return math.nan if self.current is None else self._engine.mean_loss()

    def advance(self, every: float, *, urgent: bool, saving: float) -> Iterator[float]:
        """Train, now and then giving back control.

        every: seconds between checkpoints, more if saving takes a larger part of the time than `saving`.
        """
        saved, pause = monotonic(), every
        for point in sorted({*self.ensemble.points, *self.ensemble.keep_at}):
            if max(self.at) > point or self._recorded == self.ensemble.steps:
                continue  # past it, so it was recorded and kept
            measured, kept = [], []
            keeps, measures = KeptState(self.run, self.name, point), point in self.ensemble.points
            to_keep = point in self.ensemble.keep_at and not keeps.there
            for group in range(len(self.groups)):
                self._take(group, urgent=urgent)
                for step in self._engine.advance(self.at[group], point):
                    self.at[group] = step
                    if monotonic() - saved > pause:
                        began = monotonic()
                        self.save()
                        saved = monotonic()
                        pause = max(every, (saved - began) / saving) if every else 0.0
                    yield self.mean_step
                if to_keep:
                    kept.append(self._engine.to_keep())
                if measures:
                    measured.append(self._engine.measure())
            if to_keep:  # before it is recorded: what was recorded to its end is not trained again
                keeps.save(kept)
            if measures and self._recorded < point:
                self._record(point, {key: torch.cat([part[key] for part in measured]) for key in measured[0]})
        self.checkpoint.remove()  # still there if killed right after its last record
        self.engines.clear()
        self.current = None

    def _record(self, point: int, found: Mapping[str, torch.Tensor]) -> None:
        if unknown := sorted(set(self.ensemble.dims) - set(found)):
            raise ValueError(f"dims names {unknown[0]!r}, but what is measured is {', '.join(found)}")
        names = {
            self.prefix + key: ("member", *self.ensemble.dims.get(key, (f"dim_{i}" for i in range(1, value.ndim))))
            for key, value in found.items()
        }
        self.run.record(point, {self.prefix + key: value for key, value in found.items()}, dims=names)

    @property
    def _engine(self) -> Engine:
        assert self.current is not None
        return self.engines[len(self.groups[self.current])]

    def _take(self, group: int, *, urgent: bool) -> None:
        if self.current == group:
            return
        if self.current is not None:
            self.parked[self.current] = self._engine.state()
        members = self.groups[group]
        if len(members) not in self.engines:
            self.engines[len(members)] = Engine(self.ensemble, members, urgent=urgent)
        state, origin, begin = self.parked.pop(group, None), self.ensemble.origin, None
        if origin is not None and state is None:
            begin = KeptState(self.run, origin.of, origin.at).load(members, self.ensemble.members)
        self.engines[len(members)].load_members(members, state, begin)
        self.current = group

    def save(self) -> None:
        """Write the checkpoint, if there is anything to keep."""
        if self.current is not None:
            self.checkpoint.save(self.at, self.parked | {self.current: self._engine.state()})


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

    On a CPU without oneDNN: on Arm it takes fifty times as long for small products with a transposed second factor.
    """
    with (
        float32_products("highest" if precision == "float32" else "high"),
        half_logits(precision.startswith("half")),
        half_products(precision == "half"),
        warnings.catch_warnings(),
    ):
        for said in ("TF32 acceleration on top of oneDNN", "TensorFloat32 tensor cores"):
            warnings.filterwarnings("ignore", said)  # advice on a choice that was made here
        # the compiler asks the layers of stacked weights for gradients that they have none of
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        warnings.filterwarnings("ignore", module="torch._inductor")
        with torch.backends.mkldnn.flags(enabled=False):
            yield
