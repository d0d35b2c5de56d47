"""Run a command whose temporary files lie in memory, where there is room, and take them away when it has ended.

python tests/in_memory.py pytest -q
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path("/dev/shm")
ENOUGH = 4 * 2**30
"""Bytes: several times what the tests need. A container has often 64 MB, which would fill up."""
NO_PROGRAMS = getattr(os, "ST_NOEXEC", 0)


def has_room() -> bool:
    """Whether there is such a folder: with room, and one that code may be loaded from, which tests compile there."""
    if not (FOLDER.is_dir() and os.access(FOLDER, os.W_OK)) or os.statvfs(FOLDER).f_flag & NO_PROGRAMS:
        return False
    return shutil.disk_usage(FOLDER).free >= ENOUGH


def run(command: Sequence[str]) -> int:
    """Run it and return its status; without room in memory its files lie where the system says, and stay."""
    if not has_room():
        return _waited_for(command, {})
    with tempfile.TemporaryDirectory(prefix="joma-tests-", dir=FOLDER, ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o711)  # some tests go on as another user, who has to get through
        return _waited_for(command, {"TMPDIR": folder})


def _waited_for(command: Sequence[str], more: dict[str, str]) -> int:
    """Ctrl-C is for the command: it tells how far it came, and then its files are taken away."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return subprocess.Popen(command, env=os.environ | more).wait()
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
