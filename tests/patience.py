"""Waiting for what must happen, without a look at the clock.

No test passes or fails by how fast the machine is. A test waits for what it wants to see; the end of its patience only
keeps a broken one from hanging for ever.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 600
"""Seconds after which a test gives up: much more than any machine needs."""
NAP = 0.05


def until(happened: Callable[[], object]) -> None:
    """Wait for it. Naps are counted, since a clock may be one that a test has set."""
    for _ in range(int(PATIENCE / NAP)):
        if happened():
            return
        time.sleep(NAP)
    raise AssertionError(f"it did not happen within {PATIENCE} s")


def alive(process: int | str) -> bool:
    """Whether a process of this number is there, and not only waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # also where it ends between opening and reading
        return False


@contextmanager
def not_for_ever() -> Iterator[None]:
    """Within, work that does not come to an end is given up."""

    def stop(*_: object) -> None:
        raise AssertionError(f"it did not end within {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
