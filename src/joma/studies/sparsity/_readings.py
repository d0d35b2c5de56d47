"""What the networks of `sinks` and `deja-vu` read: a text, and a made language in which attention is mostly idle.

The made language, its sizes and its rates were chosen after trials in which softmax formed a sink and all kinds of
attention learned to fetch. So the sink of softmax is not a finding there. What the other kinds do is one.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from joma.data.text import Corpus, CorpusError
from joma.recipes.language import LanguageModelConfig, same_text
from joma.runs import Run

COPY, TEXT = "copying", "text"
"""The readings. In the first, attention helps at few tokens, so that a head has nothing to do at all others."""


class Reading(NamedTuple):
    """Sequences to train and to measure on, (sequences, length + 1) each, and how many words there are.

    triggers: the first so many words ask for something that stood before; a text has none.
    """

    train: Tensor
    valid: Tensor
    words: int
    triggers: int = 0

    @property
    def first(self) -> int:
        """The fixed first token: a word of its own, after all others."""
        return self.words


class Told(Protocol):
    """A config that names a text."""

    @property
    def corpus(self) -> str: ...
    @property
    def data(self) -> str: ...
    @property
    def tokens(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...


def text_config(config: Told) -> LanguageModelConfig:
    """What says which text is meant to those who find it."""
    return LanguageModelConfig(
        corpus=config.corpus, data=config.data, tokens=config.tokens, vocabulary=config.vocabulary
    )


def same_words(config: Told, run: Run) -> None:
    """A study's `check`: the text of a finished run is still the one that is found, or none is found."""
    same_text(text_config(config), run)


def of_text(text: Corpus, length: int, valid: int) -> Reading:
    """Pieces of a text that follow one another."""
    parts = []
    for split in ("train", "valid"):
        tokens = text.tokens[split].long()
        count = len(tokens) // (length + 1)
        if count < (valid if split == "valid" else 1):
            raise CorpusError(
                f"the {split} text has {len(tokens):,} tokens, too few for sequences of {length + 1} tokens: give a "
                "longer text, or a shorter length"
            )
        parts.append(tokens[: count * (length + 1)].view(count, length + 1))
    return Reading(parts[0], parts[1][:valid].contiguous(), len(text.vocabulary))


def copying(words: int, triggers: int, length: int, *, train: int, valid: int, seed: int) -> Reading:
    """A made language: each word follows from the one before by chance, but a trigger repeats the word before it.

    What follows a common word depends on that word alone. Attention can only disturb there. After a trigger, one of
    the first `triggers` words, comes the word that stood before the trigger. Attention has to fetch it.
    """
    generator = torch.Generator().manual_seed(seed)
    follows = (2.0 * torch.randn(words, words, generator=generator)).softmax(-1).cumsum(-1)
    count = train + valid
    luck = torch.rand(length + 1, count, 1, generator=generator)
    tokens = torch.empty(length + 1, count, dtype=torch.long)
    tokens[0] = torch.randint(words, (count,), generator=generator)
    for place in range(1, length + 1):
        before = tokens[place - 1]
        drawn = torch.searchsorted(follows[before], luck[place])[:, 0].clamp(max=words - 1)
        tokens[place] = torch.where(before < triggers, tokens[place - 2], drawn) if place > 1 else drawn
    made = tokens.T.contiguous()
    return Reading(made[:train], made[train:], words, triggers)


def without_fetching(reading: Reading) -> float:
    """The loss after a trigger of a network that knows the trigger and what follows it how often, in nats."""
    before, after = reading.train[:, 2:-1].flatten(), reading.train[:, 3:].flatten()
    asked = before < reading.triggers
    pairs = before[asked] * reading.words + after[asked]
    counts = torch.bincount(pairs, minlength=reading.triggers * reading.words).view(reading.triggers, -1).double()
    share = counts / counts.sum()
    given = counts / counts.sum(-1, keepdim=True).clamp(min=1)
    return float(-torch.special.xlogy(share, given).sum())
