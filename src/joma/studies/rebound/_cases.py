"""Which layers a study of the rebound speaks of: those that come back after the valley, and when they are measured."""

from typing import NamedTuple

import numpy as np

from joma.measure.intervals import compare

MATTERS = 0.05
"""Nats of entropy: about what curves of single runs of one recipe were seen to differ by (RMS). Decided before any run,
as in the ablations."""


def base_name(layers: int) -> str:
    """The network that nothing is changed in."""
    return f"{layers} layer{'s' if layers > 1 else ''}"


def points(valley: int, end: int, every: int) -> tuple[int, ...]:
    """Measuring points: closer on the way down, where entropy moves fast."""
    return tuple(sorted({*range(0, valley, every), *range(valley, end, 2 * every), end}))


def comes_back(rise: np.ndarray) -> bool:
    """Whether a layer's rebound over seeds matters and is beyond chance."""
    found = compare(rise)
    return found.low > 0 and found.value >= MATTERS


class Case(NamedTuple):
    """Layers of one depth that are judged together, from 0 on."""

    base: str
    layers: tuple[int, ...]

    @property
    def name(self) -> str:
        if self.base == base_name(1):
            return self.base
        first = [layer for layer in self.layers if layer - 1 not in self.layers]
        last = [layer for layer in self.layers if layer + 1 not in self.layers]
        pairs = zip(first, last, strict=True)  # neighbours together: "2 to 4, 6"
        ranges = ", ".join(f"{low + 1}" if low == high else f"{low + 1} to {high + 1}" for low, high in pairs)
        return f"{self.base}: layer{'s' if len(self.layers) > 1 else ''} {ranges}"

    def mean(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values[list(self.layers)].mean(0))
