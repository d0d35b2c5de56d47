"""Files of text as blocks, blocks as words, words as numbers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from joma.data.errors import CorpusError

UNKNOWN = "<unk>"
_BLOCK = 4_000_000  # bytes or so: enough to be fast, little beside the tokens
_SPACED = tuple("'.,()!?")
_SHARD = re.compile(r"(train|validation|test)-(\d{5})-of-(\d{5})\.parquet")
_HUB_SPLIT = {"train": "train", "valid": "validation", "test": "test"}


def basic_english(text: str) -> list[str]:
    """The words of a text by the "basic_english" convention.

    Lower case; ' . , ( ) ! ? stand alone; double quotes vanish; ; and : and <br /> become spaces; then white space
    separates.

    >>> basic_english("It's <unk>, he said: (No.)")
    ['it', "'", 's', '<unk>', ',', 'he', 'said', '(', 'no', '.', ')']
    """
    text = text.lower().replace('"', "").replace("<br />", " ")
    for mark in _SPACED:
        text = text.replace(mark, f" {mark} ")
    return text.replace(";", " ").replace(":", " ").split()


def split_files(folder: Path, split: str) -> list[Path]:
    """The files of a split: NAME.txt, or all its parquet shards as the hub names them."""
    if not folder.is_dir():
        raise CorpusError(f"{folder} is no folder")
    text = folder / f"{split}.txt"
    if text.is_file():
        return [text]
    hub = _HUB_SPLIT[split]
    shards = [match for path in sorted(folder.iterdir()) if (match := _SHARD.fullmatch(path.name)) and match[1] == hub]
    if not shards:
        raise CorpusError(
            f"{folder} has no {split} split: neither {split}.txt nor {hub}-00000-of-00001.parquet is there"
        )
    counts = {int(match[3]) for match in shards}
    there = {int(match[2]) for match in shards}
    if len(counts) > 1:
        raise CorpusError(
            f"{folder} holds {hub} shards of different downloads (of {' and of '.join(map(str, counts))})"
        )
    if missing := sorted(set(range(*counts)) - there):
        name = f"{hub}-{missing[0]:05}-of-{counts.pop():05}.parquet"
        raise CorpusError(f"{folder} has no {name}: a part of the {split} split is missing")
    return [folder / match[0] for match in shards]


def file_hash(path: Path) -> str:
    """The sha256 of a file."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}") from None


def blocks(path: Path) -> Iterator[tuple[str, float]]:
    """The text of a file in blocks that end between words, each with the share of the file that it completes."""
    return _parquet_blocks(path) if path.suffix == ".parquet" else _text_blocks(path)


def _text_blocks(path: Path) -> Iterator[tuple[str, float]]:
    at, size = 0, path.stat().st_size
    with path.open("rb") as stream:
        while lines := stream.readlines(_BLOCK):
            content = b"".join(lines)
            try:
                text = content.decode("utf-8")
            except UnicodeDecodeError as error:
                byte = f"0x{content[error.start]:02x} at byte {at + error.start:,}"
                raise CorpusError(f"{path} is not UTF-8 ({byte}); convert it to UTF-8") from None
            if "\0" in text:
                raise CorpusError(f"{path} holds null characters: it is binary or UTF-16; UTF-8 text is wanted")
            text = text.removeprefix("\ufeff") if at == 0 else text  # a byte order mark is no letter
            at += len(content)
            yield text, at / size


def need_pyarrow(what: str) -> None:
    """Says what to install where parquet files cannot be read."""
    if find_spec("pyarrow") is None:
        raise CorpusError(f"{what} needs pyarrow: pip install 'joma[export]'")


def _parquet_blocks(path: Path) -> Iterator[tuple[str, float]]:
    need_pyarrow(f"reading {path}")
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            if "text" not in schema.names:
                raise CorpusError(f"{path} has no text column; its columns are {', '.join(schema.names) or 'none'}")
            kind = schema.field("text").type
            if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
                raise CorpusError(f"the text column of {path} holds {kind}, not strings")
            done = 0
            for batch in file.iter_batches(batch_size=10_000, columns=["text"]):
                done += batch.num_rows
                yield "\n".join(filter(None, batch.column(0).to_pylist())), done / file.metadata.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise CorpusError(f"{path} is no parquet file that can be read: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:150]


class Numbering(dict[str, int]):
    """Word to number; a new word gets the next one."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


def numbered(texts: Iterable[str], number: Callable[[str], int]) -> np.ndarray:
    """The words of several blocks of text as (N,) int32."""
    parts = [np.empty(0, np.int32)]
    for text in texts:
        words = basic_english(text)
        parts.append(np.fromiter(map(number, words), np.int32, len(words)))
    return np.concatenate(parts)


def by_frequency(words: Iterable[str], counts: np.ndarray) -> list[str]:
    """<unk>, then the words that occur, the most frequent first, ties in alphabetical order."""
    found = sorted((-count, word) for word, count in zip(words, counts.tolist(), strict=True) if count)
    return [UNKNOWN, *(word for _, word in found if word != UNKNOWN)]
