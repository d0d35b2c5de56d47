"""Multi-layer perceptrons of one shape, as many at once as there are seeds. Without hidden layers they are linear."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt

import torch
from torch import Tensor, nn


class Perceptrons(nn.Module):
    """x -> ReLU layers of the widths `hidden` -> outputs. All parameters have the member first.

    Weights begin normal with variance 2 / inputs of their layer, biases at zero.
    """

    def __init__(self, seeds: Sequence[int], inputs: int, hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        sizes = [inputs, *hidden, outputs]
        sources = [torch.Generator().manual_seed(seed) for seed in seeds]

        def normal(rows: int, columns: int) -> nn.Parameter:
            draws = [torch.randn(rows, columns, generator=source) for source in sources]
            return nn.Parameter(torch.stack(draws) * sqrt(2 / rows))

        self.weights = nn.ParameterList([normal(rows, columns) for rows, columns in pairwise(sizes)])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(len(seeds), 1, n)) for n in sizes[1:]])
        self.register_buffer("seeds", torch.tensor([seed & 0x7FFFFFFF for seed in seeds], dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        """(members, samples, outputs) of x (members, samples, inputs)."""
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x if layer == 0 else torch.relu(x), weight)
        return x
