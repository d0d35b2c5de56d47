"""The parameters of a decoder's block, and what all of a decoder's parameters start from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from joma.models.decoder_config import DecoderConfig


def block_parameters(*kinds: DecoderConfig) -> tuple[str, ...]:
    """The names of one block's parameters; of several kinds, those of any.

    >>> from joma.models import DecoderConfig
    >>> block_parameters(DecoderConfig(vocabulary=9, norm="none", mlp=0, activation="identity", projection=False))
    ('qkv', 'qkv_bias')
    """
    config = kinds[0]
    mlp, scaled, shifted = config.mlp > 0, config.norm != "none", config.norm.endswith("layer")
    parts = [
        (True, ("qkv", "qkv_bias")),
        (any(kind.attention == "learned-sink" for kind in kinds), ("sink",)),
        (any(kind.qk_norm for kind in kinds), ("query_scale", "key_scale")),
        (any(kind.vo_norm for kind in kinds), ("value_scale", "mixed_scale")),
        (any(kind.gate == "attention" for kind in kinds), ("gate", "gate_bias")),
        (any(kind.gate == "mlp" for kind in kinds), ("mlp_gate", "mlp_gate_bias")),
        (config.projection, ("projection", "projection_bias")),
        (mlp, ("up", "up_bias", "down", "down_bias")),
        (scaled, ("attention_scale",)),
        (shifted, ("attention_shift",)),
        (scaled and mlp, ("mlp_scale",)),
        (shifted and mlp, ("mlp_shift",)),
    ]
    return tuple(name for there, names in parts if there for name in names)


def initial_values(kinds: Sequence[DecoderConfig], generator: torch.Generator) -> dict[str, Tensor]:
    """One member's initial values, with what any of these kinds has.

    They are drawn as torch's own modules draw them after torch.manual_seed(seed).
    In turn: TransformerEncoderLayer, Embedding, Linear, and then embedding and output anew, uniform within +-0.1. The
    runs of Figures 6 and 8 were begun like this, so that a seed of theirs begins with the very same weights here.
    """
    config = kinds[0]
    outputs = config.outputs or config.vocabulary

    def uniform(bound: float, *shape: int) -> Tensor:
        return torch.empty(*shape).uniform_(-bound, bound, generator=generator)

    values = {}
    blocks = [_block_start(config, uniform) for _ in range(1 if config.copies else config.layers)]
    for name in block_parameters(*kinds):
        values[name] = torch.stack([block[name] for block in blocks]).expand(config.layers, *blocks[0][name].shape)
    if config.norm.startswith("pre"):
        values["last_scale"] = torch.ones(config.width)
        if config.norm.endswith("layer"):
            values["last_shift"] = torch.zeros(config.width)
    if config.outputs is None:  # what Embedding and Linear draw for themselves, and is not used; a classifier has no
        # twin to match, and its weights should not hang on how many classes stand beside its own
        torch.empty(config.vocabulary, config.width).normal_(generator=generator)
        uniform(1 / math.sqrt(config.width), outputs, config.width + 1)
    values["embedding"] = uniform(0.1, config.vocabulary, config.width)
    out = uniform(0.1, outputs, config.width)
    if not config.tied:
        values["out"] = out
    values["out_bias"] = torch.zeros(outputs)
    if config.embeddings == "orthonormal":
        square = torch.randn(config.width, config.width, generator=generator)
        values["embedding"] = torch.linalg.qr(square).Q[: config.vocabulary].contiguous()
    if any(kind.positions == "learned" for kind in kinds):  # drawn last: its twins have the numbers before it
        values["position"] = uniform(0.1, config.context, config.width)
    return values


def _block_start(config: DecoderConfig, uniform: Callable[..., Tensor]) -> dict[str, Tensor]:
    width, mlp = config.width, config.mlp
    values = {f"{part}_scale": torch.ones(width) for part in ("query", "key", "value", "mixed")}
    values["sink"] = torch.zeros(config.heads)
    for gate in ("gate", "mlp_gate"):
        values |= {gate: torch.zeros(width, width), f"{gate}_bias": torch.zeros(width)}
    for branch in ("attention", "mlp"):
        values |= {f"{branch}_scale": torch.ones(width), f"{branch}_shift": torch.zeros(width)}
    if config.projection:
        values["projection"] = uniform(1 / math.sqrt(width), width, width).T
        uniform(1 / math.sqrt(width), width)  # torch draws this bias too, and then sets it to zero
        values["projection_bias"] = torch.zeros(width)
    values["qkv"] = uniform(math.sqrt(6 / (4 * width)), 3 * width, width).T
    values["qkv_bias"] = torch.zeros(3 * width)
    hidden = mlp or width  # without an MLP its numbers are drawn all the same: what follows is then as in its twin
    values["up"] = uniform(1 / math.sqrt(width), hidden, width).T
    values["up_bias"] = uniform(1 / math.sqrt(width), hidden)
    values["down"] = uniform(1 / math.sqrt(hidden), width, hidden).T
    values["down_bias"] = uniform(1 / math.sqrt(hidden), width)
    return values
