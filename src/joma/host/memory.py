"""How much memory is free, for estimates that are made before the work begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_MEMINFO, _GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def free_memory(device: Any = "cpu") -> int | None:
    """Bytes that a torch device, or the machine, can still give; None where nobody tells.

    >>> free_memory() is None or free_memory() > 0
    True
    """
    import torch

    at = torch.device(device)
    if at.type == "cuda":
        free: int = torch.cuda.mem_get_info(at)[0]
        return free + torch.cuda.memory_reserved(at) - torch.cuda.memory_allocated(at)
    known = [found for found in (_of_machine(), _of_group()) if found is not None]
    return min(known, default=None)


def _of_machine() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _of_group() -> int | None:
    """What a container may still use."""
    try:
        most, used = (int((_GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        return max(0, most - used)
    except (OSError, ValueError):  # "max": no limit
        return None
