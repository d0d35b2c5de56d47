"""Section 5 on real code: do hidden nodes come to stand for Python's syntax, and its lower levels first?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, NotRun, Progress, Study, each_claim
from joma.claims.evidence import at_least
from joma.claims.guards import beyond, hardest
from joma.claims.text_source import remember_source
from joma.claims.verdicts import Numbers, by_effect, not_run
from joma.data.ahead import Ahead, sent
from joma.data.python_source import python_tokens
from joma.host.devices import lacking
from joma.measure.intervals import Comparison, compare
from joma.models import Decoder, DecoderConfig
from joma.runs import Run
from joma.studies.syntax._alignment import (
    LEVELS,
    VERSIONS,
    Half,
    Material,
    alignment,
    prepare,
    token_score,
)
from joma.studies.syntax._figures import draw_blocks, draw_labels, draw_training
from joma.studies.syntax._scores import FEWEST, Scores, mean, slope
from joma.training import Ensemble, Optimizer, next_token_loss, train

MARGIN = 0.02  # of correlation: the smallest gain over a control that matters
SHARE = 0.05  # of what all hidden nodes together tell: the smallest gain of the best one that matters
HIGH = 0.8  # of what all hidden nodes together tell: what one node must tell to stand for a latent
LATER = 0.1  # octaves of training time a level: by how much higher levels must come later
DEEPER = 0.01  # of correlation a level: by how much higher levels must gain more in the last block than in the first
COMMAND = "joma verify python-hierarchy --scale paper"


@dataclass(frozen=True)
class Config:
    """Small decoders on Python source; the same ones on its tokens in random order are a control."""

    tokens: int = 300_000
    """Of source to read."""
    held_out: float = 0.4
    """The share of it, in whole files, that is never trained on."""
    vocabulary: int = 256
    layers: int = 2
    width: int = 32
    heads: int = 2
    mlp: int = 64
    context: int = 48
    dropout: float = 0.0
    batch: int = 3
    steps: int = 320
    rate: float = 0.007
    points: int = 6
    """How often to measure; each time after 1.4 times as many steps as the time before, and before the first step."""
    seeds: int = 4
    """Networks trained on the text as it is written."""
    shuffled: int = 2
    """Of them, how many are also trained on shuffled tokens; with fewer than 2 that control has no interval."""
    windows: int = 64
    """Pieces of held-out text to choose neurons on, and as many to score them on."""
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise ValueError(f"seeds must be at least 2 for an interval, got {self.seeds}")
        if self.shuffled > self.seeds:
            raise ValueError(f"shuffled must be at most seeds ({self.seeds}), got {self.shuffled}")
        if self.layers < 2:
            raise ValueError(f"layers must be at least 2 to compare the last block with the first, got {self.layers}")
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out must lie between 0 and 1, got {self.held_out:g}")
        if self.context < 4:
            raise ValueError(f"context must be at least 4, got {self.context}")
        self.shape(self.vocabulary)  # refuses what cannot be a decoder

    def shape(self, vocabulary: int) -> DecoderConfig:
        """Of the decoders that read so many words."""
        return DecoderConfig(
            vocabulary,
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            mlp=self.mlp,
            context=self.context,
            dropout=self.dropout,
        )


ALIGN = Claim(
    "nodes-align-with-syntax",
    "JoMA Sec. 5",
    "Training makes hidden nodes of the MLP stand for the latent variables behind the tokens. Here these are kinds of "
    "syntax.",
    matters=MARGIN,
    ceiling=1.0,
)
BEYOND = Claim(
    "nodes-hold-combinations",
    "JoMA Sec. 1",
    "Hidden nodes learn combinations of tokens, not single tokens.",
    matters=MARGIN,
    ceiling=1.0,
)
ONE_NODE = Claim(
    "one-node-each",
    "JoMA Sec. 6",
    "For every latent there is one hidden node that correlates highly with it.",
    matters=SHARE,
    unit="%",
    ceiling=1.0,
    uses=("python-hierarchy/nodes-align-with-syntax",),
)
ORDER = Claim(
    "lower-levels-first",
    "JoMA Sec. 5",
    "Low levels of the hierarchy are learned before higher levels. Their tokens occur together most often.",
    matters=LATER,
    unit="octaves",
    uses=("thm5/shallow-means-often",),
)
DEPTH = Claim(
    "higher-levels-in-later-blocks",
    "JoMA Sec. 5",
    "Later blocks build higher levels from what earlier blocks have learned.",
    matters=DEEPER,
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train on text and on shuffled text, at once, and measure on held-out files over training."""
    if lacks := lacking(config.device):
        raise NotRun(str(lacks), COMMAND)
    code = python_tokens(config.vocabulary, tokens=config.tokens, progress=lambda s, doing: progress(0.1 * s, doing))
    remember_source(run, code.source)
    # Which seed a member has: those on shuffled text repeat the first ones.
    seeds = [config.seed + i for i in (*range(config.seeds), *range(config.shuffled))]
    material = prepare(code, config, seeds)
    latents = material.latents
    names = [[LEVELS[level], code.names[LEVELS[level]][label]] for level, label in zip(*latents[:2], strict=True)]
    run.keep("latents", lambda: np.frombuffer(json.dumps(names).encode(), np.uint8))
    run.keep("level", lambda: latents.level)
    run.keep("share", lambda: latents.share)
    run.keep("token", lambda: token_score(material.scored, len(latents.level))[: config.seeds])
    run.keep("corpus", lambda: torch.tensor([len(material.train), *material.files, code.skipped]))
    ensemble = _ensemble(config, len(code.vocabulary), material, seeds)
    train(ensemble, run, progress=lambda share, doing: progress(0.1 + 0.9 * share, doing))


