"""What a measure accepts in place of a tensor, and the sentence for what it does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_tensor(value: Tensor | np.ndarray | Sequence[Any], name: str) -> Tensor:
    """A tensor as it is; an array or a list of numbers as a tensor on the CPU."""
    if isinstance(value, Tensor):
        return value
    try:
        # Without these requirements torch warns of read-only memory and refuses reversed arrays.
        return torch.from_numpy(np.require(value, requirements=["C", "W"]))
    except (TypeError, ValueError, RuntimeError):
        kind = type(value).__name__
        raise ValueError(f"{name} must be a tensor, or an array or a list of numbers, got {kind}") from None


def must_be_tensors(**given: object) -> None:
    """One sentence for an array where a tensor is wanted; None is an argument that was not given."""
    for name, value in given.items():
        if value is not None and not isinstance(value, Tensor):
            raise ValueError(f"{name} must be a tensor, got {type(value).__name__}: torch.as_tensor makes one of it")
