"""Members of one ensemble that differ in kind: their attention, positions, norms of heads, or gates.

All kinds are computed in one program, and each member takes what is its own: it is what it would be in a decoder of its
kind alone. So twins that differ in such options train side by side, on a GPU in one captured step. A member has the
parameters of all kinds; those that are not its own have no gradient and stay where they start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from joma.models._positions import slopes, turning
from joma.models.decoder_config import DecoderConfig

MAY_DIFFER = ("attention", "positions", "qk_norm", "vo_norm", "gate")
"""Options of `DecoderConfig` that leave the other parameters' shapes as they are."""


def check_kinds(config: DecoderConfig, kinds: Sequence[DecoderConfig], of: Sequence[int], members: int) -> None:
    """Refuse kinds that cannot be one program, or members of no kind."""
    for kind in kinds:
        alike = replace(kind, **{name: getattr(config, name) for name in MAY_DIFFER})
        if alike != config:
            raise ValueError(f"kinds must differ from config in {', '.join(MAY_DIFFER)} alone, got {kind}")
        if kind.attention in ("sigmoid", "relu") and any(other.attention != kind.attention for other in kinds):
            raise ValueError(f"kinds cannot mix {kind.attention} attention with another: its weights are no softmax")
    if len(of) != members or any(not 0 <= kind < max(1, len(kinds)) for kind in of):
        raise ValueError(f"of must name one of {len(kinds)} kinds for each of {members} members, got {list(of)}")


def inner_positions(config: DecoderConfig) -> dict[str, Tensor]:
    """What turns queries and keys, or pulls on logits, for all members alike: turns (2, 1, context, ...), slopes."""
    if config.positions == "rotary":
        return {"turns": turning(config.context, config.width // config.heads)[:, None]}
    return {"slopes": slopes(config.heads)[None]} if config.positions == "alibi" else {}


def of_members(kinds: Sequence[DecoderConfig], of: Sequence[int], sinusoids: Tensor) -> dict[str, Tensor]:
    """By member, which kind it is, as tensors that a step reads; of what all kinds share there is none.

    has_... (members,): whether it has that option. learns_place (members,), places (members, context, width): what is
    added to words. turns (2, members, context, head width), slopes (members, heads): neutral where a kind has none.
    learns_sink (members,), idle (members,): the logit of the key of value 0, -inf where there is none.
    """
    mine = [kinds[kind] for kind in of]

    def each(flags: Sequence[bool]) -> Tensor:
        return torch.tensor(flags)

    found: dict[str, Tensor] = {}
    for name, has in {
        "qk_norm": [one.qk_norm for one in kinds],
        "vo_norm": [one.vo_norm for one in kinds],
        "gate": [one.gate == "attention" for one in kinds],
        "mlp_gate": [one.gate == "mlp" for one in kinds],
    }.items():
        if any(has) and not all(has):
            found[f"has_{name}"] = each([has[kind] for kind in of])
    if len({one.attention for one in kinds}) > 1:
        found["learns_sink"] = each([one.attention == "learned-sink" for one in mine])
        found["idle"] = torch.tensor([-math.inf if one.attention == "softmax" else 0.0 for one in mine])
    if len({one.positions for one in kinds}) > 1:
        found["learns_place"] = each([one.positions == "learned" for one in mine])
        found["places"] = torch.stack([sinusoids * (one.positions == "sinusoidal") for one in mine])
        first = kinds[0]
        plain = torch.stack((torch.ones(first.context, first.width // first.heads),
                             torch.zeros(first.context, first.width // first.heads)))  # fmt: skip
        turn, pull = (replace(first, positions=name) for name in ("rotary", "alibi"))
        if any(one.positions == "rotary" for one in kinds):
            turns = inner_positions(turn)["turns"][:, 0]
            found["turns"] = torch.stack([turns if one.positions == "rotary" else plain for one in mine], 1)
        if any(one.positions == "alibi" for one in kinds):
            found["slopes"] = torch.stack([slopes(pull.heads) * (one.positions == "alibi") for one in mine])
    return found


def own(w: dict[str, Tensor], option: str, new: Tensor, old: Tensor) -> Tensor:
    """What members have that have an option, and what the others have; members first."""
    has = w.get(f"has_{option}")
    return new if has is None else torch.where(has.view(-1, *[1] * (new.ndim - 1)), new, old)