def _ensemble(config: Config, vocabulary: int, material: Material, seeds: Sequence[int]) -> Ensemble:
    shape = config.shape(vocabulary)
    order = torch.randperm(len(material.train), generator=torch.Generator().manual_seed(config.seed))
    texts = torch.stack([material.train, material.train[order]]).to(config.device)  # as written, shuffled
    halves = [Half(*(part.to(config.device) for part in half)) for half in (material.chosen, material.scored)]
    offsets = torch.arange(config.context + 1, device=config.device)

    def draw(steps: range, members: Sequence[int]) -> tuple[Tensor, ...]:
        """Windows at random places; a network on shuffled text reads the same places as its twin."""
        most = texts.shape[1] - config.context
        places = torch.stack([_places(seeds[m] * 1_000_003 + s, most, config.batch) for s in steps for m in members])
        where = sent(places.unflatten(0, (len(steps), len(members))), config.device)
        text = sent([int(member >= config.seeds) for member in members], config.device)
        windows = texts[text[:, None, None], where[..., None] + offsets]
        return windows[..., :-1], windows[..., 1:]

    def measure(decoder: Decoder, members: Sequence[int]) -> Tensor:
        chosen, scored = (Half(*(part[list(members)] for part in half)) for half in halves)
        return alignment(decoder, chosen, scored)

    return Ensemble(
        members=len(seeds),
        networks=lambda members: Decoder(shape, [seeds[member] for member in members]),
        batch=Ahead(draw, steps=config.steps, device=config.device),
        loss=next_token_loss,
        optimizer=Optimizer("adam", rate=config.rate, clip=1.0),
        steps=config.steps,
        measures={"alignment": measure},
        measure_at=sorted({0, *(round(config.steps / 2 ** (i / 2)) for i in range(config.points))}),
        device=config.device,
        precision="tf32" if config.device.startswith("cuda") else "float32",
    )


def _places(seed: int, most: int, count: int) -> Tensor:
    return torch.randint(most, (count,), generator=torch.Generator().manual_seed(seed))


def _align(run: Run) -> Finding:
    expected = "the best hidden node, chosen on other files, correlates with the label more than every control"
    return _gain(ALIGN, Scores(run), "labels", "correlation of the best hidden node with a label", expected)


def _combinations(run: Run) -> Finding:
    expected = (
        "the best hidden node correlates more than every control with the part of the label that the token does not "
        "tell"
    )
    what = "correlation of the best hidden node with a label, beyond the token"
    return _gain(BEYOND, Scores(run), "beyond", what, expected)


def _gain(claim: Claim, scores: Scores, version: str, what: str, expected: str) -> Finding:
    if reason := scores.unlearned:
        return not_run(claim, expected, reason, COMMAND)
    trained, found = scores.of("neuron", version)[-1], scores.beside_controls("neuron", version)
    controls = {name.removeprefix("beside "): one.control for name, one in found.items()}
    if version == "labels":
        controls["the current token alone, for comparison"] = float(scores.token.mean())
    return by_effect(
        claim,
        hardest(claim, found),
        what=what,
        expected=expected,
        details=_and_lost(scores, {"by level": _by_level(trained), "controls": controls}),
    )


def _one_node(run: Run) -> Finding:
    """The share in what all nodes tell, beside the untrained one; the best node must also exceed its own controls."""
    expected = (
        "one node reaches at least 80 % of the correlation of all hidden nodes together, and more than before training"
    )
    scores = Scores(run)
    if reason := scores.unlearned:
        return not_run(ONE_NODE, expected, reason, COMMAND)
    best, all_nodes = (scores.of(place, "labels").mean(-1) for place in ("neuron", "hidden"))
    share = best / all_nodes
    (gain,) = hardest(ALIGN, scores.beside_controls("neuron", "labels")).values()
    return by_effect(
        ONE_NODE,
        {"beside the untrained network": compare(share[-1], share[0])},
        what="correlation of the best hidden node, as a share of that of all nodes together",
        expected=expected,
        size=[at_least("lower end of this share", compare(share[-1]).low, HIGH, "%")],
        controls=[beyond(ALIGN, "gain of the best node's correlation over its hardest control", gain)],
        details=_and_lost(scores, {}),
    )


