"""The texts that language models train on: finding them, their digests, and whether a run's text is still the same."""

import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import NotRun, Progress, silent
from joma.claims.text_source import remember_source
from joma.data.text import Corpus, CorpusError, cut_vocabulary, find_corpus, python_corpus, streams, text_file
from joma.host.seeds import generator
from joma.recipes.language.config import PYTHON, TEXTS, LanguageModelConfig
from joma.runs import Run

PIECE = 20  # Sequences that stay together where the order of the text is the seed's: about a section of an article


def corpus(config: LanguageModelConfig, progress: Progress = silent) -> Corpus:
    """The text to train on. Raises `NotRun` where it is not on this machine, `CorpusError` where `data` is wrong."""
    found = _found(config, lambda _, doing: progress(0.0, doing))
    if found is None:
        raise _missing(config)
    return found


def _missing(config: LanguageModelConfig) -> Exception:
    """Why the text is not there. A folder that was named is an error; one that was not, a study that is not run."""
    name, elsewhere = config.corpus, os.environ.get("JOMA_DATA")
    if name not in TEXTS:
        return CorpusError(f"corpus must be one of {', '.join(TEXTS)}, or a text file, and there is no file {name}")
    if config.data:
        folder = Path(config.data)
        if folder.name == name and folder.is_dir():
            return CorpusError(f"data must be the folder that holds {name}, not {name} itself: {folder.parent}")
        hint = f"; without data the search is under JOMA_DATA, {elsewhere}" if elsewhere else ""
        return CorpusError(f"data is {config.data}: it has no folder {name}, and {name} was not downloaded{hint}")
    place = f"not under JOMA_DATA, {elsewhere!r}" if elsewhere else "neither under --data nor under JOMA_DATA"
    download = f"joma.data.text.download_wikitext({name!r})"
    reason = f"{name} is {place} and was not downloaded ({download} downloads it)"
    return NotRun(reason, data="FOLDER")


def _found(config: LanguageModelConfig, progress: Progress) -> Corpus | None:
    if config.corpus == PYTHON:
        return python_corpus(config.vocabulary, tokens=config.tokens, progress=progress)
    if config.corpus in TEXTS:
        found = find_corpus(config.data or None, name=config.corpus, progress=progress)
    else:
        found = text_file(config.corpus, progress=progress) if Path(config.corpus).is_file() else None
    if found is None:
        return None
    if config.tokens < len(found.tokens["train"]):
        cut = found.tokens | {"train": found.tokens["train"][: config.tokens]}
        found = replace(found, tokens=cut, sha256=sha256(f"{found.sha256} {config.tokens}".encode()).hexdigest())
    return cut_vocabulary(found, config.vocabulary) if config.vocabulary < len(found.vocabulary) else found


def epoch_steps(text: Corpus, batch: int, length: int) -> int:
    """Steps in which the training text is read once; the last one overlaps the one before, to be as long."""
    return steps_to_read(streams(text.tokens["train"], batch), length)


def steps_to_read(text: Tensor, length: int) -> int:
    """Steps in which streams (..., tokens) are read once."""
    if text.shape[-1] <= length:
        raise CorpusError(f"length must be below {text.shape[-1]}, the number of tokens in a stream, got {length}")
    return -(-(text.shape[-1] - 1) // length)


def in_own_order(tokens: Tensor, piece: int, seed: int) -> Tensor:
    """The text (tokens,) cut into pieces of so many tokens, in an order that the seed decides.

    Within a piece the text runs on, so that a network reads as before, only other passages first.

    >>> in_own_order(torch.arange(7), 3, seed=1)
    tensor([3, 4, 5, 0, 1, 2, 6])
    """
    pieces = tokens.split(piece)
    order = torch.randperm(len(pieces), generator=generator(seed, "order of the text"))
    return torch.cat([pieces[place] for place in order.tolist()])


def from_own_start(tokens: Tensor, seed: int) -> Tensor:
    """The text (tokens,) from a place that the seed decides to its end, then from its beginning to that place.

    >>> from_own_start(torch.arange(7), seed=1)
    tensor([5, 6, 0, 1, 2, 3, 4])
    """
    start = int(torch.randint(len(tokens), (), generator=generator(seed, "start of the text")))
    return tokens.roll(-start)


def remember_corpus(text: Corpus, run: Run) -> None:
    """Keep the sizes and the digest of the text; refuse another one than the run began with."""
    sizes = [len(text.vocabulary), len(text.tokens["train"]), len(text.tokens["valid"])]
    run.keep("corpus/sizes", lambda: np.array(sizes))
    if text.source:
        remember_source(run, text.source)
    _must_be(text, run.keep("corpus/sha256", lambda: _digest(text)), run)


def same_text(config: LanguageModelConfig, run: Run) -> None:
    """A study's `check`: the text of a finished run is still the one that is found, or none is found."""
    text = _found(config, silent)
    if text is not None:
        _must_be(text, run.value("corpus/sha256"), run)


def _digest(text: Corpus) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text.sha256), np.uint8)


def _must_be(text: Corpus, recorded: np.ndarray, run: Run) -> None:
    if not np.array_equal(recorded, _digest(text)):
        raise CorpusError(f"{run.path} was made from another text: {text.name} has changed; start anew (fresh)")
