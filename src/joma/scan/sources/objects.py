"""Objects of a store and files of a web server: what is listed of them, and their bytes by ranges.

Every range is asked for on the condition that the object still is the one that was listed (If-Match): one that is
replaced between two ranges is named, and never mixed. Without an entity tag its date is compared.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import Any

from joma.host import stores
from joma.host.redirects import find_file
from joma.host.store_listing import Lister
from joma.host.stores import Address, Replaced, StoreError, explain, obstore_for, store_of
from joma.scan.errors import CheckpointError
from joma.scan.formats.ranges import RangedBytes


@dataclass(frozen=True)
class Listed:
    """An object as its store lists it. etag, modified: its entity tag, and when it was changed; None: nobody says."""

    size: int
    etag: str | None
    modified: Any

    @property
    def version(self) -> str:
        return self.etag or str(self.modified)

    @property
    def can_be_known_again(self) -> bool:
        """Whether another object of the same size would be noticed."""
        return bool(self.etag) or _second(self.modified) is not None


@contextmanager
def _sentences(place: Address) -> Iterator[None]:
    """What goes wrong with a store within is a sentence about `place`."""
    try:
        yield
    except CheckpointError:
        raise
    except StoreError as error:
        raise CheckpointError(str(error), file=place.name) from None
    except Exception as error:  # obstore raises many kinds, some of them Python's own
        raise CheckpointError(str(explain(error, place)), file=place.name) from None


class Bucket:
    """A bucket or a container: what it lists, and the bytes of its objects."""

    def __init__(self, place: Address) -> None:
        """place: the bucket, or anything in it."""
        with _sentences(place):
            self._obstore = obstore_for(str(place))
            self._store, _ = store_of(place)
        self._lister = Lister()

    def listing(self, place: Address) -> tuple[dict[str, Listed], list[str]]:
        """The objects and the folders right below a place, by name; those with hidden names are nobody's."""
        with _sentences(place):
            objects, folders = self._lister.list(place)
        files = {each.name: Listed(each.size, each.etag, each.modified) for each in objects if is_plain_name(each.name)}
        return dict(sorted(files.items())), sorted(filter(is_plain_name, folders))

    def find(self, place: Address) -> Listed | None:
        """The object at a place; None where there is none."""
        with _sentences(place):
            try:
                meta = self._obstore.head(self._store, place.path)
            except FileNotFoundError:
                return None
        return Listed(int(meta["size"]), meta["e_tag"], meta["last_modified"])

    def ranges(self, place: Address, listed: Listed) -> "StoreBytes":
        return StoreBytes(place, listed, self._obstore, self._store, place.path)


class Web:
    """Files of one folder on a web server, each found when it is asked for."""

    def __init__(self, place: Address) -> None:
        """place: any file of the folder."""
        with _sentences(place):
            self._obstore = obstore_for(str(place))

    def find(self, place: Address) -> "WebListed | None":
        """The file at a place; None where there is none."""
        with _sentences(place):
            try:
                found = find_file(place)
            except StoreError as error:
                if str(error) == f"{place} does not exist":
                    return None
                raise
        return WebListed(found.size, found.etag, found.modified, found.url)

    def ranges(self, place: Address, listed: "WebListed") -> "WebBytes":
        return WebBytes(place, listed, self._obstore)


@dataclass(frozen=True)
class WebListed(Listed):
    """A file of a web server, and where its address led to."""

    url: str = field(repr=False)


