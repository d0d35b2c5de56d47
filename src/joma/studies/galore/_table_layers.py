"""Linear layers with factors: W = B A (low rank), and W = W0 + scale B A with W0 held fast (LoRA, ReLoRA)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joma.models.llama import Llama


class Factored(nn.Module):
    """W = up down. Its initial entries have the spread of those of the matrix that it stands for."""

    def __init__(self, plain: nn.Linear, rank: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(plain.out_features, rank))
        self.down = nn.Parameter(torch.empty(rank, plain.in_features))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.down), self.up)

    @torch.no_grad()
    def restart(self, source: torch.Generator) -> None:
        spread = sqrt(0.02 / sqrt(self.up.shape[1]))
        for factor in (self.up, self.down):
            factor.copy_(spread * torch.randn(factor.shape, generator=source))


class Adapted(nn.Module):
    """W = weight + scale up down, where only the factors are trained; up starts at zero."""

    def __init__(self, plain: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(plain.weight.detach(), requires_grad=False)
        self.up = nn.Parameter(torch.empty(plain.out_features, rank))
        self.down = nn.Parameter(torch.empty(rank, plain.in_features))
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) + self.scale * F.linear(F.linear(x, self.down), self.up)

    @torch.no_grad()
    def merge(self) -> None:
        """Add the product of the factors to the weight; `restart` must follow."""
        self.weight.add_(self.up @ self.down, alpha=self.scale)

    @torch.no_grad()
    def restart(self, source: torch.Generator) -> None:
        self.up.zero_()
        spread = 1 / sqrt(self.down.shape[1])
        self.down.copy_(spread * (2 * torch.rand(self.down.shape, generator=source) - 1))


def replace_matrices(network: Llama, by: Callable[[nn.Linear], nn.Module]) -> Llama:
    """All matrices of the blocks replaced, in place; embedding, head and norms stay."""
    for block in network.blocks:
        for name, part in list(block.named_children()):
            if isinstance(part, nn.Linear):
                setattr(block, name, by(part))
    return network


def with_factors(network: nn.Module) -> Iterator[Factored | Adapted]:
    yield from (part for part in network.modules() if isinstance(part, Factored | Adapted))


def start(network: Llama, seed: int) -> None:
    """Initial weights, in place. The same seed gives every kind of network the same embedding."""
    network.initialise(seed)
    source = torch.Generator().manual_seed(seed)
    for part in with_factors(network):
        part.restart(source)


def merge_and_restart(network: Llama, source: torch.Generator) -> None:
    """ReLoRA's restart: what the factors learned moves into the weights, and new factors begin."""
    for part in with_factors(network):
        if isinstance(part, Adapted):
            part.merge()
        part.restart(source)
