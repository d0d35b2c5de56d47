"""The networks of the study `kv-cache`: series of checkpoints trained here, and what each checkpoint is asked."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.cache import POLICIES
from joma.claims.contract import NotRun, Progress
from joma.data.python_source import source_text
from joma.runs import Run
from joma.studies.sparsity._kv_measures import answers
from joma.training.series import SeriesConfig, train_series

COMMAND = "joma verify kv-cache --scale paper"
NEEDED = ("window", "sinks", "h2o", "random")
"""Policies that claims compare."""


@dataclass(frozen=True)
class Config:
    """Series of checkpoints of a GPT-NeoX, and caches that keep a part. Quick scale: a tiny one, on Python source."""

    layers: int = 2
    width: int = 32
    heads: int = 2
    vocabulary: int = 320
    context: int = 64
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
    keeps: tuple[float, ...] = (0.1, 0.2, 0.5)
    """Shares of the cache that are kept; 0.2 is what is judged."""
    policies: tuple[str, ...] = (*NEEDED, "top-k")
    sinks: int = 2
    """First tokens that are never evicted, the same in all policies but the window."""
    sequences: int = 10
    """Of `context` tokens each, that a checkpoint is measured on."""
    stories: int = 6
    """Sequences that stories260K writes, and is then measured on."""
    stories_length: int = 128
    seeds: int = 3
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if wrong := [one for one in self.policies if one not in POLICIES or one == "full"]:
            raise ValueError(f"policies must be some of {', '.join(POLICIES[1:])}, got {wrong[0]!r}")
        if lack := [one for one in NEEDED if one not in self.policies]:
            raise ValueError(f"policies must hold {', '.join(NEEDED)}, which are compared; {lack[0]!r} is missing")
        if any(not 0 < keep < 1 for keep in self.keeps) or 0.2 not in self.keeps:
            raise ValueError(f"keeps must be shares between 0 and 1, 0.2 among them, got {self.keeps}")
        if any(step >= self.steps for step in self.checkpoints):
            raise ValueError(f"checkpoints must lie below {self.steps}, the last step, got {self.checkpoints}")
        if self.context < 32:
            raise ValueError(f"context must be at least 32 tokens for a cache worth cutting, got {self.context}")
        if self.sequences < 4:
            raise ValueError(f"sequences must be at least 4 to regress over them, got {self.sequences}")
        self.series(0)  # what cannot be trained is refused now

    def series(self, number: int) -> SeriesConfig:
        """Of the network with this number."""
        return SeriesConfig(
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            vocabulary=self.vocabulary,
            context=self.context,
            batch=self.batch,
            steps=self.steps,
            rate=self.rate,
            seed=self.seed + number,
        )

    @property
    def at(self) -> list[int]:
        """The steps of all checkpoints that are measured."""
        return sorted({0, *self.checkpoints, self.steps})


def prefix(number: int) -> str:
    """Before the names of all that is recorded of a network."""
    return f"seed {number}/"


def train_and_measure(config: Config, number: int, text: str, run: Run, progress: Progress) -> None:
    """One network: its series of checkpoints, measured one by one. The checkpoints do not stay."""
    place, folder = prefix(number), run.path.with_suffix(f".series{number}")
    done = set(run.steps(f"{place}loss").tolist()) if f"{place}loss" in run else set()
    if done >= set(config.at):
        shutil.rmtree(folder, ignore_errors=True)
        return
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
            found = measured(folder / f"step{step}", tokens, config)
            run.record(step, {place + name: value for name, value in found.items()})
    shutil.rmtree(folder, ignore_errors=True)


def measured(folder: Path, tokens: Tensor, config: Config) -> dict[str, Any]:
    """What a checkpoint answers; see `joma.studies.sparsity._kv_measures.answers`."""
    from joma.scan.model.loading import loaded_model

    model = loaded_model(folder, torch.device("cpu"), with_head=True).to(config.device)
    return answers(model, tokens.to(config.device), config.policies, config.keeps, config.sinks, seed=config.seed)


def _held_out(folder: Path, text: str, config: Config) -> Tensor:
    """(sequences, context), of text that was not trained on, spread over all of it."""
    from joma.scan.model.tokenizing import tokenized

    ids = torch.tensor(tokenized(folder, text, "the held-out text"))
    count = len(ids) // config.context
    if count < config.sequences:
        raise ValueError(
            f"held_out must give {config.sequences} sequences of {config.context} tokens, its {config.held_out} "
            f"characters give {count}: hold out more"
        )
    chosen = torch.linspace(0, count - 1, config.sequences).round().long()
    return ids[: count * config.context].view(count, config.context)[chosen]


def corpus(config: Config) -> str:
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
