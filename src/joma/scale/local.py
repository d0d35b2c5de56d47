"""Work side by side on this machine, in processes of one thread each.

A process carries out one task after another. Where it dies, its task is begun again in a new process, as often as
asked for; where it says nothing for too long, its task is lost. The other tasks go on. What a task gives does not
depend on how many run at a time. With several GPUs, every process sees one of them.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from time import monotonic
from typing import Any

from joma.host.children import child_command, child_environment
from joma.host.devices import visible_gpus
from joma.host.interrupts import PATIENCE
from joma.host.threads import cores, environment
from joma.scale.task import RETRIES, Done, Event, Going, Lost, Task, begun_again

_COUNTS = Path("/proc/vmstat")


@dataclass(frozen=True)
class Local:
    """An executor: processes on this machine.

    - jobs: how many at a time; None: one per core, and of tasks that need a GPU one per GPU
    - threads: threads of numerical libraries in each
    - silence: seconds without a word after which a task is given up
    - retries: how often a task is begun again whose process died
    - seconds: after so many what is at work is ended as at Ctrl-C, and the rest is left

    >>> events = Local(jobs=2).events("joma.scale.worker:echo", [Task("one", {"a": 1})])
    >>> [event.value for event in events if isinstance(event, Done)]
    [{'a': 1}]
    """

    jobs: int | None = None
    threads: int = 1
    silence: float = 600.0
    retries: int = RETRIES
    seconds: float = inf

    def events(self, function: str, tasks: Sequence[Task]) -> Iterator[Event]:
        jobs = self.jobs
        if jobs is None:
            jobs = max(len(_gpus(tasks)), 1) if any(task.gpus for task in tasks) else cores()
        how: dict[str, Any] = {"threads": self.threads, "silence": self.silence, "retries": self.retries}
        how["seconds"] = self.seconds
        return side_by_side(function, tasks, jobs=jobs, **how)


def side_by_side(
    function: str,
    tasks: Sequence[Task],
    *,
    jobs: int,
    threads: int = 1,
    silence: float = 600.0,
    retries: int = 0,
    seconds: float = inf,
) -> Iterator[Event]:
    """Call `function` on every task, at most `jobs` at a time, and tell what happens as it happens.

    function: "module:name" of a function (arguments, progress) -> JSON value; each process imports it once.
    silence: seconds without a word after which a task is given up.
    retries: how often a task is begun again whose process died; not for lack of memory.
    seconds: after so many the iteration ends.

    Where the iteration is left early, at Ctrl-C say, the processes get SIGTERM and the time to write a checkpoint.

    >>> events = side_by_side("joma.scale.worker:echo", [Task("one", {"a": 1})], jobs=2)
    >>> [event.value for event in events if isinstance(event, Done)]
    [{'a': 1}]
    """
    works = _Works(function, threads, jobs, list(tasks), retries=retries, gpus=_gpus(tasks))
    events = works.events(silence, monotonic() + seconds)
    next(events)  # starts them at once: whoever calls may have to load much before it listens
    return events


@dataclass
class _Works:
    """Tasks that wait, and the processes at work."""

    function: str
    threads: int
    jobs: int
    waiting: list[Task]
    team: list[_Process] = field(default_factory=list)
    heard: Queue[tuple[_Process, dict[str, Any] | None]] = field(default_factory=Queue)
    retries: int = 0
    gpus: Sequence[str] = ()
    begun: Counter[str] = field(default_factory=Counter)

    def start(self) -> None:
        while self.waiting and len(self.team) < self.jobs:
            self.team.append(_Process(self.function, self.threads, self.heard, self.free_gpu()))
            self.team[-1].give(self.chosen(self.team[-1]))

    def free_gpu(self) -> str | None:
        """The GPU that the fewest processes have; None where there is no choice."""
        taken = Counter(process.gpu for process in self.team)
        return min(self.gpus, key=lambda gpu: taken[gpu], default=None)

    def events(self, silence: float, until: float) -> Iterator[Event]:
        """The first is no event: all that follows it, also an interrupt before anybody listens, ends the processes."""
        try:
            self.start()
            yield Going(Task("", {}), 0.0, "")
            while (self.waiting or self.team) and monotonic() < until:
                self.start()
                with suppress(Empty):
                    process, message = self.heard.get(timeout=1.0)
                    event = process.hear(message)
                    if isinstance(event, Lost) and message is None and process.may_live_again:
                        event = self.once_more(event)
                    if event is not None:
                        yield event
                    if not process.task:
                        self.next_task(process, alive=message is not None)
                for process in self.team:
                    if monotonic() - process.heard > silence:
                        process.give_up(silence)
        finally:
            _stop(self.team)

    def once_more(self, lost: Lost) -> Event:
        """Begin a task again whose process died, unless it has done so too often."""
        self.begun[lost.task.name] += 1
        if self.begun[lost.task.name] > self.retries:
            again = f", {self.begun[lost.task.name]} times" if self.retries else ""
            return Lost(lost.task, lost.reason + again)
        self.waiting.insert(0, lost.task)
        return begun_again(lost.task, lost.reason, self.begun[lost.task.name], self.retries)

    def next_task(self, process: _Process, *, alive: bool) -> None:
        """Something to do for a process that has nothing to do; else its end."""
        if alive and self.waiting:
            process.give(self.chosen(process))
        elif process in self.team:
            self.team.remove(process)
            _end(process)

    def chosen(self, process: _Process) -> Task:
        """The first task whose libraries no other process has loaded; else the first. It no longer waits."""
        elsewhere = {load for other in self.team if other is not process for load in other.loads} - process.loads
        free = (at for at, task in enumerate(self.waiting) if task.shared_load not in elsewhere)
        return self.waiting.pop(next(free, 0))


@dataclass(eq=False)
class _Process:
    """A worker, and what it works on."""

    function: str
    threads: int
    queue: Queue[tuple[_Process, dict[str, Any] | None]]
    gpu: str | None = None
    task: Task | None = None
    heard: float = 0.0
    reason: str = ""
    may_live_again: bool = True
    loads: set[str] = field(default_factory=set)
    kills: int = 0
    running: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        # In a group of its own: Ctrl-C reaches the parent alone, which passes it on once.
        self.running = subprocess.Popen(
            child_command("joma.scale.worker", self.function),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**child_environment(), **environment(self.threads), **_seeing(self.gpu)},
            start_new_session=True,
        )
        Thread(target=self._listen, daemon=True).start()

    def give(self, task: Task) -> None:
        self.task, self.heard, self.kills = task, monotonic(), memory_kills()
        self.loads |= {task.shared_load} if task.shared_load else set()
        assert self.running.stdin is not None
        with suppress(BrokenPipeError):  # it died: what it leaves behind says so
            print(json.dumps(dict(task.arguments)), file=self.running.stdin, flush=True)

    def hear(self, message: dict[str, Any] | None) -> Event | None:
        """What a message means; None is the last one."""
        self.heard = monotonic()
        task = self.task
        if task is None:
            return None
        if message is not None and "share" in message:
            return Going(task, message["share"], message["doing"])
        self.task = None
        if message is None:
            return Lost(task, self.reason or self._cause())
        return Lost(task, message["failed"]) if "failed" in message else Done(task, message["value"], message["memory"])

    def _cause(self) -> str:
        status, out_of_memory = self.running.wait(), memory_kills() > self.kills
        self.may_live_again = not (status == -signal.SIGKILL and out_of_memory)
        return cause_of(status, out_of_memory=out_of_memory)

    def give_up(self, silence: float) -> None:
        """Its end is heard as any other."""
        self.reason, self.heard = f"it said nothing for {silence:.0f} s and was stopped", monotonic()
        self.may_live_again = False
        self.running.kill()

    def _listen(self) -> None:
        assert self.running.stdout is not None
        with self.running.stdout as answers:
            for line in answers:
                with suppress(ValueError):  # half a line, of a process that was killed while it wrote
                    self.queue.put((self, json.loads(line)))
        self.queue.put((self, None))

    def close(self) -> None:
        """Tell it that there is nothing more to do."""
        assert self.running.stdin is not None
        with suppress(BrokenPipeError):
            self.running.stdin.close()


def _end(process: _Process) -> None:
    process.close()
    try:
        process.running.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.running.kill()
        process.running.wait()


def _stop(team: Sequence[_Process]) -> None:
    """End what is still at work: once with patience, for a checkpoint, then without."""
    running = [process.running for process in team]
    try:
        for one in running:
            one.terminate()
        until = monotonic() + PATIENCE + 5
        for one in running:
            one.wait(max(until - monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in team:
            process.running.kill()
            process.running.wait()
            process.close()


def _gpus(tasks: Sequence[Task]) -> list[str]:
    """The GPUs to share out: none unless a task needs one, and there is a choice."""
    if not any(task.gpus for task in tasks):
        return []
    seen = visible_gpus()
    return seen if len(seen) > 1 else []


def _seeing(gpu: str | None) -> dict[str, str]:
    return {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}


def memory_kills() -> int:
    """How many processes the kernel of this machine has killed for memory so far; 0 where it does not say."""
    try:
        lines = _COUNTS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def cause_of(status: int, *, out_of_memory: bool = False) -> str:
    """Words for the end of a process. out_of_memory: whether the kernel killed one for memory meanwhile.

    >>> cause_of(7)
    'its process ended with status 7'
    """
    if status >= 0:
        return f"its process ended with status {status}"
    name = signal.Signals(-status).name
    if name != "SIGKILL":
        return f"its process died of {name}"
    why = "the machine ran out of memory" if out_of_memory else "often the machine is out of memory"
    return f"its process died of {name}: {why}"
