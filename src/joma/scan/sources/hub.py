"""Checkpoints on the Hugging Face hub: a model and its step revisions, read by ranges.

One listing a revision tells its files, their sizes and hashes. Weights in safetensors are read by byte ranges: the
header, then the tensors that are needed, and nothing is kept on disk. Weights in torch files cannot be read in part;
they are downloaded into a cache with a budget and compared with the hash that the hub lists. Everything goes through
huggingface_hub's own client: its token, its endpoint (HF_ENDPOINT), its retries.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from joma.host import hub as hub_client
from joma.host import limits
from joma.host.extras import how_to_install
from joma.host.hub import StrangeAnswer, client, transport_errors
from joma.scan.errors import CheckpointError
from joma.scan.formats.ranges import RangedBytes
from joma.scan.sources.downloads import DiskCache
from joma.scan.sources.remote import RemoteCheckpoint
from joma.scan.sources.series import Candidate, Series, arrange, known_by, moment_in, with_moments

if TYPE_CHECKING:
    from huggingface_hub import HfApi

T = TypeVar("T")
_EXPIRED = (400, 401, 403, 404, 410)  # what an address answers that holds no longer
_MOST_REFUSALS = 2  # in a row: then every range goes through the hub


@dataclass(frozen=True)
class Listed:
    """A file as the hub lists it. sha256 for large files, else git's own hash of the content."""

    path: str
    size: int
    sha256: str | None
    blob: str


@dataclass
class HubModel:
    """A model repository."""

    repository: str
    cache: DiskCache
    api: HfApi = field(init=False)

    def __post_init__(self) -> None:
        try:
            from huggingface_hub import HfApi
        except ImportError:
            need = f"is not a local path, and reading from the hub needs huggingface_hub: {how_to_install('hf')}"
            raise CheckpointError(f"{self.repository} {need}") from None
        self.api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="joma")

    def series(self) -> Series:
        """One place per revision whose name holds a step or an epoch, in order; else the main revision alone."""
        named = self._revisions()
        if timed := with_moments(named):
            candidates = [Candidate(n, moment_in(n), partial(HubRevision, self, n, named[n])) for n in timed]
            return arrange(candidates, self.repository, [name for name in named if name not in timed])
        if "main" not in named:
            raise CheckpointError(f"{self.repository} has neither step revisions nor a main revision")
        return Series(self.repository, (HubRevision(self, "main", named["main"], 0),))

    def _revisions(self) -> dict[str, str]:
        def ask() -> dict[str, str]:  # the commits of all branches and tags, by name
            (refs,) = self._listed("refs")
            entries = [*refs.get("tags", ()), *refs["branches"]]  # a branch wins over a tag
            return {str(entry["name"]): str(entry["targetCommit"]) for entry in entries[: limits.REVISIONS + 1]}

        named = _asked(self.repository, ask)
        if len(named) > limits.REVISIONS:
            raise CheckpointError(f"{self.repository}: the hub lists more than {limits.REVISIONS:,} revisions")
        if not all(name.isprintable() and ".." not in name.split("/") for name in named):
            raise CheckpointError(f"{self.repository}: the hub lists revisions whose names are no names")
        if not all(re.fullmatch(r"[0-9a-f]{40,64}", commit) for commit in named.values()):
            raise CheckpointError(f"{self.repository}: the hub lists revisions without a commit")
        return named

    def listing(self, commit: str) -> dict[str, Listed]:
        def ask() -> dict[str, Listed]:
            entries = [entry for page in self._listed(f"tree/{commit}") for entry in page if entry["type"] == "file"]
            files = [_listed(entry) for entry in entries]
            # A name that leads elsewhere is none that a hub would list.
            return {file.path: file for file in files if file.path == Path(file.path).name and file.path.isprintable()}

        return _asked(self.repository, ask)

    def _listed(self, what: str) -> Iterator[Any]:
        client().validate_repo_id(self.repository)
        url = f"{self.api.endpoint}/api/models/{self.repository}/{what}"
        return hub_client.listing(url, client().build_hf_headers(token=self.api.token, library_name="joma"))

    def ranges(self, commit: str, file: Listed, name: str) -> HubBytes:
        """The bytes of a file; `name` is for messages."""
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self.repository, file.path, revision=commit, endpoint=self.api.endpoint)
        return HubBytes(name, url, file.size, client().build_hf_headers(token=self.api.token))


@dataclass
class HubRevision(RemoteCheckpoint):
    """One revision of a model. Reads are tied to its commit, so that a push in between changes nothing."""

    keeps_headers = False  # reading it tells where the hub leads to, before many requests go there at once

    model: HubModel
    name: str
    commit: str
    step: int
    epoch: int | None = None

    def __post_init__(self) -> None:
        self.cache = self.model.cache

    def identity(self) -> str:
        return known_by([("its commit", self.commit, "")])

    @property
    def where(self) -> str:
        return f"{self.model.repository} {self.name}"

    @property
    def cached_as(self) -> str:
        return f"{self.model.repository.replace('/', '--')}/{self.commit}"

    def listed(self) -> dict[str, Listed]:
        return self.model.listing(self.commit)

    def ranges(self, file: str) -> HubBytes:
        return self.model.ranges(self.commit, self.files[file], f"{self.name}/{file}")

    def right(self, file: str, path: Path) -> bool:
        with path.open("rb") as stream:
            if self.files[file].sha256 is None:
                return _hash_agrees(self.files[file], stream.read())
            return hashlib.file_digest(stream, "sha256").hexdigest() == str(self.files[file].sha256)

    def read_small(self, file: str) -> bytes:
        content = super().read_small(file)
        if not _hash_agrees(self.files[file], content):
            raise CheckpointError(f"{self.name}/{file} does not have the hash that the hub lists", file=file)
        return content


