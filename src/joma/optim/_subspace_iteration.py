"""Searching for the leading eigenvectors of Gram matrices G G^T, each with a block of vectors, many at once.

`search` begins with two plain products. They are enough where the spectrum falls. Where it is flat, Chebyshev
polynomials of the Gram matrix follow: they damp everything below the block's smallest Rayleigh quotient and need about
a third of the products that plain powers need. It asks after every round whether that was enough.

`follow` begins with vectors that were good before. It asks nothing, since a GPU waits while the host looks at numbers:
it makes as many rounds as are mostly enough, and says on the device whether they were.
"""

from collections.abc import Callable
from math import acosh, log, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]
ROUNDS = 8  # of products, after which the search gives up
DEGREE = 6  # products per round, at most
GROWTH = 1e4  # how much a polynomial may amplify the leading direction: more, and rounding hides the others
FOLLOWED = 2  # rounds of `follow`: enough for 265 of 267 subspaces of a LLaMA 20M, refreshed every 4 steps
NOISE = 1e-6  # of the block's size: fills directions that the block does not have, so that a Cholesky factor exists


def to_float64(tensor: Tensor) -> Tensor:
    """In float64, which TF32 does not touch; unchanged on MPS, which has no float64."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def orthonormalize(block: Tensor, *, rounds: int = 2) -> Tensor:
    """An orthonormal basis that holds the columns of a block (..., rows, columns), rows >= columns.

    The first columns span what the first columns of the block span. Columns that depend on those before them are
    replaced by other directions. The Gram matrix is factored in float64, so blocks with a condition number up to 1e6
    keep their span; the second round repairs what the first one lost.
    """
    if block.device.type == "mps":
        basis: Tensor = torch.linalg.qr(block)[0]
        return basis
    basis = _unit_columns(block, _noise(block))
    for _ in range(rounds):
        closer, failed = _closer(basis)
        if bool(failed.any()):
            basis = torch.linalg.qr(basis)[0]
            break
        basis = closer
    return basis.to(block.dtype)


def _noise(block: Tensor) -> Tensor:
    """The same for every block of these sides, in float64."""
    generator = torch.Generator(block.device).manual_seed(0)
    drawn: Tensor = torch.randn(block.shape[-2:], device=block.device, dtype=torch.float64, generator=generator)
    return drawn * (NOISE / sqrt(block.shape[-2]))


def _unit_columns(block: Tensor, noise: Tensor) -> Tensor:
    """Columns of length one in float64, with a little noise in each: never exactly dependent, never zero."""
    basis = block.double()
    length = torch.linalg.vector_norm(basis, dim=-2, keepdim=True)
    return torch.addcdiv(noise, basis, length.clamp_min(torch.finfo(basis.dtype).tiny))


def _closer(basis: Tensor) -> tuple[Tensor, Tensor]:
    """Columns of the same span, nearer to orthonormal, and (count,) not 0 where that failed.

    Cholesky QR needs matrix products alone, so it is much faster than a QR for many blocks on a GPU.
    """
    product = torch.bmm(basis.mT, basis) if basis.ndim == 3 else basis.mT @ basis
    factor, failed = torch.linalg.cholesky_ex(product)
    return torch.linalg.solve_triangular(factor, basis.mT, upper=False).mT, failed


def gram_product(wide: Tensor, block: int) -> Product:
    """The product of G G^T with a block, of a stack of G; Gram matrices are formed if that takes fewer operations.

    `bmm` and not `@`, which makes four calls of torch where this makes one: often the host is what a GPU waits for.
    """
    if 4 * DEGREE * block > wide.shape[-2]:
        gram = torch.bmm(wide, wide.mT)
        return lambda vectors: torch.bmm(gram, vectors)
    return lambda vectors: torch.bmm(wide, torch.bmm(wide.mT, vectors))


def search(product: Product, basis: Tensor, rank: int, tolerance: float) -> Tensor | None:
    """Orthonormal bases (count, rows, block), each of which a round has brought no more than `tolerance` of its energy.

    The energy is that of the `rank` best vectors of a block: those beyond are only there to help. A round of fewer
    products must bring less in proportion. None if a basis does not settle. On the way one round of `orthonormalize`
    is enough; what is returned has had two.
    """
    basis = orthonormalize(product(basis), rounds=1)
    image = product(basis)
    energies = (basis * image).sum(-2)  # Rayleigh quotients, (count, block): the energy along each vector
    degrees = [1] * len(basis)
    settled = [False] * len(basis)
    for turn in range(ROUNDS):
        if turn:
            edges = _edges(energies)
            # The largest degree with T_degree(2 ratio - 1) <= GROWTH, at least 1; T_d(x) is about exp(d acosh x) / 2.
            ratios = (energies.amax(-1) / edges).tolist()
            most = [int(log(2 * GROWTH) / acosh(2 * ratio - 1)) if ratio > 1 else DEGREE for ratio in ratios]
            degrees = [max(1, min(DEGREE, each)) for each in most]
            image = _filter(product, basis, image, edges, torch.tensor(degrees, device=basis.device), max(degrees))
        basis = orthonormalize(image, rounds=1)
        image = product(basis)
        before, energies = energies, (basis * image).sum(-2)
        gains = _gains(before, energies, rank).tolist()
        rounds = zip(settled, gains, degrees, strict=True)
        settled = [done or gain <= tolerance * degree / DEGREE for done, gain, degree in rounds]
        if all(settled):
            return orthonormalize(basis, rounds=1)
    return None


class FollowedBasis(NamedTuple):
    """What `follow` found, and whether it is good, all of it on the device."""

    basis: Tensor
    """(..., rows, rank) orthonormal columns, the one with the largest energy first."""
    energies: Tensor
    """(..., rank) along each column."""
    sound: Tensor
    """(...) False where numbers are zero or not finite, or the block fell apart: the basis is of no use there."""
    settled: Tensor
    """(...) False where more rounds would find more; says nothing of what is not sound."""


def follow(product: Product, basis: Tensor, rank: int, tolerance: float) -> FollowedBasis:
    """The leading `rank` vectors of a block (count, rows, block) that was good before, without a look at the device.

    They have settled where the last round brought no more than `tolerance`, and one more would bring less in proportion
    to its products, if gains go on to fall as they did.

    - product: with the Gram matrices
    - basis: where to begin
    - rank: how many vectors are wanted; those beyond are only there to help
    - tolerance: of `search`

    The vectors are those of orthogonal iteration, ordered by their energies. They are not rotated to singular vectors,
    which would take an eigenvalue problem for which a GPU waits.
    """
    noise = _noise(basis)
    precise, broken = _closer(_unit_columns(product(basis), noise))
    basis = precise.to(basis.dtype)
    image = product(basis)
    energies = (basis * image).sum(-2)
    gains, degree = [], torch.ones((), device=basis.device)
    for _ in range(FOLLOWED):
        edges = _edges(energies)
        ratios = energies.amax(-1) / edges
        degree = (log(2 * GROWTH) / torch.acosh((2 * ratios - 1).clamp_min(1))).clamp(1, DEGREE).floor()
        filtered = _filter(product, basis, image, edges, degree, DEGREE)
        precise, failed = _closer(_unit_columns(filtered, noise))
        broken = broken + failed
        basis = precise.to(basis.dtype)
        image = product(basis)
        before, energies = energies, (basis * image).sum(-2)
        # The best vectors lose where their energy spreads over the block: that is no sign of rest either.
        gains.append(_gains(before, energies, rank).abs())
    first, last = gains[-2:]
    coming = last * (last / first.clamp_min(torch.finfo(first.dtype).tiny)).clamp(0, 1)
    settled = (last <= tolerance) & (coming <= tolerance * degree / DEGREE)
    precise, failed = _closer(precise)
    sound = (broken + failed == 0) & (energies.amax(-1) > 0)  # False for what is no number
    largest = energies.topk(rank)
    order = largest.indices[:, None].expand(-1, basis.shape[-2], -1)
    return FollowedBasis(precise.to(basis.dtype).gather(-1, order), largest.values, sound, settled)


def _edges(energies: Tensor) -> Tensor:
    """A polynomial damps below the smallest quotient; of a steep or zero gradient below something positive."""
    edges = torch.maximum(energies.amin(-1), energies.amax(-1) / GROWTH)
    return torch.where(edges > 0, edges, torch.ones_like(edges))


def _gains(before: Tensor, energies: Tensor, rank: int) -> Tensor:
    """(count,) what a round has brought the best vectors, as a share of their energy; of a zero gradient 0."""
    now, then = (each.topk(rank).values.sum(-1) for each in (energies, before))
    return (now - then) / now.clamp_min(torch.finfo(now.dtype).tiny)


def _filter(product: Product, basis: Tensor, image: Tensor, edges: Tensor, degrees: Tensor, most: int) -> Tensor:
    """T(2 A / edge - 1) applied to each basis, T its Chebyshev polynomial; A itself where the degree is 1.

    - degrees: (count,) of each, at most `most`
    """
    slope, wanted = (2 / edges)[:, None, None], degrees[:, None, None]
    last, current, twice = basis, slope * image - basis, 2 * slope
    done = torch.arange(1, most, device=basis.device)[:, None, None, None]
    for goes_on in (wanted > done).unbind():  # T_{d+1}(x) = 2 x T_d(x) - T_{d-1}(x); each stops at its own degree
        following = (twice * product(current)).sub_(torch.add(last, current, alpha=2))
        last, current = current, torch.where(goes_on, following, current)
    return torch.where(wanted > 1, current, image)
