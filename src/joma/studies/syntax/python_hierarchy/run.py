"""Small decoders that read Python source as it is written and shuffled, measured on held-out files as they learn."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from joma.claims.config import Least, StudyConfig, Within
from joma.claims.contract import Progress
from joma.claims.guards import at_paper_scale, needs_device
from joma.claims.text_source import remember_source
from joma.data.ahead import Ahead, sent
from joma.data.python_source import python_tokens
from joma.models import Decoder, DecoderConfig
from joma.recipes.optimizers import make_optimizer
from joma.runs import Run
from joma.studies.syntax.python_hierarchy.record import LEVELS, Half, Material, alignment, prepare, token_score
from joma.training import Ensemble, next_token_loss, train


@dataclass(frozen=True)
class PythonHierarchyConfig(StudyConfig):
    """Small decoders on Python source; the same ones on its tokens in random order are a control."""

    tokens: int = 300_000
    """Of source to read."""
    held_out: Annotated[float, Within(0, 1, open=True)] = 0.4
    """The share of it, in whole files, that is never trained on."""
    vocabulary: int = 256
    layers: Annotated[int, Least(2, "to compare the last block with the first")] = 2
    width: int = 32
    heads: int = 2
    mlp: int = 64
    context: Annotated[int, Least(4)] = 48
    dropout: float = 0.0
    batch: int = 3
    steps: int = 320
    rate: float = 0.007
    points: int = 6
    """How often to measure; each time after 1.4 times as many steps as the time before, and before the first step."""
    seeds: Annotated[int, Least(2, "for an interval")] = 4
    """Networks trained on the text as it is written."""
    shuffled: int = 2
    """Of them, how many are also trained on shuffled tokens; with fewer than 2 that control has no interval."""
    windows: int = 64
    """Pieces of held-out text to choose neurons on, and as many to score them on."""
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shuffled > self.seeds:
            raise ValueError(f"shuffled must be at most seeds ({self.seeds}), got {self.shuffled}")
        self.shape(self.vocabulary)  # refuses what cannot be a decoder

    def shape(self, vocabulary: int) -> DecoderConfig:
        names = ("layers", "width", "heads", "mlp", "context", "dropout")
        return DecoderConfig(vocabulary, **{name: getattr(self, name) for name in names})


def run(config: PythonHierarchyConfig, run: Run, progress: Progress) -> None:
    """Train on text and on shuffled text, at once, and measure on held-out files over training."""
    needs_device(config.device, at_paper_scale("python-hierarchy"))
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
    ensemble = make_ensemble(config, len(code.vocabulary), material, seeds)
    train(ensemble, run, progress=lambda share, doing: progress(0.1 + 0.9 * share, doing))


def make_ensemble(config: PythonHierarchyConfig, vocabulary: int, material: Material, seeds: Sequence[int]) -> Ensemble:
    """Networks on the text as it is written, then those on shuffled text."""
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
        optimizer=make_optimizer("adam", rate=config.rate, clip=1.0),
        steps=config.steps,
        measures={"alignment": measure},
        measure_at=sorted({0, *(round(config.steps / 2 ** (i / 2)) for i in range(config.points))}),
        device=config.device,
        precision="tf32" if config.device.startswith("cuda") else "float32",
    )


def _places(seed: int, most: int, count: int) -> Tensor:
    return torch.randint(most, (count,), generator=torch.Generator().manual_seed(seed))
