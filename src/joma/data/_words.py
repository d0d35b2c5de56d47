"""Files of text as blocks, blocks as words, words as numbers."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from joma.data.errors import CorpusError
from joma.host import limits
from joma.host.extras import how_to_install

UNKNOWN = "<unk>"
_BLOCK = 4_000_000  # bytes or so: enough to be fast, little beside the tokens
_ROWS = 1_000  # of a parquet file at a time: each may be long
_SPACED = tuple("'.,()!?")
_SHARD = re.compile(r"(train|validation|test)-(\d{5})-of-(\d{5})\.parquet")
_SPACE = re.compile(rb"(?i)(?<!<br)[ \n]")  # white space that is not that of a "<br />"
_UP_TO_SPACE = re.compile(rb"(?is).*(?<!<br)[ \n]")
_HUB_SPLIT = {"train": "train", "valid": "validation", "test": "test"}


def basic_english(text: str) -> list[str]:
    """The words of a text by the "basic_english" convention.

    Lower case; ' . , ( ) ! ? stand alone; double quotes vanish; ; and : and <br /> become spaces, which separate.
    """
    text = text.lower().replace('"', "").replace("<br />", " ")
    for mark in _SPACED:
        text = text.replace(mark, f" {mark} ")
    return text.replace(";", " ").replace(":", " ").split()


def split_files(folder: Path, split: str) -> list[Path]:
    """The files of a split: NAME.txt, or all its parquet shards as the hub names them."""
    if not folder.is_dir():
        raise CorpusError(f"{folder} is not a folder")
    text = folder / f"{split}.txt"
    if text.is_file():
        return [text]
    hub = _HUB_SPLIT[split]
    shards = [match for path in sorted(folder.iterdir()) if (match := _SHARD.fullmatch(path.name)) and match[1] == hub]
    if not shards:
        raise CorpusError(f"{folder} has no {split} split: no {split}.txt and no {hub}-00000-of-00001.parquet")
    there, counts = ({int(match[part]) for match in shards} for part in (2, 3))
    if len(counts) > 1:
        raise CorpusError(f"{folder} holds {hub} shards of two downloads (of {' and of '.join(map(str, counts))})")
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
    """The text of a file in blocks that end between words, each with the share of the file that it completes.

    A line may be as long as it likes; a word that is longer than any word is refused.
    """
    at = 0
    for content, share in _between_words(_parquet(path) if path.suffix == ".parquet" else _plain(path), path):
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = f"0x{content[error.start]:02x} at byte {at + error.start:,}"
            raise CorpusError(f"{path} is not UTF-8 ({byte}); convert it to UTF-8") from None
        if "\0" in text:
            raise CorpusError(f"{path} holds null characters: it is binary or UTF-16; UTF-8 text is wanted")
        text = text.removeprefix("\ufeff") if at == 0 else text  # a byte order mark is no letter
        at += len(content)
        yield text, share


def _between_words(chunks: Iterable[tuple[bytes, float]], path: Path) -> Iterator[tuple[bytes, float]]:
    held, share = bytearray(), 0.0
    for chunk, share in chunks:
        held += chunk
        while len(held) > _BLOCK and (cut := _UP_TO_SPACE.match(held, 0, _BLOCK) or _SPACE.search(held, _BLOCK)):
            yield bytes(held[: cut.end()]), share
            del held[: cut.end()]
        if len(held) > limits.WORD_BYTES:
            raise CorpusError(f"{path} is not a text: it holds a word of more than {limits.WORD_BYTES:,} bytes")
    if held:
        yield bytes(held), share


def _plain(path: Path) -> Iterator[tuple[bytes, float]]:
    at, size = 0, path.stat().st_size
    with path.open("rb") as stream:
        while chunk := stream.read(_BLOCK):
            at += len(chunk)
            yield chunk, min(at / max(size, 1), 1.0)


def need_pyarrow(what: str) -> None:
    """Says what to install where parquet files cannot be read."""
    if find_spec("pyarrow") is None:
        raise CorpusError(f"{what} needs pyarrow: {how_to_install('export')}")


def _parquet(path: Path) -> Iterator[tuple[bytes, float]]:
    need_pyarrow(f"reading {path}")
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            if schema.names.count("text") != 1:
                names = ", ".join(schema.names)[:200]
                raise CorpusError(f"{path} has no text column; its columns are {names or 'none'}")
            kind = schema.field("text").type
            if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
                raise CorpusError(f"the text column of {path} holds {kind}, not strings")
            done, rows = 0, max(file.metadata.num_rows, 1)
            for batch in file.iter_batches(batch_size=_ROWS, columns=["text"]):
                done += batch.num_rows
                # As bytes: what says that it is text need not be UTF-8.
                found = batch.column(0).cast(pyarrow.large_binary()).to_pylist()
                yield b"".join(row + b"\n" for row in found if row), min(done / rows, 1.0)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:  # names may be no UTF-8, too
        why = (str(error).splitlines() or [type(error).__name__])[0][:150]
        raise CorpusError(f"{path} is not a parquet file that can be read: {why}") from None


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
