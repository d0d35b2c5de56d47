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
from dataclasses import replace
from math import inf
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import NotRun, Progress
from joma.data.text import Corpus, streams, windows
from joma.host.devices import lacking
from joma.models.decoder import Decoder
from joma.probes import decoder as probe
from joma.recipes.language import Recipe, ensemble, frequency_loss
from joma.recipes.language.text import remember_corpus, steps_to_read
from joma.runs import Run
from joma.training import Ensemble, cross_entropy, train_all

NETWORKS = "networks"
KINDS = ("seed", "rounding", "dropout", "order", "weights")
"""What a member is: a seed, or a twin of one that differs in this."""
ELSEWHERE = 10_000
"""Added to a seed for the weights or the dropout of its twins, which no other member has."""


class Member(NamedTuple):
    """One network: what it is, the member whose twin it is, and where its numbers come from."""

    kind: str
    of: int
    weights: int
    """Seed of the initial weights."""
    dropout: int
    """Seed of the dropout."""
    elsewhere: bool = False
    """Whether reading begins in the middle of the text."""
    rounded: bool = False
    """Whether its weights are moved by one unit in the last place."""


def members_of(seeds: Sequence[int], twins: int) -> list[Member]:
    """All seeds, then the twins of the first `twins` of them, kind by kind.

    >>> [member.kind for member in members_of([3, 4], twins=1)]
    ['seed', 'seed', 'rounding', 'dropout', 'order', 'weights']
    """
    seed = [Member("seed", place, one, one) for place, one in enumerate(seeds)]
    return seed + [_twin(seed[place], kind) for kind in KINDS[1:] for place in range(twins)]


def _twin(member: Member, kind: str) -> Member:
    other = member.weights + ELSEWHERE
    return member._replace(
        kind=kind,
        weights=other if kind == "weights" else member.weights,
        dropout=other if kind == "dropout" else member.dropout,
        elsewhere=kind == "order",
        rounded=kind == "rounding",
    )


def train_lottery(base: Recipe, twins: int, text: Corpus, run: Run, progress: Progress) -> None:
    """Train seeds and twins into the run. Resumes by itself."""
    if gap := lacking(base.device):
        here = "--device cpu" + (" --precision float32" if base.precision != "float32" else "")
        raise NotRun(str(gap), f"the same command on a machine that has one, or joma run {run.study} with {here}")
    remember_corpus(text, run)
    members = members_of(base.seeds, twins)
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
        return _built(base, [members[number] for number in numbers])

    return replace(
        plain, networks=networks, batch=_reading(base, members, text), measures={"valid": _validation(base, text)}
    )


def _built(base: Recipe, members: Sequence[Member]) -> Decoder:
    decoder = Decoder(base.decoder, [member.weights for member in members])
    decoder.seeds.copy_(torch.tensor([member.dropout & 0x7FFFFFFF for member in members], dtype=torch.int32))
    for place, member in enumerate(members):
        if member.rounded:
            _move_by_one_unit(decoder, place, torch.Generator().manual_seed(member.weights))
    return decoder


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
    ahead = torch.tensor([epoch // 2 if member.elsewhere else 0 for member in members], device=base.device)
    within = torch.arange(length, device=base.device)

    def batch(step: int, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        begins = ahead[numbers[0] : numbers[-1] + 1]  # members of a group follow one another
        first = ((begins + step) % epoch * length).clamp(max=last)
        places = first[:, None] + within  # (members, length)
        return tuple(read[:, places + further].movedim(1, 0).contiguous() for further in (0, 1))  # type: ignore[return-value]

    return batch


def _validation(base: Recipe, text: Corpus) -> Callable[[Decoder, Sequence[int]], dict[str, Tensor]]:
    spoken = streams(text.tokens["valid"], base.valid_streams).long().to(base.device)
    inputs, targets = (
        part[: base.valid_sequences].flatten(0, 1).contiguous() for part in windows(spoken, base.decoder.context)
    )
    return lambda decoder, numbers: probe.validation(decoder, inputs, targets, cross_entropy)
