"""How many numbers torch's optimizers keep per parameter, their step counts aside."""

from __future__ import annotations

from typing import Any

import torch

_PER_ENTRY = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adagrad": 1, "Muon": 1}


def state_entries(optimizer: torch.optim.Optimizer, group: dict[str, Any], shape: tuple[int, ...]) -> int | None:
    """Entries of state for one parameter of a shape; None for an optimizer that is not known."""
    name, entries = type(optimizer).__name__, torch.Size(shape).numel()
    if name in _PER_ENTRY:
        return (_PER_ENTRY[name] + bool(group.get("amsgrad"))) * entries
    if name == "SGD":
        return bool(group["momentum"]) * entries
    if name == "RMSprop":
        return (1 + bool(group["momentum"]) + bool(group["centered"])) * entries
    if name == "Adafactor":
        return entries if len(shape) < 2 else entries // shape[-1] + entries // shape[-2]
    return None
