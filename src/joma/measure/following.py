"""Stable ranks of matrices that change a little between two looks, as weights in training do.

`spectrum` begins anew each time, and its error bound costs more than the number: on a GPU the host must wait for it.
Here a block of vectors is kept, which some steps of subspace iteration turn after the matrix. The host waits for
nothing. There is no bound that holds for sure: `residual` says how far the number is from some squared singular value,
and one new random vector per look finds directions that have come up elsewhere.
"""

from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.words import brief_repr
from joma.measure._gram import compute_dtype, full_precision

BLOCK = 16  #: Vectors that are kept of a matrix.
STEPS = 6  #: Products with W W^T at one look.
_SHIFT = 1e-4  # Added to Gram matrices of unit vectors: rounding cannot make them indefinite then.
_SQUARINGS = 12  # Of a block's matrix: its largest eigenvalue stands out by the power 2^12.


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

    >>> first_block(torch.zeros(3, 40, 1), torch.Generator()).shape
    torch.Size([3, 40, 16])
    """
    known = leading.shape[-1]
    return torch.cat([leading, _random(leading, BLOCK - known, generator)], dim=-1)


@torch.no_grad()
def follow(w: Tensor, vectors: Tensor, generator: torch.Generator, *, steps: int = STEPS) -> Followed:
    """Stable ranks of a stack, from vectors that were good before.

    - w: (matrices, rows, columns), any float type, any scale
    - vectors: (matrices, smaller side, BLOCK), of the look before or of `first_block`
    - generator: draws one new vector per matrix, which takes the place of the last one
    - steps: of subspace iteration; each reads the matrices twice

    >>> w = torch.diag(torch.tensor([3.0, 2.0, 1.0] + 17 * [0.5]))[None]
    >>> block = first_block(torch.eye(20)[None, :, :1], torch.Generator().manual_seed(0))
    >>> follow(w, block, torch.Generator().manual_seed(1)).stable_rank
    tensor([2.0278])
    """
    a = w.detach().to(compute_dtype(w))
    a = a if a.shape[-2] <= a.shape[-1] else a.mT
    size = torch.linalg.vector_norm(a, torch.inf, dim=(-2, -1), keepdim=True)
    a = a / torch.where(size > 0, size, 1.0)
    block = torch.cat([vectors[..., :-1], _random(vectors, 1, generator)], dim=-1).to(a.dtype)
    with full_precision(w.device):
        block = _orthonormal(block)
        for _ in range(steps):
            block = _orthonormal(a @ (a.mT @ block))
        images = a.mT @ block
        mix = _leading_mix(images.mT @ images)
        vector, image = block @ mix, images @ mix
        length = _squares(vector)
        square = _squares(image) / torch.where(length > 0, length, 1.0)
        above = torch.where(square > 0, square, 1.0)
        off = a @ image - square * vector
        residual = (_squares(off) / torch.where(length > 0, length, 1.0)).sqrt() / above
    rank = torch.where(size > 0, _squares(a) / above, size)  # NaN where the size is
    # What a matrix of zeros leaves is nothing, and one that is not finite spoils it: earlier vectors stay.
    kept = torch.where(block.square().sum(-2, keepdim=True) > 0.5, block, vectors.to(block.dtype))
    return Followed(rank[:, 0, 0], residual[:, 0, 0], kept)


def _orthonormal(block: Tensor) -> Tensor:
    """Columns of the same span, orthonormal up to rounding unless they were close to dependent: twice by Cholesky."""
    unit = torch.eye(block.shape[-1], dtype=block.dtype, device=block.device)
    length = torch.linalg.vector_norm(block, dim=-2, keepdim=True)
    block = block / torch.where(length > 0, length, 1.0)
    for shift in (_SHIFT, _SHIFT**2):
        factor = torch.linalg.cholesky_ex(block.mT @ block + shift * unit).L
        block = torch.linalg.solve_triangular(factor, block.mT, upper=False).mT
    return block


def _leading_mix(t: Tensor) -> Tensor:
    """(matrices, BLOCK, 1): a unit vector near the leading eigenvector. By squaring: eigh would make the host wait."""
    power = t
    for _ in range(_SQUARINGS):
        trace = power.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
        power = power / torch.where(trace > 0, trace, 1.0)
        power = power @ power
    largest = power.diagonal(dim1=-2, dim2=-1).argmax(-1)
    column = power.gather(-1, largest[:, None, None].expand(-1, power.shape[-2], 1))
    length = torch.linalg.vector_norm(column, dim=-2, keepdim=True)
    mix: Tensor = column / torch.where(length > 0, length, 1.0)
    return mix


def _squares(x: Tensor) -> Tensor:
    return x.square().sum((-2, -1), keepdim=True)


def _random(like: Tensor, count: int, generator: torch.Generator) -> Tensor:
    shape = (*like.shape[:-1], count)
    drawn = torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
    return drawn / sqrt(like.shape[-2])
