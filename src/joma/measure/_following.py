"""Stable ranks of matrices that change a little between two looks, as weights in training do.

`spectrum` begins anew each time, and its error bound costs more than the number: on a GPU the host must wait for it.
Here a block of vectors is kept, which some steps of subspace iteration turn after the matrix. The host waits for
nothing. There is no bound that holds for sure: `residual` says how far the number is from some squared singular value,
and one new random vector per look finds directions that have come up elsewhere.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.products import float32_products
from joma.host.words import brief_repr
from joma.measure._gram import compute_dtype, full_precision, wide_dtype

BLOCK = 16  #: Vectors that are kept of a matrix.
STEPS = 6  #: Products with W W^T at one look.
TOGETHER = 1 << 27  #: Entries of matrices that are copied at a time.
GRAM_SIDE = 1280  #: Up to this smaller side an accelerator takes steps with Gram matrices: fewer kernels are started.
_SHIFT = 1e-4  # Added to Gram matrices of unit vectors: rounding cannot make them indefinite then.
_SQUARINGS, _AT_ONCE = (
    12,
    3,
)  # Of a block's matrix: its largest eigenvalue stands out by the power 2^12. Between scalings.


@brief_repr
class Followed(NamedTuple):
    """What one look gives of every matrix of a stack.

    >>> Followed._fields
    ('stable_rank', 'residual', 'vectors')
    """

    stable_rank: Tensor
    """(matrices,) never below the true one, but for rounding; 0 for a zero matrix, NaN for one that is not finite."""
    residual: Tensor
    """(matrices,) |W W' u - s u| / s for the unit vector u and the square s that were found."""
    vectors: Tensor
    """(matrices, smaller side, BLOCK) what the next look begins with."""


def first_block(leading: Tensor, generator: torch.Generator) -> Tensor:
    """(matrices, side, BLOCK) with what is known, (matrices, side, some), and random vectors.

    generator: where `leading` is.
    """
    known = leading.shape[-1]
    return torch.cat([leading, random_vectors(leading, BLOCK - known, generator)], dim=-1)


@torch.no_grad()
def follow(
    matrices: Sequence[Tensor], vectors: Tensor, new: Tensor, *, steps: int = STEPS, together: int = TOGETHER
) -> Followed:
    """Stable ranks of some matrices, from vectors that were good before.

    - matrices: each (rows, columns), of one float type on one device; any scale. All have the same smaller side
    - vectors: (matrices, smaller side, BLOCK), of the look before or of `first_block`
    - new: (matrices, smaller side, 1) of `random_vectors`, which take the place of the last ones
    - steps: of subspace iteration
    - together: entries that are copied at a time

    >>> w = torch.diag(torch.tensor([3.0, 2.0, 1.0] + 17 * [0.5]))
    >>> block = first_block(torch.eye(20)[None, :, :1], torch.Generator().manual_seed(0))
    >>> follow([w], block, random_vectors(block, 1, torch.Generator().manual_seed(1))).stable_rank
    tensor([2.0278])
    """
    shared = Stacks(matrices, together)
    block = torch.cat([vectors[..., :-1], new], dim=-1).to(shared.dtype)
    with full_precision(block.device):
        in_grams = takes_grams(block.device, block.shape[-2])
        product = _by_grams(shared) if in_grams else _by_matrices(list(shared))
        block = _settled(block, product, steps)
        leading = block @ _leading_mix(block.mT @ product(block))
        leading = leading / _above_zero(torch.linalg.vector_norm(leading, dim=-2, keepdim=True))
        parts = ((w, leading[at : at + len(w)]) for at, w in shared)
        ranks, residuals = zip(*(_looked(*part) for part in parts), strict=True)
    # What a matrix of zeros leaves is nothing, and one that is not finite spoils it: earlier vectors stay.
    kept = torch.where(block.square().sum(-2, keepdim=True) > 0.5, block, vectors.to(block.dtype))
    return Followed(torch.cat(ranks), torch.cat(residuals), kept)


def takes_grams(device: torch.device, side: int) -> bool:
    """Whether `follow` works with Gram matrices. side: the smaller one."""
    return device.type != "cpu" and side <= GRAM_SIDE


