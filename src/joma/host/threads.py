"""How many threads numerical libraries use. The last digits of a sum depend on it, so records are made with one."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from joma.host.children import environment_with

_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def environment(threads: int) -> dict[str, str]:
    """What a process must find in its environment to use so many threads."""
    return dict.fromkeys(_VARIABLES, str(threads))


def cores() -> int:
    """The number of cores that this process may use: a container often has fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Within, torch and what is imported from now on use so many threads."""
    torch = sys.modules.get("torch")
    used = torch.get_num_threads() if torch else None
    with environment_with(environment(threads)):
        if torch:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            if torch:
                torch.set_num_threads(used)
