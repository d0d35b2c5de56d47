"""Entities of one to three tokens: names that a fact speaks about."""

from math import perm

import torch
from torch import Tensor

from joma.host.arguments import integer, shown

RELATIONS = 2
"""Every vocabulary of facts ends with two relation tokens."""
LONGEST = 3
"""Tokens of an entity, at most."""
_LARGEST = 2**62
"""Of so many possible entities nobody misses the rest, and their numbers fit into 64 bits."""


def as_share(value: float, name: str) -> float:
    """A number in [0, 1]."""
    try:
        good = not isinstance(value, bool | str) and 0 <= float(value) <= 1
    except (TypeError, ValueError):
        good = False
    if not good:
        raise ValueError(f"{name} must be a share between 0 and 1, got {shown(value)}")
    return float(value)


def entity_length(entity: int) -> int:
    """1, 2 or 3 tokens."""
    if isinstance(entity, bool) or entity not in range(1, LONGEST + 1):
        raise ValueError(f"entity must be 1, 2 or 3 tokens, got {shown(entity)}")
    return int(entity)


def entity_words(vocabulary: int | None, default: int) -> int:
    """How many tokens entities are made of: the vocabulary without its relations."""
    return default if vocabulary is None else integer(vocabulary, "vocabulary", RELATIONS + 1) - RELATIONS


def draw_entities(count: int, spare: int, words: int, entity: int, what: str, generator: torch.Generator) -> Tensor:
    """(count + as many of the spare ones as there are, entity): all different, each of different tokens out of `words`.

    One token per entity gives each entity a token of its own.
    """
    most = min(perm(words, entity), _LARGEST)
    if count > most:
        got = f"{words + RELATIONS}: {words} words without the {RELATIONS} relations, enough for {most}"
        raise ValueError(f"vocabulary must allow {count} different entities for {what}, got {got}")
    count = min(count + spare, most)
    if most <= 4 * count:  # rank: different numbers below `most` in random order
        rank = torch.randperm(most, generator=generator)[:count]
    else:
        found: dict[int, None] = {}
        while len(found) < count:  # at most a quarter of all is taken, so few come up twice
            found.update(dict.fromkeys(torch.randint(most, (count,), generator=generator).tolist()))
        rank = torch.tensor(list(found)[:count])
    tokens: list[Tensor] = []  # of the rank-th sequence of different tokens
    for place in range(entity):
        token = rank % (words - place)  # among the words that are left
        rank = rank // (words - place)
        for taken in torch.stack(tokens, -1).sort(-1).values.unbind(-1) if tokens else ():
            token = token + (token >= taken)
        tokens.append(token)
    return torch.stack(tokens, -1)
