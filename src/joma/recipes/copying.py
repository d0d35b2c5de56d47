"""A made language in which attention is mostly idle, and how sequences are read from it.

It was chosen after trials in which softmax formed a sink and all kinds of attention learned to fetch. So the sink of
softmax is not a finding there. What other networks do is one.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


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


def sequences_of(train: Tensor, step: int, batch: int) -> Tensor:
    """(batch, length + 1): what is read at a step, whoever reads; every epoch has an order of its own."""
    size = min(batch, len(train))
    epoch, place = divmod(step, len(train) // size)
    return train[_order(len(train), epoch)[place * size : (place + 1) * size].to(train.device)]


@lru_cache(maxsize=4)
def _order(count: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(epoch))


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
