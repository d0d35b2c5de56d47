"""What `sinks` and `deja-vu` share: a text to read, a made language in which attention is mostly idle, their configs.

The made language, its sizes and its rates were chosen after trials in which softmax formed a sink and all kinds of
attention learned to fetch. So the sink of softmax is not a finding there. What the other kinds do is one.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from joma.claims.config import StudyConfig
from joma.claims.contract import Progress
from joma.data.text import Corpus, CorpusError
from joma.recipes.language import PYTHON, LanguageModelConfig, corpus, same_text
from joma.recipes.language.text import remember_corpus
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


@dataclass(frozen=True)
class TextConfig(StudyConfig):
    """A config that names a text. Quick scale: Python source."""

    corpus: str = PYTHON
    """The text: sympy, wikitext-2 or wikitext-103, or a text file."""
    data: str = ""
    """The folder that holds the folder of the corpus; empty: JOMA_DATA."""
    tokens: int = 100_000
    """Tokens of the text to read at most."""
    vocabulary: int = 300
    """Words of the text at most."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.text  # an unknown corpus is refused now

    @property
    def text(self) -> LanguageModelConfig:
        """What says which text is meant to those who find it."""
        return LanguageModelConfig(corpus=self.corpus, data=self.data, tokens=self.tokens, vocabulary=self.vocabulary)


C = TypeVar("C", bound=TextConfig)


def recorded_config(kind: type[C], run: Run) -> C:
    """The config that a run was made with."""
    names = kind.__dataclass_fields__.keys() & run.config.keys()
    given: dict[str, Any] = {name: run.config[name] for name in names}
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    return kind(**given)


def known_mean(values: Any) -> float:
    """Of what is a number, in the precision of the record; NaN where nothing is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")


def check_text(config: TextConfig, run: Run) -> None:
    """A study's `check`: the text of a finished run is still the one that is found, or none is found."""
    same_text(config.text, run)


def read_text(config: TextConfig, run: Run, progress: Progress, length: int, valid: int) -> Reading:
    """The text that the config names; the run remembers which one it was."""
    found = corpus(config.text, progress)
    remember_corpus(found, run)
    return of_text(found, length, valid)


def sequences_of(train: Tensor, step: int, batch: int) -> Tensor:
    """(batch, length + 1): what is read at a step, whoever reads; every epoch has an order of its own."""
    size = min(batch, len(train))
    epoch, place = divmod(step, len(train) // size)
    return train[_order(len(train), epoch)[place * size : (place + 1) * size].to(train.device)]


@lru_cache(maxsize=4)
def _order(count: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(epoch))


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
    return float(-torch.special.xlogy(counts / counts.sum(), counts / counts.sum(-1, keepdim=True).clamp(min=1)).sum())
