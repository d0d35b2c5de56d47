"""Token frequencies by class: the data of the paper's Figures 2 and 3."""

from typing import Literal

import torch
from torch import Generator, Tensor


def token_classes(
    kind: Literal["smooth", "random"], *, classes: int = 20, distinct: int = 10, common: int = 10, generator: Generator
) -> Tensor:
    """One frequency vector a class: (classes, distinct + common), rows summing to 1, float64.

    Every entry starts uniform in (0, 1/2). For "smooth" data the distinct tokens follow a bump instead that moves
    with the class, exp(-(l - distinct i / classes)^2 / 30), so neighbouring classes look alike.

    >>> x = token_classes("smooth", generator=torch.Generator().manual_seed(0))
    >>> x.shape, torch.allclose(x.sum(-1), torch.ones(20, dtype=torch.float64))
    (torch.Size([20, 20]), True)
    """
    if kind not in ("smooth", "random"):
        raise ValueError(f"kind must be 'smooth' or 'random', got {kind!r}")
    if min(classes, distinct) < 1 or common < 0:
        raise ValueError(f"need at least one class and one distinct token, got {classes} and {distinct} (+{common})")
    x = torch.rand(classes, distinct + common, generator=generator, dtype=torch.float64) / 2
    if kind == "smooth":
        token = torch.arange(distinct, dtype=torch.float64)
        centre = distinct * torch.arange(classes, dtype=torch.float64) / classes
        x[:, :distinct] = torch.exp(-((token - centre[:, None]) ** 2) / 30)
    return x / x.sum(-1, keepdim=True)
