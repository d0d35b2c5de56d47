"""The networks of the study `kv-cache`: series of checkpoints trained here, and what each checkpoint is asked."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from joma.cache import POLICIES
from joma.claims.config import Least, OneOf, StudyConfig, Within
from joma.claims.contract import NotRun, Progress
from joma.claims.guards import at_paper_scale, needs_device, needs_transformers
from joma.claims.text_source import remember_source
from joma.data.python_source import source_text
from joma.runs import Run
from joma.studies.sparsity.kv_cache.measures import answers
from joma.studies.sparsity.kv_cache.stories import find_stories, load_stories, written
from joma.training.series import SeriesConfig, train_series

COMMAND = at_paper_scale("kv-cache")
NEEDED = ("window", "sinks", "h2o", "random")
"""Policies that claims compare."""


@dataclass(frozen=True)
class KvCacheConfig(StudyConfig):
    """Series of checkpoints of a GPT-NeoX, and caches that keep a part. Quick scale: a tiny one, on Python source."""

    layers: int = 2
    width: int = 32
    heads: int = 2
    vocabulary: int = 320
    context: Annotated[int, Least(32, "tokens for a cache worth cutting")] = 64
    batch: int = 6
    steps: int = 60
    rate: float = 0.02
    checkpoints: tuple[int, ...] = (20,)
    """Steps at which a checkpoint is measured, besides the first and the last."""
    characters: int = 150_000
    """How much Python source to train on."""
    held_out: int = 8_000
    """Characters at the end of the text that are not trained on, and that everything is measured on."""
    wikitext: bool = False
    """Train on WikiText-2 as well, found through JOMA_DATA."""
    keeps: Annotated[tuple[float, ...], Within(0, 1, open=True)] = (0.1, 0.2, 0.5)
    """Shares of the cache that are kept; 0.2 is what is judged."""
    policies: Annotated[tuple[str, ...], OneOf(*POLICIES[1:])] = (*NEEDED, "top-k")
    sinks: int = 2
    """First tokens that are never evicted, the same in all policies but the window."""
    sequences: Annotated[int, Least(4, "to regress over them")] = 10
    """Of `context` tokens each, that a checkpoint is measured on."""
    stories: int = 6
    """Sequences that stories260K writes, and is then measured on."""
    stories_length: int = 128
    seeds: int = 3
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if lack := [one for one in NEEDED if one not in self.policies]:
            raise ValueError(f"policies must hold {', '.join(NEEDED)}, which are compared; {lack[0]!r} is missing")
        if 0.2 not in self.keeps:
            raise ValueError(f"keeps must hold 0.2, which is judged, got {self.keeps}")
        if any(step >= self.steps for step in self.checkpoints):
            raise ValueError(f"checkpoints must lie below {self.steps}, the last step, got {self.checkpoints}")
        self.series(0)  # what cannot be trained is refused now

    def series(self, number: int) -> SeriesConfig:
        """Of the network with this number."""
        names = ("layers", "width", "heads", "vocabulary", "context", "batch", "steps", "rate")
        return SeriesConfig(**{name: getattr(self, name) for name in names}, seed=self.seed + number)

    @property
    def at(self) -> list[int]:
        """The steps of all checkpoints that are measured."""
        return sorted({0, *self.checkpoints, self.steps})


def run(config: KvCacheConfig, run: Run, progress: Progress) -> None:
    """Train a series of checkpoints per seed and cut the cache of each; then that of stories260K."""
    needs_transformers("kv-cache")
    needs_device(config.device, COMMAND)
    text = _corpus(config)
    remember_source(run)
    for number in range(config.seeds):

        def of_this(share: float, doing: str, number: int = number) -> None:
            progress(0.9 * (number + share) / config.seeds, f"network {number + 1}: {doing}")

        _train_and_measure(config, number, text, run, of_this)
    progress(0.9, "stories260K")
    path = find_stories()
    if path is not None and "stories/loss" not in run:
        model = load_stories(path)
        tokens = written(model, config.stories, config.stories_length, config.seed)
        run.record(0, {f"stories/{name}": value for name, value in _answers(config, model, tokens).items()})


def _answers(config: KvCacheConfig, model: Any, tokens: Tensor) -> dict[str, Tensor]:
    model, tokens = model.to(config.device), tokens.to(config.device)
    return answers(model, tokens, config.policies, config.keeps, config.sinks, seed=config.seed)


def prefix(number: int) -> str:
    """Before the names of all that is recorded of a network."""
    return f"seed {number}/"


def _train_and_measure(config: KvCacheConfig, number: int, text: str, run: Run, progress: Progress) -> None:
    """One network: its series of checkpoints, measured one by one. The checkpoints do not stay."""
    from joma.scan.model.loading import loaded_model

    place, folder = prefix(number), run.path.with_suffix(f".series{number}")
    done = set(run.steps(f"{place}loss").tolist()) if f"{place}loss" in run else set()
    if not done >= set(config.at):
        losses = train_series(
            folder,
            text[: -config.held_out],
            config.series(number),
            device=config.device,
            save_at=config.at,
            progress=lambda share, doing: progress(0.6 * share, doing),
        )
        run.keep(f"{place}train loss", lambda: np.array(losses))
        tokens = _held_out(folder / "step0", text[-config.held_out :], config)
        for count, step in enumerate(config.at):
            if step not in done:
                progress(0.6 + 0.4 * count / len(config.at), f"cutting the cache at step {step}")
                model = loaded_model(folder / f"step{step}", torch.device("cpu"), with_head=True)
                run.record(step, {place + name: value for name, value in _answers(config, model, tokens).items()})
    shutil.rmtree(folder, ignore_errors=True)


def _held_out(folder: Path, text: str, config: KvCacheConfig) -> Tensor:
    """(sequences, context), of text that was not trained on, spread over all of it."""
    from joma.scan.model.loading import tokenized

    ids = torch.tensor(tokenized(folder, text, "the held-out text"))
    count = len(ids) // config.context
    if count < config.sequences:
        raise ValueError(
            f"held_out must give {config.sequences} sequences of {config.context} tokens, its {config.held_out} "
            f"characters give {count}: hold out more"
        )
    chosen = torch.linspace(0, count - 1, config.sequences).round().long()
    return ids[: count * config.context].view(count, config.context)[chosen]


def _corpus(config: KvCacheConfig) -> str:
    """What is trained on, and at its end what is held out."""
    text = source_text(config.characters)
    if not config.wikitext:
        return text
    folder = Path(os.environ.get("JOMA_DATA", "")) / "wikitext-2"
    if not os.environ.get("JOMA_DATA") or not (folder / "train.txt").is_file():
        raise NotRun(f"WikiText-2 is not at {folder}", f"JOMA_DATA=FOLDER {COMMAND}")
    # Held out is the end: half of each, so that both kinds of text are measured.
    wiki, half = (folder / "train.txt").read_text(encoding="utf-8"), config.held_out // 2
    unseen = (folder / "valid.txt").read_text(encoding="utf-8")[:half]
    return wiki + text[:-half] + unseen + text[-half:]
