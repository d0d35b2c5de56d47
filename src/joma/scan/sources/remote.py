"""A checkpoint whose files are elsewhere: safetensors are read by ranges, everything else is downloaded whole.

Where the files are, a subclass knows: a revision on the hub (`hub`), a folder or a file in an object store (`store`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from joma.scan.errors import CheckpointError
from joma.scan.formats.adapter import CONFIG
from joma.scan.formats.checkpoint import Checkpoint, Weights, choose_weights
from joma.scan.formats.opening import opened_file
from joma.scan.formats.ranges import RangedBytes
from joma.scan.formats.safetensors_file import SafetensorsFile
from joma.scan.formats.tensor_file import TensorFile, parsed_json
from joma.scan.sources.downloads import DiskCache

SMALL = 20_000_000  # bytes; a config or an index is far below
_MORE_FILES = (".json", ".txt", ".model")  # what a model needs to run besides its weights


class RemoteCheckpoint(ABC):
    """What every checkpoint elsewhere can do, once it is known which files it has and how they are read.

    cache: where downloads go. where: what messages call it. cached_as: the name that it has in the cache, another one
    when its files change.
    """

    name: str
    cache: DiskCache
    keeps_headers: ClassVar[bool] = True

    @property
    @abstractmethod
    def where(self) -> str: ...

    @property
    @abstractmethod
    def cached_as(self) -> str: ...

    @abstractmethod
    def listed(self) -> Mapping[str, Any]:
        """Its files by name, each with its `size`; asked for once."""

    @abstractmethod
    def ranges(self, file: str) -> RangedBytes:
        """The bytes of a file."""

    @abstractmethod
    def right(self, file: str, path: Path) -> bool:
        """Whether a download is what is listed."""

    def read_small(self, file: str) -> bytes:
        size = self.files[file].size
        if size > SMALL:
            raise CheckpointError(f"{self.name}/{file} has {size:,} bytes, too many for JSON", file=file)
        buffer = bytearray(size)
        self.ranges(file).read_into(0, memoryview(buffer))
        return bytes(buffer)

    @cached_property
    def files(self) -> Mapping[str, Any]:
        return self.listed()

    @cached_property
    def _config(self) -> dict[str, Any] | None:
        return self._json("config.json")

    def config(self) -> dict[str, Any] | None:
        return self._config

    @cached_property
    def _weights(self) -> Weights:
        return choose_weights(self.files, self.read_small, self.where)

    def weights(self) -> Weights:
        return self._weights

    def open(self) -> Checkpoint:
        weights = self.weights()
        whole = [file for file in weights.files if not file.endswith(".safetensors")]
        with ExitStack() as stack:
            if whole:
                stack.enter_context(self._held(whole))
            if weights.kind not in ("", "adapter"):
                what = f"is a checkpoint in parts ({weights.files[0]}, ...); download it and scan the folder"
                raise CheckpointError(f"{self.where} {what}", file=weights.files[0])
            adapter = self._json(CONFIG) if weights.kind else None
            openers: dict[str, Callable[[], TensorFile]] = {file: partial(self._opened, file) for file in weights.files}
            checkpoint = Checkpoint(openers, weights.index, config=self._config, adapter=adapter)
            checkpoint.after_close(stack.pop_all().close)
            return checkpoint

    @contextmanager
    def folder(self) -> Iterator[Path]:
        wanted = list({*self.weights().files, *(name for name in self.files if name.endswith(_MORE_FILES))})
        with self._held(wanted):
            for file in wanted:
                self._downloaded(file)
            yield self.cache.folder_of(self.cached_as)

    def _held(self, files: Sequence[str]) -> AbstractContextManager[None]:
        return self.cache.hold(self.cached_as, sum(self.files[file].size for file in files), self.where)

    @cached_property
    def _headers(self) -> dict[str, tuple[int, bytes]]:
        """Of files that were opened once: to plan and to measure takes one request for it."""
        return {}

    def _opened(self, file: str) -> TensorFile:
        if file.endswith(".safetensors"):
            opened = SafetensorsFile(self.ranges(file), self._headers.get(file))
            if self.keeps_headers:
                self._headers[file] = opened.header
            return opened
        return opened_file(self._downloaded(file))

    def _downloaded(self, file: str) -> Path:
        """A file in the cache. The caller holds its space there."""
        source = self.ranges(file)
        name = f"{self.cached_as}/{file}"
        try:
            return self.cache.file(name, self.files[file].size, source.copy_to, partial(self.right, file))
        finally:
            source.close()

    def _json(self, file: str) -> dict[str, Any] | None:
        return parsed_json(self.read_small(file), f"{self.name}/{file}") if file in self.files else None
