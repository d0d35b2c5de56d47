"""Language models for studies: their texts and recipes, training them as ensembles, and what is measured on the way.

A study names its variants, each a `Recipe`, and trains them into its run:

    text = corpus(config, progress)
    base = recipe(config, text)
    train_variants({"relu": base, "identity": base.with_decoder(activation="identity")}, text, run, progress)

All members of a variant (rates x seeds) train as one ensemble. Recorded under the variant's name, over steps, with the
members first (`_language_model_curves.curve` gives them back as (rates, seeds, points, ...)):

    valid/loss                (members,)                  on the whole validation text, as is
    valid/entropy             (members, layers, heads)    attention entropy
    sequence/entropy          (members, layers, heads)    on the one sequence that the paper's curves come from
    rank/up, rank/gradient    (members, layers)           stable rank of the MLP's lower matrix, of its gradient
    rank/query_key            (members, layers, heads)    of W_q W_k^T
    coherence                 (members,)                  mean |cos| between word vectors
    estimate/...              (members,)                  logits by Theorem 1, see `joma.probes.decoder.logit_estimate`
    train_loss, diverged_at   (members,)                  by the trainer

and once: <variant>/rates, <variant>/seeds, <variant>/loss by frequency (see `frequency_loss`), corpus/sizes (words,
training tokens, validation tokens), corpus/sha256.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.data.text import (
    Corpus,
    CorpusError,
    cut_vocabulary,
    find_corpus,
    python_corpus,
    streams,
    text_file,
    windows,
)
from joma.measure.rebound import FEWEST_SEEDS
from joma.models.decoder import Decoder, DecoderConfig
from joma.probes import decoder as probe
from joma.runs import Run
from joma.studies.contract import NotRun, Progress
from joma.training import Ensemble, Optimizer, cross_entropy, next_token_loss, train_all
from joma.training.ensemble import Precision

PYTHON = "python"
"""The corpus that needs no download: the source of Python's standard library."""
TEXTS = {PYTHON: "Python source", "wikitext-2": "WikiText-2", "wikitext-103": "WikiText-103"}
"""Every corpus that has a name, as a caption calls it; a text file is called by its own."""
KEY_WORDS = 1_000
"""Most frequent words over which logits are compared with what Theorem 1 says."""


@dataclass(frozen=True)
class LanguageModelConfig:
    """What every study of language models can be told. Defaults are the quick scale: small models of Python source."""

    corpus: str = PYTHON
    """python; wikitext-2 or wikitext-103, found under --data, JOMA_DATA, or where they were downloaded to; or a text
    file, FILE.txt or FOLDER/FILE."""
    data: str = ""
    """The folder that holds the folder of the corpus; empty: JOMA_DATA."""
    tokens: int = 200_000
    """Tokens of Python source to read at most; of other texts, tokens to train on."""
    vocabulary: int = 600
    """Words at most."""
    width: int = 32
    mlp: int = 32
    heads: int = 1
    dropout: float = 0.2
    streams: int = 8
    """Pieces of the training text that are read in parallel: the batch."""
    valid_streams: int = 10
    length: int = 35
    """Tokens in a sequence."""
    sequence: int = 20
    """Which sequence of the validation text's first stream the paper's single curves are measured on; from 0."""
    valid_sequences: int = 20
    """How many sequences of each validation stream are read at a measuring point; all if there are fewer."""
    steps: int = 400
    every: int = 20
    """Steps between two measuring points."""
    clip: float = 0.5
    renew_each_epoch: bool = True
    """Forget Adam's state at the start of each epoch, as the original runs did."""
    decay: float = 1.0
    """The rate's factor from epoch to epoch; 1 is a constant rate, as in the original runs."""
    seeds: int = 3
    seed: int = 1
    """The first of the seeds."""
    device: str = "cpu"
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        if self.corpus not in TEXTS and self.corpus == Path(self.corpus).stem:  # a text file may be gone by now
            raise ValueError(f"corpus must be one of {', '.join(TEXTS)}, or a text file, got {self.corpus!r}")
        if self.length < 1:
            raise ValueError(f"length must be at least 1, got {self.length}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must lie above 0 and be at most 1, got {self.decay}")
        if self.seeds < FEWEST_SEEDS:
            raise ValueError(f"seeds must be at least {FEWEST_SEEDS} to know what chance does, got {self.seeds}")
        if self.steps < 2 * self.every:
            raise ValueError(f"{self.steps} steps measured every {self.every} leave no valley between two points")
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise ValueError(f"device must be cpu or cuda, got {self.device!r}")
        if not self.clip > 0:
            raise ValueError(f"clip must be positive, a large number to clip nothing, got {self.clip}")
        # What is wrong with the network or its training is said now, by those who know, not when training starts.
        DecoderConfig(self.vocabulary, width=self.width, heads=self.heads, context=self.length, dropout=self.dropout)
        Optimizer("adam", rate=getattr(self, "rates", getattr(self, "rate", 0.0)), clip=self.clip)


