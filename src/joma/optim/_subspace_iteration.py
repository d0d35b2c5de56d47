"""Searching for the leading eigenvectors of Gram matrices G G^T, each with a block of vectors, many at once.

`search` begins with two plain products. They are enough where the spectrum falls. Where it is flat, Chebyshev
polynomials of the Gram matrix follow: they damp everything below the block's smallest Rayleigh quotient and need about
a third of the products that plain powers need. It asks after every round whether that was enough.

`follow` begins with vectors that were good before. It asks nothing, since a GPU waits while the host looks at numbers:
it makes as many rounds as are mostly enough, and says on the device whether they were.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from math import cosh, log, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]
Recurrence = Callable[[Tensor, Tensor], Tensor]
"""The next Chebyshev polynomial, applied to a block, from the last one and the one before."""
ROUNDS = 8  # of products, after which the search gives up
DEGREE = 6  # products per round, at most
GROWTH = 1e4  # how much a polynomial may amplify the leading direction: more, and rounding hides the others
LIMITS = tuple((cosh(log(2 * GROWTH) / degree) + 1) / 2 for degree in range(2, DEGREE + 1))
"""The largest energy over the edge up to which degree 2, 3, ... is allowed; T_d(x) is about exp(d acosh x) / 2."""
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


class Gram:
    """Gram matrices G G^T of a stack of G, to be multiplied with blocks; formed if that takes fewer operations.

    `bmm` and not `@`, which makes four calls of torch where this makes one: often the host is what a GPU waits for.
    """

    def __init__(self, wide: Tensor, block: int) -> None:
        """Of G (count, rows, columns), for blocks of so many vectors."""
        self._wide = wide
        self._formed = torch.bmm(wide, wide.mT) if 4 * DEGREE * block > wide.shape[-2] else None

    def __call__(self, vectors: Tensor) -> Tensor:
        """The product with a block (count, rows, vectors)."""
        if self._formed is not None:
            return torch.bmm(self._formed, vectors)
        return torch.bmm(self._wide, torch.bmm(self._wide.mT, vectors))

    def recurrence(self, slope: Tensor) -> Recurrence:
        """As below. Where Gram matrices are formed it is one call of torch, into the memory of what comes second."""
        if self._formed is None:
            return recurrence(self, slope)
        factor = self._formed * (2 * slope)
        factor.diagonal(dim1=-2, dim2=-1).sub_(2)
        return lambda last, before: before.baddbmm_(factor, last, beta=-1)


def recurrence(product: Product, slope: Tensor) -> Recurrence:
    """T_{d+1}(x) = 2 x T_d(x) - T_{d-1}(x) of x = slope * A - 1, with slopes (count, 1, 1)."""
    return lambda last, before: (2 * slope * product(last)).sub_(torch.add(before, last, alpha=2))


def search(product: Product, basis: Tensor, rank: int, tolerance: float) -> Tensor | None:
    """Orthonormal bases (count, rows, block), each of which a round has brought no more than `tolerance` of its energy.

    The energy is that of the `rank` best vectors of a block: those beyond are only there to help. A round of fewer
    products must bring less in proportion. None if a basis does not settle. On the way one round of `orthonormalize`
    is enough; what is returned has had two.
    """
    basis = orthonormalize(product(basis), rounds=1)
    image = product(basis)
    energies = _ranked(basis, image).values
    degrees = [1] * len(basis)
    settled = [False] * len(basis)
    for turn in range(ROUNDS):
        if turn:
            edges = _edges(energies)
            degrees = [1 + sum(ratio <= most for most in LIMITS) for ratio in (energies[:, 0] / edges).tolist()]
            slope, wanted = (2 / edges)[:, None, None], torch.tensor(degrees, device=basis.device)[:, None, None]
            goes_on = [wanted > done for done in range(1, max(degrees))]
            image = _filter(recurrence(product, slope), basis, image, slope, goes_on)
        basis = orthonormalize(image, rounds=1)
        image = product(basis)
        before, energies = energies, _ranked(basis, image).values
        gains = _gains(_best(before, rank), _best(energies, rank)).tolist()
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
    course: Tensor
    """(FOLLOWED + 2, ...) energies of the best vectors before all rounds and after each, then the last degree."""
    tolerance: float
    """Of `search`."""

    @property
    def settled(self) -> Tensor:
        """(...) as `have_settled` says, on the device."""
        return have_settled(self.course, self.tolerance)


def have_settled(course: Tensor, tolerance: float) -> Tensor:
    """(...) False where more rounds would find more; says nothing of what is not sound.

    The last round brought no more than `tolerance`, and one more would bring less in proportion to its products, if
    gains go on to fall as they did.

    - course, tolerance: those of a `FollowedBasis`, on the device or on the host
    """
    *best, degree = course
    # The best vectors lose where their energy spreads over the block: that is no sign of rest either.
    first, last = (_gains(before, now).abs() for before, now in pairwise(best[-3:]))
    coming = last * (last / first.clamp_min(torch.finfo(first.dtype).tiny)).clamp(0, 1)
    settled: Tensor = (last <= tolerance) & (coming <= tolerance * degree / DEGREE)
    return settled


def follow(gram: Gram, basis: Tensor, rank: int, tolerance: float) -> FollowedBasis:
    """The leading `rank` vectors of a block (count, rows, block) that was good before, without a look at the device.

    The vectors are those of orthogonal iteration, ordered by their energies. They are not rotated to singular vectors,
    which would take an eigenvalue problem for which a GPU waits.

    - gram: the Gram matrices
    - basis: where to begin
    - rank: how many vectors are wanted; those beyond are only there to help
    - tolerance: of `search`
    """
    noise, limits = _noise(basis), _limits(basis.dtype, basis.device)
    precise, broken = _closer(_unit_columns(gram(basis), noise))
    basis = precise.to(basis.dtype)
    image = gram(basis)
    ranked = _ranked(basis, image)
    course, goes_on = [_best(ranked.values, rank)], limits
    for _ in range(FOLLOWED):
        edges = _edges(ranked.values)
        goes_on = ranked.values[:, 0] <= limits * edges  # (degrees, count)
        slope = (2 / edges)[:, None, None]
        filtered = _filter(gram.recurrence(slope), basis, image, slope, goes_on[..., None, None].unbind())
        precise, failed = _closer(_unit_columns(filtered, noise))
        broken = broken + failed
        basis = precise.to(basis.dtype)
        image = gram(basis)
        ranked = _ranked(basis, image)
        course.append(_best(ranked.values, rank))
    precise, failed = _closer(precise)
    sound = (broken + failed == 0) & (ranked.values[:, 0] > 0)  # False for what is no number
    order = ranked.indices[:, None, :rank].expand(-1, basis.shape[-2], -1)
    chosen = precise.to(basis.dtype).gather(-1, order)
    course.append(1 + goes_on.sum(0, dtype=basis.dtype))
    return FollowedBasis(chosen, ranked.values[:, :rank], sound, torch.stack(course), tolerance)


@cache
def _limits(dtype: torch.dtype, device: torch.device) -> Tensor:
    """(degrees, 1) brought to a device once."""
    return torch.tensor(LIMITS, dtype=dtype, device=device)[:, None]


def _ranked(basis: Tensor, image: Tensor) -> torch.return_types.sort:
    """Rayleigh quotients (count, block), the energy along each vector; the largest first, and which vector has it."""
    return (basis * image).sum(-2).sort(descending=True)


def _best(ranked: Tensor, rank: int) -> Tensor:
    """(count,) the energy of the best vectors together."""
    return ranked[:, :rank].sum(-1)


def _edges(ranked: Tensor) -> Tensor:
    """A polynomial damps below the smallest quotient; of a steep or zero gradient below something positive."""
    edges = torch.maximum(ranked[:, -1], ranked[:, 0] / GROWTH)
    return torch.where(edges > 0, edges, 1.0)


def _gains(before: Tensor, now: Tensor) -> Tensor:
    """What a round has brought the best vectors, as a share of their energy; of a zero gradient 0."""
    return (now - before) / now.clamp_min(torch.finfo(now.dtype).tiny)


def _filter(step: Recurrence, basis: Tensor, image: Tensor, slope: Tensor, goes_on: Sequence[Tensor]) -> Tensor:
    """T(slope * A - 1) applied to each basis, T its Chebyshev polynomial; A itself where the degree is 1.

    - step: the recurrence of these polynomials
    - basis, image: blocks (count, rows, block), which are used up, and A applied to them
    - slope: (count, 1, 1)
    - goes_on: for degree 2, 3, ...: (count, 1, 1) False where the degree is lower
    """
    before, last = basis, slope * image - basis
    for wanted in goes_on:
        before, last = last, torch.where(wanted, step(last, before), last)
    return torch.where(goes_on[0], last, image) if goes_on else image
