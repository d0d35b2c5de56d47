"""The subspace of a gradient in which GaLore trains: a few orthonormal directions of its shorter side.

`find_projector` finds them in one of three ways. `randomized` multiplies a random block (or the last subspace) with
the Gram matrix of the gradient a few times and rotates what it finds to singular vectors. `exact` is a full SVD.
`random` does not look at the gradient. The first two report the captured energy, |P^T G|^2 / |G|^2.

The randomised way checks itself: where one more round of products gains more than `tolerance` of the captured energy,
it takes more, and in the end the exact SVD. An SVD that fails is tried again in float64, then by the Gram matrix.

`follow_projector` is for a GPU, which waits while the host looks at numbers. It goes from the last subspace to the next
one, and says on the device whether that was enough.

Both search for the leading eigenvectors of Gram matrices G G^T, each with a block of vectors, many at once. `search`
begins with two plain products. They are enough where the spectrum falls. Where it is flat, Chebyshev polynomials of the
Gram matrix follow: they damp everything below the block's smallest Rayleigh quotient and need about a third of the
products that plain powers need. It asks after every round whether that was enough. `follow` begins with vectors that
were good before. It asks nothing: it makes as many rounds as are mostly enough, and says whether they were.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from math import cosh, log, sqrt
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from joma.host.words import brief

Kind = Literal["randomized", "exact", "random"]
Side = Literal["left", "right"]
Product = Callable[[Tensor], Tensor]
Recurrence = Callable[[Tensor, Tensor], Tensor]
"""The next Chebyshev polynomial, applied to a block, from the last one and the one before."""
SPARE = 16  # directions beyond the rank that the randomised way carries along: they make it converge faster
SMALLEST = 1e-12  # gradients with a largest entry below this, or above its inverse, are scaled first
EIGH_ON_CPU = 256  # sides up to which torch.linalg.eigh is faster there than on a GPU
ROUNDS = 8  # of products, after which the search gives up
DEGREE = 6  # products per round, at most
GROWTH = 1e4  # how much a polynomial may amplify the leading direction: more, and rounding hides the others
LIMITS = tuple((cosh(log(2 * GROWTH) / degree) + 1) / 2 for degree in range(2, DEGREE + 1))
"""The largest energy over the edge up to which degree 2, 3, ... is allowed; T_d(x) is about exp(d acosh x) / 2."""
FOLLOWED = 2  # rounds of `follow`: enough for 265 of 267 subspaces of a LLaMA 20M, refreshed every 4 steps
NOISE = 1e-6  # of the block's size: fills directions that the block does not have, so that a Cholesky factor exists
TOLERANCE = 5e-3  # share of the captured energy that the last round of products may have gained


class Projector(NamedTuple):
    """Directions of the shorter side, and what of the gradient lies in them.

    >>> gradient = torch.outer(torch.arange(4.0), torch.ones(6))
    >>> found = find_projector(gradient, 1)
    >>> found.basis.shape, round(float(found.captured), 4)
    (torch.Size([4, 1]), 1.0)
    """

    basis: Tensor
    """(..., shorter side, rank) orthonormal columns, the direction with the largest energy first."""
    energies: Tensor
    """(..., rank) share of the gradient's squared norm along each direction."""
    exact: bool
    """True if a full SVD of the gradient was needed or asked for."""

    def __repr__(self) -> str:
        return brief(self)

    @property
    def captured(self) -> Tensor:
        """The share of the squared norm of the gradient that the subspace holds, (...)."""
        return self.energies.sum(-1).clamp(max=1)


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


def side_of(rows: int, columns: int) -> Side:
    """Which side of a matrix is projected: the shorter one; of a square matrix the right one, as galore-torch does."""
    return "right" if rows >= columns else "left"


