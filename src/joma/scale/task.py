"""The seam: an executor takes tasks, calls a function on each, and gives events as they happen.

What an executor promises, wherever it works:

- The function is named ("module:name") and gets plain JSON values: nothing but a name and numbers has to travel.
- What a task gives does not depend on how many run at a time, or where.
- A process or a machine that dies costs no task: it is begun again, `RETRIES` times at most.
- An error of the task itself is not tried again: it would come again. It is named, and the other tasks go on.
- Nor is a task that ran out of memory: the same size would not fit again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from joma.host.errors import JomaError

RETRIES = 3
"""How often a task is begun again whose process or machine died."""


class ScaleError(JomaError, RuntimeError):
    """There is nowhere to work: the message is one sentence that says what is missing."""


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
    gpus: int = 0
    """GPUs that it needs."""
    memory: int = 0
    """Bytes of memory that it needs; 0: not known. A cluster begins it where so much is free."""


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


class Executor(Protocol):
    """Where tasks are carried out."""

    def events(self, function: str, tasks: Sequence[Task]) -> Iterator[Event]:
        """Call `function` on every task and tell what happens as it happens.

        - function: "module:name" of a function (arguments, progress) -> JSON value
        - tasks: what it is called with, begun in this order; their names differ

        Work begins with the call, not with the first event that is asked for. Where the iteration is left early, what
        is at work gets the time to write a checkpoint, and is ended.
        """


def begun_again(task: Task, died: str, attempt: int, retries: int) -> Going:
    """Reported of a task whose process died. attempt: how often it was begun before.

    >>> begun_again(Task("thm2", {}), "its process died of SIGKILL", 1, 3).doing
    'its process died of SIGKILL; begun again (1 of 3)'
    """
    return Going(task, 0.0, f"{died}; begun again ({attempt} of {retries})")
