"""How many tests run side by side: as many as cores, and two at least. `python tests/cores.py` prints it."""

from __future__ import annotations

import math
import os
from pathlib import Path

LEAST = 2
"""With one, a test that waits would leave the core idle."""
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def cores() -> int:
    """Those that this process may use: by its affinity, and by what a container is given of each second."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(LEAST, min(usable, quota(QUOTA.read_text()) if QUOTA.is_file() else usable))


def quota(text: str) -> int:
    """Whole cores, of "<microseconds given> <of so many>", as Linux writes it. "max" is no limit."""
    given, period = text.split()
    return 10**6 if given == "max" else math.ceil(int(given) / int(period))


if __name__ == "__main__":
    print(cores())
