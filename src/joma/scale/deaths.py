"""Why a process ended that should not have, and whether it was for lack of memory."""

import signal
from pathlib import Path

_COUNTS = Path("/proc/vmstat")


def memory_kills() -> int:
    """How many processes the kernel of this machine has killed for memory so far; 0 where it does not say.

    >>> memory_kills() >= 0
    True
    """
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
