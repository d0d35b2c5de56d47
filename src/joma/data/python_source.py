"""A corpus that every machine with torch has: the source of sympy, with the syntax it is written in.

torch needs sympy, so nothing has to be downloaded. The standard library would be there too, but it is another text in
every version of Python. One release of sympy is the same everywhere, and the lock pins it (`REFERENCE`).
"""

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.data._cache import key_of, packed, remembered, unpacked
from joma.data._syntax import CLASSES, LEVELS, NotParsed, labelled
from joma.data.errors import CorpusError
from joma.host.progress import Progress, silent
from joma.host.words import brief_repr

PACKAGE = "sympy"
_LEFT_OUT = ("__pycache__", "test", "tests", "test-examples", "benchmarks", "_antlr")
"""Not the library itself, or written by a program: grammars as tables."""
_TABLES = ("polyquinticconst.py", "resolvent_lookup.py")
"""Numbers written as Python."""
_FORMAT = 2  # of the cached file; raised when tokens or labels change


class Release(NamedTuple):
    """Which text it is: the version of the package, and the sha256 of the names and contents of its files.

    >>> Release("1.14.0", "1f2e").version
    '1.14.0'
    """

    version: str
    sha256: str


REFERENCE = Release("1.14.0", "6ac622e369442287cb77b1a53b6acb2d5b1ede9e0679be3f9252a2867dde5e21")
"""The release that the kept numbers at quick scale were made with."""


def source_folder() -> Path:
    """Where the package is installed. It is not imported.

    >>> source_folder().name
    'sympy'
    """
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        get = f"pip install {PACKAGE}=={REFERENCE.version}"
        raise CorpusError(f"the text is the source of {PACKAGE}, which is not installed: {get}")
    return Path(spec.submodule_search_locations[0])


def source_release() -> Release:
    """The text as it is installed here; numbers can be compared with others where its sha256 is the same.

    >>> len(source_release().sha256)
    64
    """
    installed = "of an unknown version"
    with suppress(PackageNotFoundError):
        installed = version(PACKAGE)
    return Release(installed, _digest(_sources(source_folder())))


def source_files(folder: Path | None = None) -> Iterator[Path]:
    """The .py files of the package (or of a folder), in an order that depends on nothing but their names.

    A hash of the name mixes them, so that the first thousand tokens are of many parts of the package.

    >>> next(source_files()).suffix
    '.py'
    """
    root = source_folder() if folder is None else Path(folder)
    found: list[Path] = []
    for place, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        found += [Path(place, name) for name in names if name.endswith(".py") and name not in _TABLES]
    yield from sorted(found, key=lambda path: hashlib.sha256(path.relative_to(root).as_posix().encode()).digest())


def source_text(characters: int | None = None) -> str:
    """The files one after another, a form feed between them, cut after `characters`.

    Files that are not UTF-8 are skipped.

    >>> len(source_text(1000))
    1000
    """
    if characters is not None and characters < 1:
        raise ValueError(f"characters must be at least 1, got {characters}")
    parts: list[str] = []
    length = 0
    for path in source_files():
        with suppress(UnicodeDecodeError, OSError):
            parts.append(path.read_text(encoding="utf-8") + "\f")
            length += len(parts[-1])
        if characters is not None and length >= characters:
            break
    return "".join(parts)[:characters]


@brief_repr
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
    skipped: how many files did not parse. sha256: names the files and the number of tokens; every version of Python
    makes the same tokens of them. source: the sha256 of the files alone, see `source_release`.

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
    source: str


def python_tokens(
    vocabulary: int = 4096, *, tokens: int | None = None, folder: Path | None = None, progress: Progress = silent
) -> PythonTokens:
    """The source of sympy, tokenised by Python's own lexer and labelled from its syntax tree.

    vocabulary: at most so many entries, the nine classes included. Comments are left out, formatted strings and
    strings of more than 40 characters are always `<string>`.
    tokens: stop after so many. The files come as `source_files` orders them. folder: another folder of source instead.
    Tests and generated tables are left out. The same in every version of Python from 3.11 on, and cached.

    >>> code = python_tokens(128, tokens=2000)
    >>> len(code.vocabulary), code.tokens.shape, code.names["block"][:3]
    (128, torch.Size([2000]), ('module', 'class', 'function'))
    """
    if vocabulary <= len(CLASSES):
        least = f"{len(CLASSES) + 1} ({len(CLASSES)} classes of tokens and one word)"
        raise CorpusError(f"vocabulary must be at least {least}, got {vocabulary}")
    if tokens is not None and tokens < 1:
        raise CorpusError(f"tokens must be at least 1, got {tokens}")
    root = source_folder() if folder is None else Path(folder)
    sources = _sources(root)
    if not sources:
        raise CorpusError(f"{root} holds no Python source")
    source = _digest(sources)
    # What lexer and tree make of source from elsewhere may depend on the version: each keeps its own.
    key = key_of(_FORMAT, sys.implementation.name, sys.version_info[:3], source, tokens)
    kept = remembered("python", key, lambda: _prepared(sources, tokens, progress))
    if not len(kept["words"]):
        raise CorpusError(f"none of the {len(sources)} files of {root} is Python that this version reads")
    words, ids = unpacked(kept["vocabulary"]), kept["words"].numpy()
    # The most frequent words, ties alphabetical. A word that occurs only behind the cut of a file is none.
    counts = np.bincount(ids, minlength=len(words))
    others = [number for number in range(len(CLASSES), len(words)) if counts[number]]
    chosen = sorted(others, key=lambda number: (-counts[number], words[number]))[: vocabulary - len(CLASSES)]
    entry = kept["classes"].numpy().astype(np.int32)
    entry[chosen] = np.arange(len(CLASSES), len(CLASSES) + len(chosen))
    return PythonTokens(
        vocabulary=(*CLASSES, *(words[number] for number in chosen)),
        tokens=torch.from_numpy(entry[ids]),
        labels={level: kept[level].to(torch.int16) for level in (*LEVELS, "depth")},
        names=dict(LEVELS),
        files=unpacked(kept["files"]),
        starts=kept["starts"],
        skipped=int(kept["skipped"]),
        sha256=key_of(_FORMAT, source, tokens),
        source=source,
    )


def _sources(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in source_files(root)}


def _digest(sources: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sources.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _prepared(sources: dict[str, bytes], tokens: int | None, progress: Progress) -> dict[str, Tensor]:
    """Everything but the cut to a vocabulary, as tensors for the cache."""
    table: dict[str, int] = {word: number for number, word in enumerate(CLASSES)}
    classes = list(range(len(CLASSES)))  # of every word in the table
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
        for word, found in zip(file.words, file.classes, strict=True):
            if word not in table:
                table[word] = len(table)
                classes.append(found)
        words.append(np.fromiter(map(table.__getitem__, file.words), np.int32, len(file.words)))
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
