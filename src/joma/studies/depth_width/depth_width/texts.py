"""What language models read here: texts of one vocabulary, and the first of them with its order destroyed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import NotRun, Progress
from joma.claims.text_source import remember_source
from joma.data.text import Corpus, CorpusError, streams, windows
from joma.recipes.language import LanguageModelConfig, corpus
from joma.runs import Run
from joma.studies.depth_width.depth_width.networks import DepthWidthConfig

SHUFFLED = "shuffled"
"""The first text with the words of every sequence in random order: what depth gains there is not due to syntax."""


def find_texts(config: DepthWidthConfig, progress: Progress) -> dict[str, Corpus]:
    """The texts that are on this machine, by name. One that was not downloaded is left out."""
    found = {}
    for name in config.texts:
        wanted = LanguageModelConfig(
            corpus=name, data=config.data, tokens=config.tokens, vocabulary=config.vocabulary, length=config.length
        )
        try:
            found[name] = corpus(wanted, progress)
        except NotRun:
            continue
    return found


def remember_texts(texts: dict[str, Corpus], run: Run) -> None:
    """Keep sizes and digest of every text; refuse another one than the run began with."""
    for name, text in texts.items():
        if text.source:
            remember_source(run, text.source)
        sizes = [len(text.vocabulary), len(text.tokens["train"]), len(text.tokens["valid"])]
        run.keep(f"{name}/sizes", lambda sizes=sizes: np.array(sizes))  # type: ignore[misc]
        must_be(name, text, run.keep(f"{name}/sha256", lambda text=text: digest(text)), run)  # type: ignore[misc]


def digest(text: Corpus) -> np.ndarray:
    """The hash of its content, as numbers."""
    return np.frombuffer(bytes.fromhex(text.sha256), np.uint8)


def must_be(name: str, text: Corpus, recorded: np.ndarray, run: Run) -> None:
    """Refuse a text that is not the recorded one."""
    if not np.array_equal(recorded, digest(text)):
        raise CorpusError(f"{run.path} was made from another text: {name} has changed; start anew (fresh)")


def shuffled(text: Corpus, block: int) -> Corpus:
    """The same words, those of every block of the text in random order."""
    source = torch.Generator().manual_seed(0)
    return replace(text, tokens={split: _shuffled(ids, block, source) for split, ids in text.tokens.items()})


def _shuffled(ids: Tensor, block: int, source: torch.Generator) -> Tensor:
    blocks = ids[: len(ids) // block * block].view(-1, block)
    order = torch.rand(blocks.shape, generator=source).argsort(-1)
    return torch.cat([blocks.gather(-1, order).flatten(), ids[blocks.numel() :]])


class TextReader:
    """What the members of an ensemble read of several texts, each (text, seed) from a place of its own."""

    outputs = None

    def __init__(
        self, texts: Sequence[Corpus], *, seeds: int, batch: int, length: int, valid_sequences: int, device: str
    ) -> None:
        self.texts, self.seeds, self.length = texts, seeds, length
        self.vocabulary = max(len(text.vocabulary) for text in texts)
        self._read = [_full_sequences(text, batch, length).long().to(device) for text in texts]
        self._valid = [_halves(text, length, valid_sequences, device) for text in texts]

    @property
    def context(self) -> int:
        return self.length

    def epochs(self, text: int) -> int:
        """Sequences of one stream: after so many steps a text was read once."""
        return (self._read[text].shape[1] - 1) // self.length

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and what follows them, (texts * seeds, batch, length) each."""
        taken = []
        for number, read in enumerate(self._read):
            epoch = self.epochs(number)
            for seed in range(self.seeds):
                first = (step + seed * epoch // self.seeds) % epoch * self.length
                taken.append(read[:, first : first + self.length + 1])
        both = torch.stack(taken)
        return both[..., :-1].contiguous(), both[..., 1:].contiguous()

    def halves(self) -> list[tuple[Tensor, Tensor]]:
        """To choose the rate on and to judge on: inputs and targets, (texts * seeds, sequences, length) each."""
        sides = []
        for side in range(2):
            parts = [self._valid[text][side] for text in range(len(self.texts)) for _ in range(self.seeds)]
            sides.append((torch.stack([x for x, _ in parts]), torch.stack([y for _, y in parts])))
        return sides

    def known_without(self) -> np.ndarray:
        """Loss on the judging half of the words' frequencies in the training text, (texts,)."""
        return np.array(
            [_frequency_loss(text, valid[1][1]) for text, valid in zip(self.texts, self._valid, strict=True)]
        )


def _full_sequences(text: Corpus, batch: int, length: int) -> Tensor:
    """Streams of full sequences, so that a shuffled block is one sequence; and one token more."""
    tokens = text.tokens["train"]
    count = (len(tokens) - 1) // (batch * length)
    if count < 1:
        raise CorpusError(f"length must be below {len(tokens) // batch}, the tokens of a stream, got {length}")
    pieces = tokens[: batch * count * length].view(batch, -1)
    return torch.cat([pieces, torch.cat([pieces[1:, :1], tokens[batch * count * length :][:1, None]])], 1)


def _halves(text: Corpus, length: int, count: int, device: str) -> list[tuple[Tensor, Tensor]]:
    """Every other sequence of the validation text, and those between, (sequences, length) each."""
    inputs, targets = (part[:, 0].long().to(device) for part in windows(streams(text.tokens["valid"], 1), length))
    kept = min(len(inputs) // 2, count)
    if kept < 1:
        raise CorpusError(f"length must leave two sequences of the validation text, got {length}")
    spaced = torch.linspace(0, len(inputs) // 2 - 1, kept).long().to(device)
    return [(inputs[side::2][spaced], targets[side::2][spaced]) for side in range(2)]


def _frequency_loss(text: Corpus, targets: Tensor) -> float:
    counts = torch.bincount(text.tokens["train"].long(), minlength=len(text.vocabulary)).double() + 1
    return float(-(counts / counts.sum()).log()[targets.cpu()].mean())
