"""Which models have a cache that can be cut, and which tokens they read."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from joma.cache.rules import CacheError
from joma.host.arguments import as_tensor
from joma.host.errors import BadInput
from joma.host.extras import how_to_install
from joma.host.words import counted
from joma.probes import lengths
from joma.probes._support import INTERFACE, can_probe, way

_way = cache(way)  # transformers reads the code of a class of models to tell


def cannot_be_cut(config: Any) -> str | None:
    """Why models of a transformers config have no cache that a policy could cut, in one sentence; None where they have.

    Only the config is read, no weights.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        return f"{kind} models read two texts: give a model that goes on with one, a causal language model"
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return f"{kind} models do not predict the next token: they have no cache to cut"
    if _without_attention(config):
        return f"{kind} models have no attention: there is no cache to cut"
    if _way(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]) != INTERFACE:
        return f"{kind} models do not send attention through transformers' AttentionInterface: it cannot be cut"
    return None


def _without_attention(config: Any) -> bool:
    why = can_probe(config) or ""
    return "no attention" in why or "no softmax" in why


def default_seq_len(config: Any) -> int:
    """Tokens per sequence unless given: 512, or fewer where the model was trained on fewer or forgets by itself."""
    usual, local = lengths.default_seq_len(config), getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    slides = "sliding_attention" in kinds and getattr(config, "use_sliding_window", True)
    return min(usual, local) if slides and isinstance(local, int) and local > 0 else usual


def must_be_cached(model: nn.Module) -> None:
    """Refuse what is no causal language model of transformers whose attention can be reached."""
    try:
        from transformers import PreTrainedModel
    except ImportError:
        raise CacheError(f"transformers is not installed: {how_to_install('hf')}") from None
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise CacheError(f"{name} is not a model of transformers: only those have a cache that can be cut")
    config: Any = model.config
    if getattr(config, "is_encoder_decoder", False):
        raise CacheError(f"{name} reads two texts: give a model that goes on with one, a causal language model")
    kind: Any = type(model)
    if _way(kind) != INTERFACE:
        if _without_attention(config):
            raise CacheError(without_attention(name))
        raise CacheError(f"{name} does not send attention through transformers' AttentionInterface: it cannot be cut")
    if model.get_output_embeddings() is None:
        raise CacheError(f"{name} has no head that predicts the next token: load it with AutoModelForCausalLM")


def without_attention(name: str) -> str:
    """The sentence on a model that keeps no keys."""
    return f"{name} has no attention: there is no cache to cut"


def must_be_tokens(model: nn.Module, tokens: Any) -> Tensor:
    """(sequences, length) that the model can read."""
    ids = as_tensor(tokens, "tokens")
    ids = ids[None] if ids.ndim == 1 else ids
    if ids.ndim != 2 or ids.numel() == 0 or ids.dtype.is_floating_point or ids.dtype is torch.bool:
        raise BadInput(f"tokens must be token ids, (sequences, length), got {ids.dtype} {tuple(ids.shape)}")
    if ids.shape[1] < 2:
        raise BadInput("tokens must have at least 2 per sequence, one to read and one to predict, got 1")
    config: Any = model.config
    longest, words = lengths.lengths_of(config).most, getattr(config, "vocab_size", None)
    if longest is not None and longest < ids.shape[1]:
        raise BadInput(f"{type(model).__name__} reads at most {counted(longest, 'token')}, got {ids.shape[1]}")
    if isinstance(words, int) and not (int(ids.min()) >= 0 and int(ids.max()) < words):
        raise BadInput(f"tokens must be from 0 to {words - 1} for {type(model).__name__}")
    return ids.long()
