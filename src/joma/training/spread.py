"""The members of ensembles spread over processes of this machine, one GPU each: the same record as of one process.

A process trains its share of the members into a run of its own beside the run, with its own checkpoints. One that dies
costs its share alone, which is begun again from its last checkpoint. When all are there, the members are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from joma.host.devices import must_be_a_device
from joma.host.errors import BadInput
from joma.host.named_code import function_named
from joma.host.progress import Progress, silent
from joma.host.sealed import load_sealed
from joma.runs import Run, RunError
from joma.scale.local import Local
from joma.scale.task import Done, Going, Lost, Task
from joma.training.checkpoints import KeptState
from joma.training.ensemble import Ensemble
from joma.training.trainer import train_all

FUNCTION = f"{__name__}:train_share"
SILENCE = 7200.0
"""Seconds without a word after which a share is given up: a compiler may be silent for long."""


def train_spread(
    build: str,
    arguments: Mapping[str, Any],
    run: Run,
    *,
    shares: int,
    device: str = "cpu",
    threads: int = 1,
    progress: Progress = silent,
    checkpoint_every: float = 120.0,
) -> None:
    """Train ensembles as `train_all` does, their members spread over processes.

    - build: "module:name" of a function that gives the ensembles, `name(**arguments, device=device)` ->
      {name: Ensemble}. Every process calls it, so it must be in a module that a new process can import.
    - arguments: what it is called with: plain JSON values
    - run: where all of it is recorded, as by `train_all`
    - shares: processes at a time, each with an equal part of the members; on a machine with GPUs one per GPU
    - device: cpu or cuda. With several GPUs every process has one of its own.
    - threads: threads of a process on a CPU
    - progress, checkpoint_every: as of `train_all`

    Every member follows the path that it follows in one process: bit for bit if as many members are trained at once
    (see `Ensemble.together`), else to rounding. A branch must be trained in the same call as its origin.

    A process that dies is begun again, three times at most. A share that cannot be trained is a `RunError`, when the
    others are done; the same call then goes on with what is missing.
    """
    if shares < 1:
        raise BadInput(f"shares must be at least 1, got {shares}", argument="shares")
    must_be_a_device(device)
    if ":" in device:
        raise BadInput(f"device must be cpu or cuda, because every process chooses its own, got {device!r}")
    tasks = [_task(build, arguments, run, Share(number, shares), device, checkpoint_every) for number in range(shares)]
    told = _Told(shares, progress)
    answers: dict[int, dict[str, Any]] = {}
    lost: list[str] = []
    with ExitStack() as stack:
        events = Local(jobs=shares, threads=threads, silence=SILENCE).events(FUNCTION, tasks)
        stack.callback(getattr(events, "close", lambda: None))  # at an interrupt, the processes write checkpoints now
        for event in events:
            number = int(event.task.arguments["number"])
            if isinstance(event, Going):
                told(number, event.share, event.doing)
            elif isinstance(event, Done):
                answers[number] = event.value
                told(number, 1.0, "done")
            elif isinstance(event, Lost):
                lost.append(f"share {number + 1} of {shares} was not trained ({event.reason})")
    if lost:
        raise RunError(f"{'; '.join(lost)}; the same call continues with what is missing")
    _put_together(run, [answers[number] for number in range(shares)])


class Share:
    """An equal part of the members, counted from 0.

    >>> [list(Share(number, 2).members(5)) for number in (0, 1)]
    [[0, 1], [2, 3, 4]]
    """

    def __init__(self, number: int, of: int) -> None:
        self.number, self.of = number, of

    def members(self, members: int) -> range:
        """Its members of so many; none where there are fewer members than shares."""
        return range(self.number * members // self.of, (self.number + 1) * members // self.of)

    def path(self, run: Path) -> Path:
        """Its own run. It does not end as runs do, so that nothing takes it for one; `Run.delete` removes it."""
        return run.with_name(f"{run.name}-{self.number + 1}-of-{self.of}.share")


def only(ensemble: Ensemble, members: Sequence[int]) -> Ensemble:
    """An ensemble of some members of another one; each is what it is there."""

    def numbers(asked: Sequence[int]) -> list[int]:
        return [members[one] for one in asked]

    def for_members(measure: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: measure(*given[:-1], numbers(given[-1]))  # the members come last

    rates, warm_ups = (getattr(ensemble.optimizer, name)(ensemble.members) for name in ("rates", "warm_ups"))
    return replace(
        ensemble,
        members=len(members),
        networks=for_members(ensemble.networks),
        batch=for_members(ensemble.batch),
        measures={name: for_members(measure) for name, measure in ensemble.measures.items()},
        between={name: for_members(measure) for name, measure in ensemble.between.items()},
        optimizer=replace(
            ensemble.optimizer,
            rate=tuple(rates[member] for member in members),
            warm_up=tuple(warm_ups[member] for member in members),
        ),
    )


def train_share(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """What a process does: train its share, into a run of its own. Returns what putting together needs to know."""
    share, parent = Share(arguments["number"], arguments["of"]), Path(arguments["run"])
    ensembles = _built(arguments)
    about = {
        name: {"points": one.points, "keep_at": list(one.keep_at), "wave": _wave(one, ensembles)}
        for name, one in ensembles.items()
    }
    with Run.open(parent) as run:
        steps = {name: run.last_step(f"{name}/diverged_at" if name else "diverged_at") for name in ensembles}
    answer = {"path": str(share.path(parent)), "ensembles": about}
    if all(steps[name] == one.steps for name, one in ensembles.items()):
        return answer  # it was recorded to its end: the share is gone, and not needed
    mine = {name: only(one, members) for name, one in ensembles.items() if (members := share.members(one.members))}
    with _opened(share.path(parent), {**arguments, "checkpoint_every": None}) as run:
        train_all(mine, run, progress=progress, checkpoint_every=arguments["checkpoint_every"])
    return answer


def _task(
    build: str, arguments: Mapping[str, Any], run: Run, share: Share, device: str, checkpoint_every: float
) -> Task:
    given = {"build": build, "arguments": dict(arguments), "device": device, "number": share.number, "of": share.of,
             "run": str(run.path), "created": run.created, "checkpoint_every": checkpoint_every}  # fmt: skip
    return Task(f"share {share.number + 1}", given, gpus=int(device != "cpu"))


def _built(arguments: Mapping[str, Any]) -> dict[str, Ensemble]:
    ensembles = dict(function_named(str(arguments["build"]))(**arguments["arguments"], device=arguments["device"]))
    for called, one in ensembles.items():
        if one.origin is not None and one.origin.of not in ensembles:
            what = f"{called} branches off {one.origin.of}, which is not among the ensembles"
            raise BadInput(f"{what}; train both in one call: a process has the states of its own members alone")
    return ensembles


def _wave(one: Ensemble, ensembles: Mapping[str, Ensemble]) -> int:
    """When `train_all` comes to it: a branch after its origin."""
    wave = 0
    while one.origin is not None and wave <= len(ensembles):  # a circle is refused by `train_all`
        one, wave = ensembles[one.origin.of], wave + 1
    return wave


def _opened(path: Path, config: Mapping[str, Any]) -> Run:
    """The run of a share, as far as it has come; one of other ensembles, or of an earlier run, is thrown away."""
    if path.exists():
        run = Run.open(path, write=True)
        if run.config == config:
            return run
        run.close()
        Run.delete(path)
    return Run.create(path, study="share", config=config)


class _Told:
    def __init__(self, shares: int, progress: Progress) -> None:
        self.shares, self.progress = [0.0] * shares, progress

    def __call__(self, number: int, share: float, doing: str) -> None:
        self.shares[number] = share
        self.progress(sum(self.shares) / len(self.shares), f"share {number + 1} of {len(self.shares)}: {doing}")


def _put_together(run: Run, answers: Sequence[Mapping[str, Any]]) -> None:
    """Record what the shares recorded, the members in order, and throw the shares away."""
    paths = [Path(answer["path"]) for answer in answers]
    ensembles: Mapping[str, Mapping[str, Any]] = answers[0]["ensembles"]
    with ExitStack() as stack:
        parts = [stack.enter_context(Run.open(path)) for path in paths if path.exists()]
        series = {name: [one for one in _names(parts) if _ensemble_of(one, ensembles) == name] for name in ensembles}
        for name in sorted(ensembles, key=lambda name: int(ensembles[name]["wave"])):
            holders = [part for part in parts if any(one in part for one in series[name])]
            _keep(run, name, ensembles[name]["keep_at"], holders)
            last = run.last_step(f"{name}/diverged_at" if name else "diverged_at")
            for step in ensembles[name]["points"] if holders else ():
                if last is None or step > last:
                    _record(run, step, series[name], holders)
    for path in paths:
        Run.delete(path)


def _names(parts: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in part.names()))


def _ensemble_of(series: str, ensembles: Mapping[str, Any]) -> str | None:
    """Whose series it is: that of the longest name that it begins with."""
    fitting = [name for name in ensembles if not name or series.startswith(f"{name}/")]
    return max(fitting, key=len, default=None)


def _record(run: Run, step: int, series: Sequence[str], parts: Sequence[Run]) -> None:
    values = {name: np.concatenate([part.at(name, step) for part in parts]) for name in series}
    run.record(step, values, dims={name: parts[0].dims(name) for name in series})


def _keep(run: Run, name: str, steps: Sequence[int], parts: Sequence[Run]) -> None:
    for step in steps if parts else ():
        if not (to := KeptState(run, name, step)).there:
            states = [KeptState(part, name, step) for part in parts]
            to.save([_all_of(state) for state in states])


def _all_of(state: KeptState) -> dict[str, torch.Tensor]:
    return load_sealed(state.path)[0]
