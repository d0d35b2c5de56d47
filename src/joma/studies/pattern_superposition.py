"""Figure 10: one MLP neuron fires on unrelated combinations of tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from joma.measure.superposition import Superposition, superposition
from joma.runs import Run
from joma.studies._superposition_model import Layer, Material, prepare, read
from joma.studies.contract import Claim, Drawing, Finding, Progress, Study
from joma.studies.drawing import BLUE, CONTROL, GREEN, ORANGE, panels
from joma.studies.verdicts import by_effect

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARGIN = 0.05  # of all neurons: beyond twice the standard error of a share over 400 neurons
NETWORKS = ("trained", "untrained")
SHOWN = 3  # neurons whose contexts are printed
SPAN = 28  # tokens of a context that are printed, the query last
COLUMNS = 92  # characters in a printed line


@dataclass(frozen=True)
class Config:
    """A model and a text, or a small model trained on the spot on Python's standard library."""

    model: str = ""
    """A model folder or hub name; without one, a small GPT-NeoX is trained first."""
    text: str = ""
    """A UTF-8 file; without one, the source of Python's standard library."""
    characters: int = 2_000_000
    """How much of the text to read."""
    texts: int = 800
    """Windows on which neurons are looked at."""
    length: int = 64
    contexts: int = 20
    """Strongest contexts of each neuron."""
    batch: int = 32
    steps: int = 300
    width: int = 64
    layers: int = 2
    vocabulary: int = 1000
    device: str = "cpu"
    seed: int = 0


