"""Stable ranks of matrices that change a little between two looks, as weights in training do.

`spectrum` begins anew each time, and its error bound costs more than the number: on a GPU the host must wait for it.
Here a block of vectors is kept, which some steps of subspace iteration turn after the matrix. The host waits for
nothing. There is no bound that holds for sure: `residual` says how far the number is from some squared singular value,
and one new random vector per look finds directions that have come up elsewhere.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.products import float32_products
from joma.host.words import brief_repr
from joma.measure._gram import compute_dtype, full_precision

BLOCK = 16  #: Vectors that are kept of a matrix.
STEPS = 6  #: Products with W W^T at one look.
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

    >>> first_block(torch.zeros(3, 40, 1), torch.Generator()).shape
    torch.Size([3, 40, 16])
    """
    known = leading.shape[-1]
    return torch.cat([leading, _random(leading, BLOCK - known, generator)], dim=-1)


@torch.no_grad()
def follow(stacks: Sequence[Tensor], vectors: Tensor, generator: torch.Generator, *, steps: int = STEPS) -> Followed:
    """Stable ranks of some stacks of matrices, from vectors that were good before.

    - stacks: each (matrices, rows, columns), of one float type on one device; any scale. All have the same smaller side
    - vectors: (all matrices, smaller side, BLOCK), of the look before or of `first_block`
    - generator: draws one new vector per matrix, which takes the place of the last one
    - steps: of subspace iteration

    >>> w = torch.diag(torch.tensor([3.0, 2.0, 1.0] + 17 * [0.5]))[None]
    >>> block = first_block(torch.eye(20)[None, :, :1], torch.Generator().manual_seed(0))
    >>> follow([w], block, torch.Generator().manual_seed(1)).stable_rank
    tensor([2.0278])
    """
    wide = [each.detach().to(compute_dtype(each)) for each in stacks]
    flat = [each if each.shape[-2] <= each.shape[-1] else each.mT for each in wide]
    sizes = [torch.linalg.vector_norm(each, torch.inf, dim=(-2, -1), keepdim=True) for each in flat]
    parts = [_Stack(each, 1 / _above_zero(size)) for each, size in zip(flat, sizes, strict=True)]
    block = torch.cat([vectors[..., :-1], _random(vectors, 1, generator)], dim=-1).to(flat[0].dtype)
    device = block.device
    with full_precision(device):
        in_grams = device.type != "cpu" and block.shape[-2] <= GRAM_SIDE
        product = _by_grams(parts) if in_grams else partial(_by_matrices, parts)
        block = _settled(block, product, steps)
        leading = block @ _leading_mix(block.mT @ product(block))
        leading = leading / _above_zero(torch.linalg.vector_norm(leading, dim=-2, keepdim=True))
        ranks, residuals = zip(*map(_looked, parts, leading.split([len(each) for each in flat])), strict=True)
    # What a matrix of zeros leaves is nothing, and one that is not finite spoils it: earlier vectors stay.
    kept = torch.where(block.square().sum(-2, keepdim=True) > 0.5, block, vectors.to(block.dtype))
    return Followed(torch.cat(ranks), torch.cat(residuals), kept)


class _Stack(NamedTuple):
    """(matrices, smaller side, larger side), and (matrices, 1, 1): what brings the largest entry to 1."""

    w: Tensor
    scale: Tensor


def _by_matrices(parts: Sequence[_Stack], block: Tensor) -> Tensor:
    some = block.split([len(part.w) for part in parts])
    return torch.cat(
        [part.scale * (part.w @ (part.scale * (part.w.mT @ each))) for part, each in zip(parts, some, strict=True)]
    )


def _by_grams(parts: Sequence[_Stack]) -> Callable[[Tensor], Tensor]:
    """Factors are rounded to ten bits where that is fast: it turns the leading vector by less than a step does."""
    with float32_products("high"):
        grams = torch.cat([(part.scale * part.w) @ (part.scale * part.w).mT for part in parts])
    return lambda block: grams @ block


def _settled(block: Tensor, product: Callable[[Tensor], Tensor], steps: int) -> Tensor:
    """Subspace iteration. Two steps between any two times that vectors are made orthonormal again."""
    block = _orthonormal(_orthonormal(block))
    for step in range(steps):
        block = product(block)
        if step % 2 or step == steps - 1:
            block = _orthonormal(block)
    return _orthonormal(block)


def _looked(part: _Stack, vector: Tensor) -> tuple[Tensor, Tensor]:
    """Stable rank and residual with unit vectors, each (matrices, side, 1): from the matrices themselves."""
    image = part.scale * (part.w.mT @ vector)
    square = image.square().sum((-2, -1), keepdim=True)
    rest = part.scale * (part.w @ image) - square * vector
    size = torch.linalg.vector_norm(part.w, dim=(-2, -1), keepdim=True, dtype=_widest(part.w))
    share = (size * part.scale).square() / _above_zero(square)
    residual = torch.linalg.vector_norm(rest, dim=(-2, -1), keepdim=True) / _above_zero(square)
    return share.to(vector.dtype).flatten(), residual.flatten()


def _widest(w: Tensor) -> torch.dtype:
    return torch.float32 if w.device.type == "mps" else torch.float64  # squares of any float32 are in its range


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


def _random(like: Tensor, count: int, generator: torch.Generator) -> Tensor:
    shape = (*like.shape[:-1], count)
    drawn = torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
    return drawn / sqrt(like.shape[-2])