PAPER: dict[str, Any] = {
    "corpus": "wikitext-2",
    "tokens": 1_000_000_000,
    "vocabulary": 1_000_000,
    "width": 200,
    "mlp": 200,
    "streams": 20,
    "sequence": 100,
    "valid_sequences": 1_000_000,
    "steps": 58_580,
    "every": 1_000,
    "seed": 3,
    "device": "cuda",
    "precision": "half-logits",
}
"""The recipe of Figures 6 and 8 on WikiText-2: 20 epochs of 2,929 steps, from the seeds of those runs on."""


@dataclass(frozen=True)
class Recipe:
    """How one variant is trained: a decoder, an optimizer, the reading of the text, and the members."""

    decoder: DecoderConfig
    """Its vocabulary may be smaller than the corpus's: the text is then cut to the most frequent words."""
    optimizer: Optimizer
    """Its rate is that of `rates`. See `with_optimizer` for what depends on the length of an epoch."""
    rates: tuple[float, ...] = (1e-4,)
    seeds: tuple[int, ...] = (1, 2, 3)
    """Every rate is trained with every seed."""
    streams: int = 20
    valid_streams: int = 10
    sequence: int = 100
    valid_sequences: int = 1_000_000
    steps: int = 58_580
    every: int = 1_000
    device: str = "cpu"
    precision: Precision = "float32"

    @property
    def members(self) -> list[tuple[float, int]]:
        """(rate, seed) of every member, the seeds of one rate together."""
        return [(rate, seed) for rate in self.rates for seed in self.seeds]

    def with_(self, **changes: Any) -> Recipe:
        """A copy with some options changed."""
        return replace(self, **changes)

    def with_decoder(self, **changes: Any) -> Recipe:
        """A copy with some options of the decoder changed."""
        return replace(self, decoder=replace(self.decoder, **changes))

    def with_optimizer(self, **changes: Any) -> Recipe:
        """A copy with some options of the optimizer changed."""
        return replace(self, optimizer=replace(self.optimizer, **changes))


def corpus(config: LanguageModelConfig, progress: Progress = lambda share, doing: None) -> Corpus:
    """The text to train on. Raises `NotRun` where it is not on this machine, `CorpusError` where --data is wrong."""
    found = _found(config, lambda _, doing: progress(0.0, doing))
    if found is None:
        raise _missing(config)
    return found


def called(corpus: str) -> str:
    """A corpus as a caption calls it.

    >>> called("wikitext-2"), called("texts/song.txt")
    ('WikiText-2', 'song.txt')
    """
    return TEXTS.get(corpus, Path(corpus).name)


def _missing(config: LanguageModelConfig) -> Exception:
    """Why the text is not there. A folder that was named is an error; one that was not, a study that is not run."""
    name, elsewhere = config.corpus, os.environ.get("JOMA_DATA")
    if name not in TEXTS:
        return CorpusError(f"corpus must be one of {', '.join(TEXTS)}, or a text file, and {name} is no file")
    if config.data:
        folder = Path(config.data)
        if folder.name == name and folder.is_dir():
            return CorpusError(f"--data must be the folder that holds {name}, not {name} itself: {folder.parent}")
        hint = f"; without --data it is looked for under JOMA_DATA, {elsewhere}" if elsewhere else ""
        return CorpusError(f"--data {config.data}: there is no folder {name} in it, nor was it downloaded{hint}")
    place = f"not under JOMA_DATA, {elsewhere!r}" if elsewhere else "neither under --data nor under JOMA_DATA"
    download = f"joma.data.text.download_wikitext({name!r})"
    return NotRun(f"{name} is {place}, nor downloaded ({download} does that)", "JOMA_DATA=FOLDER and the same command")


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


