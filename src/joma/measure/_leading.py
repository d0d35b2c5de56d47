"""The largest singular value of one matrix on a CPU, certified as in `_factor`, with BLAS and LAPACK called by name.

At sides of a few hundred a call through torch takes longer than its work, and a product of a matrix with its transpose
is done twice over. Here the lower triangle of the Gram matrix is made alone (ssyrk), the search reads that (ssymv),
and the factor takes its place (spotrf). The argument is the one of `_factor`: Ritz values from below with products of
the matrix itself, a Cholesky factor from above, and Gaussian probes that measure all rounding.
"""

from functools import lru_cache
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.measure._lanczos import ROUNDING, least_overlap

SIDES = (192, 1280)  # The smaller sides for which this is fastest. Below are stacks, beyond is Lanczos.
PROBES = 8
NEAR = 2e-5  # Relative: how exact a squared norm is to be. Certified is only that it lies within the tolerance.
_SAFE = (1e-15, 1e15)  # Squared Frobenius norms whose squares are far inside the range of float32.
_EPS = float(np.finfo(np.float32).eps)


class Leading(NamedTuple):
    """Squared norms of a matrix, and how far the spectral one may lie above (relative)."""

    frobenius: float
    spectral: float
    excess: float


def fits(w: Tensor) -> bool:
    """Whether `leading` is for a matrix like this."""
    narrow = w.dtype in (torch.float32, torch.float16, torch.bfloat16)
    return w.ndim == 2 and w.device.type == "cpu" and narrow and SIDES[0] <= min(w.shape) <= SIDES[1]


def leading(w: Tensor, tolerance: float, failure: float, generator: torch.Generator) -> Leading | None:
    """Both norms of (rows, columns), certified to `tolerance`; None where float32 does not settle it."""
    rows = w.detach().to(torch.float32).contiguous().numpy()
    side, wide = min(rows.shape), rows.shape[0] < rows.shape[1]
    blas, lapack = _calls()
    # Fortran's order of the same memory: (columns, rows). The triangle is that of the smaller side.
    triangle = blas.ssyrk(1.0, rows.T, trans=int(wide), lower=1)
    frobenius = float(np.trace(triangle, dtype=np.float64))
    if not _SAFE[0] < frobenius < _SAFE[1]:
        return None
    a = rows if wide else rows.T
    drawn = torch.randn(PROBES + 1, side, generator=generator)
    start, probes = drawn[0].numpy(), np.asfortranarray(drawn[1:].numpy().T)
    image = _image(torch.from_numpy(rows), drawn[1:].T)
    u = _search(triangle, start, 4 + int(1.2 * sqrt(side)), blas, lapack.dstev)
    theta = float(np.square(a.T @ u, dtype=np.float64).sum() / np.square(u, dtype=np.float64).sum())
    limit = np.float32(theta * (1 + tolerance / 2))
    factor = np.negative(triangle)
    factor.ravel("K")[:: side + 1] += limit
    factor, _ = lapack.spotrf(factor, lower=1, overwrite_a=1, clean=0)  # one that broke down shows in the error
    lower = blas.strmm(1.0, factor, blas.strmm(1.0, factor, probes, lower=1, trans_a=1), lower=1)
    rounding = ROUNDING * _EPS
    measured = _norm(limit * probes - image - lower) + rounding * theta * _norm(probes)
    excess = (float(limit) + measured / least_overlap(1, PROBES, failure) - theta) / theta + rounding
    return Leading(frobenius, theta, excess) if excess <= tolerance else None  # and nothing is not a number


@lru_cache(maxsize=1)
def _calls() -> tuple[Any, Any]:
    """BLAS and LAPACK as scipy has them: loaded where they are first needed."""
    from scipy.linalg import blas, lapack

    return blas, lapack


def _image(w: Tensor, x: Tensor) -> Any:
    """(w w^T) x on the smaller side. By torch, which is faster at products with a few vectors."""
    return (w @ (w.mT @ x) if w.shape[0] < w.shape[1] else w.mT @ (w @ x)).numpy()


def _search(triangle: Any, start: Any, plenty: int, blas: Any, stev: Any) -> Any:
    """(side,) the leading Ritz vector by Lanczos with reorthogonalisation, after `plenty` steps.

    Up to three times as many while its value is less exact than `NEAR`, as far as residual and next value tell.
    """
    rows = np.empty((3 * plenty, len(start)), np.float32)
    diagonal: list[float] = []
    below: list[float] = []
    q = start / np.linalg.norm(start)
    for step, row in enumerate(rows):  # at these sides a call takes as long as its work: each one counts
        row[:] = q
        q = blas.ssymv(1.0, triangle, row, lower=1)
        diagonal.append(blas.sdot(q, row))
        # The largest part comes off first: of a large rest one pass would leave too much.
        blas.saxpy(row, q, a=-diagonal[-1])
        known = rows[: step + 1]
        q -= np.dot(np.dot(known, q), known)
        below.append(blas.snrm2(q))
        exhausted = not below[-1] > 100 * _EPS * max(diagonal)
        if exhausted and not step:
            return row
        if exhausted or (step + 1 >= plenty and (step + 1 - plenty) % (plenty // 3) == 0):
            values, vectors, _ = stev(diagonal, below[:-1])
            if exhausted or (below[-1] * vectors[-1, -1]) ** 2 < NEAR * values[-1] * (values[-1] - values[-2]):
                break
        blas.sscal(1 / below[-1], q)
    return np.dot(vectors[:, -1].astype(np.float32), known[: len(vectors)])


def _norm(x: Any) -> float:
    """|x|_2 of a tall matrix."""
    wide = np.asarray(x, np.float64)
    squared = wide.T @ wide
    return sqrt(float(np.linalg.eigvalsh(squared)[-1])) if np.isfinite(squared).all() else float("inf")
