"""What a scan can measure at a checkpoint, and which of its tensors each measure needs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.host.errors import BadInput
from joma.host.words import counted
from joma.scan.architecture import EMBEDDING, MLP
from joma.scan.checkpoint import Place
from joma.scan.errors import CheckpointError
from joma.scan.integrity import FLOATS, check_finite
from joma.scan.loading import loaded_config, loaded_model, token_ids

Between = Callable[[str], None]
"""Called between two pieces of work with how far it is; it may raise, to stop the work there."""
TOLERANCE = 1e-3  # relative, of stable ranks and spectral norms
_CONTEXT = 512  # tokens at a time for attention entropy, or fewer if the model reads fewer
_QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class WeightMeasure:
    """Numbers of one tensor at a time. Measures with the same `compute` share its result."""

    group: str
    """MLP: every group of matrices, those named by pattern included. EMBEDDING: that group alone."""
    compute: Callable[[Tensor, torch.Generator], Any]
    pick: Callable[[Any], list[float]]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class ModelMeasure:
    """Numbers of the running model. It needs a text; the MLP matrices are read for the integrity gate alone."""

    group: str
    tokens: Callable[[Place, Path], Tensor]
    """Token ids of a text file for the model at a place; ValueError if there are too few."""
    call: Callable[[Path, Tensor, torch.device, Between], Tensor]
    """The numbers of the model in a folder on its tokens; NaN stands for heads that a layer does not have."""


def chosen(names: Iterable[str]) -> dict[str, WeightMeasure | ModelMeasure]:
    """Measures by name, each once.

    >>> list(chosen(["stable_rank", "coherence"]))
    ['stable_rank', 'coherence']
    """
    wanted = dict.fromkeys(names)
    for name in wanted:
        if name not in MEASURES:
            raise BadInput(f"measures must be among {', '.join(MEASURES)}, got {name!r}")
    if not wanted:
        raise BadInput(f"measures must name at least one of {', '.join(MEASURES)}")
    return {name: MEASURES[name] for name in wanted}


def _spectrum(w: Tensor, generator: torch.Generator) -> tuple[float, float]:
    from joma.measure.spectrum import spectrum

    found = spectrum(w, tolerance=TOLERANCE, generator=generator)
    return float(found.stable_rank), float(found.spectral_norm)


def _coherence(vectors: Tensor, generator: torch.Generator) -> list[float]:
    from joma.measure.embedding import coherence

    found = coherence(vectors, quantiles=_QUANTILES, generator=generator)
    return [float(found.mean), *map(float, found.quantiles), float(found.random_mean)]


_one_model = threading.Lock()  # a model fills the device, and a probe switches attention for the whole process


def _entropy(folder: Path, tokens: Tensor, device: torch.device, between: Between) -> Tensor:
    """(layers, heads): mean attention entropy in nats."""
    from joma.probes import attention_entropy

    with _one_model:
        between("about to load the model")
        model = loaded_model(folder, device)
        for name, w in model.named_parameters():
            if w.dtype in FLOATS:
                check_finite(w.detach(), name, None)
        _watch(model, len(tokens), between)
        try:
            return attention_entropy(model, tokens, context=_context(model.config), device=device)
        except ValueError as error:  # a model that cannot be probed
            raise CheckpointError(str(error)) from None


def _watch(model: Any, total: int, between: Between) -> None:
    """Call `between` as the model runs, and refuse what is not finite: a mean would leave out queries that are NaN."""
    done = 0

    def before(*_: Any) -> None:
        between(f"{done:,} of {total:,} tokens")

    def after(_: Any, __: Any, inputs: dict[str, Tensor], output: Any) -> None:
        nonlocal done
        done += inputs["input_ids"].numel()
        state = getattr(output, "last_hidden_state", None)
        if state is not None and not state.isfinite().all():
            raise CheckpointError(f"the model computes NaN or infinity on the text in {state.dtype}")

    for module in model.modules():  # of every layer, because a batch of a large model takes a minute on a CPU
        module.register_forward_pre_hook(before)
    model.base_model.register_forward_hook(after, with_kwargs=True)


def _tokens(place: Place, text: Path) -> Tensor:
    """The token ids of a text, or of a .npy file that holds them already."""
    with place.folder() as folder:
        tokens = torch.from_numpy(_stored_ids(text)) if text.suffix == ".npy" else _ids_of(folder, text, place.name)
        config = loaded_config(folder, f"the config of {place.name}")
    context, words = _context(config), getattr(config, "vocab_size", None)
    if len(tokens) < max(context, 1):
        raise BadInput(f"text {text} has {counted(len(tokens), 'token')}, fewer than the context of {context}")
    if not isinstance(words, int):
        raise BadInput(f"entropy reads a text, and {place.name} ({config.model_type}) is no language model")
    for token in (int(tokens.min()), int(tokens.max())):
        if not 0 <= token < words:
            raise BadInput(f"text {text} has token {token}, and the model knows 0 to {words - 1}")
    return tokens


def _stored_ids(text: Path) -> np.ndarray:
    """One row of token ids in a .npy file. Mapped first: so its header cannot ask for more than the file holds."""
    try:
        ids = np.lib.format.open_memmap(text, mode="r")
    except Exception as error:  # numpy raises many kinds on damaged headers
        raise BadInput(f"text {text} cannot be read: {' '.join(str(error).split())[:160]}") from None
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise BadInput(f"text {text} must hold one row of token ids, got {ids.dtype} {str(ids.shape)[:60]}")
    return ids.astype(np.int64)


def _ids_of(folder: Path, text: Path, name: str) -> Tensor:
    try:
        if not text.is_file():
            raise OSError("it is missing, or no plain file")
        content = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"text {text} cannot be read: {error}") from None
    return torch.tensor(token_ids(folder, content, name), dtype=torch.int64)


def _context(config: Any) -> int:
    longest = getattr(config, "max_position_embeddings", None)
    return min(_CONTEXT, longest) if isinstance(longest, int) else _CONTEXT


MEASURES: Mapping[str, WeightMeasure | ModelMeasure] = {
    "stable_rank": WeightMeasure(MLP, _spectrum, lambda found: [found[0]], ("stable rank",)),
    "spectral_norm": WeightMeasure(MLP, _spectrum, lambda found: [found[1]], ("spectral norm",)),
    "coherence": WeightMeasure(
        EMBEDDING, _coherence, lambda found: found, ("mean", *(f"q{q}" for q in _QUANTILES), "random mean")
    ),
    "entropy": ModelMeasure(MLP, _tokens, _entropy),
}
