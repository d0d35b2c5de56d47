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
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeVar

from joma.host import hub as hub_client
from joma.host import limits
from joma.host.extras import how_to_install
from joma.host.hub import StrangeAnswer, client, transport_errors
from joma.scan.errors import CheckpointError
from joma.scan.formats.adapter import CONFIG
from joma.scan.formats.checkpoint import Checkpoint, Weights, choose_weights
from joma.scan.formats.opening import opened_file
from joma.scan.formats.safetensors_file import SafetensorsFile
from joma.scan.formats.tensor_file import TensorFile, parsed_json
from joma.scan.sources.downloads import DiskCache
from joma.scan.sources.series import Candidate, Series, arrange, moment_in, with_moments

if TYPE_CHECKING:
    from huggingface_hub import HfApi

T = TypeVar("T")
_SMALL = 20_000_000  # bytes; a config or an index is far below
_MORE_FILES = (".json", ".txt", ".model")  # what a model needs to run besides its weights


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
            need = f"is no local path, and reading from the hub needs huggingface_hub: {how_to_install('hf')}"
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
        """The files at the top of a revision."""

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

    def part_of_cache(self, commit: str) -> str:
        """The name that a revision has in the cache."""
        return f"{self.repository.replace('/', '--')}/{commit}"

    def ranges(self, commit: str, file: Listed, name: str) -> HubBytes:
        """The bytes of a file; `name` is for messages."""
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self.repository, file.path, revision=commit, endpoint=self.api.endpoint)
        return HubBytes(name, url, file.size, client().build_hf_headers(token=self.api.token))

    def download(self, commit: str, file: Listed) -> Path:
        """A file in the cache with the hash that the hub lists. The caller holds its space in the cache."""
        source = self.ranges(commit, file, f"{self.repository} {file.path}")
        name = f"{self.part_of_cache(commit)}/{file.path}"

        def right(path: Path) -> bool:
            with path.open("rb") as stream:
                if file.sha256 is None:
                    return _hash_agrees(file, stream.read())
                return hashlib.file_digest(stream, "sha256").hexdigest() == file.sha256

        return self.cache.file(name, file.size, source.copy_to, right)


@dataclass
class HubRevision:
    """One revision of a model. Reads are tied to its commit, so that a push in between changes nothing."""

    model: HubModel
    name: str
    commit: str
    step: int
    epoch: int | None = None

    def identity(self) -> str:
        return self.commit

    @cached_property
    def files(self) -> dict[str, Listed]:
        """The files of the revision; one request, made once."""
        return self.model.listing(self.commit)

    @cached_property
    def _config(self) -> dict[str, Any] | None:
        file = "config.json"
        return parsed_json(self._small(file), f"{self.name}/{file}") if file in self.files else None

    def config(self) -> dict[str, Any] | None:
        return self._config

    @cached_property
    def _weights(self) -> Weights:
        return choose_weights(self.files, self._small, f"{self.model.repository} {self.name}")

    def weights(self) -> Weights:
        return self._weights

    def open(self) -> Checkpoint:
        weights = self.weights()
        downloaded = [self.files[file] for file in weights.files if not file.endswith(".safetensors")]
        with ExitStack() as stack:
            if downloaded:
                stack.enter_context(self._held(downloaded))
            if weights.kind not in ("", "adapter"):
                what = f"is a checkpoint in parts ({weights.files[0]}, ...); download it and scan the folder"
                raise CheckpointError(f"{self.model.repository} {self.name} {what}", file=weights.files[0])
            adapter = parsed_json(self._small(CONFIG), f"{self.name}/{CONFIG}") if weights.kind else None
            openers = {file: partial(self._opened, file) for file in weights.files}
            checkpoint = Checkpoint(openers, weights.index, config=self.config(), adapter=adapter)
            checkpoint.after_close(stack.pop_all().close)
            return checkpoint

    @contextmanager
    def folder(self) -> Iterator[Path]:
        names = {*self.weights().files, *(name for name in self.files if name.endswith(_MORE_FILES))}
        wanted = [self.files[name] for name in names]
        with self._held(wanted):
            for file in wanted:
                self.model.download(self.commit, file)
            yield self.model.cache.folder_of(self.model.part_of_cache(self.commit))

    def _held(self, files: list[Listed]) -> AbstractContextManager[None]:
        part = self.model.part_of_cache(self.commit)
        return self.model.cache.hold(part, sum(file.size for file in files), f"{self.model.repository} {self.name}")

    def _opened(self, file: str) -> TensorFile:
        listed = self.files[file]
        if file.endswith(".safetensors"):
            return SafetensorsFile(self._ranges(listed))
        return opened_file(self.model.download(self.commit, listed))

    def _ranges(self, file: Listed) -> HubBytes:
        return self.model.ranges(self.commit, file, f"{self.name}/{file.path}")

    def _small(self, name: str) -> bytes:
        file = self.files[name]
        if file.size > _SMALL:
            raise CheckpointError(f"{self.name}/{name} has {file.size:,} bytes, too many for JSON", file=name)
        buffer = bytearray(file.size)
        self._ranges(file).read_into(0, memoryview(buffer))
        if not _hash_agrees(file, buffer):
            raise CheckpointError(f"{self.name}/{name} does not have the hash that the hub lists", file=name)
        return bytes(buffer)


