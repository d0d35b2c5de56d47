"""What the networks read: tokens to train on in batches, and held-out sequences by their source."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import NotRun, Progress, silent
from joma.claims.text_source import remember_source
from joma.data._subwords import subwords
from joma.data.errors import CorpusError
from joma.data.text import python_corpus
from joma.runs import Run
from joma.studies.galore.galore_table.config import PYTHON, GaloreTableConfig


class Text(NamedTuple):
    """Tokens, (N,) each, and what names them in the record."""

    train: Tensor
    held_out: dict[str, Tensor]
    sizes: tuple[int, int]
    """Files and bytes of Python source; 0 where they are not counted."""
    sha256: str
    source: str = ""
    """Of `Corpus`: the sha256 of the files, where they come with one package."""


def read_text(config: GaloreTableConfig, progress: Progress) -> Text:
    """The text that the config names; `NotRun` where this machine lacks it."""
    if config.text == PYTHON:
        corpus = python_corpus(config.vocabulary, tokens=config.source, progress=lambda _, doing: progress(0.0, doing))
        return Text(corpus.tokens["train"], {"Python": corpus.tokens["valid"]}, (0, 0), corpus.sha256, corpus.source)
    folder = config.data or os.environ.get("JOMA_DATA")
    if not folder or not (Path(folder) / "wikitext-2").is_dir():
        place = f"{folder} has no folder wikitext-2" if folder else "neither --data nor JOMA_DATA names a folder"
        if config.data:
            raise CorpusError(f"data must be the folder that holds wikitext-2: {place}")
        raise NotRun(f"WikiText-2 is needed, and {place}", "JOMA_DATA=FOLDER and the same command")
    found = subwords(Path(folder) / "wikitext-2", config.vocabulary, most=config.source, progress=progress)
    return Text(found.train, found.held_out, (found.files, found.size), found.sha256)


class Reading:
    """Batches of the training text and the held-out sequences, on the device of the networks."""

    def __init__(self, config: GaloreTableConfig, text: Text) -> None:
        self.config, self.text = config, text
        self.train = text.train.to(config.device)
        self.windows = (len(text.train) - 1) // config.context
        if self.windows < config.batch:
            raise CorpusError(
                f"a batch of {config.batch} sequences needs a longer text than {len(text.train):,} tokens"
            )
        self.held_out = {name: self._spread(name, tokens) for name, tokens in text.held_out.items()}

    def batch(self, seed: int, step: int) -> Tensor:
        """(batch, context + 1), which depends on seed and step alone: every epoch is a new order of all windows."""
        per_epoch = self.windows // self.config.batch
        epoch, place = divmod(step, per_epoch)
        places = self._order(seed, epoch)[place * self.config.batch : (place + 1) * self.config.batch]
        offsets = torch.arange(self.config.context + 1, device=self.config.device)
        return self.train[places[:, None] * self.config.context + offsets].long()

    def _order(self, seed: int, epoch: int) -> Tensor:
        if getattr(self, "_known", None) != (seed, epoch):
            source = torch.Generator().manual_seed(1000 * seed + epoch)
            self._orders = torch.randperm(self.windows, generator=source).to(self.config.device)
            self._known = (seed, epoch)
        return self._orders

    def _spread(self, name: str, tokens: Tensor) -> Tensor:
        """(held_out, context + 1) sequences, evenly spread over the held-out tokens of one source."""
        count, length = self.config.held_out, self.config.context
        windows = (len(tokens) - 1) // length
        if windows < count:
            raise CorpusError(f"{name}: {count} held-out sequences of {length} tokens are wanted, there are {windows}")
        places = torch.arange(count) * windows // count
        cut = tokens[places[:, None] * length + torch.arange(length + 1)].long()
        return cut.to(self.config.device)

    @cached_property
    def by_frequency(self) -> dict[str, float]:
        """The loss on the held-out tokens of who knows how frequent tokens are, and nothing else."""
        counts = torch.bincount(self.text.train.long(), minlength=self.config.vocabulary).double() + 1
        cost = -(counts / counts.sum()).log()
        return {name: float(cost[tokens[:, 1:].cpu()].mean()) for name, tokens in self.held_out.items()}


def remember(reading: Reading, run: Run) -> None:
    """Keep the sizes and the digest of the text; refuse another one than the run began with."""
    text, names = reading.text, list(reading.held_out)
    run.keep("text/sha256", lambda: np.frombuffer(bytes.fromhex(text.sha256), np.uint8))
    _must_be(text, run)
    if text.source:
        remember_source(run, text.source)
    run.keep(
        "text/tokens", lambda: np.array([len(text.train), *text.sizes]), dims={"what": ["train", "files", "bytes"]}
    )
    run.keep("text/by frequency", lambda: np.array(list(reading.by_frequency.values())), dims={"source": names})


def same_text(config: GaloreTableConfig, run: Run) -> None:
    """A study's `check`: the text is still that of a finished run. All installed source would take too long to read."""
    if config.text == PYTHON:
        _must_be(read_text(config, silent), run)


def _must_be(text: Text, run: Run) -> None:
    if bytes(run.value("text/sha256")).hex() != text.sha256:
        raise CorpusError(f"{run.path} was made from another text, which has changed since; start again with fresh")
