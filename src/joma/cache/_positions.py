"""Rotary positions, counted anew: how far a query must be turned to stand elsewhere in the text.

A rotation by a and then by b is one by a + b, so what a model has rotated can be turned on with the model's own
functions. Whether they do what they seem to is not believed but tried: a text of one token repeated has the same
hidden state everywhere, so its keys must be each other's rotations, in every layer.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from joma.cache._attending import Turn, as_ever, attending
from joma.cache.errors import CacheError


class _Listening:
    """Attends as ever, and keeps the keys."""

    def __init__(self) -> None:
        self.keys: dict[nn.Module, Tensor] = {}

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        self.keys[module] = key
        return as_ever(module, query, key, value, None, scale)


def turns(model: nn.Module) -> dict[nn.Module, Turn | None]:
    """How every attention of a model turns queries and keys; None where positions are no rotation."""
    listening, words = _Listening(), model.get_input_embeddings().weight  # type: ignore[operator]
    with torch.inference_mode(), attending(model, listening):
        loudest = words.float().norm(dim=1).argmax()  # a token of padding may have no embedding, and no keys
        model(input_ids=loudest.expand(1, 4), use_cache=False)
    keys = listening.keys
    rotary = [module for module in model.modules() if isinstance(getattr(module, "inv_freq", None), Tensor)]
    if not rotary:
        return dict.fromkeys(keys)
    return {module: _turn_of(model, module, rotary[0], key) for module, key in keys.items()}


def _turn_of(model: nn.Module, module: nn.Module, rotary: Any, key: Tensor) -> Turn | None:
    refusal = CacheError(
        f"positions of {type(model).__name__} cannot be counted inside the cache, as the policy sinks does; "
        "the other policies leave positions as they are"
    )
    if not key.any():  # nothing can be seen
        raise refusal
    if _alike(key, key[:, :, :1]):  # this layer knows no positions
        return None
    rotate = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
    if rotate is None or getattr(rotary, "rope_type", "default") in ("dynamic", "longrope"):
        raise refusal

    def turn(x: Tensor, by: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scaling = getattr(rotary, "attention_scaling", 1.0)
        cos, sin = (table / scaling for table in rotary(wide, position_ids=by[None]))
        width = cos.shape[-1]
        turned, _ = rotate(wide[..., :width], wide[..., :width], cos, sin)
        return torch.cat([turned, wide[..., width:]], -1).to(x.dtype)

    try:
        expected = turn(key[:, :, :1].expand_as(key), torch.arange(key.shape[2], device=key.device))
    except (TypeError, RuntimeError, ValueError) as error:
        raise refusal from error
    if not _alike(key, expected):
        raise refusal
    return turn


def _alike(one: Tensor, other: Tensor) -> bool:
    tolerance = 1e-4 if one.dtype in (torch.float32, torch.float64) else 0.05
    return bool((one - other).abs().max() <= tolerance * one.abs().max())