class HubBytes(RangedBytes):
    """A file on the hub, read by ranges. A dropped connection goes on where it stopped.

    The hub leads to where large files lie. That is asked once for a file: later ranges go there directly, without the
    token, until it no longer answers, because such an address holds for an hour or so.
    """

    def __init__(self, name: str, url: str, size: int, headers: dict[str, str]) -> None:
        super().__init__(name, size, self._read)
        self._url, self._headers = url, headers
        self._direct: str | None = None
        self._refusals = 0  # by direct addresses in a row

    def _read(self, start: int, buffer: memoryview) -> None:
        done = 0

        def read_on() -> None:
            nonlocal done
            for chunk in self._chunks(start + done, start + len(buffer)):
                buffer[done : done + len(chunk)] = chunk
                done += len(chunk)

        broken: tuple[type[Exception], ...] = (*transport_errors(), ConnectionError)
        try:
            hub_client.read_all(len(buffer), lambda: done, read_on)
        except broken as error:
            why = f"the connection broke {hub_client.TRIES} times ({type(error).__name__})"
            raise CheckpointError(f"{self.name} could not be read from the hub: {why}", file=self.name) from None

    def _chunks(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes from `start` up to `stop` as they come; the stream may end early."""
        from huggingface_hub.errors import HfHubHTTPError

        left, direct = stop - start, self._direct
        url, headers = (direct, _without_token(self._headers)) if direct else (self._url, self._headers)
        try:
            with hub_client.byte_range(url, headers, start, stop) as response:
                if direct and response.status_code in _EXPIRED:
                    self._direct = None
                    self._refusals += 1
                    return  # without a byte: the next try asks the hub
                client().hf_raise_for_status(response)
                complete = response.status_code == 200 and start == 0 and stop == self.size
                wanted, given = f"bytes {start}-{stop - 1}/{self.size}", response.headers.get("content-range")
                if not complete and given != wanted:
                    got = given or f"status {response.status_code} without a range"
                    what = f"asked for {wanted}, the hub answered {got}: the file is not the one that is listed"
                    raise CheckpointError(f"{self.name}: {what}", file=self.name)
                self._remember(str(response.url), direct)
                for chunk in response.iter_bytes():
                    if len(chunk) > left:
                        raise CheckpointError(f"{self.name}: the hub sent more bytes than asked for", file=self.name)
                    left -= len(chunk)
                    yield chunk
        except HfHubHTTPError as error:
            _explain(self.name, error)

    def _remember(self, url: str, direct: str | None) -> None:
        """Where the hub led to, if that is another host: on its own host a request may need the token."""
        if direct:
            self._refusals = 0
        elif urlsplit(url).netloc != urlsplit(self._url).netloc and self._refusals < _MOST_REFUSALS:
            self._direct = url


def _without_token(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() != "authorization"}


def _listed(entry: Any) -> Listed:
    """A file of a listing; a KeyError, TypeError or ValueError where the entry is something else."""
    large = entry.get("lfs")
    size, sha256 = entry["size"], None if large is None else large["oid"]
    if type(size) is not int or size < 0 or not (sha256 is None or re.fullmatch(r"[0-9a-f]{64}", sha256)):
        raise StrangeAnswer(f"the hub lists {str(entry['path'])[:80]!a} without a size or a hash")
    return Listed(str(entry["path"]), size, sha256, str(entry["oid"]))


def _hash_agrees(file: Listed, content: bytes | bytearray) -> bool:
    if file.sha256 is not None:
        return hashlib.sha256(content).hexdigest() == file.sha256
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() == file.blob


def _asked(what: str, ask: Callable[[], T]) -> T:
    """`ask` the hub, again if the connection breaks; what it answers instead becomes one sentence."""
    from huggingface_hub.errors import HfHubHTTPError

    for tries in range(hub_client.TRIES):
        try:
            return ask()
        except HfHubHTTPError as error:  # the client has tried again already where the hub was busy
            _explain(what, error)
        except transport_errors() as error:
            if tries + 1 == hub_client.TRIES:
                why = f"{type(error).__name__}: {str(error)[:80]}"
                raise CheckpointError(f"{what}: the hub cannot be reached ({why})") from None
        except (OSError, ValueError) as error:  # offline mode, a name that no repository can have, a strange answer
            raise CheckpointError(f"{what}: {' '.join(str(error).split())[:200]}") from None
        except (KeyError, TypeError, AttributeError):
            raise CheckpointError(f"{what}: the hub answered something that is no listing") from None
        time.sleep(hub_client.PAUSE * 2**tries)
    raise AssertionError("the last try returns or raises")


def _explain(what: str, error: Exception) -> NoReturn:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        why = "needs permission of its owners, and a token of an account that has it (hf auth login)"
    elif isinstance(error, errors.RepositoryNotFoundError):
        why = "is neither a local path nor a model on the hub that your token may see"
    elif isinstance(error, errors.RevisionNotFoundError | errors.EntryNotFoundError):
        why = "is listed, but the hub does not have it"
    else:
        status = getattr(getattr(error, "response", None), "status_code", None)
        why = f"could not be read from the hub (status {status})"
    raise CheckpointError(f"{what} {why}", file=what) from None
