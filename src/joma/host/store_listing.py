"""What a folder of an object store lists, asked for in a process of its own.

obstore reads all pages of a listing, and all of each page, before it gives anything back: a store that goes on for ever
would take all memory of the process that asks, and end it. So another process asks, the same one for all folders of a
bucket. It ends itself when it has grown too large, and is ended when it takes too long.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

from joma.host import limits, stores
from joma.host.children import child_command, child_environment
from joma.host.memory import most_memory
from joma.host.stores import Address, StoreError, explain, obstore_for, store_of

Child = subprocess.Popen[str]
_SWOLLEN = 77  # the exit status of a process that has grown too large
_ITSELF = 2**30  # bytes that a process of Python and obstore may take: stacks of a thread per core, above all
_LOOK = 0.01  # seconds between two looks at how large it is
_PATIENCE = ("TRIES", "PAUSE", "LONGEST_PAUSE", "PATIENCE")


@dataclass(frozen=True)
class Entry:
    """An object as a store lists it. name: the last part of its path."""

    name: str
    size: int
    etag: str | None
    modified: datetime


class Lister:
    """Asks what folders of stores hold, one after the other; threads wait for each other."""

    def __init__(self) -> None:
        """Its process starts with the first question, with the limits of that moment."""
        self._lock = threading.Lock()
        self._child: Child | None = None

    def list(self, place: Address) -> tuple[list[Entry], list[str]]:
        """The objects and the names of the folders right below a place. StoreError where they cannot be listed."""
        with self._lock:
            child = self._child = self._child or self._started()
            late = threading.Event()
            deadline = threading.Timer(limits.STORE_SECONDS, _end_late, (child, late))
            deadline.start()
            answer = None
            try:
                answer = _asked(child, place)
            finally:
                deadline.cancel()
                if answer is None:
                    self._child, status = None, _ended(child)
        if answer is not None:
            return entries_in(answer)
        raise StoreError(f"{place} {_why(status, late.is_set())}")

    def _started(self) -> Child:
        child = _started()
        weakref.finalize(self, _ended, child)
        _line_of(child)  # it says that it is there, which may take long on a busy machine
        return child


def entries_in(answer: Mapping[str, Any]) -> tuple[list[Entry], list[str]]:
    """What `answer_for` has found, or its refusal as a StoreError."""
    if "refused" in answer:
        raise StoreError(answer["refused"])
    objects = [
        Entry(name, size, etag, datetime.fromisoformat(modified)) for name, size, etag, modified in answer["objects"]
    ]
    return objects, answer["folders"]


def answer_for(place: Address) -> dict[str, Any]:
    """In the process that asks: what is right below a place, or why nobody can tell, in a form that is JSON."""
    try:
        obstore, (store, _) = obstore_for(str(place)), store_of(place)
        found = obstore.list_with_delimiter(store, place.path or None)
    except StoreError as error:
        return {"refused": str(error)}
    except MemoryError:
        os._exit(_SWOLLEN)
    except Exception as error:  # obstore raises many kinds, some of them Python's own
        return {"refused": str(explain(error, place))}
    objects, folders = found["objects"], found["common_prefixes"]
    if len(objects) + len(folders) > limits.STORE_OBJECTS:
        return {"refused": f"{place} lists more than {limits.STORE_OBJECTS:,} entries; name a folder in it"}
    return {
        "objects": [
            (_last(each["path"]), each["size"], each["e_tag"], each["last_modified"].isoformat())
            for each in objects
            if each["path"] != place.path
        ],
        "folders": [_last(each.rstrip("/")) for each in folders],
    }


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _why(status: int, late: bool) -> str:
    if late:
        return f"could not be listed: that took more than {limits.STORE_SECONDS:g} s"
    if status in (_SWOLLEN, -signal.SIGABRT):  # obstore aborts where it gets no memory
        return f"lists more than {limits.STORE_LISTING_BYTES:,} bytes of memory can hold; name a folder in it"
    return f"could not be listed: what reads its answers broke down (status {status})"


def _started() -> Child:
    settings = {"limits": {name: getattr(limits, name) for name in limits.names()}}
    settings |= {"stores": {name: getattr(stores, name) for name in _PATIENCE}}
    return subprocess.Popen(
        child_command("joma.host.store_listing", json.dumps(settings)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(),
        text=True,
        encoding="utf-8",
    )


def _asked(child: Child, place: Address) -> Any:
    """The answer of a process; None where it has ended."""
    with suppress(OSError, ValueError):  # a pipe that broke, an answer that did not come whole
        print(json.dumps([place.scheme, place.host, place.path]), file=child.stdin, flush=True)
        return json.loads(_line_of(child))
    return None


def _line_of(child: Child) -> str:
    assert child.stdout is not None
    return child.stdout.readline(limits.STORE_LISTING_BYTES)


def _end_late(child: Child, late: threading.Event) -> None:
    late.set()
    child.kill()


def _ended(child: Child) -> int:
    """End a process that nobody waits for any more; returns its status."""
    child.kill()
    status = child.wait()
    for stream in (child.stdin, child.stdout):
        with suppress(OSError):  # what was not written has nobody to read it
            if stream is not None:
                stream.close()
    return status


def _bound() -> None:
    """Let this process get so much memory and no more, though nobody has time to watch it; on Linux."""
    if resource is not None:
        most = 2 * limits.STORE_LISTING_BYTES + _ITSELF
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _watch(parent: int) -> None:
    """End this process when it has grown too large, or its parent is gone. Its main thread may be in obstore."""
    begun = most_memory()
    while os.getppid() == parent:
        time.sleep(_LOOK)
        if most_memory() - begun > limits.STORE_LISTING_BYTES:
            os._exit(_SWOLLEN)
    os._exit(1)


def main() -> None:
    """A line for each question: the parts of an address as JSON. A line for each answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no answer
    for module, values in json.loads(sys.argv[1]).items():
        vars({"limits": limits, "stores": stores}[module]).update(values)
    _bound()
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    print("ready", file=to, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer_for(Address(*json.loads(line)))), file=to, flush=True)


if __name__ == "__main__":
    main()
