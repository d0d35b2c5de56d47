"""How much memory is free, for estimates that are made before the work begins, and how much a process has held."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_MEMINFO, _GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def free_memory(device: Any = "cpu") -> int | None:
    """Bytes that a torch device, or the machine, can still give; None where nobody tells."""
    import torch

    at = torch.device(device)
    if at.type == "cuda":
        free: int = torch.cuda.mem_get_info(at)[0]
        return free + torch.cuda.memory_reserved(at) - torch.cuda.memory_allocated(at)
    known: list[int] = []
    with suppress(OSError, ValueError, IndexError):
        lines = _MEMINFO.read_text().splitlines()
        known += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")][:1]
    with suppress(OSError, ValueError):  # "max": a container has no limit
        most, used = (int((_GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        known.append(max(0, most - used))
    return min(known, default=None)


def most_memory() -> int:
    """The most memory that this process has held, in bytes; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