UNRELATED = Claim(
    "neurons-hold-unrelated-patterns",
    "JoMA Fig. 10",
    "One and the same MLP neuron is switched on by several combinations of tokens that have nothing to do with each "
    "other.",
    empirical=True,
)
LEARNED = Claim(
    "superposition-is-learned",
    "JoMA App. B",
    "A neuron comes to hold several queries with their patterns by training.",
    empirical=True,
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train or load, read both networks on the same texts, score every neuron."""

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

    run.keep("losses", lambda: torch.tensor(material().losses, dtype=torch.float64))
    for network in NETWORKS:
        for name in ("score", "z", "patterns", "shuffled_score", "shuffled_patterns"):
            run.keep(f"{network}/{name}", lambda n=network, f=name: torch.cat([getattr(s, f) for s in found(n)]))
        run.keep(f"{network}/layer", lambda n=network: _layer_of(found(n)))
    for name in ("neuron", "group", "token", "weight", "activation"):
        run.keep(f"shown/{name}", lambda f=name: _shown(found("trained"), layers("trained"), material().tokens)[f])
    run.keep("shown/pieces", lambda: np.frombuffer(json.dumps(material().pieces).encode(), dtype=np.uint8))


def judge(run: Run) -> list[Finding]:
    """Shares of neurons with at least two unrelated patterns, against both controls."""
    share = {network: float((run.value(f"{network}/patterns") >= 2).mean()) for network in NETWORKS}
    shuffled = float((run.value("trained/shuffled_patterns") >= 2).mean())
    z = {network: float(np.median(run.value(f"{network}/z"))) for network in NETWORKS}
    count = len(run.value("trained/z"))
    shown = f"{share['trained']:.0%} of {count} neurons hold two or more patterns (median z {z['trained']:.1f})"
    return [
        by_effect(
            UNRELATED,
            measured=share["trained"],
            control=shuffled,
            margin=MARGIN,
            expected="more neurons with two or more groups of related contexts than sets of shuffled contexts have",
            shown=shown,
            control_shown=f"{shuffled:.0%} of sets of contexts shuffled between neurons (z 0)",
        ),
        by_effect(
            LEARNED,
            measured=share["trained"],
            control=share["untrained"],
            margin=MARGIN,
            expected="more such neurons than in the same network before training",
            shown=shown,
            control_shown=f"{share['untrained']:.0%} of the untrained network's neurons (median z {z['untrained']:.1f})",
        ),
    ]


def draw(run: Run) -> list[Drawing]:
    """The scores beside their controls, and a few neurons' contexts to read."""
    drawings = [_draw_scores(run)]
    if len(run.value("shown/neuron")):
        drawings.append(_draw_contexts(run))
    return drawings


def _draw_scores(run: Run) -> Drawing:
    figure, (left, right) = panels(2)
    colours = {"trained": BLUE, "untrained": CONTROL}
    both = np.concatenate([run.value(f"{network}/z") for network in NETWORKS])
    bins = np.linspace(min(both.min(), -3.0), max(both.max(), 3.0), 40)
    for network in NETWORKS:
        values = run.value(f"{network}/z")
        weights = np.full(len(values), 100 / len(values))
        left.hist(values, bins, weights=weights, histtype="step", lw=1.6, color=colours[network], label=network)
    left.axvline(0, ls="--", lw=1, color=ORANGE, label="shuffled contexts")
    left.set(xlabel="z of 1 − mean cosine between contexts", ylabel="neurons (%)", title="Related contexts: z < 0")
    left.legend(loc="upper left")
    kinds = {**{n: run.value(f"{n}/patterns") for n in NETWORKS}, "shuffled": run.value("trained/shuffled_patterns")}
    most = min(max(int(values.max()) for values in kinds.values()), 5)
    for i, (name, values) in enumerate(kinds.items()):
        height = [100 * float((np.minimum(values, most) == n).mean()) for n in range(most + 1)]
        place = np.arange(most + 1) + 0.27 * (i - 1)
        right.bar(place, height, 0.25, color=colours.get(name, ORANGE), label=name)
    ticks = range(most + 1)
    right.set_xticks(ticks, [f"{n}+" if n == most == 5 else str(n) for n in ticks])
    right.set(xlabel="unrelated patterns of one neuron", ylabel="neurons (%)", title="Patterns per neuron")
    right.legend()
    caption = (
        "Left: how much a neuron's strongest contexts resemble each other, against contexts shuffled between neurons. "
        "Right: groups of at least three related contexts per neuron."
    )
    return Drawing("unrelated-contexts", caption, figure)


def _draw_contexts(run: Run) -> Drawing:
    pieces = json.loads(run.value("shown/pieces").tobytes().decode())
    neurons, groups = run.value("shown/neuron"), run.value("shown/group")
    token, weight = run.value("shown/token"), run.value("shown/weight")
    lines = neurons.shape[0] * (token.shape[1] + 1)
    figure, (axis,) = panels(width=7.4, height=0.17 * lines + 0.1)
    axis.set(xlim=(-4, COLUMNS + 1), ylim=(lines - 0.2, -0.8))
    axis.axis("off")
    row = 0
    for i, (layer, neuron) in enumerate(neurons):
        axis.text(-4, row, f"Layer {layer + 1}, neuron {neuron}", fontsize=8.5, fontweight="bold", va="center")
        row += 1
        for j in range(token.shape[1]):
            axis.text(-3.5, row, "AB"[groups[i, j]], fontsize=8, va="center", color=(BLUE, GREEN)[groups[i, j]])
            _write_context(axis, row, [pieces[t] for t in token[i, j] if t >= 0], weight[i, j][token[i, j] >= 0])
            row += 1
    caption = (
        "Contexts on which one neuron of the trained network fires most, from two of its patterns, A and B. The query "
        "is the last token, underlined; bold are the three tokens shown that it attends to most."
    )
    return Drawing("pattern-superposition", caption, figure)


def _write_context(axis: Axes, row: int, pieces: list[str], weight: Any) -> None:
    """One line of text that ends with the query, cut at its left to the width of the figure."""
    bold = set(np.argsort(-weight)[:3][np.sort(-weight)[:3] < 0])
    shown = [_visible(piece) for piece in pieces]
    while sum(map(len, shown)) > COLUMNS:
        shown = shown[1:]
    column, first = 0, len(pieces) - len(shown)
    for i, piece in enumerate(shown, start=first):
        style: dict[str, Any] = {"fontweight": "bold"} if i in bold else {"alpha": 0.75}
        text = axis.text(column, row, piece, family="monospace", fontsize=7, va="center", parse_math=False, **style)
        if i == len(pieces) - 1:
            axis.plot([column, column + len(piece)], [row + 0.42] * 2, lw=1, color=text.get_color())
        column += len(piece)


def _visible(piece: str) -> str:
    """A token on one line: a mark for a line's end, one column for anything that does not print."""
    return "".join("↵" if c == "\n" else c if c.isprintable() else "·" for c in piece.replace("    ", " "))


def _layer_of(found: list[Superposition]) -> Tensor:
    return torch.cat([torch.full((len(s.score),), i) for i, s in enumerate(found)])


def _shown(found: list[Superposition], layers: list[Layer], tokens: Tensor) -> dict[str, Tensor]:
    """The neurons whose second pattern is largest, with two contexts of each of their two largest patterns."""
    ranked = []
    for number, each in enumerate(found):
        for neuron in torch.nonzero(each.patterns >= 2)[:, 0].tolist():
            sizes = torch.bincount(each.group[neuron], minlength=each.group.shape[1])
            largest = sizes.argsort(descending=True, stable=True)[:2]
            ranked.append((-int(sizes[largest[1]]), number, neuron, largest.tolist()))
    rows = [(number, neuron, labels) for _, number, neuron, labels in sorted(ranked)[:SHOWN]]
    pick: dict[str, list[Any]] = {"neuron": [], "group": [], "token": [], "weight": [], "activation": []}
    for number, neuron, labels in rows:
        each, layer = found[number], layers[number]
        chosen = [(g, c) for g, label in enumerate(labels) for c in _members(each.group[neuron], label)[:2]]
        at = [(int(each.texts[neuron, c]), int(each.positions[neuron, c])) for _, c in chosen]
        pick["neuron"].append(torch.tensor([number, neuron]))
        pick["group"].append(torch.tensor([g for g, _ in chosen]))
        pick["activation"].append(torch.stack([layer.height[text, neuron] for text, _ in at]))
        token, weight = zip(*(_context(layer, tokens, text, position) for text, position in at), strict=True)
        pick["token"].append(torch.stack(token))
        pick["weight"].append(torch.stack(weight))
    return {name: torch.stack(values) if values else torch.zeros(0) for name, values in pick.items()}


def _members(group: Tensor, label: int) -> list[int]:
    found: list[int] = torch.nonzero(group == label)[:, 0].tolist()
    return found


def _context(layer: Layer, tokens: Tensor, text: int, position: int) -> tuple[Tensor, Tensor]:
    """The last SPAN tokens up to the query (-1 where there are fewer) and the attention that each gets."""
    attention = torch.zeros(tokens.shape[1]).scatter_(0, layer.keys[text, position], layer.weights[text, position])
    start = max(0, position + 1 - SPAN)
    missing = SPAN - (position + 1 - start)
    ids = torch.cat([torch.full((missing,), -1), tokens[text, start : position + 1]])
    return ids, torch.cat([torch.zeros(missing), attention[start : position + 1]])


STUDY = Study(
    name="fig10",
    title="Figure 10: pattern superposition in MLP neurons",
    version=1,
    claims=(UNRELATED, LEARNED),
    quick=Config(),
    paper=Config(model="EleutherAI/pythia-70m", texts=4000, length=128, characters=10_000_000, device="cuda"),
    run=run,
    judge=judge,
    draw=draw,
    about=(
        "Every MLP neuron's 20 strongest contexts are taken from as many texts, each as a tf-idf vector of the tokens "
        "its query attends to. Contexts are related when they are closer than 99 % of the pairs between neurons; three "
        "or more contexts held together by related pairs are a pattern. A neuron with two patterns fires on unrelated "
        "combinations of tokens. The controls are contexts shuffled between neurons and the same network untrained."
    ),
)
