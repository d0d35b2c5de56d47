"""Whether a folder is the same one on two machines: who sends work leaves a mark in it, and who works looks for it.

Tasks that write files are worth nothing where nobody finds what they wrote.
"""

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from joma.scale.task import ScaleError

_PATIENCE = 10.0  # seconds: a network drive may show a new file a little late


@contextmanager
def marked(folder: Path) -> Iterator[str]:
    """Within, a folder holds a mark; yields its name, which is new each time: an old copy of the folder lacks it."""
    mark = folder / f".joma-{secrets.token_hex(8)}"
    mark.touch()
    try:
        yield mark.name
    finally:
        mark.unlink(missing_ok=True)


def must_be_shared(folder: Path, mark: str) -> None:
    """Refuse a folder without the mark: it is not the one in which the mark was left."""
    end = monotonic() + _PATIENCE
    while not (folder / mark).exists():
        if monotonic() >= end:
            here = f"on {socket.gethostname()} {folder} is missing, or another folder"
            raise ScaleError(f"out must be a folder that all machines of the cluster share, and {here}")
        sleep(0.2)
