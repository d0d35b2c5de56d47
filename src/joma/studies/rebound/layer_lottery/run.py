"""Who takes part in the lottery: seeds, and twins of some of them that differ in one thing.

A seed gives a network its initial weights and its dropout; all seeds read the text in the same order. A twin of a seed
is the same network but for

    rounding   every weight is moved to a neighbouring float32 number, up or down by chance
    dropout    the dropout of another seed
    order      reading begins in the middle of the text
    weights    the initial weights of another seed

All train as one ensemble, recorded under `NETWORKS` as `joma.recipes.language` records a variant, and once:
NETWORKS/kind (members,), an index into `KINDS`, and NETWORKS/of (members,), the member whose twin it is, or itself.

A pattern is one number per layer: how far entropy drops there (from the untrained network to the layer's own lowest
point), how far it comes back (from there to the end), and where it ends. The correlation of two networks' patterns says
whether the same layers do the same. It is an estimate of the share of the variance, within a network, that a layer's
position explains.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Least, Progress
from joma.claims.guards import still_falls
from joma.data.text import Corpus, streams
from joma.measure.correlation import pearson
from joma.measure.intervals import Comparison, compare
from joma.measure.rebound import drop_and_rebound
from joma.models.decoder import Decoder
from joma.recipes.language import LanguageModelConfig, Recipe, corpus, ensemble, frequency_loss, recipe
from joma.recipes.language.curves import LEARNED, alive, best_loss, curve
from joma.recipes.language.text import remember_corpus, steps_to_read
from joma.recipes.language.training import needs_its_device
from joma.runs import Run
from joma.training import Ensemble, train_all

NETWORKS = "networks"
KINDS = ("seed", "rounding", "dropout", "order", "weights")
"""What a member is: a seed, or a twin of one that differs in this."""
ELSEWHERE = 10_000  # added to a seed for the weights or the dropout of its twins, which no other member has


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
    weights: int  # seed of the initial weights
    dropout: int  # seed of the dropout


def members_of(seeds: Sequence[int], twins: int) -> list[Member]:
    """All seeds, then the twins of the first `twins` of them, kind by kind."""
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
    needs_its_device(base)
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
    length = base.decoder.context
    read = streams(text.tokens["train"], base.streams).long().to(base.device)
    epoch, last = steps_to_read(read, length), read.shape[1] - 1 - length
    ahead = torch.tensor([epoch // 2 if member.kind == "order" else 0 for member in members], device=base.device)
    within = torch.arange(length, device=base.device)

    def networks(numbers: Sequence[int]) -> Decoder:
        chosen = [members[number] for number in numbers]
        decoder = Decoder(base.decoder, [member.weights for member in chosen])
        decoder.seeds.copy_(torch.tensor([member.dropout & 0x7FFFFFFF for member in chosen], dtype=torch.int32))
        for place, member in enumerate(chosen):
            if member.kind == "rounding":
                _move_by_one_unit(decoder, place, torch.Generator().manual_seed(member.weights))
        return decoder

    def batch(step: int, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(members, streams, length) each; the step alone decides, and where a member begins."""
        begins = ahead[numbers[0] : numbers[-1] + 1]  # members of a group follow one another
        first = ((begins + step) % epoch * length).clamp(max=last)
        places = first[:, None] + within  # (members, length)
        inputs, targets = (read[:, places + further].movedim(1, 0).contiguous() for further in (0, 1))
        return inputs, targets

    return replace(plain, networks=networks, batch=batch, measures={"valid": plain.measures["valid"]})


def _move_by_one_unit(decoder: Decoder, place: int, generator: torch.Generator) -> None:
    """Every weight of one member to the float32 number above or below it; what is zero stays zero."""
    with torch.no_grad():
        for parameter in decoder.parameters():
            weight = parameter[place]
            up = torch.rand(weight.shape, generator=generator) < 0.5
            moved = torch.nextafter(weight, torch.where(up, inf, -inf))
            weight.copy_(torch.where(weight == 0, weight, moved))


PATTERNS = ("drop", "rebound", "end")
SHUFFLES = 1_000


def entropies(run: Run) -> np.ndarray:
    """(members, points, layers); NaN for a member that diverged or learned only how frequent words are."""
    found = curve(run, NETWORKS, "valid/entropy")[0].mean(-1)
    return np.asarray(np.where(learned(run)[:, None, None], found, np.nan))


def learned(run: Run) -> np.ndarray:
    """(members,) bool: neither diverged nor left with the words' frequencies."""
    bound = float(run.value(f"{NETWORKS}/loss by frequency")) - LEARNED
    return np.asarray(alive(run, NETWORKS)[0] & (best_loss(run, NETWORKS)[0] < bound))


def members(run: Run, kind: str) -> np.ndarray:
    """The numbers of the members of one kind that learned."""
    return np.flatnonzero((run.value(f"{NETWORKS}/kind") == KINDS.index(kind)) & learned(run))


