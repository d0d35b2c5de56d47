"""Text for language models: WikiText, any other text file, and Python source, which needs no download.

Words are cut by the "basic_english" convention of the paper's runs (see `basic_english`), the vocabulary comes from the
training split: <unk> first, then by frequency, ties in alphabetical order.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from joma.data._cache import cache_folder, key_of, packed, remembered, unpacked
from joma.data._wikitext_hub import download_wikitext
from joma.data._words import UNKNOWN, Numbering, basic_english, blocks, by_frequency, file_hash, numbered, split_files
from joma.data.errors import CorpusError
from joma.data.python_source import PACKAGE, python_tokens
from joma.host.arguments import Number, as_tensor
from joma.host.progress import Progress, silent
from joma.host.words import brief_repr, counted

__all__ = [
    "Corpus",
    "CorpusError",
    "basic_english",
    "cut_vocabulary",
    "download_wikitext",
    "find_corpus",
    "python_corpus",
    "streams",
    "text_file",
    "wikitext",
    "windows",
]

SPLITS = ("train", "valid", "test")
_FORMAT = 1  # of the cached file; raised when the same text would give other tokens
_SHOWN = 40  # characters of a word that an error shows
_HELD_OUT = 0.05  # of a text that comes without splits: so much to validate, as much to test


@brief_repr
@dataclass(frozen=True, eq=False)
class Corpus:
    """Text as numbers. tokens: "train", "valid" and "test", each (N,) int32, indices into the vocabulary.

    name: what messages and records call it. vocabulary: its words. sha256 names the content and the rules that made
    tokens of it, for a record of what a model was trained on. source: of text that comes with a package, the sha256 of
    its files (`joma.data.python_source.source_release`).

    >>> corpus = Corpus("tiny", ("<unk>", "a", "b"), {"train": torch.tensor([1, 2, 2], dtype=torch.int32)}, "")
    >>> [corpus.vocabulary[number] for number in corpus.tokens["train"]]
    ['a', 'b', 'b']
    """

    name: str
    vocabulary: tuple[str, ...]
    tokens: dict[str, Tensor]
    sha256: str
    source: str = ""


def wikitext(folder: Path | str, *, progress: Progress = silent) -> Corpus:
    """WikiText in a folder: train.txt, valid.txt, test.txt, or the hub's train-00000-of-00001.parquet and so on.

    Any text in that layout will do. Lines do not count, empty ones contribute nothing. Cached by content. Of WikiText-2
    come 28,782 words and 2,049,990 / 214,417 / 241,859 tokens.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for split in ("train", "valid", "test"):
    ...         _ = (Path(folder) / f"{split}.txt").write_text("The cat, the hat.")
    ...     corpus = wikitext(folder)
    >>> corpus.vocabulary, corpus.tokens["valid"].tolist()
    (('<unk>', 'the', ',', '.', 'cat', 'hat'), [1, 4, 2, 1, 5, 3])
    """
    folder = Path(folder)
    files = {split: split_files(folder, split) for split in SPLITS}
    key = key_of("splits", _FORMAT, {split: [file_hash(path) for path in files[split]] for split in SPLITS})

    def compute() -> dict[str, Tensor]:
        sizes = {path: path.stat().st_size for paths in files.values() for path in paths}
        total = max(sum(sizes.values()), 1)
        starts = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))

        def read(split: str, number: Callable[[str], int]) -> np.ndarray:
            parts = [
                numbered(_watched(path, progress, starts[path] / total, sizes[path] / total), number)
                for path in files[split]
            ]
            return _some(np.concatenate(parts), f"{folder}: the {split} split holds no words")

        numbers = Numbering()
        first = read("train", numbers.__getitem__)
        words, train = _ordered(first, numbers, len(first))
        table = {word: number for number, word in enumerate(words)}
        rest = {split: read(split, lambda word: table.get(word, 0)) for split in SPLITS[1:]}
        return _tensors(words, {"train": train, **rest})

    return _corpus(folder.name, key, remembered("text", key, compute))


def text_file(path: Path | str, *, progress: Progress = silent) -> Corpus:
    """Any UTF-8 text: the first 90 % of its words to train on, then 5 % to validate, 5 % to test. Cached by content.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "song.txt"
    ...     _ = path.write_text("la la la so " * 10)
    ...     corpus = text_file(path)
    >>> corpus.vocabulary, {split: len(tokens) for split, tokens in corpus.tokens.items()}
    (('<unk>', 'la', 'so'), {'train': 36, 'valid': 2, 'test': 2})
    """
    path = Path(path)
    key = key_of("text", _FORMAT, _HELD_OUT, file_hash(path))

    def compute() -> dict[str, Tensor]:
        numbers = Numbering()
        first = _some(numbered(_watched(path, progress, 0, 1), numbers.__getitem__), f"{path} holds no words")
        held_out = int(len(first) * _HELD_OUT)
        if held_out == 0:
            raise CorpusError(f"{path} has {counted(len(first), 'word')}, too few to hold some out; 20 are needed")
        words, ids = _ordered(first, numbers, len(first) - 2 * held_out)
        cuts = [len(first) - 2 * held_out, len(first) - held_out]
        return _tensors(words, dict(zip(SPLITS, np.split(ids, cuts), strict=True)))

    return _corpus(path.stem, key, remembered("text", key, compute))


def python_corpus(vocabulary: int = 4096, *, tokens: int | None = None, progress: Progress = silent) -> Corpus:
    """The source of sympy (see `python_tokens`), which torch brings: nothing is downloaded.

    Whole files, at most 5 % of the tokens each, are held out to validate and to test. Words outside the vocabulary are
    the token of their lexical class, so there is no <unk>. The vocabulary is made from all three splits.

    >>> corpus = python_corpus(300, tokens=50_000)
    >>> len(corpus.vocabulary), sorted(corpus.tokens)
    (300, ['test', 'train', 'valid'])
    """
    code = python_tokens(vocabulary, tokens=tokens, progress=progress)
    files = list(code.tokens.split(code.starts.diff().tolist()))
    parts: dict[str, list[Tensor]] = {"train": files, "valid": [], "test": []}
    for split in SPLITS[1:]:
        room = _HELD_OUT * len(code.tokens)
        for place in reversed(range(len(files))):
            if len(files[place]) <= room:
                room -= len(files[place])
                parts[split].insert(0, files.pop(place))
    if not parts["test"] and len(parts["valid"]) > 1:  # few tokens: what is held out is shared
        parts["test"] = [parts["valid"].pop()]
    if not all(parts.values()):
        raise CorpusError(f"{len(code.tokens):,} tokens are too few files to hold some out; ask for more tokens")
    ids = {split: torch.cat(part) for split, part in parts.items()}
    return Corpus(PACKAGE, code.vocabulary, ids, key_of(code.sha256, vocabulary), code.source)


def find_corpus(
    data: Path | str | None = None, *, name: str = "wikitext-2", progress: Progress = silent
) -> Corpus | None:
    """WikiText in the folder `name` under `data` or JOMA_DATA, else where `download_wikitext` put it, else None.

    >>> find_corpus("no such folder", name="no-such-corpus") is None
    True
    """
    given = data or os.environ.get("JOMA_DATA")
    for folder in (*([Path(given)] if given else []), cache_folder()):
        if (folder / name).is_dir():
            return wikitext(folder / name, progress=progress)
    return None


def cut_vocabulary(corpus: Corpus, size: int) -> Corpus:
    """The same text with `size` words: <unk> and the size - 1 that are most frequent in the training split.

    Ties keep the order of the corpus. Every other word becomes <unk>.

    >>> corpus = Corpus("x", ("<unk>", "a", "b", "c"), {"train": torch.tensor([1, 3, 3, 2, 2], dtype=torch.int32)}, "")
    >>> cut = cut_vocabulary(corpus, 3)
    >>> cut.vocabulary, cut.tokens["train"].tolist()
    (('<unk>', 'b', 'c'), [0, 2, 2, 1, 1])
    """
    known = UNKNOWN in corpus.vocabulary
    most = len(corpus.vocabulary) + (not known)
    if not 2 <= size <= most:
        raise CorpusError(f"size must lie between 2 (<unk> and one word) and {most}, the words there are, got {size}")
    counts = torch.bincount(corpus.tokens["train"].long(), minlength=len(corpus.vocabulary))
    if known:
        counts[corpus.vocabulary.index(UNKNOWN)] = -1  # it is kept anyway, and does not compete
    kept = counts.argsort(descending=True, stable=True)[: size - 1]
    entry = torch.zeros(len(corpus.vocabulary), dtype=torch.int32)
    entry[kept] = torch.arange(1, size, dtype=torch.int32)
    return replace(
        corpus,
        vocabulary=(UNKNOWN, *(corpus.vocabulary[number] for number in kept.tolist())),
        tokens={split: entry[ids.long()] for split, ids in corpus.tokens.items()},
        sha256=key_of(corpus.sha256, size),
    )


def streams(tokens: Number, batch: int) -> Tensor:
    """A text cut into `batch` pieces of one length, read in parallel: (batch, length), what is left over dropped.

    >>> streams(torch.arange(7), 2)
    tensor([[0, 1, 2],
            [3, 4, 5]])
    """
    tokens = as_tensor(tokens, "tokens")
    if tokens.ndim != 1:
        raise CorpusError(f"tokens must have shape (N,), got {tuple(tokens.shape)}")
    if batch < 1:
        raise CorpusError(f"batch must be at least 1, got {batch}")
    length = len(tokens) // batch
    if length < 2:
        raise CorpusError(f"{batch} streams need {2 * batch:,} tokens at least, the text has {len(tokens):,}")
    return tokens[: batch * length].view(batch, length)


def windows(text: Number, length: int = 35) -> tuple[Tensor, Tensor]:
    """Streams cut into sequences that follow one another: inputs and targets, each (count, batch, length).

    Sequence i reads text[:, i length : (i + 1) length]; its targets are one token further. Views, nothing is copied.
    What is left at the end and has no full sequence is dropped.

    >>> inputs, targets = windows(torch.arange(10).view(2, 5), 2)
    >>> inputs.shape, inputs[1, 0], targets[1, 0]
    (torch.Size([2, 2, 2]), tensor([2, 3]), tensor([3, 4]))
    """
    text = as_tensor(text, "text")
    if text.ndim != 2:
        raise CorpusError(f"text must have shape (batch, length), as streams returns it, got {tuple(text.shape)}")
    if length < 1:
        raise CorpusError(f"length must be at least 1, got {length}")
    count = (text.shape[1] - 1) // length
    if count < 1:
        raise CorpusError(f"sequences of {length} tokens need {length + 1} per stream, there are {text.shape[1]}")
    inputs, targets = (text[:, at : at + count * length].unflatten(1, (count, length)).transpose(0, 1) for at in (0, 1))
    return inputs, targets


def _watched(path: Path, progress: Progress, start: float, part: float) -> Iterator[str]:
    """The blocks of a file that is `part` of the work, after `start` of it."""
    for block, share in blocks(path):
        yield block
        progress(start + share * part, f"cutting {path.name} into words")


def _some(ids: np.ndarray, sentence: str) -> np.ndarray:
    if len(ids) == 0:
        raise CorpusError(sentence)
    return ids


def _ordered(ids: np.ndarray, numbers: Numbering, train: int) -> tuple[list[str], np.ndarray]:
    """The vocabulary of the first `train` tokens, and all of them as indices into it; numbers were given as met."""
    counts = np.bincount(ids[:train], minlength=len(numbers))
    if np.count_nonzero(counts) < 2:
        word = next(iter(numbers))
        shown = repr(word) if len(word) <= _SHOWN else f"{word[:_SHOWN]!r}… ({len(word):,} characters)"
        raise CorpusError(f"the text to train on has only one word, {shown}: there is nothing to learn")
    words = by_frequency(numbers, counts)
    entry = np.zeros(len(numbers) + 1, np.int32)  # what the training split lacks is <unk>
    for place, word in enumerate(words[1:], 1):
        entry[numbers[word]] = place
    return words, entry[ids]


def _tensors(words: list[str], tokens: dict[str, np.ndarray]) -> dict[str, Tensor]:
    # Copies, since pieces of one array cannot be stored as separate tensors.
    return {"vocabulary": packed(words), **{split: torch.from_numpy(ids.copy()) for split, ids in tokens.items()}}


def _corpus(name: str, key: str, kept: dict[str, Tensor]) -> Corpus:
    return Corpus(name, unpacked(kept["vocabulary"]), {split: kept[split] for split in SPLITS}, key)
