"""Text as byte-pair tokens: the Python source that is installed here, and WikiText. Needs the package `tokenizers`."""

import hashlib
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.data._cache import key_of, remembered
from joma.data._words import blocks, file_hash, split_files
from joma.data.errors import CorpusError
from joma.host.progress import Progress, silent

END = "<end>"
"""The token after every file; number 0."""
_FORMAT = 1  # of the cached file; raised when the same files would give other tokens
_LONGEST = 1_000_000  # bytes: longer files are tables that a program wrote
_HELD_OUT = 32  # one file in so many
_LEARNED_FROM = 24_000_000  # characters of Python source that decide the byte pairs
_TOGETHER = 512  # files that are encoded in one call


class Subwords(NamedTuple):
    """Tokens to train on, and tokens held out by name of their source. No file of Python source is in both."""

    train: Tensor
    held_out: dict[str, Tensor]
    files: int
    """Of Python source, after leaving out those that occurred before."""
    size: int
    """Their bytes."""
    sha256: str
    """Of all files and of the rules that made tokens of them."""


class Source(NamedTuple):
    """One file: its content, and the hash of it."""

    name: str
    content: bytes
    digest: str


def installed_source(most: int, folders: Sequence[Path] | None = None) -> list[Source]:
    """Python files of the standard library and of installed packages, each content once, by path."""
    if most < 1:
        raise CorpusError(f"most must be at least 1 byte, got {most}")
    found: dict[str, Source] = {}
    for root in folders or [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib")]:
        for path in sorted(root.rglob("*.py")):
            with suppress(OSError, UnicodeDecodeError):
                content = path.read_bytes()
                content.decode("utf-8")
                if 0 < len(content) <= _LONGEST:
                    digest = hashlib.sha256(content).hexdigest()
                    found.setdefault(digest, Source(path.relative_to(root).as_posix(), content, digest))
    kept, size = [], 0
    for digest in sorted(found):
        size += len(found[digest].content)
        if size > most:
            break
        kept.append(found[digest])
    return sorted(kept, key=lambda source: source.name)


def subwords(
    wikitext: Path, vocabulary: int, *, most: int, folders: Sequence[Path] | None = None, progress: Progress = silent
) -> Subwords:
    """WikiText in a folder and at most `most` bytes of installed Python source, as tokens of one byte-pair encoding.

    Held out are WikiText's own validation split, and one Python file in 32, chosen by a hash of its content. The
    byte pairs are learned from the training texts alone. Cached by content.
    """
    progress(0.0, "reading installed Python source")
    files = installed_source(most, folders)
    wiki = {split: split_files(wikitext, split) for split in ("train", "valid")}
    hashes = {split: [file_hash(path) for path in paths] for split, paths in wiki.items()}
    key = key_of("subwords", _FORMAT, vocabulary, [source.digest for source in files], hashes)
    texts = {split: ["".join(text for path in paths for text, _ in blocks(path))] for split, paths in wiki.items()}
    kept = remembered("subwords", key, lambda: _encoded(files, texts, vocabulary, progress))
    held_out = {"WikiText-2": kept["wiki"], "Python": kept["python"]}
    return Subwords(kept["train"], held_out, len(files), sum(len(source.content) for source in files), key)


def _encoded(files: list[Source], wiki: dict[str, list[str]], vocabulary: int, progress: Progress) -> dict[str, Tensor]:
    held_out = [int(source.digest[:8], 16) % _HELD_OUT == 0 for source in files]
    python = {
        out: [source.content.decode("utf-8") for source, one in zip(files, held_out, strict=True) if one == out]
        for out in (False, True)
    }
    if not all(python.values()):
        raise CorpusError(f"{len(files)} Python files are too few to hold one in {_HELD_OUT} out")
    progress(0.0, f"learning {vocabulary:,} byte pairs")
    # every so many files, so that they add up to what the pairs are learned from
    step = max(1, sum(map(len, python[False])) // _LEARNED_FROM)
    pairs = _learned([*wiki["train"], *python[False][::step]], vocabulary)
    progress(0.0, "encoding the text")
    train = torch.cat([_ids(pairs, wiki["train"]), _ids(pairs, python[False])])
    return {"train": train, "wiki": _ids(pairs, wiki["valid"]), "python": _ids(pairs, python[True])}


def _learned(texts: list[str], vocabulary: int) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    pairs.train_from_iterator(texts, trainer)
    if pairs.get_vocab_size() != vocabulary:
        raise CorpusError(f"the text gives only {pairs.get_vocab_size():,} byte pairs, {vocabulary:,} were asked for")
    return pairs


def _ids(pairs: Any, texts: list[str]) -> Tensor:
    """(N,) int32, an end after every text."""
    parts: list[np.ndarray] = []
    for first in range(0, len(texts), _TOGETHER):
        encoded = pairs.encode_batch_fast(_lines(texts[first : first + _TOGETHER]))
        parts += [np.asarray(one.ids, np.int32) for one in encoded]
    return torch.from_numpy(np.concatenate(parts))


def _lines(texts: list[str]) -> list[str]:
    """Each text with its end, long ones cut at line ends so that many cores have work."""
    pieces = []
    for text in texts:
        left = text + END
        while len(left) > 2 * _LONGEST // 10:
            cut = left.find("\n", _LONGEST // 10) + 1 or len(left)
            pieces.append(left[:cut])
            left = left[cut:]
        if left:
            pieces.append(left)
    return pieces
