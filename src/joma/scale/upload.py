"""Finished files of a folder, sent to an object store: s3://, gs:// or az://.

A run is an SQLite file, which no object store can hold while it is written. So commands write to a local folder, and
whole files are sent when they are finished. What is there already with the same content is not sent again: every object
carries the SHA-256 of its content, because the tag that a store gives it depends on how it was sent.
"""

import hashlib
import mimetypes
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joma.host.stores import Address, StoreError, obstore_for, read_address, store_of
from joma.host.words import counted
from joma.runs.lock import writer_of

_DIGEST = "sha256"  # the name of the digest among what a store keeps of an object: all stores take such a name
_AT_ONCE = 2**20
_MISSING, _FORBIDDEN = ("FileNotFoundError", "NotFoundError"), "PermissionDeniedError"  # as obstore calls them
_ASIDE_FOLDERS = {"joma-downloads"}
_ASIDE_ENDINGS = (".lock", "-wal", "-shm", "-journal", ".checkpoint", ".kept")
"""What stands beside runs while they are written."""


@dataclass
class Uploaded:
    """What became of the files of a folder, by their names in it.

    - sent: those that were sent
    - there: those that were there already, with the same content
    - unfinished: runs that a process still writes; they were not sent

    >>> print(Uploaded(["report.html"], ["runs/a.sqlite"]))
    1 file sent, 1 was there already
    """

    sent: list[str] = field(default_factory=list)
    there: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        verb = "was" if len(self.there) == 1 else "were"
        kept = f", {len(self.there):,} {verb} there already" if self.there else ""
        why = "not, because a process still writes it or was killed"
        left = f", {', '.join(self.unfinished)} {why}" if self.unfinished else ""
        return f"{counted(len(self.sent), 'file')} sent{kept}{left}"


def upload(folder: str | Path, address: str) -> Uploaded:
    """Send every finished file of a folder to `address`, each under its name in the folder.

    - folder: a local folder that `joma verify`, `joma scan` or `joma merge` wrote
    - address: where to, as s3://bucket/path. Credentials are those of the environment; an address must hold none.

    A call that was cut off goes on when it is made again. `StoreError` says in one sentence what is wrong.
    """
    place, root, done = _writable(address), Path(folder), Uploaded()
    store, prefix = store_of(place)
    for path in _finished_files(root, done):
        name = path.relative_to(root).as_posix()
        key, digest = f"{prefix}/{name}".lstrip("/"), _digest(path)
        if _is_there(store, key, digest, place):
            done.there.append(name)
            continue
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        try:
            obstore_for(str(place)).put(store, key, path, attributes={_DIGEST: digest, "Content-Type": kind})
        except Exception as error:
            raise _explained(error, place) from None
        done.sent.append(name)
    return done


def must_be_reachable(address: str) -> None:
    """Refuse now what would fail after the work: an address that is none, a bucket that is not there."""
    place = _writable(address)
    store, prefix = store_of(place)
    try:
        next(iter(obstore_for(str(place)).list(store, prefix or None, chunk_size=1)), None)
    except Exception as error:
        if type(error).__name__ != _FORBIDDEN:  # whoever may write need not be allowed to list
            raise _explained(error, place) from None


def _writable(address: str) -> Address:
    place = read_address(address)
    if place.is_web:
        raise StoreError(f"{place.scheme}:// is not a store that takes files; there are s3://, gs:// and az://")
    return place


def _finished_files(root: Path, done: Uploaded) -> Iterator[Path]:
    """Runs before what speaks of them: whoever sees a report, or that a shard is done, finds all of it."""
    found: list[Path] = []
    for folder, inside, names in os.walk(root):
        inside[:] = [name for name in inside if name not in _ASIDE_FOLDERS and not name.startswith(".")]
        kept = [name for name in names if not name.startswith(".") and not name.endswith(_ASIDE_ENDINGS)]
        found += [Path(folder, name) for name in kept]
    for path in sorted(found, key=lambda path: (-len(path.parts), path)):
        if path.is_symlink() or not path.is_file():
            continue
        if _is_written(path):
            done.unfinished.append(path.relative_to(root).as_posix())
        else:
            yield path


def _is_written(path: Path) -> bool:
    """Whether a run is not one whole file: a process writes it, or was killed while it did."""
    beside = (path.with_name(path.name + ending) for ending in ("-wal", "-journal"))
    return path.suffix == ".sqlite" and (writer_of(path) is not None or any(one.exists() for one in beside))


def _is_there(store: Any, key: str, digest: str, place: Address) -> bool:
    try:
        found = obstore_for(str(place)).get(store, key, options={"head": True})
        return bool(found.attributes.get(_DIGEST) == digest)
    except Exception as error:
        if type(error).__name__ in (*_MISSING, _FORBIDDEN):  # without the right to list, what is missing is forbidden
            return False
        raise _explained(error, place) from None


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(_AT_ONCE):
            digest.update(piece)
    return digest.hexdigest()


def _explained(error: Exception, place: Address) -> StoreError:
    """One sentence with nothing of what obstore says: that may quote headers and answers of the server."""
    kind = type(error).__name__
    if kind in _MISSING or "status code: 404" in str(error) or "404 Not Found" in str(error):
        return StoreError(f"{place} cannot be written: there is no {place.scheme}://{place.host}")
    if kind in (_FORBIDDEN, "UnauthenticatedError"):
        return StoreError(f"{place} may not be written with the credentials of the environment")
    return StoreError(f"{place} could not be written: the store or the connection failed ({kind})")
