"""Section 5 on real code: do hidden nodes come to stand for Python's syntax, and its lower levels first?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.data.python_source import python_tokens
from joma.measure.intervals import MeanInterval
from joma.models import Decoder, DecoderConfig
from joma.runs import Run
from joma.studies._syntax_alignment import (
    LEVELS,
    VERSIONS,
    Half,
    Material,
    alignment,
    prepare,
    token_score,
)
from joma.studies._syntax_figures import draw_blocks, draw_labels, draw_training
from joma.studies._syntax_scores import Scores, interval, mean, slope
from joma.studies.contract import Claim, Drawing, Finding, NotRun, Progress, Study
from joma.studies.verdicts import by_effect, by_test
from joma.training import Ensemble, Optimizer, next_token_loss, train

MARGIN = 0.02  # of correlation: by how much the interval of a gain must clear its control
HIGH = 0.8  # of what all hidden nodes together tell: what one node must tell to stand for a latent
LATER = 0.1  # octaves of training time a level: by how much higher levels must come later
DEEPER = 0.01  # of correlation a level: by how much higher levels must gain more in the last block than in the first


@dataclass(frozen=True)
class Config:
    """Small decoders on the standard library's source; the same ones on its tokens in random order are a control."""

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
    shuffled: int = 1
    """Of them, how many are also trained on shuffled tokens."""
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
    "Training makes hidden nodes of the MLP stand for the latent variables behind the tokens; here: kinds of syntax.",
    empirical=True,
)
BEYOND = Claim(
    "nodes-hold-combinations",
    "JoMA Sec. 1",
    "What hidden nodes learn are combinations of tokens, not single tokens.",
    empirical=True,
)
ONE_NODE = Claim(
    "one-node-each",
    "JoMA Sec. 6",
    "For every latent there is one hidden node that correlates highly with it.",
    empirical=True,
)
ORDER = Claim(
    "lower-levels-first",
    "JoMA Sec. 5",
    "Low levels of the hierarchy, whose tokens occur together most, are learned before higher ones.",
    empirical=True,
)
DEPTH = Claim(
    "higher-levels-in-later-blocks",
    "JoMA Sec. 5",
    "Later blocks build higher levels out of what earlier blocks have learned.",
    empirical=True,
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train on text and on shuffled text, at once, and measure on held-out files over training."""
    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise NotRun("torch sees no CUDA GPU here", "joma verify python-hierarchy --scale paper")
    code = python_tokens(config.vocabulary, tokens=config.tokens, progress=lambda s, doing: progress(0.1 * s, doing))
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

    def batch(step: int, members: Sequence[int]) -> tuple[Tensor, ...]:
        """Windows at random places; a network on shuffled text reads the same places as its twin."""
        places, most = [], texts.shape[1] - config.context
        for member in members:
            generator = torch.Generator().manual_seed(seeds[member] * 1_000_003 + step)
            places.append(torch.randint(most, (config.batch,), generator=generator))
        text = torch.tensor([int(member >= config.seeds) for member in members])
        where = torch.stack([text[:, None].expand(-1, config.batch), torch.stack(places)]).to(config.device)
        windows = texts[where[0, ..., None], where[1, ..., None] + offsets]
        return windows[..., :-1], windows[..., 1:]

    def measure(decoder: Decoder, members: Sequence[int]) -> Tensor:
        chosen, scored = (Half(*(part[list(members)] for part in half)) for half in halves)
        return alignment(decoder, chosen, scored)

    return Ensemble(
        members=len(seeds),
        networks=lambda members: Decoder(shape, [seeds[member] for member in members]),
        batch=batch,
        loss=next_token_loss,
        optimizer=Optimizer("adam", rate=config.rate, clip=1.0),
        steps=config.steps,
        measures={"alignment": measure},
        measure_at=sorted({0, *(round(config.steps / 2 ** (i / 2)) for i in range(config.points))}),
        device=config.device,
        precision="tf32" if config.device.startswith("cuda") else "float32",
    )


def judge(run: Run) -> list[Finding]:
    """Gains over every control with their intervals over seeds; slopes over levels."""
    scores = Scores(run)
    note = f"; {scores.diverged} networks diverged and are left out" if scores.diverged else ""
    return [
        _judge_gain(
            ALIGN,
            scores,
            "labels",
            "the best hidden node, chosen on other files, beyond untrained networks, rotated labels and shuffled text",
            note,
        ),
        _judge_gain(BEYOND, scores, "beyond", "the same for what the current token does not tell of the label", note),
        _judge_one_node(scores, note),
        _judge_order(scores, note),
        _judge_depth(scores, note),
    ]


def _worst(scores: Scores, version: str) -> tuple[MeanInterval, dict[str, Any]]:
    """The gain over the control that is hardest to exceed, of the mean over levels, and all controls."""
    trained, controls = scores.of("neuron", version)[-1], scores.controls("neuron", version)
    gains = [interval((trained - control).mean(-1)) for control in controls.values()]
    return min(gains, key=lambda gain: float(gain.low) if gain.low.isfinite() else -np.inf), controls


def _judge_gain(claim: Claim, scores: Scores, version: str, expected: str, note: str) -> Finding:
    trained = scores.of("neuron", version)[-1]
    gain, controls = _worst(scores, version)
    return by_effect(
        claim,
        measured=float(gain.low),
        control=0.0,
        margin=MARGIN,
        expected=expected,
        shown=f"correlation {trained.mean():.3f} ({_levels(trained)}); gain over the best control {_pm(gain)}{note}",
        control_shown="; ".join(f"{name} {np.mean(value):.3f}" for name, value in controls.items())
        + f"; for comparison, the current token alone {scores.token.mean():.3f}" * (version == "labels"),
    )


def _judge_one_node(scores: Scores, note: str) -> Finding:
    def share(step: int) -> Any:
        return scores.of("neuron", "labels")[step].mean(-1) / scores.of("hidden", "labels")[step].mean(-1)

    found, before = interval(share(-1)), interval(share(0))
    gain, _ = _worst(scores, "labels")
    learned = bool(gain.low > MARGIN)
    return by_test(
        ONE_NODE,
        measured=f"the best node reaches {_pm(found)} of the correlation that all hidden nodes reach together{note}",
        expected=f"at least {HIGH:g} of it, and more than before training",
        as_printed=learned and bool(found.low >= HIGH),
        in_direction=learned,
        tolerance=HIGH,
        control=f"untrained {_pm(before)}",
    )


def _judge_order(scores: Scores, note: str) -> Finding:
    found = scores.order()
    shown = ", ".join(f"{level} {_step(rise)}" for level, rise in zip(LEVELS, scores.rise(), strict=True))
    return by_effect(
        ORDER,
        measured=float(found.low),
        control=0.0,
        margin=LATER,
        expected="the gain of all hidden nodes together, beyond the token, made later, the higher the level",
        shown=f"made in the middle at step {shown}; {_pm(found)} octaves a level{note}",
        control_shown="0 octaves on average over all orders of the levels",
    )


def _judge_depth(scores: Scores, note: str) -> Finding:
    after, before = scores.deepening(-1), scores.deepening(0)
    rank = np.arange(len(LEVELS))
    found, control = interval(slope(after - before, rank)), interval(slope(before, rank))
    return by_effect(
        DEPTH,
        measured=float(found.low),
        control=0.0,
        margin=DEEPER,
        expected="the last block's best node ahead of the first block's by more, the higher the level",
        shown=f"ahead by {_levels(after)}; {_pm(found)} a level more than untrained{note}",
        control_shown=f"untrained {_pm(control)} a level",
    )


def _levels(values: Any) -> str:
    """(seeds, levels) as words."""
    return ", ".join(f"{level} {value:.2f}" for level, value in zip(LEVELS, values.mean(0), strict=True))


def _pm(found: MeanInterval) -> str:
    return f"{float(found.mean):.3f} ± {float(found.half_width):.3f}"


def _step(octave: float) -> str:
    return f"{2**octave:.0f}" if np.isfinite(octave) else "(not learned)"


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
    version=2,
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
    judge=judge,
    draw=draw,
    about=(
        "Decoders learn to predict the next token of Python's standard library. On files they never saw, every "
        "frequent label of the syntax tree (expressions, statements, blocks, definitions) is a latent. The best hidden "
        "node is chosen on one half of these files and scored on the other, over training. Controls: the same network "
        "untrained, the same one trained on shuffled tokens, and labels rotated within their file. Since much of the "
        "syntax can be read off the current token, the label less its mean given the token is scored as well. Every "
        "seed has its own weights, its own batches and its own halves."
    ),
)