class HubBytes:
    """A file on the hub, read by ranges. A dropped connection goes on where it stopped."""

    def __init__(self, name: str, url: str, size: int, headers: dict[str, str]) -> None:
        self.name, self.size = name, size
        self._url, self._headers = url, headers

    def read_into(self, start: int, buffer: memoryview) -> None:
        done = 0

        def read_on() -> None:
            nonlocal done
            for chunk in self._chunks(start + done, start + len(buffer)):
                buffer[done : done + len(chunk)] = chunk
                done += len(chunk)

        self._read_all(len(buffer), lambda: done, read_on)

    def copy_to(self, stream: BinaryIO) -> None:
        """Write what is missing to a stream that stands at the end of what it has."""

        def read_on() -> None:
            for chunk in self._chunks(stream.tell(), self.size):
                stream.write(chunk)

        self._read_all(self.size, stream.tell, read_on)

    def _read_all(self, size: int, have: Callable[[], int], read_on: Callable[[], None]) -> None:
        broken: tuple[type[Exception], ...] = (*transport_errors(), ConnectionError)
        try:
            hub_client.read_all(size, have, read_on)
        except broken as error:
            why = f"the connection broke {hub_client.TRIES} times ({type(error).__name__})"
            raise CheckpointError(f"{self.name} could not be read from the hub: {why}", file=self.name) from None

    def prefetch(self, start: int, length: int) -> None:
        """Nothing is asked for before it is read: a second connection would only share the line."""

    def close(self) -> None: ...

    def _chunks(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes from `start` up to `stop` as they come; the stream may end early."""
        from huggingface_hub.errors import HfHubHTTPError

        left = stop - start
        try:
            with hub_client.byte_range(self._url, self._headers, start, stop) as response:
                client().hf_raise_for_status(response)
                complete = response.status_code == 200 and start == 0 and stop == self.size
                wanted, given = f"bytes {start}-{stop - 1}/{self.size}", response.headers.get("content-range")
                if not complete and given != wanted:
                    got = given or f"status {response.status_code} without a range"
                    what = f"asked for {wanted}, the hub answered {got}: the file is not the one that is listed"
                    raise CheckpointError(f"{self.name}: {what}", file=self.name)
                for chunk in response.iter_bytes():
                    if len(chunk) > left:
                        raise CheckpointError(f"{self.name}: the hub sent more bytes than asked for", file=self.name)
                    left -= len(chunk)
                    yield chunk
        except HfHubHTTPError as error:
            _explain(self.name, error)


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
        why = "is no local path and no model on the hub that your token may see"
    elif isinstance(error, errors.RevisionNotFoundError | errors.EntryNotFoundError):
        why = "is listed, but the hub does not have it"
    else:
        status = getattr(getattr(error, "response", None), "status_code", None)
        why = f"could not be read from the hub (status {status})"
    raise CheckpointError(f"{what} {why}", file=what) from None
