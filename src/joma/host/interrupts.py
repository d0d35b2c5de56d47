"""Ctrl-C and SIGTERM: what they raise during a command, and how they wait where something is to be written first."""

import math
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

ECHO = 1.0
"""Seconds in which a second SIGTERM is the first once more: `timeout` sends one to the command, one to its group."""
PATIENCE = 25.0
"""Seconds that a signal waits at most, less than the 30 after which schedulers kill. A turn may never end: who ends a
whole group of processes ends the compiler's too, and torch waits for it without limit."""


class Terminated(KeyboardInterrupt):
    """SIGTERM during a command, from `timeout` or a job scheduler: whatever knows how to end at Ctrl-C ends as well."""


class _RaiseTerminated:
    """The handler of SIGTERM during a command."""

    def __init__(self) -> None:
        self.process, self.last = os.getpid(), -math.inf

    def __call__(self, number: int, frame: object) -> None:
        if os.getpid() != self.process:  # a forked child ends as it would without us
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        last, self.last = self.last, monotonic()
        if self.last - last > ECHO:
            raise Terminated


@contextmanager
def sigterm_raised() -> Iterator[None]:
    """Within, SIGTERM raises Terminated; not where it is ignored or somebody else handles it."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    try:
        signal.signal(signal.SIGTERM, _RaiseTerminated())
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def signals_noted() -> Iterator[dict[int, float]]:
    """Within, Ctrl-C and SIGTERM wait for the end of a turn, where a checkpoint can be made; a second does not wait.

    Nor does the first for longer than `PATIENCE`. On leaving, what was noted does what it would have done at once. An
    error on the way, as of a full disk, becomes its cause: it must not keep a command from ending.
    """
    before, process = _ours(), os.getpid()
    noted: dict[int, float] = {}
    impatience: list[threading.Timer] = []
    failed: Exception | None = None

    def note(number: int, frame: object) -> None:
        now = monotonic()
        if number == signal.SIGTERM and now - noted.get(number, -math.inf) < ECHO:
            return
        if noted or os.getpid() != process:  # a forked child has nothing to write
            signal.signal(number, before[number])
            signal.raise_signal(number)
        noted[number] = now
        impatience.append(threading.Timer(PATIENCE, os.kill, (process, number)))
        impatience[-1].daemon = True
        impatience[-1].start()

    try:
        for number in before:
            signal.signal(number, note)
        yield noted
    except Exception as error:
        failed = error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for timer in impatience:
            timer.cancel()
    if noted:
        try:
            signal.raise_signal(next(iter(noted)))
            raise Terminated  # the first process of a container does not die of SIGTERM, but it is asked to end
        except KeyboardInterrupt as interrupt:
            raise interrupt from failed
    if failed is not None:
        raise failed


def _ours() -> dict[int, Any]:
    """The signals that nobody but us wants to handle, with what they do now."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if before[signal.SIGINT] is not signal.default_int_handler:
        del before[signal.SIGINT]
    if before[signal.SIGTERM] is not signal.SIG_DFL and not isinstance(before[signal.SIGTERM], _RaiseTerminated):
        del before[signal.SIGTERM]
    return before
