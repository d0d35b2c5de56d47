"""What the study of gradients is told, and which decoders it trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from joma.data.text import Corpus
from joma.host.words import counted
from joma.recipes.language import LanguageModelConfig, Recipe, recipe
from joma.training import Optimizer

SERIES = "Figure 7's size"
"""The decoder of the size of Figure 7's series."""


@dataclass(frozen=True)
class Config(LanguageModelConfig):
    """Decoders of Figure 6 at several depths, and one of Figure 7's size, each with twins that get shuffled targets."""

    layers: tuple[int, ...] = (1, 3)
    rate: float = 3e-3
    refresh: int = 200
    """Steps between two neighbouring points at which subspaces are compared; GaLore renews its projector as often."""
    pairs: int = 5
    """How many such pairs of points there are, closer together at the beginning."""
    batches: int = 8
    """Training batches in the large batch that gradients are taken of; a second one has as many others."""
    series_layers: int = 3
    series_width: int = 32
    series_heads: int = 4
    series_length: int = 64
    series_streams: int = 8
    series_batches: int = 4
    series_vocabulary: int = 600
    series_steps: int = 300
    series_rate: float = 3e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.layers or min(self.layers) < 1:
            raise ValueError(f"layers must be whole numbers of at least 1, got {self.layers}")
        if self.pairs < 2:
            raise ValueError(f"pairs must be at least 2, one at the beginning and one at the end, got {self.pairs}")
        for name, steps in (("steps", self.steps), ("series_steps", self.series_steps)):
            if steps % self.refresh or steps < 2 * self.refresh:
                raise ValueError(f"{name} must be a multiple of refresh, {self.refresh}, from twice on, got {steps}")
        for name, width in (("width", self.width), ("series_width", self.series_width)):
            if width < 16:
                raise ValueError(f"{name} must be at least 16 to have a sixteenth, got {width}")


def depth_name(layers: int) -> str:
    """The name of a decoder of Figure 6 with so many layers, in the record and in words."""
    return counted(layers, "layer")


def variants(config: Mapping[str, Any]) -> list[str]:
    """The names of all decoders of a recorded config."""
    return [*map(depth_name, config["layers"]), SERIES]


def sides(config: Mapping[str, Any]) -> dict[str, int]:
    """The shorter side m of all matrices of each decoder."""
    return {name: int(config["series_width" if name == SERIES else "width"]) for name in variants(config)}


def points(steps: int, refresh: int, pairs: int) -> list[int]:
    """Pairs of steps that are `refresh` apart: the first at 0, the last at the end, more of them early.

    >>> points(5800, 200, 4)
    [0, 200, 400, 1000, 1200, 5600, 5800]
    """
    later = np.geomspace(refresh, steps - refresh, pairs - 1)
    starts = {0, steps - refresh, *(round(start / refresh) * refresh for start in later[:-1])}
    return sorted(starts | {start + refresh for start in starts})


def recipes(config: Config, text: Corpus) -> dict[str, Recipe]:
    """How each decoder is trained; the two "rates" are the text and its twin with shuffled targets."""
    made = {
        depth_name(layers): recipe(config, text, layers=layers, rates=(config.rate, config.rate))
        for layers in config.layers
    }
    return made | {SERIES: _series(config, text)}


def _series(config: Config, text: Corpus) -> Recipe:
    """Pre-norm, GELU, an MLP four times as wide, AdamW: as the networks of Figure 7, but for positions and words."""
    sizes: dict[str, Any] = {
        "width": config.series_width, "mlp": 4 * config.series_width, "heads": config.series_heads, "dropout": 0.0,
        "length": config.series_length, "streams": config.series_streams, "steps": config.series_steps, "sequence": 0,
        "every": config.series_steps // 2,
        "valid_sequences": max(1, config.valid_sequences * config.length // config.series_length),
    }  # fmt: skip
    base = recipe(replace(config, **sizes), text, layers=config.series_layers, rates=(config.series_rate,) * 2)
    words = min(config.series_vocabulary, len(text.vocabulary))
    base = base.with_decoder(norm="pre-layer", activation="gelu", copies=False, vocabulary=words)
    optimizer = Optimizer("adamw", betas=(0.9, 0.95), weight_decay=0.01, clip=1.0)
    return base.with_(optimizer=optimizer, precision="float32" if config.precision == "float32" else "half")