def find_projector(
    gradient: Tensor,
    rank: int,
    kind: Kind = "randomized",
    *,
    start: Tensor | None = None,
    seed: int = 0,
    tolerance: float = TOLERANCE,
) -> Projector:
    """Directions of the shorter side of a gradient, (..., rows, columns) -> basis (..., shorter side, rank).

    - gradient: finite; float16 and bfloat16 are computed in float32
    - rank: at least 1 and at most the shorter side
    - kind: randomized, exact or random
    - start: a basis to begin with, for instance that of the last refresh; only used by randomized
    - seed: of what is random; the same seed on the same kind of device gives the same basis
    - tolerance: the search stops when one more round of products gains no more than this share of the captured energy

    >>> gradient = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    >>> find_projector(gradient, 2, "exact").energies
    tensor([0.6429, 0.2857])
    """
    if kind not in get_args(Kind):
        raise ValueError(f"projector must be one of {', '.join(get_args(Kind))}, got {kind!r}")
    if gradient.ndim < 2 or gradient.is_complex():
        raise ValueError(f"gradient must be a real matrix, got shape {tuple(gradient.shape)} of {gradient.dtype}")
    shorter = min(gradient.shape[-2:])
    if not 1 <= rank <= shorter:
        raise ValueError(f"rank must be between 1 and the shorter side {shorter} of the gradient, got {rank}")
    gradient = _in_range(gradient.to(torch.promote_types(gradient.dtype, torch.float32)))
    wide = gradient.mT if side_of(*gradient.shape[-2:]) == "right" else gradient
    if kind == "random":
        basis = orthonormalize(_draw(wide.shape[-2], rank, wide, seed), rounds=2)
        basis = basis.expand(*wide.shape[:-1], rank).contiguous()
        energies = torch.linalg.vector_norm(basis.mT @ wide, dim=-1).square()
        return Projector(basis, _shares(wide, energies), exact=False)
    found = None if kind == "exact" or rank + SPARE >= shorter else _randomized(wide, rank, start, seed, tolerance)
    if found is None:
        vectors, values = _singular(gradient)
        found = Projector(vectors[..., :rank].contiguous(), _shares(wide, values[..., :rank].square()), exact=True)
    return found


def follow_projector(
    gradient: Tensor, rank: int, start: Tensor, *, seed: int = 0, tolerance: float = TOLERANCE
) -> FollowedBasis:
    """What `find_projector` finds by the randomised way, without a look at the device; flags there say if it is good.

    Where it has settled, the directions hold as much energy as `tolerance` asks for, the largest first. They are
    orthonormal, but no singular vectors. From a gradient that is zero or not finite nothing sound is found. Energies
    are shares of the gradient's squared norm.

    - gradient: (..., rows, columns)
    - rank: at least 1; with SPARE directions more it is still below the shorter side
    - start: (..., shorter side, rank) the last basis
    - seed, tolerance: as in `find_projector`
    """
    gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
    size = torch.linalg.vector_norm(gradient, float("inf"), dim=(-2, -1), keepdim=True)
    gradient = gradient / size.clamp_min(torch.finfo(size.dtype).tiny)  # squares neither overflow nor vanish
    wide = gradient.mT if side_of(*gradient.shape[-2:]) == "right" else gradient
    stack, block = _stacked(wide), _stacked(_block(wide, rank, start, seed))
    found = follow(Gram(stack, block.shape[-1]), block, rank, tolerance)
    count = wide.shape[:-2]
    directions = _signed(found.basis.reshape(*wide.shape[:-1], rank), start)
    shares = _shares(wide, found.energies.reshape(*count, rank))
    course = found.course.reshape(-1, *count)
    return FollowedBasis(directions, shares, found.sound.reshape(count), course, tolerance)


def _in_range(gradient: Tensor) -> Tensor:
    """The gradient, divided by its largest entry if squares could overflow or vanish; directions stay the same."""
    size: Tensor = torch.linalg.vector_norm(gradient, float("inf"), dim=(-2, -1), keepdim=True)
    fits = (size == 0) | ((size > SMALLEST) & (size < 1 / SMALLEST))
    if bool(fits.all()):
        return gradient
    if not bool(size.isfinite().all()):
        raise ValueError("gradient must be finite, got NaN or infinity in it")
    return gradient / torch.where(fits, 1.0, size)


def _draw(rows: int, columns: int, like: Tensor, seed: int) -> Tensor:
    generator = torch.Generator(like.device).manual_seed(seed)
    return torch.randn(rows, columns, device=like.device, dtype=like.dtype, generator=generator)


