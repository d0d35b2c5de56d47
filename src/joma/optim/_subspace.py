"""Searching for the leading eigenvectors of Gram matrices G G^T, each with a block of vectors, many at once.

Two plain products come first. They are enough where the spectrum falls. Where it is flat, Chebyshev polynomials of
the Gram matrix follow: they damp everything below the block's smallest Rayleigh quotient and need about a third of
the products that plain powers need.
"""

from __future__ import annotations

from collections.abc import Callable
from math import acosh, log

import torch
from torch import Tensor

from joma.optim._orthonormal import orthonormal

Product = Callable[[Tensor], Tensor]
ROUNDS = 8
"""Rounds of products after which the search gives up."""
DEGREE = 6
"""Products per round, at most."""
GROWTH = 1e4
"""How much a polynomial may amplify the leading direction: more, and rounding hides the others."""


def gram_product(wide: Tensor, block: int) -> Product:
    """The product of G G^T with a block; the Gram matrix is formed if that takes fewer operations in all."""
    if 4 * DEGREE * block > wide.shape[-2]:
        gram = wide @ wide.mT
        return lambda vectors: gram @ vectors
    return lambda vectors: wide @ (wide.mT @ vectors)


def search(product: Product, basis: Tensor, rank: int, tolerance: float) -> Tensor | None:
    """Orthonormal bases (count, rows, block), each of which a round has brought no more than `tolerance` of its energy.

    The energy is that of the `rank` best vectors of a block: those beyond are only there to help. A round of fewer
    products must bring less in proportion. None if a basis does not settle. On the way one round of `orthonormal` is
    enough; what is returned has had two.
    """
    basis = orthonormal(product(basis), rounds=1)
    image = product(basis)
    energies = _quotients(basis, image)
    degrees = [1] * len(basis)
    settled = [False] * len(basis)
    for turn in range(ROUNDS):
        if turn:
            degrees = _degrees(energies)
        basis = orthonormal(_filtered(product, basis, image, energies, degrees) if turn else image, rounds=1)
        image = product(basis)
        before, energies = energies, _quotients(basis, image)
        gains = zip(_gains(energies, before, rank), degrees, strict=True)
        now = [gain <= tolerance * degree / DEGREE for gain, degree in gains]
        settled = [one or other for one, other in zip(settled, now, strict=True)]
        if all(settled):
            return orthonormal(basis, rounds=1)
    return None


def _quotients(basis: Tensor, image: Tensor) -> Tensor:
    """Rayleigh quotients: the energy of the gradient along each vector of the basis, (count, block)."""
    return (basis * image).sum(-2)


def _gains(energies: Tensor, before: Tensor, rank: int) -> list[float]:
    """The relative gain of energy of each matrix; a gradient that is zero gains nothing."""
    now, then = (each.topk(rank).values.sum(-1) for each in (energies, before))
    gains: list[float] = ((now - then) / now.clamp_min(torch.finfo(now.dtype).tiny)).tolist()
    return gains


def _edges(energies: Tensor) -> Tensor:
    """Below which energy a polynomial damps: the smallest quotient; of a steep or zero gradient something positive."""
    top = energies.amax(-1)
    edges = torch.maximum(energies.amin(-1), top / GROWTH)
    return torch.where(edges > 0, edges, torch.ones_like(edges))


def _degrees(energies: Tensor) -> list[int]:
    """The largest degrees that amplify the leading directions by no more than GROWTH, at least 1."""
    return [_degree(ratio) for ratio in (energies.amax(-1) / _edges(energies)).tolist()]


def _degree(ratio: float) -> int:
    return max(1, min(DEGREE, int(log(2 * GROWTH) / acosh(2 * ratio - 1)))) if ratio > 1 else DEGREE


def _filtered(product: Product, basis: Tensor, image: Tensor, energies: Tensor, degrees: list[int]) -> Tensor:
    """T(2 A / edge - 1) applied to each basis, T its Chebyshev polynomial; A itself where the degree is 1."""
    slope = (2 / _edges(energies))[:, None, None]
    wanted = torch.tensor(degrees, device=basis.device)[:, None, None]
    last, current = basis, slope * image - basis
    for done in range(1, max(degrees)):
        following = 2 * (slope * product(current) - current) - last
        last, current = torch.where(wanted > done, current, last), torch.where(wanted > done, following, current)
    return torch.where(wanted > 1, current, image)
