"""A folder in memory for what tests write, where there is one with room. `python tests/in_memory.py` prints it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

FOLDER = Path("/dev/shm")
ENOUGH = 4 * 2**30
"""Bytes: several times what the tests need. A container has often 64 MB, which would fill up."""


def in_memory() -> str:
    """The folder, or nothing: then the tests write where the system says."""
    usable = FOLDER.is_dir() and os.access(FOLDER, os.W_OK) and shutil.disk_usage(FOLDER).free >= ENOUGH
    return str(FOLDER) if usable else ""


if __name__ == "__main__":
    print(in_memory())