def recipe(config: LanguageModelConfig, text: Corpus, *, layers: int = 1, rates: Sequence[float] = (1e-4,)) -> Recipe:
    """The recipe of Figures 6 and 8 at the sizes of `config`: post-norm blocks that start as copies of one."""
    epoch = epoch_steps(text, config.streams, config.length)
    decoder = DecoderConfig(
        vocabulary=len(text.vocabulary),
        layers=layers,
        width=config.width,
        heads=config.heads,
        mlp=config.mlp,
        context=config.length,
        dropout=config.dropout,
        copies=True,
    )
    optimizer = Optimizer(
        "adam",
        clip=config.clip,
        renew_every=epoch if config.renew_each_epoch else None,
        decay=config.decay,
        decay_every=epoch if config.decay < 1 else None,
    )
    return Recipe(
        decoder=decoder,
        optimizer=optimizer,
        rates=tuple(rates),
        seeds=tuple(range(config.seed, config.seed + config.seeds)),
        streams=config.streams,
        valid_streams=config.valid_streams,
        sequence=config.sequence,
        valid_sequences=config.valid_sequences,
        steps=config.steps,
        every=config.every,
        device=config.device,
        precision=config.precision,
    )


def epoch_steps(text: Corpus, batch: int, length: int) -> int:
    """Steps in which the training text is read once; the last one overlaps the one before, to be as long."""
    return _steps_of(streams(text.tokens["train"], batch), length)


def _steps_of(text: Tensor, length: int) -> int:
    if text.shape[1] <= length:
        raise CorpusError(f"a sequence of {length} tokens and the next one do not fit into streams of {text.shape[1]}")
    return -(-(text.shape[1] - 1) // length)


def train_variants(
    variants: Mapping[str, Recipe], text: Corpus, run: Run, progress: Progress, *, share: float = 0.98
) -> None:
    """Train every variant on `text`, recording under its name what the head of this file lists. Resumes by itself.

    On a GPU all variants train side by side. share: the part of the study's progress that this is, from 0 on.
    """
    for variant in variants.values():
        seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if variant.device.startswith("cuda") and (torch.device(variant.device).index or 0) >= seen:
            here = "--device cpu" + (" --precision float32" if variant.precision != "float32" else "")
            raise NotRun(
                f"device {variant.device} needs a CUDA GPU, and torch sees {seen or 'none'} here",
                f"the same command on a machine with one, or joma run {run.study} with {here}",
            )
    _remember_corpus(text, run)
    for name, variant in variants.items():
        run.keep(f"{name}/rates", lambda variant=variant: np.array(variant.rates))  # type: ignore[misc]
        run.keep(f"{name}/seeds", lambda variant=variant: np.array(variant.seeds))  # type: ignore[misc]
        run.keep(f"{name}/loss by frequency", lambda variant=variant: frequency_loss(variant, text))  # type: ignore[misc]
    ensembles = {name: ensemble(variant, text) for name, variant in variants.items()}
    train_all(ensembles, run, progress=lambda done, doing: progress(share * done, doing))


def frequency_loss(variant: Recipe, text: Corpus) -> float:
    """Loss on the validation text of the words' frequencies in the training text, each counted once more."""
    words = variant.decoder.vocabulary
    text = cut_vocabulary(text, words) if words < len(text.vocabulary) else text
    counts = torch.bincount(text.tokens["train"].long(), minlength=words).double() + 1
    _, following = windows(streams(text.tokens["valid"], variant.valid_streams), variant.decoder.context)
    return float(-(counts / counts.sum()).log()[following[: variant.valid_sequences].long()].mean())


def _remember_corpus(text: Corpus, run: Run) -> None:
    sizes = [len(text.vocabulary), len(text.tokens["train"]), len(text.tokens["valid"])]
    run.keep("corpus/sizes", lambda: np.array(sizes))
    _must_be(text, run.keep("corpus/sha256", lambda: _digest(text)), run)


def same_text(config: LanguageModelConfig, run: Run) -> None:
    """A study's `check`: the text of a finished run is still the one that is found, or none is found."""
    text = _found(config, lambda share, doing: None)
    if text is not None:
        _must_be(text, run.value("corpus/sha256"), run)


def _digest(text: Corpus) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text.sha256), np.uint8)


