"""Random numbers that depend on nothing but what they are drawn for: not on the device, nor on how a text is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from joma.cache.policies import Call

_STEP, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15  # splitmix64's, as signed


def priorities(call: Call) -> Tensor:
    """(batch, key-value heads, queries) from 0 to 1, for the keys that just came."""
    rows, heads = call.key.shape[:2]
    at = call.key.device
    number = torch.tensor(call.rule.seed, device=at)
    row = torch.arange(call.row, call.row + rows, device=at)[:, None, None]
    head = torch.arange(heads, device=at)[:, None]
    position = torch.arange(call.seen, call.seen + call.queries, device=at)
    for part in (torch.tensor(call.layer, device=at), row, head, position):
        number = _mixed(number + part)
    return (number >> 11 & (1 << 53) - 1).to(torch.float64).mul(2.0**-53).to(call.scores.dtype)


def _mixed(number: Tensor) -> Tensor:
    number = number + _STEP
    number = (number ^ (number >> 30 & (1 << 34) - 1)) * _FIRST
    number = (number ^ (number >> 27 & (1 << 37) - 1)) * _SECOND
    return number ^ (number >> 31 & (1 << 33) - 1)
