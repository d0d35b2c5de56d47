"""What a scan can measure at a checkpoint, and which of its tensors each measure needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joma.host.errors import BadInput
from joma.scan.model.allocation import Pair, allocated, loaded_whole, must_have_gradients
from joma.scan.model.running import KEPT, Between, must_attend
from joma.scan.names.architecture import EMBEDDING, MLP

TOLERANCE = 1e-3  # relative, of stable ranks and spectral norms
_QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class WeightMeasure:
    """Numbers of weight matrices. Measures with the same `compute` share its result."""

    group: str
    """MLP: every group of matrices, those named by pattern included. EMBEDDING: that group alone."""
    compute: Callable[[Tensor, torch.Generator], Any]
    """The result of one matrix."""
    pick: Callable[[Any], list[float]]
    """The numbers of such a result, one per column."""
    columns: tuple[str, ...]
    stacked: Callable[[Tensor], list[Any]] | None = None
    """The results of a stack of small matrices at once, where that saves time; None: one after the other."""
    side_by_side: bool = False
    """Whether a CPU is faster with several large matrices at a time, one thread each, than with all threads on one."""


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
        if name not in MEASURES:
            raise BadInput(f"measures must be among {', '.join(MEASURES)}, got {name!r}", argument="measures")
    if not wanted:
        raise BadInput(f"measures must name at least one of {', '.join(MEASURES)}", argument="measures")
    found = {name: MEASURES[name] for name in wanted}
    return _on_whole_spectra(found) if "alpha" in found else found


def _on_whole_spectra(found: dict[str, Measure]) -> dict[str, Measure]:
    """Where alpha needs the whole spectrum, stable ranks and norms are read off it: one pass, and no tolerance."""
    return {
        name: replace(measure, compute=_whole, stacked=_wholes, side_by_side=True)
        if isinstance(measure, WeightMeasure) and measure.compute is _spectrum
        else measure
        for name, measure in found.items()
    }


def _spectrum(w: Tensor, generator: torch.Generator) -> tuple[float, float]:
    from joma.measure.spectrum import spectrum

    found = spectrum(w, tolerance=TOLERANCE, generator=generator)
    return float(found.stable_rank), float(found.spectral_norm)


def _spectra(stack: Tensor) -> list[tuple[float, float]]:
    """Of small matrices `spectrum` finds all eigenvalues and draws nothing: no generator is needed."""
    from joma.measure.spectrum import spectrum

    found = spectrum(stack, tolerance=TOLERANCE)
    return list(zip(found.stable_rank.tolist(), found.spectral_norm.tolist(), strict=True))


def _whole(w: Tensor, generator: torch.Generator) -> tuple[float, float, float | ValueError]:
    return _wholes(w[None])[0]


def _wholes(stack: Tensor) -> list[tuple[float, float, float | ValueError]]:
    """Stable rank, spectral norm and alpha of matrices of one shape, or why a matrix has no alpha."""
    from joma.measure.power_law import squared_singular_values

    squares = squared_singular_values(stack)
    top = squares[:, -1]
    ranks = torch.where(top > 0, squares.sum(-1) / top, 0.0)
    return list(zip(ranks.tolist(), top.sqrt().tolist(), map(_exponent, squares), strict=True))


def _exponent(squares: Tensor) -> float | ValueError:
    from joma.measure.power_law import power_law_of_squares

    try:
        return float(power_law_of_squares(squares).alpha)
    except ValueError as error:  # the other numbers of the matrix stand
        return error


def _alpha(found: tuple[float, float, float | ValueError]) -> list[float]:
    if isinstance(found[2], ValueError):
        raise found[2]
    return [found[2]]


def _coherence(vectors: Tensor, generator: torch.Generator) -> list[float]:
    from joma.measure.embedding import coherence

    found = coherence(vectors, quantiles=_QUANTILES, generator=generator)
    return [float(found.mean), *map(float, found.quantiles), float(found.random_mean)]


MEASURES: Mapping[str, Measure] = {
    "stable_rank": WeightMeasure(MLP, _spectrum, lambda found: [found[0]], ("stable rank",), _spectra),
    "spectral_norm": WeightMeasure(MLP, _spectrum, lambda found: [found[1]], ("spectral norm",), _spectra),
    "alpha": WeightMeasure(MLP, _whole, _alpha, ("alpha",), _wholes, side_by_side=True),
    "coherence": WeightMeasure(
        EMBEDDING, _coherence, lambda found: found, ("mean", *(f"q{q}" for q in _QUANTILES), "random mean")
    ),
    "entropy": ModelMeasure({"entropy": "entropy"}, must_attend),
    "sparsity": ModelMeasure(
        {
            "sparsity/top_tenth": "top_tenth",
            f"sparsity/top_{KEPT}": "top_keys",
            "sparsity/first_key": "first_key",
            "sparsity/first_4": "first_keys",
            "sparsity/near_zero": "near_zero",
            "sparsity/effective_share": "effective_share",
        },
        must_attend,
    ),
    "allocation": PairMeasure(("allocation/entropy", "allocation/loss"), loaded_whole, allocated, must_have_gradients),
}