def patterns(run: Run) -> dict[str, np.ndarray]:
    """By name, (members, layers): each network is read at the valley of the mean of the others but for its twins.

    Until the records had been seen each was read at its own lowest point, where its noise makes every rebound larger.
    """
    curves, known = entropies(run), learned(run)
    found = {name: np.full_like(curves[:, 0], np.nan) for name in PATTERNS}
    drop, back = drop_and_rebound(np.moveaxis(curves[known], -1, 0), run.value(f"{NETWORKS}/of")[known])
    for name, values in zip(PATTERNS, (drop, back, curves[known][:, -1].T), strict=True):
        found[name][known] = np.asarray(values).T
    return found


def no_turn_seen(run: Run) -> np.ndarray:
    """(layers,): in which layers every network that is no twin still falls at the end."""
    curves = entropies(run)[members(run, "seed")]
    return np.asarray(still_falls(np.moveaxis(curves, -1, 0)))


def inner(layers: int) -> slice:
    """The layers between the bottom and the top fifth; at least one is left out on either side."""
    fifth = max(1, layers // 5)
    return slice(fifth, layers - fifth)


def alike(pattern: np.ndarray) -> np.ndarray:
    """(networks, layers) -> (networks, networks): the correlation of every two."""
    return np.asarray(pearson(pattern[:, None], pattern[None]))


def between_seeds(pattern: np.ndarray) -> Comparison:
    """The mean correlation of two seeds' patterns (seeds, layers), beside none, over seeds."""
    pattern = pattern[np.ptp(pattern, axis=1) > 0]
    if len(pattern) < 3:
        return compare([])
    pairs = alike(pattern)
    np.fill_diagonal(pairs, 0.0)
    count, sums, total = len(pairs), pairs.sum(1), pairs.sum()
    mean = total / (count * (count - 1))
    without = (total - 2 * sums) / ((count - 1) * (count - 2))
    return compare(count * mean - (count - 1) * without, 0.0)


class Share(NamedTuple):
    """How much of the variance within a network a layer's position explains, and what 5 % of shufflings exceed."""

    value: float
    chance: float


def share_of_position(pattern: np.ndarray) -> Share:
    """Of (seeds, layers); the control shuffles the layers of every seed."""
    if len(pattern) < 2:
        return Share(np.nan, np.nan)
    rows = pattern - pattern.mean(1, keepdims=True)
    generator = np.random.default_rng(0)

    def share(rows: np.ndarray) -> float:
        total = float((rows**2).sum())
        return len(rows) * float((rows.mean(0) ** 2).sum()) / total if total > 0 else np.nan

    shuffled = [share(generator.permuted(rows, axis=1)) for _ in range(SHUFFLES)]
    return Share(share(rows), float(np.quantile(shuffled, 0.95)))


def winner(pattern: np.ndarray, layers: slice) -> dict[str, float]:
    """The layer that has the largest number in most seeds, of (seeds, layers), and in how many of them."""
    first, _, _ = layers.indices(pattern.shape[1])
    wins = np.bincount(pattern[:, layers].argmax(1), minlength=1)
    return {"layer": float(1 + first + wins.argmax()), "in seeds": float(wins.max()), "of": float(len(pattern))}


def twins(run: Run, kind: str, pattern: np.ndarray) -> Comparison:
    """Correlation of a twin with its seed, beside that of this seed with the others; over pairs.

    Of deviations from the mean over the other seeds: what position does to every network is not counted.
    """
    pairs = twin_pairs(run, kind, pattern)
    return compare(pairs[:, 0], pairs[:, 1])


def twin_pairs(run: Run, kind: str, pattern: np.ndarray) -> np.ndarray:
    """(pairs, 2): every twin's correlation with its seed, and the mean of this seed's with the others."""
    seeds, of = members(run, "seed"), run.value(f"{NETWORKS}/of")
    found = []

    def correlation(one: int, other: int) -> float:
        mean = pattern[[seed for seed in seeds if seed not in (one, other)]].mean(0)
        return float(pearson(pattern[one] - mean, pattern[other] - mean))

    for twin in members(run, kind):
        seed = int(of[twin])
        if seed in seeds and len(seeds) > 3:
            others = [correlation(seed, other) for other in seeds if other != seed]
            found.append((correlation(seed, twin), float(np.mean(others))))
    return np.array(found).reshape(-1, 2)


def distance(run: Run, kind: str) -> np.ndarray:
    """(pairs, points): how far entropy is between a twin and its seed, RMS over layers; of seeds, between two."""
    curves, of, seeds = entropies(run), run.value(f"{NETWORKS}/of"), members(run, "seed")
    if kind == "seed":
        pairs = list(zip(seeds, np.roll(seeds, 1), strict=True))
    else:
        pairs = [(int(of[twin]), twin) for twin in members(run, kind) if of[twin] in seeds]
    rows = [np.sqrt(((curves[a] - curves[b]) ** 2).mean(-1)) for a, b in pairs]
    return np.array(rows).reshape(len(pairs), curves.shape[1])


def halves(pattern: np.ndarray) -> np.ndarray:
    """(networks, layers) -> (networks,): the mean of the top half of the layers minus that of the bottom half."""
    middle = pattern.shape[1] // 2
    return np.asarray(pattern[:, -middle:].mean(1) - pattern[:, :middle].mean(1))
