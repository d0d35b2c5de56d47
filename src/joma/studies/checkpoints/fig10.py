"""Figure 10: one MLP neuron fires on unrelated combinations of tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Finding, Progress, Study, each_claim
from joma.claims.text_source import remember_source
from joma.claims.verdicts import by_effect, not_run
from joma.measure.intervals import compare
from joma.measure.superposition import Superposition, superposition
from joma.runs import Run
from joma.studies.checkpoints._fig10_figures import NETWORKS, SPAN, draw
from joma.studies.checkpoints._seeds import UNLEARNED, learned, left_out, prefix
from joma.studies.checkpoints._superposition import Layer, Material, prepare, read

MARGIN = 0.05  # of all neurons: the smallest difference from a control that matters
SHOWN = 3  # neurons whose contexts are printed


@dataclass(frozen=True)
class Config:
    """A model and a text, or a small model trained on the spot on Python source.

    `steps`, `width`, `layers` and `vocabulary` are those of the small model; a given one brings its own.
    """

    model: str = ""
    """A model folder or hub name; without one, a small GPT-NeoX is trained first."""
    text: str = ""
    """A UTF-8 file; without one, the source of sympy."""
    characters: int = 1_000_000
    """How much of the text to read."""
    texts: int = 400
    """Windows on which neurons are looked at."""
    length: int = 40
    contexts: int = 20
    """Strongest contexts of each neuron."""
    batch: int = 16
    steps: int = 150
    width: int = 64
    layers: int = 2
    vocabulary: int = 600
    device: str = "cpu"
    seeds: int = 3
    """Networks that are trained here, for an interval over seeds; a given model was trained once."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model and self.seeds != 1:
            raise ValueError(f"seeds must be 1 with a model, which was trained once, got {self.seeds}")


