"""The subspace of a gradient in which GaLore trains: a few orthonormal directions of its shorter side.

`find_projector` finds them in one of three ways. `randomized` multiplies a random block (or the last subspace) with
the Gram matrix of the gradient a few times and rotates what it finds to singular vectors. `exact` is a full SVD.
`random` does not look at the gradient. The first two report the captured energy, |P^T G|^2 / |G|^2.

The randomised way checks itself: where one more round of products gains more than `tolerance` of the captured energy,
it takes more, and in the end the exact SVD. An SVD that fails is tried again in float64, then by the Gram matrix.

`follow_projector` is for a GPU, which waits while the host looks at numbers. It goes from the last subspace to the next
one, and says on the device whether that was enough.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from joma.host.words import brief
from joma.optim._subspace_iteration import FollowedBasis, Gram, follow, orthonormalize, search, to_float64

Kind = Literal["randomized", "exact", "random"]
Side = Literal["left", "right"]
SPARE = 16  # directions beyond the rank that the randomised way carries along: they make it converge faster
SMALLEST = 1e-12  # gradients with a largest entry below this, or above its inverse, are scaled first
EIGH_ON_CPU = 256  # sides up to which torch.linalg.eigh is faster there than on a GPU
TOLERANCE = 5e-3  # share of the captured energy that the last round of products may have gained


@dataclass(frozen=True)
class Energy:
    """The smallest rank whose subspace holds a share of the gradient's squared norm.

    Each matrix gets its rank when its first gradient comes, and keeps it: the memory is then known, and the state of
    the inner optimizer keeps its shape.

    - share: of the squared norm, above 0 and at most 1
    - most: the largest rank
    - least: the smallest rank

    >>> Energy(0.9, most=3).choose(torch.tensor([0.6, 0.35, 0.05]))
    2
    """

    share: float
    most: int
    least: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {self.share}")
        if not 1 <= self.least <= self.most:
            raise ValueError(f"least and most must be ranks with 1 <= least <= most, got {self.least} and {self.most}")

    def choose(self, energies: Tensor) -> int:
        """The rank.

        - energies: shares of the energy along the leading directions, largest first
        """
        short = int((energies.double().cumsum(0) < self.share - 1e-6).sum())
        return min(max(self.least, min(short + 1, self.most)), len(energies))


Rank = int | Energy


def check_rank(rank: object, *, within: int | None = None, name: str = "") -> None:
    """Refuse what is no rank, and a rank above `within`, the shorter side of the matrix `name`."""
    if isinstance(rank, Energy):
        if within is not None and rank.least > within:
            raise ValueError(f"least must be at most the shorter side of {name}, which is {within}, got {rank}")
    elif isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ValueError(f"rank must be a whole number of at least 1, or an Energy, got {rank!r}")
    elif within is not None and rank > within:
        raise ValueError(f"rank must be at most the shorter side of {name}, which is {within}, got {rank}")


def largest_rank(rank: Rank) -> int:
    """The rank, or the most it can become."""
    return rank.most if isinstance(rank, Energy) else rank


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
        basis = orthonormalize(_draw(wide.shape[-2], rank, wide, seed)).expand(*wide.shape[:-1], rank).contiguous()
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

    >>> gradient = torch.diag(torch.arange(40.0, 0.0, -1.0))
    >>> found = follow_projector(gradient, 2, start=torch.eye(40)[:, :2])
    >>> find_projector(gradient, 2, "exact").energies, found.energies
    (tensor([0.0723, 0.0687]), tensor([0.0723, 0.0687]))
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