def _order(run: Run) -> Finding:
    """Beside 0 octaves, which is the mean over all orders of the levels."""
    expected = "the higher the level, the later all hidden nodes together gain what they tell beyond the token"
    scores = Scores(run)
    if reason := scores.unlearned or _too_few_levels(scores):
        return not_run(ORDER, expected, reason, COMMAND)
    steps = {level: float(2**octave) for level, octave in zip(LEVELS, scores.rise(), strict=True)}
    return by_effect(
        ORDER,
        compare(scores.order()),
        what="delay of each level behind the one below it",
        expected=expected,
        details=_and_lost(scores, {"step at the middle of the gain": steps}),
    )


def _too_few_levels(scores: Scores) -> str | None:
    learned = int(np.isfinite(scores.rise()).sum())
    if scores.written.shape[1] < 2 or learned >= FEWEST:  # of one network alone nothing is known, and that is undecided
        return None
    return f"only {learned} of {len(LEVELS)} levels of syntax were learned, and {FEWEST} are needed for an order"


def _depth(run: Run) -> Finding:
    expected = "the higher the level, the larger the lead of the last block's best node over the first block's"
    scores = Scores(run)
    if reason := scores.unlearned:
        return not_run(DEPTH, expected, reason, COMMAND)
    after, before = scores.deepening(-1), scores.deepening(0)
    return by_effect(
        DEPTH,
        {"beside the untrained network": _slopes(after, before)},
        what="growth per level of the last block's lead over the first block, in correlation",
        expected=expected,
        details=_and_lost(scores, {"lead of the last block": _by_level(after)}),
    )


def _slopes(after: Any, before: Any) -> Comparison:
    rank = np.arange(len(LEVELS))
    return compare(slope(after, rank), slope(before, rank))


def _by_level(values: Any) -> dict[str, float]:
    """(seeds, levels) as means."""
    return {level: float(value) for level, value in zip(LEVELS, values.mean(0), strict=True)}


def _and_lost(scores: Scores, beside: dict[str, dict[str, float]]) -> Numbers:
    """With the number of networks that are left out, if there are any."""
    lost = {"diverged and left out": {"networks": float(scores.diverged)}} if scores.diverged else {}
    return beside | lost


def draw(run: Run) -> list[Drawing]:
    """Alignment over training, by block, and label by label."""
    scores = Scores(run)
    curves: Mapping[str, Any] = {
        "neuron": scores.of("neuron", "labels"),
        "rotated": scores.of("neuron", "rotated"),
        "beyond": scores.of("neuron", "beyond"),
        "hidden": scores.of("hidden", "beyond"),
        "rise": scores.rise(),
    }
    ends = {key: scores.of(*place, shuffled=True)[-1] for key, place in _SHUFFLED.items()}
    blocks = {
        kind: np.stack([scores.of(f"{kind} {i + 1}", "beyond")[[0, -1]] for i in range(scores.layers)])
        for kind in ("neuron", "stream")
    }
    labels = {
        "rotated": scores.written[-1, :, scores.row["neuron"], VERSIONS.index("rotated")],
        "untrained": scores.written[0, :, scores.row["neuron"], 0],
        "trained": scores.written[-1, :, scores.row["neuron"], 0],
        "together": scores.written[-1, :, scores.row["hidden"], 0],
        "token": run.value("token"),
    }
    return [
        draw_training(scores.steps, curves, ends),
        draw_blocks(blocks),
        draw_labels(scores.names, run.value("share"), {name: mean(value.T) for name, value in labels.items()}),
    ]


_SHUFFLED = {"neuron": ("neuron", "labels"), "beyond": ("neuron", "beyond"), "hidden": ("hidden", "beyond")}

STUDY = Study(
    name="python-hierarchy",
    title="Section 5 on real code: hidden nodes and the syntax of Python",
    version=3,
    claims=(ALIGN, BEYOND, ONE_NODE, ORDER, DEPTH),
    quick=Config(),
    paper=Config(
        tokens=2_000_000,
        held_out=0.2,
        vocabulary=4096,
        layers=4,
        width=256,
        heads=4,
        mlp=1024,
        context=256,
        dropout=0.2,
        batch=16,
        steps=3000,
        rate=5e-4,
        points=16,
        seeds=5,
        shuffled=2,
        windows=128,
        device="cuda",
    ),
    run=run,
    judge=each_claim(_align, _combinations, _one_node, _order, _depth),
    draw=draw,
    about=(
        "Decoders learn to predict the next token of the source of sympy. They are tested on files they never saw. "
        "Every frequent label of the syntax tree (expressions, statements, blocks, definitions) is a latent. The best "
        "hidden node for a label is chosen on one half of these files and scored on the other half, "
        "over training. There are three controls: the same network before training, networks trained on shuffled "
        "tokens, and labels rotated within their file. Much of the syntax can be read from the current token. "
        "Therefore the part of the label that the token does not tell is scored too: the label minus its mean given "
        "the token. Every seed has its own weights, its own batches and its own halves of the files."
    ),
)
