"""One writer a run: an advisory `flock` on a file beside it, `NAME.lock`, that vanishes with the process.

It cannot be on the run itself: closing any descriptor of an SQLite file drops the POSIX locks SQLite holds on it.
A killed writer leaves the file but not the lock, so nothing is ever stale. Runs are written on Linux and macOS.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

from joma.host.files import open_lock
from joma.runs.errors import RunBusy, RunError

_held: WeakSet["WriterLock"] = WeakSet()


class WriterLock:
    """Holds the right to write `path` until `release`, or until the process ends in whatever way."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".lock")
        self._descriptor: int | None = None
        # Whoever releases deletes the file, so a lock may land on a file that is just gone: then try the new one.
        while self._descriptor is None:
            self._descriptor = _locked(self.path, path)
        _held.add(self)

    def release(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):  # a file that stays is harmless: only the lock on it counts
                self.path.unlink()  # while still locked, or it could be the next writer's file
            self.forget()

    def forget(self) -> None:
        """Close this process's handle and leave the file alone."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def writer_of(path: Path) -> int | None:
    """The process of this machine that writes a run, as its lock file says; None where it is gone. Locks nothing.

    >>> writer_of(Path("/nowhere/a.joma")) is None
    True
    """
    try:
        process = int(path.with_name(path.name + ".lock").read_text(encoding="ascii"))
        os.kill(process, 0)  # only asks
    except PermissionError:  # of another user
        return process
    except (OSError, ValueError, OverflowError):
        return None
    return process


def _locked(lock: Path, run: Path) -> int | None:
    import fcntl  # here, so that runs can at least be read where there is none

    try:
        descriptor = open_lock(lock)
    except OSError as error:
        raise RunError(f"{run} cannot be written: {lock.name} beside it cannot be made ({error.strerror})") from error
    if os.pread(descriptor, 20, 0).strip(b"0123456789"):
        os.close(descriptor)
        raise RunError(f"{run} cannot be written: {lock.name} beside it is not joma's; move it elsewhere")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(FileNotFoundError):
            if os.path.samestat(lock.stat(), os.fstat(descriptor)):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
                return descriptor
    except BlockingIOError:
        writer = os.read(descriptor, 20).decode(errors="replace") or "unknown"
        os.close(descriptor)
        what = f"{run} is being written already (by process {writer}); wait for it, or read with Run.open(path)"
        raise RunBusy(what, writer) from None
    except OSError as error:
        os.close(descriptor)
        advice = "make room" if error.errno == errno.ENOSPC else "record runs in a folder on a local disk"
        raise RunError(f"{run} cannot be locked ({error.strerror}); {advice}") from error
    os.close(descriptor)
    return None


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()


# A forked child (a data loader's worker, say) shares the lock and would keep it alive after its parent's death.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
