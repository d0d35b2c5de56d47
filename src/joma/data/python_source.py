"""A corpus that every machine with Python has: the source of its standard library, with the syntax it is written in."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from joma.data._cache import key_of, packed, remembered, unpacked
from joma.data._syntax import CLASSES, LEVELS, Labelled, NotParsed, labelled
from joma.data.errors import CorpusError
from joma.host.progress import Progress, silent
from joma.host.words import brief

_LEFT_OUT = ("site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "lib2to3")
"""Not the library itself, or text made to be odd: test data in strange encodings, grammars, generated tables."""
_TABLES = ("encodings", "pydoc_data")
"""Data written as Python: left out where syntax matters."""
_FORMAT = 1  # of the cached file; raised when tokens or labels change


def source_files(folder: Path | None = None) -> Iterator[Path]:
    """The .py files of the standard library (or of a folder), in an order that depends on nothing but their names.

    >>> next(source_files()).suffix
    '.py'
    """
    root = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    found: list[Path] = []
    for place, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        found += [Path(place, name) for name in names if name.endswith(".py")]
    yield from sorted(found)


def source_text(characters: int | None = None) -> str:
    """The files one after another, a form feed between them, cut after `characters`. Deterministic for a version.

    Files that are not UTF-8 are skipped.

    >>> len(source_text(1000))
    1000
    """
    if characters is not None and characters < 1:
        raise ValueError(f"characters must be at least 1, got {characters}")
    parts: list[str] = []
    length = 0
    for path in source_files():
        try:
            parts.append(path.read_text(encoding="utf-8") + "\f")
        except (UnicodeDecodeError, OSError):
            continue
        length += len(parts[-1])
        if characters is not None and length >= characters:
            break
    return "".join(parts)[:characters]


@dataclass(frozen=True, eq=False)
class PythonTokens:
    """Python source as tokens, each labelled with the syntax it stands in.

    vocabulary: the nine lexical classes (`<name>`, `<indent>`, ...) first, then words by frequency.
    tokens: (N,) int32, indices into it. A word outside the vocabulary is the token of its class.
    labels: (N,) int16 for each level, indices into `names[level]`:

        expression  the innermost expression with parts (Call, Compare, ...), none for a bare name or literal
        statement   the innermost statement; of a compound one its head, its indent and its dedent
        block       whose body the token is in; a head belongs to the block around it
        definition  the innermost function, method or class, head included
        depth       the number of blocks around; this one has no names

    files, starts: the names of the files, and (files + 1,) where each begins; the last is N.
    skipped: how many files did not parse. sha256: names source, version of Python and number of tokens.

    >>> code = python_tokens(256, tokens=2000)
    >>> sorted(code.labels), code.vocabulary[:2], int(code.starts[-1])
    (['block', 'definition', 'depth', 'expression', 'statement'], ('<end>', '<newline>'), 2000)
    """

    vocabulary: tuple[str, ...]
    tokens: Tensor
    labels: dict[str, Tensor]
    names: dict[str, tuple[str, ...]]
    files: tuple[str, ...]
    starts: Tensor
    skipped: int
    sha256: str

    def __repr__(self) -> str:
        return brief(self)


def python_tokens(
    vocabulary: int = 4096, *, tokens: int | None = None, folder: Path | None = None, progress: Progress = silent
) -> PythonTokens:
    """The standard library's source, tokenised by Python's own lexer and labelled from its syntax tree.

    vocabulary: at most so many entries, the nine classes included. Comments are left out, formatted strings and
    strings of more than 40 characters are always `<string>`.
    tokens: stop after so many; the files come in an order mixed by a hash of their names, so that the first thousand
    are of many packages. folder: another folder of source instead.
    Test packages and generated tables are left out. Deterministic for a version of Python, and cached.

    >>> code = python_tokens(256, tokens=2000)
    >>> len(code.vocabulary), code.tokens.shape, code.names["block"][:3]
    (256, torch.Size([2000]), ('module', 'class', 'function'))
    """
    if vocabulary <= len(CLASSES):
        raise CorpusError(
            f"vocabulary must be at least {len(CLASSES) + 1} ({len(CLASSES)} classes of tokens and one word), "
            f"got {vocabulary}"
        )
    if tokens is not None and tokens < 1:
        raise CorpusError(f"tokens must be at least 1, got {tokens}")
    sources = _sources(folder)
    if not sources:
        raise CorpusError(f"{folder or sysconfig.get_path('stdlib')} holds no Python source")
    digest = hashlib.sha256()
    for name, content in sources.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    # The lexer and the tree depend on the version, to the last digit.
    key = key_of(_FORMAT, sys.implementation.name, sys.version_info[:3], digest.hexdigest(), tokens)
    kept = remembered("python", key, lambda: _prepared(sources, tokens, progress))
    if not len(kept["words"]):
        raise CorpusError(f"none of the {len(sources)} files of {folder} is Python that this version reads")
    words = unpacked(kept["vocabulary"])
    listed, entry = _cut(kept["words"].numpy(), words, kept["classes"].numpy(), vocabulary)
    return PythonTokens(
        vocabulary=listed,
        tokens=torch.from_numpy(entry),
        labels={level: kept[level].to(torch.int16) for level in (*LEVELS, "depth")},
        names=dict(LEVELS),
        files=unpacked(kept["files"]),
        starts=kept["starts"],
        skipped=int(kept["skipped"]),
        sha256=key,
    )


def _sources(folder: Path | None) -> dict[str, bytes]:
    """Name to content, ordered by a hash of the name, so that the beginning is a sample of the whole."""
    root = Path(sysconfig.get_path("stdlib")) if folder is None else Path(folder)
    found = {}
    for path in source_files(root):
        name = path.relative_to(root).as_posix()
        # _sysconfigdata and config- hold the settings of one build, not of a version.
        if not set(name.split("/")) & set(_TABLES) and not name.startswith(("_sysconfigdata", "config-")):
            found[name] = path.read_bytes()
    return dict(sorted(found.items(), key=lambda item: hashlib.sha256(item[0].encode()).digest()))


def _prepared(sources: dict[str, bytes], tokens: int | None, progress: Progress) -> dict[str, Tensor]:
    """Everything but the cut to a vocabulary, as tensors for the cache."""
    table: dict[str, int] = {word: number for number, word in enumerate(CLASSES)}
    classes = list(range(len(CLASSES)))
    words: list[np.ndarray] = []
    labels: dict[str, bytearray] = {level: bytearray() for level in (*LEVELS, "depth")}
    files: list[str] = []
    starts, skipped = [0], 0
    for name, content in sources.items():
        progress(starts[-1] / tokens if tokens else len(files) / len(sources), f"reading {name}")
        try:
            file = labelled(content)
        except NotParsed:
            skipped += 1
            continue
        words.append(_numbered(file, table, classes))
        for level, painted in file.labels.items():
            labels[level] += painted
        files.append(name)
        starts.append(starts[-1] + len(file.words))
        if tokens is not None and starts[-1] >= tokens:
            break
    count = min(starts[-1], tokens or starts[-1])
    starts[-1] = count
    return {
        "words": torch.from_numpy(np.concatenate([np.empty(0, np.int32), *words])[:count]),
        "vocabulary": packed(list(table)),
        "classes": torch.tensor(classes, dtype=torch.uint8),
        **{level: torch.from_numpy(np.frombuffer(labels[level], np.uint8)[:count].copy()) for level in labels},
        "files": packed(files),
        "starts": torch.tensor(starts),
        "skipped": torch.tensor(skipped),
    }


def _numbered(file: Labelled, table: dict[str, int], classes: list[int]) -> np.ndarray:
    """The words of a file as numbers; new ones are added to the table, and their class to `classes`."""
    for word, found in zip(file.words, file.classes, strict=True):
        if word not in table:
            table[word] = len(table)
            classes.append(found)
    return np.fromiter(map(table.__getitem__, file.words), np.int32, len(file.words))


def _cut(ids: np.ndarray, words: tuple[str, ...], classes: np.ndarray, size: int) -> tuple[tuple[str, ...], np.ndarray]:
    """The classes and the most frequent words (ties alphabetical), and every token as an index into them."""
    counts = np.bincount(ids, minlength=len(words))
    # A word that occurs only behind the cut of a file is none.
    others = [number for number in range(len(CLASSES), len(words)) if counts[number]]
    kept = sorted(others, key=lambda number: (-counts[number], words[number]))[: size - len(CLASSES)]
    entry = classes.astype(np.int32)
    entry[kept] = np.arange(len(CLASSES), len(CLASSES) + len(kept))
    return (*CLASSES, *(words[number] for number in kept)), entry[ids]
