"""How a scan takes measures that need a running model, and which measures a user named.

What a measure is, and how one of weights is computed, stands in `joma.measure.registry`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joma.host.errors import BadInput
from joma.measure.registry import WeightMeasure, full_spectra, full_spectrum, leading_spectrum, measures_of
from joma.scan.model.allocation import Pair, allocated, loaded_whole, must_have_gradients
from joma.scan.model.running import Between, must_attend, must_show_queries

SCANNED = measures_of("scan")


@dataclass(frozen=True)
class ModelMeasure:
    """Numbers of the running model on a text, by layer and head. No names of matrices are needed.

    All that are asked for come from one reading of the text, `joma.scan.running.statistics`.
    """

    curves: Mapping[str, str]
    """Curves by name, each with the statistic that it shows."""
    must_suit: Callable[[Any, str], None]
    """Refuses a model by its config and its name with a CheckpointError, before its weights are read."""


@dataclass(frozen=True)
class PairMeasure:
    """Numbers of two neighbouring checkpoints on a text, taken after all steps were looked at."""

    curves: tuple[str, ...]
    load: Callable[[Path, torch.device, Between], Any]
    """What is held of a checkpoint in a folder: two of them at a time."""
    call: Callable[[Any, Any, Tensor, Between, int | None], Pair]
    """The numbers of the earlier and the later of two on a text, in windows of so many tokens."""
    must_suit: Callable[[Any, str], None]
    """As of a ModelMeasure."""


Measure = WeightMeasure | ModelMeasure | PairMeasure


def chosen(names: Iterable[str]) -> dict[str, Measure]:
    """Measures by name, each once.

    >>> list(chosen(["stable_rank", "coherence"]))
    ['stable_rank', 'coherence']
    """
    wanted = dict.fromkeys(names)
    for name in wanted:
        if name not in SCANNED:
            raise BadInput(f"measures must be among {', '.join(SCANNED)}, got {name!r}", argument="measures")
    if not wanted:
        raise BadInput(f"measures must name at least one of {', '.join(SCANNED)}", argument="measures")
    return {name: _taken(name, full="alpha" in wanted) for name in wanted}


def _taken(name: str, *, full: bool) -> Measure:
    """How one is taken. full: alpha needs the full spectrum, and ranks and norms are read off it: one pass for all."""
    measure = SCANNED[name]
    if isinstance(measure, WeightMeasure):
        if full and measure.compute is leading_spectrum:
            return replace(measure, compute=full_spectrum, stacked=full_spectra, side_by_side=True)
        return measure
    if measure.needs == "attention":
        return ModelMeasure(measure.curves, must_show_queries if name == "spread" else must_attend)
    return PairMeasure(tuple(measure.curves), loaded_whole, allocated, must_have_gradients)