def _shares(wide: Tensor, energies: Tensor) -> Tensor:
    """Energies as shares of the squared norm; of a gradient that is zero, zeros."""
    squared: Tensor = torch.linalg.vector_norm(wide, dim=-1).square().sum(-1)  # in two steps: more accurate on a CPU
    return (energies / squared.clamp_min(torch.finfo(squared.dtype).tiny)[..., None]).clamp(0, 1)


def _singular(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Singular vectors of the shorter side, and values; in float64 or from the Gram matrix where the SVD fails."""
    side = side_of(*gradient.shape[-2:])
    for dtype in dict.fromkeys((gradient.dtype, torch.float64)):
        try:
            left, values, right = torch.linalg.svd(gradient.to(dtype), full_matrices=False)
        except RuntimeError:  # LinAlgError is one
            continue
        vectors = right.mT if side == "right" else left
        if bool(vectors.isfinite().all()):  # some drivers return NaN where they should fail
            return vectors.to(gradient.dtype), values.to(gradient.dtype)
    wide = gradient.double().mT if side == "right" else gradient.double()
    energies, vectors = torch.linalg.eigh(wide @ wide.mT)
    return vectors.flip(-1).to(gradient.dtype), energies.flip(-1).clamp_min(0).sqrt().to(gradient.dtype)


def _eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Of small matrices on the CPU: a GPU takes one after the other, each longer than the CPU does."""
    small = matrices.device.type == "cuda" and matrices.shape[-1] <= EIGH_ON_CPU
    values, vectors = torch.linalg.eigh(matrices.cpu() if small else matrices)
    return values.to(matrices.device), vectors.to(matrices.device)


def _randomized(wide: Tensor, rank: int, start: Tensor | None, seed: int, tolerance: float) -> Projector | None:
    """By subspace iteration; None where it does not settle. The block begins with the start, if there is one."""
    stack, block = _stacked(wide), _stacked(_block(wide, rank, start, seed))
    settled = search(Gram(stack, block.shape[-1]), block, rank, tolerance)
    if settled is None:
        return None
    found = settled.reshape(*wide.shape[:-1], rank + SPARE)
    # Rayleigh-Ritz: rotate the block to singular vectors. In float64, because squaring loses half of the digits.
    inner = to_float64(found.mT @ wide)
    energies, rotation = _eigh((inner @ inner.mT).to(wide.dtype))
    directions = (to_float64(found) @ to_float64(rotation.flip(-1)[..., :rank])).to(wide.dtype)
    directions = directions.contiguous() if start is None else _signed(directions, start)
    return Projector(directions, _shares(wide, energies.flip(-1)[..., :rank]), exact=False)


def _stacked(matrices: Tensor) -> Tensor:
    """(count, rows, columns)"""
    return matrices.reshape(-1, *matrices.shape[-2:])


def _block(wide: Tensor, rank: int, start: Tensor | None, seed: int) -> Tensor:
    """(..., rows, rank + SPARE) vectors to begin with: those of the start, if there is one, and random ones."""
    rows, size = wide.shape[-2], rank + SPARE
    block = _draw(rows, size, wide, seed).expand(*wide.shape[:-2], rows, size)
    if start is None:
        return block
    first = start[..., :rank].to(wide.dtype)
    first = first.expand(*wide.shape[:-1], first.shape[-1])
    return torch.cat([first, block[..., first.shape[-1] :]], dim=-1)


def _signed(directions: Tensor, start: Tensor) -> Tensor:
    """A direction and its opposite serve alike; the one nearer to the last direction lets state be inherited."""
    known = min(start.shape[-1], directions.shape[-1])
    overlap = (directions[..., :known] * start[..., :known].to(directions.dtype)).sum(-2, keepdim=True)
    signs = torch.where(overlap < 0, -1.0, 1.0).to(directions.dtype)
    signed = directions[..., :known] * signs
    further = directions[..., known:]
    return (torch.cat([signed, further], dim=-1) if further.shape[-1] else signed).contiguous()


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
