"""The contrastive loss of a representation in closed form: what can be known of a printed loss without training.

The loss of SimCLR with two views of `batch` points each: a view must pick the other view of its point among the other
2 batch - 1 views. Its n = 2 batch - 2 wrong choices are pairs of views of other points.
"""

from __future__ import annotations

from math import exp, lgamma, log

import numpy as np


def code_law(bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Similarities of two independent uniform points under the code x_1..x_bits / sqrt(bits), and probabilities."""
    different = np.arange(bits + 1)
    ways = np.array([lgamma(bits + 1) - lgamma(m + 1) - lgamma(bits - m + 1) for m in different])
    return 1 - 2 * different / bits, np.exp(ways - bits * log(2))


def law_of_codes(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same law, counted over all pairs of the unit vectors `codes` (points, outputs), one per point of the cube."""
    similarity, counts = np.unique((codes @ codes.T).round(12), return_counts=True)
    return similarity, counts / counts.sum()


def expected_loss(law: tuple[np.ndarray, np.ndarray], *, batch: int, temperature: float) -> float:
    """The loss of a representation that views do not change, with this law of similarities of different points.

    It is -1/T + E log S with S = exp(1/T) + 2 sum_j exp(s_j/T) over batch - 1 independent s_j. With
    log S = int (exp(-u) - exp(-u S)) du / u, only the Laplace transform of one term is needed: no sampling.
    """
    similarity, probability = law
    own, others = exp(1 / temperature), 2 * np.exp(similarity / temperature)
    logs, step = np.linspace(-45.0, 6.0, 20_001, retstep=True)  # of u: outside the integrand is below rounding
    u = np.exp(logs)
    one = np.exp(-u[:, None] * others) @ probability
    integrand = np.exp(-u) - np.exp(-u * own) * one ** (batch - 1)
    return float(-1 / temperature + integrand.sum() * step)


def least_loss_of_bits(bits: int, *, batch: int, temperature: float) -> float:
    """No representation that knows only `bits` coordinates, views of which agree, has a smaller loss.

    Points that agree in these bits are one point to it. The mean similarity of the 2^bits others is at least
    -1 / (2^bits - 1), and log-sum-exp is convex and increasing. A simplex of 2^bits corners reaches the bound.
    """
    patterns, others = 2**bits, batch - 1
    other = exp(-1 / (patterns - 1) / temperature)
    same = np.arange(others + 1)
    weight = np.array([lgamma(others + 1) - lgamma(m + 1) - lgamma(others - m + 1) for m in same])
    chance = np.exp(weight - same * log(patterns) + (others - same) * np.log1p(-1 / patterns))
    total = exp(1 / temperature) * (1 + 2 * same) + 2 * (others - same) * other
    return float(-1 / temperature + (chance * np.log(total)).sum())


def least_loss(*, batch: int, temperature: float) -> float:
    """No representation at all has a smaller loss, in the limit of many points: all others are orthogonal to it."""
    own = exp(1 / temperature)
    return -1 / temperature + log(own + 2 * (batch - 1))
