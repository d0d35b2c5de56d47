"""Which parameters of a language model make the entropy of its layers change, while it trains."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from joma.measure.allocation import allocate
from joma.models.decoder import Decoder, DecoderConfig
from joma.models.groups import Part, parameter_groups
from joma.models.products import half_products

CLOSE = 1e-4  # Nats by which the parts of one interval may miss its change. Rounding of float32 leaves about 1e-6
SHARE = 1e-3  # of the change itself, where that is more
MOST = 14
"""Nodes per interval at most: 2, 4, then 8. Six are the least that show how far parts still move. Kinks of ReLU close
slowly with more; what is missed, and how far each part moved last, is recorded."""

Between = Callable[[Decoder, Mapping[str, Tensor], Sequence[int]], Mapping[str, Tensor]]


def group_names(config: DecoderConfig) -> np.ndarray:
    """The groups of parameters in the order of what is recorded, as bytes of JSON."""
    return np.frombuffer(json.dumps(list(parameter_groups(config, by_layer=True))).encode(), np.uint8)


def frozen_parts(config: DecoderConfig, names: Sequence[str]) -> tuple[Part, ...]:
    """The parameters of these groups, of one layer or of all.

    >>> frozen_parts(DecoderConfig(vocabulary=9, width=8, mlp=8), ["embeddings"])
    ('embedding',)
    """
    known = parameter_groups(config) | parameter_groups(config, by_layer=True)
    for name in names:
        if name not in known:
            raise ValueError(f"frozen must name groups of parameters, {', '.join(known)}, got {name!r}")
    return tuple(part for name in names for part in known[name])


def allocation(config: DecoderConfig, inputs: Tensor, sequences: int) -> dict[str, Between]:
    """What an ensemble takes as `between`: the change of each layer's entropy, split by groups of parameters.

    inputs: (sequences, length) of the validation text, of which `sequences` are read, spread evenly.
    """
    if config.attention != "softmax":
        raise ValueError(f"allocate splits the entropy of softmax attention, and the decoder's is {config.attention}")
    chosen = inputs[torch.linspace(0, len(inputs) - 1, min(sequences, len(inputs))).long()]
    groups = parameter_groups(config, by_layer=True)

    def changes(decoder: Decoder, before: Mapping[str, Tensor], members: Sequence[int]) -> dict[str, Tensor]:
        now = {name: p.detach() for name, p in decoder.named_parameters()}
        weights = [p.flatten(1) for state in (before, now) for p in state.values()]
        sound = torch.stack([p.isfinite().all(1) for p in weights]).all(0)  # (members,): who has not diverged
        states = [{name: _without(p, sound) for name, p in state.items()} for state in (before, now)]
        # Errors of groups can cancel in the sum, so that every part must have settled by itself.
        close: Any = {"tolerance": SHARE, "absolute": CLOSE, "most": MOST, "each": True}
        found = allocate(lambda some: layer_entropies(decoder, some, chosen), states, groups, members=True, **close)
        by_member = {"parts": found.parts[0].movedim(1, 0), "part_errors": found.moved[0].movedim(1, 0)}
        by_member |= {"change": found.change[0], "gap": found.gaps[0]}
        return {name: _without(value, sound.cpu(), torch.nan) for name, value in by_member.items()}

    return {"allocation": changes}


def layer_entropies(decoder: Decoder, parameters: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Mean attention entropy of every layer over queries, heads and sequences, (members, layers), with its gradient.

    By lse - E[logit], whose gradient is finite at keys that are masked; -sum a ln a has none there.
    """
    found: list[Tensor] = []

    def look(layer: int, name: str, value: Tensor) -> None:
        if name == "logits":  # (members, batch, heads, queries, keys)
            mean = (value.softmax(-1) * value.masked_fill(value == -torch.inf, 0.0)).sum(-1)
            found.append((value.logsumexp(-1) - mean).double().mean((1, 2, 3)))

    given = {f"decoder.{name}": p for name, p in parameters.items()}
    with half_products(False):  # in which a decoder may train: sums of float16 factors would not close
        functional_call(_Features(decoder), given, (tokens, look))
    return torch.stack(found, dim=1)


class _Features(torch.nn.Module):
    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens: Tensor, look: Callable[[int, str, Tensor], None]) -> Tensor:
        return self.decoder.features(tokens, look=look)


def _without(values: Tensor, sound: Tensor, instead: float = 0.0) -> Tensor:
    return torch.where(sound.view(-1, *[1] * (values.ndim - 1)), values, instead)
