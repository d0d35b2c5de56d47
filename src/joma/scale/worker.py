"""`joma.scale.worker MODULE:FUNCTION`, run as a process: `joma.scale.local` gives it one task after another.

Tasks come in and answers go out as lines of JSON. Where the other side is gone, the process ends as at SIGTERM.
"""

import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from queue import Queue
from threading import Event, Thread
from typing import IO, Any

from joma.host import limits
from joma.host.exit_status import OK, TERMINATED
from joma.host.interrupts import sigterm_raised
from joma.host.memory import most_memory
from joma.host.named_code import function_named
from joma.host.printing import say
from joma.host.progress import NowAndThen, Progress

EVERY = 0.1
"""Seconds between two words of progress, at least."""


def echo(arguments: Any, progress: Progress) -> Any:
    """A function for tests: gives back what it is called with."""
    return arguments


def main() -> int:
    """Carry out tasks until there are no more."""
    # What a task prints goes to standard error: standard output is for answers alone.
    to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        with sigterm_raised():
            limits.check()
            function = function_named(sys.argv[1])
            _collect_rarely()
            _work(function, to)
    except KeyboardInterrupt as interrupt:
        if interrupt.__cause__ is not None:  # no checkpoint could be written; that it was interrupted the parent says
            say(f"joma: {interrupt.__cause__}", sys.stderr)
        return TERMINATED
    except BrokenPipeError:
        os.close(to.fileno())  # else Python would try to write to it once more
        return TERMINATED
    return OK


def _collect_rarely() -> None:
    """What is loaded by now stays: looking at it again and again took 2 % of the time."""
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


def _work(function: Callable[[Any, Progress], Any], to: IO[str]) -> None:
    tasks: Queue[str | None] = Queue()
    at_work, alone = Event(), Event()
    Thread(target=_listen, args=(tasks, at_work, alone), daemon=True).start()
    while (line := tasks.get()) is not None:
        at_work.set()
        if alone.is_set():  # the other side went while this process still loaded
            raise KeyboardInterrupt
        words = lambda share, doing: _say(to, {"share": float(share), "doing": doing})
        _say(to, carried_out(function, json.loads(line), NowAndThen(words, every=EVERY)))
        at_work.clear()


def _listen(tasks: Queue[str | None], at_work: Event, alone: Event) -> None:
    for line in sys.stdin:
        tasks.put(line)
    alone.set()  # before the question below, as `at_work` is set before its own: one of the two is seen
    tasks.put(None)
    if at_work.is_set():  # nobody waits for it any more
        os.kill(os.getpid(), signal.SIGTERM)


def carried_out(function: Callable[[Any, Progress], Any], arguments: Any, progress: Progress) -> dict[str, Any]:
    """What a function gives, with the memory that was held; an error of it as one line."""
    try:
        return {"value": function(arguments, progress), "memory": most_memory()}
    except BrokenPipeError:
        raise
    except Exception as error:
        return {"failed": " ".join(f"{type(error).__name__}: {error}".split())}


def _say(to: IO[str], message: dict[str, Any]) -> None:
    print(json.dumps(message), file=to, flush=True)


if __name__ == "__main__":
    sys.exit(main())
