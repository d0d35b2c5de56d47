"""Python starts with this file where tests/as_other_machines.py says so: the clocks of a slow or busy machine.

With JOMA_TEST_CLOCK=20 every clock runs 20 times faster than the wall, so that all work seems 20 times slower. Waiting
itself (sleep, select, locks, the end of a process) takes the time that it took. Processes that the tests start do so
too.
"""

import os
import time

FACTOR = float(os.environ.get("JOMA_TEST_CLOCK", "1"))
CLOCKS = ("monotonic", "perf_counter", "process_time", "thread_time")


def hurry(name: str) -> None:
    """Let a clock run faster from now on; its nanoseconds too."""
    real, real_ns = getattr(time, name), getattr(time, f"{name}_ns")
    start, start_ns = real(), real_ns()
    setattr(time, name, lambda: start + FACTOR * (real() - start))
    setattr(time, f"{name}_ns", lambda: start_ns + int(FACTOR * (real_ns() - start_ns)))


if FACTOR != 1:
    import subprocess  # noqa: F401  its patience is measured by the clock that it finds now

    for clock in CLOCKS:
        hurry(clock)