class Stacks:
    """Matrices with one smaller side, as stacks: scaled copies of some of one shape, made when they are asked for."""

    def __init__(self, matrices: Sequence[Tensor], together: int) -> None:
        """matrices: each (rows, columns). together: entries of a stack, but for one that is larger alone."""
        self._matrices, self._together = matrices, together
        self.dtype = compute_dtype(matrices[0])

    def __len__(self) -> int:
        return len(self._matrices)

    def empty_grams(self) -> Tensor:
        """(matrices, smaller side, smaller side), not yet written."""
        first, side = self._matrices[0], min(self._matrices[0].shape)
        return torch.empty(len(self), side, side, dtype=self.dtype, device=first.device)

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        """Where each begins, and (some, smaller side, larger side) with largest entries of 1: no square overflows."""
        at = 0
        for _, alike in groupby(self._matrices, lambda each: each.shape):
            waiting = list(alike)
            most = max(1, self._together // waiting[0].numel())
            for some in (waiting[first : first + most] for first in range(0, len(waiting), most)):
                yield at, self._scaled(some)
                at += len(some)

    def _scaled(self, some: list[Tensor]) -> Tensor:
        copied = torch.stack([each.detach() for each in some]).to(self.dtype)
        copied.div_(_above_zero(torch.linalg.vector_norm(copied, torch.inf, dim=(-2, -1), keepdim=True)))
        return copied if copied.shape[-2] <= copied.shape[-1] else copied.mT


def _by_matrices(stacks: list[tuple[int, Tensor]]) -> Callable[[Tensor], Tensor]:
    """Products with W W'; the stacks are held for as long as they are made."""
    return lambda block: torch.cat([w @ (w.mT @ block[at : at + len(w)]) for at, w in stacks])


def _by_grams(stacks: Stacks) -> Callable[[Tensor], Tensor]:
    """Factors are rounded to ten bits where that is fast: it turns the leading vector by less than a step does."""
    grams = stacks.empty_grams()
    with float32_products("high"):
        for at, w in stacks:
            torch.bmm(w, w.mT, out=grams[at : at + len(w)])
    return lambda block: grams @ block


def _settled(block: Tensor, product: Callable[[Tensor], Tensor], steps: int) -> Tensor:
    block = _orthonormal(_orthonormal(block))
    for step in range(steps):
        block = product(block)
        if step % 2 or step == steps - 1:
            block = _orthonormal(block)
    return _orthonormal(block)


def _looked(w: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
    """Stable rank and residual with unit vectors, each (matrices, rows, 1): from the matrices themselves."""
    image = w.mT @ vector
    square = image.square().sum((-2, -1), keepdim=True)
    rest = w @ image - square * vector
    # Row by row: of a whole matrix a norm in float64 would be taken of a copy in float64.
    size = torch.linalg.vector_norm(
        torch.linalg.vector_norm(w, dim=-1, keepdim=True).to(wide_dtype(w)), dim=-2, keepdim=True
    )
    share = size.square() / _above_zero(square)
    residual = torch.linalg.vector_norm(rest, dim=(-2, -1), keepdim=True) / _above_zero(square)
    return share.to(vector.dtype).flatten(), residual.flatten()


def _above_zero(x: Tensor) -> Tensor:
    return x.clamp_min(torch.finfo(x.dtype).tiny)  # what is divided by it is zero then; NaN stays


def _orthonormal(block: Tensor) -> Tensor:
    """Unit vectors of the same span, nearer to orthogonal: by a Cholesky factor, which makes no host wait."""
    unit = block / _above_zero(torch.linalg.vector_norm(block, dim=-2, keepdim=True))
    gram = unit.mT @ unit
    gram.diagonal(dim1=-2, dim2=-1).add_(_SHIFT)
    factor = torch.linalg.cholesky_ex(gram).L
    found: Tensor = torch.linalg.solve_triangular(factor, unit.mT, upper=False).mT
    return found


def _leading_mix(t: Tensor) -> Tensor:
    """(matrices, BLOCK, 1): a vector near the leading eigenvector. By squaring: eigh would make the host wait."""
    power = t
    for at in range(_SQUARINGS):
        if at % _AT_ONCE == 0:
            power = power / _above_zero(power.diagonal(dim1=-2, dim2=-1).sum(-1))[:, None, None]
        power = power @ power
    largest = power.diagonal(dim1=-2, dim2=-1).argmax(-1)
    return power.gather(-1, largest[:, None, None].expand(-1, power.shape[-2], 1))


def random_vectors(like: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(matrices, side, count) of about unit length. like: (matrices, side, any). generator: where `like` is."""
    shape = (*like.shape[:-1], count)
    drawn = torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
    return drawn / sqrt(like.shape[-2])