def _must_be(text: Corpus, recorded: np.ndarray, run: Run) -> None:
    if not np.array_equal(recorded, _digest(text)):
        raise CorpusError(f"{run.path} was made of another text than {text.name} is now; begin anew with --fresh")


def ensemble(variant: Recipe, text: Corpus) -> Ensemble:
    """The members of one variant and what is measured on them."""
    shape, device = variant.decoder, torch.device(variant.device)
    if shape.vocabulary < len(text.vocabulary):
        text = cut_vocabulary(text, shape.vocabulary)
    read = streams(text.tokens["train"], variant.streams).long().to(device)
    epoch, last = _steps_of(read, shape.context), read.shape[1] - 1 - shape.context

    def batch(step: int, members: Sequence[int]) -> tuple[Tensor, Tensor]:
        first = min(step % epoch * shape.context, last)
        return (
            read[:, first : first + shape.context].contiguous(),
            read[:, first + 1 : first + 1 + shape.context].contiguous(),
        )

    def networks(members: Sequence[int]) -> Decoder:
        return Decoder(shape, [variant.members[member][1] for member in members])

    return Ensemble(
        members=len(variant.members),
        networks=networks,
        batch=batch,
        loss=next_token_loss,
        optimizer=replace(variant.optimizer, rate=tuple(rate for rate, _ in variant.members)),
        steps=variant.steps,
        measures=_measures(variant, text, networks),
        measure_at=tuple(range(0, variant.steps + 1, variant.every)),
        device=variant.device,
        precision=variant.precision,
    )


Measure = Callable[[Decoder, Sequence[int]], Tensor | Mapping[str, Tensor]]


def _measures(variant: Recipe, text: Corpus, networks: Callable[[Sequence[int]], Decoder]) -> dict[str, Measure]:
    device = torch.device(variant.device)
    spoken = streams(text.tokens["valid"], variant.valid_streams).long().to(device)
    inputs, targets = windows(spoken, variant.decoder.context)  # (count, streams, length)
    if variant.sequence >= len(inputs):
        raise CorpusError(
            f"sequence {variant.sequence} of the validation text was asked for, it has {len(inputs)} (from 0)"
        )
    single = inputs[variant.sequence, :1].contiguous()
    first = inputs[0].contiguous(), targets[0].contiguous()
    count = min(len(inputs), variant.valid_sequences)
    inputs, targets = (part[:count].flatten(0, 1).contiguous() for part in (inputs, targets))
    frequency = torch.bincount(text.tokens["train"].long(), minlength=len(text.vocabulary)).double().to(device)
    often = min(KEY_WORDS, int((frequency > 0).sum()))
    frequency = frequency / frequency.sum()
    starts: dict[tuple[int, ...], tuple[Tensor, Tensor] | None] = {}

    def estimate(decoder: Decoder, members: Sequence[int]) -> dict[str, Tensor]:
        key = tuple(members)
        if key not in starts:
            starts[key] = probe.logit_terms(networks(members).to(device), frequency)
        start = starts[key]
        return {} if start is None else probe.logit_estimate(decoder, start, frequency, words=often)

    measures: dict[str, Measure] = {
        "valid": lambda decoder, members: probe.validation(decoder, inputs, targets, cross_entropy),
        "sequence": lambda decoder, members: {"entropy": probe.attention_entropy(decoder, single)},
        "rank": lambda decoder, members: probe.weight_ranks(decoder),
        "coherence": lambda decoder, members: probe.embedding_coherence(decoder),
        "estimate": estimate,
    }
    if variant.decoder.mlp:
        measures["rank/gradient"] = lambda decoder, members: probe.gradient_rank(
            decoder, lambda decoder: next_token_loss(decoder, first)
        )
    return measures