class StoreBytes(RangedBytes):
    """An object, read by ranges. All of them are of the one object that was listed."""

    def __init__(self, place: Address, listed: Listed, obstore: Any, store: Any, path: str) -> None:
        """place: its address, for messages. listed: what it was when it was listed. store, path: where it is read."""
        super().__init__(str(place), listed.size, self._read)
        self._place, self._listed = place, listed
        self._obstore, self._store, self._path = obstore, store, path
        self._known: dict[str, Any] = _marks(listed.etag, None, listed.modified)
        self._seen = Lock()

    @property
    def _etag(self) -> str | None:
        return self._listed.etag

    def _read(self, start: int, buffer: memoryview) -> None:
        with _sentences(self._place):
            buffer[:] = self._got(start, start + len(buffer))

    def _got(self, start: int, stop: int) -> bytearray:
        # obstore tries again by itself, but it goes on with a broken answer only where a tag says that it may.
        for tries in range(1 if self._etag else stores.TRIES):
            try:
                return self._asked(start, stop)
            except self._obstore.exceptions.GenericError:
                if self._etag or tries + 1 == stores.TRIES:
                    raise
                time.sleep(min(stores.PAUSE * 2**tries, stores.LONGEST_PAUSE))
        raise AssertionError("the last try returns or raises")

    def _asked(self, start: int, stop: int) -> bytearray:
        options: dict[str, Any] = {"range": (start, stop)}
        if self._etag and not self._etag.startswith("W/"):  # a weak tag never matches
            options["if_match"] = f'"{_bare(self._etag)}"'
        result = self._obstore.get(self._store, self._path, options=options)
        self._must_be_the_same(result.meta)
        content = _content(result, stop - start)
        if tuple(result.range) != (start, stop) or len(content) != stop - start:
            sent = f"{len(content):,} bytes from byte {result.range[0]:,} on"
            what = f"sent {sent}, and was asked for {stop - start:,} from byte {start:,} on"
            raise StoreError(f"{self._place}: the server {what}")
        return content

    def _must_be_the_same(self, meta: Mapping[str, Any]) -> None:
        """Not every server heeds If-Match: what it says of its answer is compared as well."""
        now = _marks(meta["e_tag"], meta.get("version"), meta["last_modified"])
        with self._seen:
            before, self._known = self._known, now | self._known
        best = next((name for name in _BEST_FIRST if name in now and name in before), None)
        if meta["size"] != self.size or (best and now[best] != before[best]):
            raise Replaced(f"{self._place} was replaced while it was read; scan it again")


class WebBytes(StoreBytes):
    """A file of a web server. Where its address led to holds for a while only, and is asked for again after that."""

    _listed: WebListed

    def __init__(self, place: Address, listed: WebListed, obstore: Any) -> None:
        with _sentences(place):
            store, path = store_of(place, url=listed.url)
        super().__init__(place, listed, obstore, store, path)

    def _asked(self, start: int, stop: int) -> bytearray:
        store = self._store
        try:
            return super()._asked(start, stop)
        except (FileNotFoundError, self._obstore.exceptions.BaseError) as error:
            expired = type(error).__name__ in ("FileNotFoundError", "PermissionDeniedError", "UnauthenticatedError")
            if not expired or self._listed.url == str(self._place):
                raise
        self._find_again(store)
        return super()._asked(start, stop)

    def _find_again(self, store: Any) -> None:
        with self._seen:
            if self._store is store:  # no other thread has done it
                found = find_file(self._place)  # what it is now, the next range will tell
                self._store, self._path = store_of(self._place, url=found.url)


def _content(result: Any, most: int) -> bytearray:
    """What an answer holds. Of one that holds more than it should, no more is read than shows that."""
    content = bytearray()
    for chunk in result.stream():
        content += chunk
        if len(content) > most:
            break
    return content


def is_plain_name(name: str) -> bool:
    """Whether a name is one of a file or a folder, not hidden, that leads nowhere else. Stores have no longer ones.

    >>> [is_plain_name(name) for name in ("step10", ".cache", "a/b", "", "a" * 2000)]
    [True, False, False, False, False]
    """
    return 0 < len(name) <= _LONGEST and name.isprintable() and not name.startswith(".") and not set(name) & set("/\\")


_LONGEST = 1024  # letters of a name
_BEST_FIRST = ("tag", "version", "second")
"""What an object is known again by: the first of these that both a listing and an answer tell."""


def _marks(etag: str | None, version: str | None, modified: Any) -> dict[str, Any]:
    marks = {"tag": etag and _bare(etag), "version": version, "second": _second(modified)}
    return {name: value for name, value in marks.items() if value}


def _second(modified: Any) -> datetime | None:
    """When an object was changed; None: nobody says. Lists tell fractions of a second that answers leave out.

    >>> _second("Tue, 17 Nov 2026 20:00:00 GMT") == _second(datetime(2026, 11, 17, 20, 0, 0, 5000, UTC))
    True
    """
    if isinstance(modified, str):
        try:
            modified = parsedate_to_datetime(modified)
        except ValueError:
            return None
        modified = modified if modified.tzinfo else modified.replace(tzinfo=UTC)
    if modified is None or modified.timestamp() <= 0:  # obstore has 1970 for an answer that tells nothing
        return None
    return datetime.fromtimestamp(int(modified.timestamp()), UTC)


def _bare(etag: str) -> str:
    return etag.removeprefix("W/").strip('"')