UNRELATED = Claim(
    "neurons-hold-unrelated-patterns",
    "JoMA Fig. 10",
    "One MLP neuron is switched on by several combinations of tokens that are unrelated to each other.",
    matters=MARGIN,
    unit="%",
    ceiling=1.0,
)
LEARNED = Claim(
    "superposition-is-learned",
    "JoMA App. A.4",
    "Training makes a neuron hold several queries with their patterns.",
    matters=MARGIN,
    unit="%",
    ceiling=1.0,
    uses=("fig10/neurons-hold-unrelated-patterns",),
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train or load, read each network and its untrained twin on the same texts, score every neuron."""
    if not config.text:
        remember_source(run)
    for number in range(config.seeds):

        def of_this(share: float, doing: str, number: int = number) -> None:
            progress((number + share) / config.seeds, doing if config.seeds == 1 else f"network {number + 1}: {doing}")

        _one_network(replace(config, seed=config.seed + number), run, prefix(number), of_this)


def _one_network(config: Config, run: Run, place: str, progress: Progress) -> None:
    @cache
    def material() -> Material:
        return prepare(config, progress)

    @cache
    def layers(network: str) -> list[Layer]:
        made, share = material(), 0.7 + 0.15 * NETWORKS.index(network)
        return read(
            getattr(made, network),
            made.tokens,
            batch=config.batch,
            progress=lambda done: progress(share + 0.15 * done, f"reading the {network} network"),
        )

    @cache
    def found(network: str) -> list[Superposition]:
        return [
            superposition(
                layer.height,
                layer.position,
                material().tokens,
                keys=layer.keys,
                weights=layer.weights,
                contexts=config.contexts,
                seed=config.seed,
            )
            for layer in layers(network)
        ]

    def joined(network: str, field: str) -> Callable[[], Tensor]:
        return lambda: torch.cat([getattr(layer, field) for layer in found(network)])

    def of_shown(field: str) -> Callable[[], Any]:
        return lambda: shown()[field]

    @cache
    def shown() -> dict[str, Any]:
        return _shown(found("trained"), layers("trained"), material().words)

    run.keep(f"{place}losses", lambda: torch.tensor(material().losses, dtype=torch.float64))
    for network in NETWORKS:
        for field in ("score", "z", "patterns", "shuffled_score", "shuffled_patterns"):
            run.keep(f"{place}{network}/{field}", joined(network, field))
    if not place:  # a few neurons of the first network are enough to read
        for field in ("neuron", "group", "words", "weight"):
            run.keep(f"shown/{field}", of_shown(field))


def _unrelated(run: Run) -> Finding:
    expected = "more neurons with two or more groups of related contexts than with shuffled contexts"
    return _more_neurons(
        run, UNRELATED, "beside contexts shuffled between neurons", "trained/shuffled_patterns", expected
    )


def _learned(run: Run) -> Finding:
    expected = "more neurons with two or more groups of related contexts than before training"
    return _more_neurons(run, LEARNED, "beside the untrained network", "untrained/patterns", expected)


def _more_neurons(run: Run, claim: Claim, beside: str, control: str, expected: str) -> Finding:
    """The share of neurons with two patterns or more, network by network, beside the same share in a control."""
    kept = learned(run, "losses")
    if not kept:
        return not_run(claim, expected, UNLEARNED, "joma verify fig10")
    z = {network: np.median([_median(run, number, f"{network}/z") for number in kept]) for network in NETWORKS}
    return by_effect(
        claim,
        {
            beside: compare(
                *([_share(run, number, series) for number in kept] for series in ("trained/patterns", control))
            )
        },
        what="share of neurons that hold two or more patterns",
        expected=expected,
        details={
            "neurons": {"of each network": float(run.value("trained/patterns").size)},
            "contexts more alike than shuffled contexts, in standard deviations": {
                network: -float(one) for network, one in z.items()
            },
            **left_out(run, kept),
        },
    )


def _share(run: Run, number: int, series: str) -> float:
    return float((run.value(prefix(number) + series) >= 2).mean())


def _median(run: Run, number: int, series: str) -> float:
    return float(np.median(run.value(prefix(number) + series)))


def _shown(found: list[Superposition], layers: list[Layer], words: list[list[str]]) -> dict[str, Any]:
    """The neurons whose second pattern is largest, with two contexts of each of their two largest patterns."""
    ranked = []
    for number, each in enumerate(found):
        for neuron in torch.nonzero(each.patterns >= 2)[:, 0].tolist():
            sizes = torch.bincount(each.group[neuron], minlength=each.group.shape[1])
            largest = sizes.argsort(descending=True, stable=True)[:2].tolist()
            ranked.append((-int(sizes[largest[1]]), number, neuron, largest))
    neurons, groups, text, weight = [], [], [], []
    for _, number, neuron, labels in sorted(ranked)[:SHOWN]:
        each, layer = found[number], layers[number]
        members = [(g, c) for g, label in enumerate(labels) for c in _first_two(each.group[neuron], label)]
        at = [(int(each.texts[neuron, c]), int(each.positions[neuron, c])) for _, c in members]
        neurons.append([number, neuron])
        groups.append([g for g, _ in members])
        text.append([words[t][max(0, p + 1 - SPAN) : p + 1] for t, p in at])
        weight.append(torch.stack([_attention(layer, t, p) for t, p in at]))
    return {
        "neuron": torch.tensor(neurons),
        "group": torch.tensor(groups),
        "words": np.frombuffer(json.dumps(text).encode(), dtype=np.uint8),
        "weight": torch.stack(weight) if weight else torch.zeros(0),
    }


def _first_two(group: Tensor, label: int) -> list[int]:
    found: list[int] = torch.nonzero(group == label)[:2, 0].tolist()
    return found


def _attention(layer: Layer, text: int, position: int) -> Tensor:
    """(SPAN,) the attention of a query to the tokens up to itself, which comes last; 0 before the text begins."""
    whole = torch.zeros(SPAN + layer.keys.shape[1])
    whole.scatter_(0, SPAN + layer.keys[text, position], layer.weights[text, position])
    return whole[position + 1 : position + 1 + SPAN]


STUDY = Study(
    name="fig10",
    title="Figure 10: pattern superposition in MLP neurons",
    version=2,
    claims=(UNRELATED, LEARNED),
    quick=Config(),
    paper=Config(model="EleutherAI/pythia-70m", texts=4000, length=128, characters=10_000_000, device="cuda", seeds=1),
    run=run,
    judge=each_claim(_unrelated, _learned),
    draw=draw,
    about=(
        "For every MLP neuron, the 20 contexts that switch it on most are taken, each from another text. A context is "
        "described by a tf-idf vector of the tokens that its query attends to. Two contexts are related when they are "
        "closer than 99 % of the pairs from different neurons. Three or more contexts that are connected by triangles "
        "of related pairs form a pattern. A neuron with two patterns fires on unrelated combinations of tokens. There "
        "are two controls: contexts shuffled between neurons, and the same network before training. Shares of neurons "
        "are compared over networks of several seeds. A single given model has no interval, so its findings are "
        "undecided."
    ),
)
