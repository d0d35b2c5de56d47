"""Work side by side on this machine, in processes of one thread each.

A process carries out one task after another. Where it dies, or says nothing for too long, its task is lost; a new
process takes its place, and the other tasks go on. What a task gives does not depend on how many run at a time.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, Queue
from threading import Thread
from time import monotonic
from typing import Any

from joma.host.children import child_command, child_environment
from joma.host.interrupts import PATIENCE
from joma.host.threads import environment


@dataclass(frozen=True)
class Task:
    """A name, and what the function is called with: plain JSON values.

    >>> Task("thm2", {"scale": "quick"}).name
    'thm2'
    """

    name: str
    arguments: Mapping[str, Any]
    shared_load: str = ""
    """Libraries that take long to load. Where there is a choice, tasks that name the same go to one process."""


@dataclass(frozen=True)
class Going:
    """A task has come so far, and does this now."""

    task: Task
    share: float
    doing: str


@dataclass(frozen=True)
class Done:
    """A task has ended with this value. `memory`: the most that its process has held, in bytes."""

    task: Task
    value: Any
    memory: int


@dataclass(frozen=True)
class Lost:
    """A task has no value, for this reason."""

    task: Task
    reason: str


Event = Going | Done | Lost
"""What happens to a task: any number of times it is going on, then it is done or lost."""


def side_by_side(
    function: str, tasks: Sequence[Task], *, jobs: int, threads: int = 1, silence: float = 600.0
) -> Iterator[Event]:
    """Call `function` on every task, at most `jobs` at a time, and tell what happens as it happens.

    function: "module:name" of a function (arguments, progress) -> JSON value; each process imports it once.
    silence: seconds without a word after which a task is given up.

    Where the iteration is left early, at Ctrl-C say, the processes get SIGTERM and the time to write a checkpoint.

    >>> events = side_by_side("joma.scale.worker:echo", [Task("one", {"a": 1})], jobs=2)
    >>> [event.value for event in events if isinstance(event, Done)]
    [{'a': 1}]
    """
    works = _Works(function, threads, jobs, list(tasks))
    events = works.events(silence)
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

    def start(self) -> None:
        while self.waiting and len(self.team) < self.jobs:
            self.team.append(_Process(self.function, self.threads, self.heard))
            self.team[-1].give(self.chosen(self.team[-1]))

    def events(self, silence: float) -> Iterator[Event]:
        """The first is no event: all that follows it, also an interrupt before anybody listens, ends the processes."""
        try:
            self.start()
            yield Going(Task("", {}), 0.0, "")
            while self.waiting or self.team:
                self.start()
                with suppress(Empty):
                    process, message = self.heard.get(timeout=1.0)
                    event = process.hear(message)
                    if event is not None:
                        yield event
                    if not process.task:
                        self.next_task(process, alive=message is not None)
                for process in self.team:
                    if monotonic() - process.heard > silence:
                        process.give_up(silence)
        finally:
            _stop(self.team)

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
    task: Task | None = None
    heard: float = 0.0
    reason: str = ""
    loads: set[str] = field(default_factory=set)
    running: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        # In a group of its own: Ctrl-C reaches the parent alone, which passes it on once.
        self.running = subprocess.Popen(
            child_command("joma.scale.worker", self.function),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**child_environment(), **environment(self.threads)},
            start_new_session=True,
        )
        Thread(target=self._listen, daemon=True).start()

    def give(self, task: Task) -> None:
        self.task, self.heard = task, monotonic()
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
            return Lost(task, self.reason or _cause(self.running.wait()))
        return Lost(task, message["failed"]) if "failed" in message else Done(task, message["value"], message["memory"])

    def give_up(self, silence: float) -> None:
        """Its end is heard as any other."""
        self.reason, self.heard = f"it said nothing for {silence:.0f} s and was stopped", monotonic()
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


def _cause(status: int) -> str:
    """Why a process ended that should not have."""
    if status >= 0:
        return f"its process ended with status {status}"
    name = signal.Signals(-status).name
    memory = ": often the machine is out of memory" if name == "SIGKILL" else ""
    return f"its process died of {name}{memory}"
