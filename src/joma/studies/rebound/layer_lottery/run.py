"""Who takes part in the lottery: seeds, and twins of some of them that differ in one thing.

A seed gives a network its initial weights and its dropout; all seeds read the text in the same order. A twin of a seed
is the same network but for

    rounding   every weight is moved to a neighbouring float32 number, up or down by chance
    dropout    the dropout of another seed
    order      reading begins in the middle of the text
    weights    the initial weights of another seed

All train as one ensemble, recorded under `NETWORKS` as `joma.recipes.language` records a variant, and once:
NETWORKS/kind (members,), an index into `KINDS`, and NETWORKS/of (members,), the member whose twin it is, or itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.claims.config import Least
from joma.claims.contract import Progress
from joma.data.text import Corpus, streams
from joma.models.decoder import Decoder
from joma.recipes.language import LanguageModelConfig, Recipe, corpus, ensemble, frequency_loss, recipe
from joma.recipes.language.text import remember_corpus, steps_to_read
from joma.recipes.language.training import needs_its_device
from joma.runs import Run
from joma.training import Ensemble, train_all

NETWORKS = "networks"
KINDS = ("seed", "rounding", "dropout", "order", "weights")
"""What a member is: a seed, or a twin of one that differs in this."""
ELSEWHERE = 10_000
"""Added to a seed for the weights or the dropout of its twins, which no other member has."""


@dataclass(frozen=True)
class LayerLotteryConfig(LanguageModelConfig):
    """Deep networks, many seeds, and twins of the first of them."""

    vocabulary: int = 100
    width: int = 16
    mlp: int = 16
    streams: int = 4
    length: int = 16
    sequence: int = 2
    valid_sequences: int = 3
    steps: int = 75
    every: int = 15
    layers: Annotated[int, Least(5, "so that three lie between the bottom and the top")] = 5
    rate: float = 6e-3
    seeds: int = 7
    twins: int = 3
    """Of the seeds, how many have twins: one of each kind."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.twins > self.seeds:
            raise ValueError(f"twins must be at most {self.seeds}, the number of seeds, got {self.twins}")


class Member(NamedTuple):
    """One network: what it is, the member whose twin it is, and where its numbers come from."""

    kind: str
    of: int
    weights: int
    """Seed of the initial weights."""
    dropout: int
    """Seed of the dropout."""


def members_of(seeds: Sequence[int], twins: int) -> list[Member]:
    """All seeds, then the twins of the first `twins` of them, kind by kind.

    >>> [member.kind for member in members_of([3, 4], twins=1)]
    ['seed', 'seed', 'rounding', 'dropout', 'order', 'weights']
    """
    found = [Member("seed", place, seed, seed) for place, seed in enumerate(seeds)]
    for kind in KINDS[1:]:
        other = {kind: ELSEWHERE} if kind in ("weights", "dropout") else {}
        for place, seed in enumerate(seeds[:twins]):
            weights, dropout = (seed + other.get(what, 0) for what in ("weights", "dropout"))
            found.append(Member(kind, place, weights, dropout))
    return found


def run(config: LayerLotteryConfig, run: Run, progress: Progress) -> None:
    """Train seeds and twins as one ensemble."""
    text = corpus(config, progress)
    base = recipe(config, text, layers=config.layers, rates=(config.rate,))
    needs_its_device(base, run)
    remember_corpus(text, run)
    members = members_of(base.seeds, config.twins)
    run.keep(f"{NETWORKS}/rates", lambda: np.array(base.rates))
    run.keep(f"{NETWORKS}/seeds", lambda: np.array([member.weights for member in members]))
    run.keep(f"{NETWORKS}/kind", lambda: np.array([KINDS.index(member.kind) for member in members]))
    run.keep(f"{NETWORKS}/of", lambda: np.array([member.of for member in members]))
    run.keep(f"{NETWORKS}/loss by frequency", lambda: frequency_loss(base, text))
    lottery = lottery_ensemble(base, members, text)
    train_all({NETWORKS: lottery}, run, progress=lambda done, doing: progress(0.98 * done, doing))


def lottery_ensemble(base: Recipe, members: Sequence[Member], text: Corpus) -> Ensemble:
    """The recipe's ensemble, with these members."""
    plain = ensemble(base.with_(seeds=tuple(range(len(members)))), text)

    def networks(numbers: Sequence[int]) -> Decoder:
        chosen = [members[number] for number in numbers]
        decoder = Decoder(base.decoder, [member.weights for member in chosen])
        decoder.seeds.copy_(torch.tensor([member.dropout & 0x7FFFFFFF for member in chosen], dtype=torch.int32))
        for place, member in enumerate(chosen):
            if member.kind == "rounding":
                _move_by_one_unit(decoder, place, torch.Generator().manual_seed(member.weights))
        return decoder

    valid = {"valid": plain.measures["valid"]}
    return replace(plain, networks=networks, batch=_reading(base, members, text), measures=valid)


def _move_by_one_unit(decoder: Decoder, place: int, generator: torch.Generator) -> None:
    """Every weight of one member to the float32 number above or below it; what is zero stays zero."""
    with torch.no_grad():
        for parameter in decoder.parameters():
            weight = parameter[place]
            up = torch.rand(weight.shape, generator=generator) < 0.5
            moved = torch.nextafter(weight, torch.where(up, inf, -inf))
            weight.copy_(torch.where(weight == 0, weight, moved))


def _reading(
    base: Recipe, members: Sequence[Member], text: Corpus
) -> Callable[[int, Sequence[int]], tuple[Tensor, Tensor]]:
    """batch(step, members): (members, streams, length) each; the step alone decides, and where a member begins."""
    length = base.decoder.context
    read = streams(text.tokens["train"], base.streams).long().to(base.device)
    epoch, last = steps_to_read(read, length), read.shape[1] - 1 - length
    ahead = torch.tensor([epoch // 2 if member.kind == "order" else 0 for member in members], device=base.device)
    within = torch.arange(length, device=base.device)

    def batch(step: int, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        begins = ahead[numbers[0] : numbers[-1] + 1]  # members of a group follow one another
        first = ((begins + step) % epoch * length).clamp(max=last)
        places = first[:, None] + within  # (members, length)
        inputs, targets = (read[:, places + further].movedim(1, 0).contiguous() for further in (0, 1))
        return inputs, targets

    return batch
