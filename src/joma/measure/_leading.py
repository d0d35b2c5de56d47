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
    plenty = 4 + int(1.2 * sqrt(side))
    for steps in (plenty, 3 * plenty):
        u = _search(triangle, start, min(steps, side), blas.ssymv, lapack.dstev)
        theta = float(np.square(a.T @ u, dtype=np.float64).sum() / np.square(u, dtype=np.float64).sum())
        limit = np.float32(theta * (1 + tolerance / 2))
        factor = np.negative(triangle)
        factor.ravel("K")[:: side + 1] += limit
        factor, broken = lapack.spotrf(factor, lower=1, overwrite_a=1, clean=0)
        if broken:
            continue
        lower = blas.strmm(1.0, factor, blas.strmm(1.0, factor, probes, lower=1, trans_a=1), lower=1)
        rounding = ROUNDING * _EPS
        measured = _norm(limit * probes - image - lower) + rounding * theta * _norm(probes)
        error = measured / least_overlap(1, PROBES, failure / 2)
        excess = (float(limit) + error - theta) / theta + rounding
        if excess <= tolerance:  # and nothing is not a number
            return Leading(frobenius, theta, excess)
    return None


@lru_cache(maxsize=1)
def _calls() -> tuple[Any, Any]:
    """BLAS and LAPACK as scipy has them: loaded where they are first needed."""
    from scipy.linalg import blas, lapack

    return blas, lapack


def _image(w: Tensor, x: Tensor) -> Any:
    """(w w^T) x on the smaller side. By torch, which is faster at products with a few vectors."""
    return (w @ (w.mT @ x) if w.shape[0] < w.shape[1] else w.mT @ (w @ x)).numpy()


def _search(triangle: Any, start: Any, steps: int, times: Any, eigen: Any) -> Any:
    """(side,) the leading Ritz vector after so many steps of Lanczos with reorthogonalisation."""
    rows = np.empty((steps, len(start)), np.float32)
    diagonal, below = np.zeros(steps), np.zeros(steps)
    q = start / np.linalg.norm(start)
    for step in range(steps):
        rows[step] = q
        q = times(1.0, triangle, q, lower=1)
        diagonal[step] = np.dot(q, rows[step])
        # What the recurrence knows comes off first: of a large rest one pass would leave too much.
        q -= np.float32(diagonal[step]) * rows[step]
        if step:
            q -= np.float32(below[step - 1]) * rows[step - 1]
        known = rows[: step + 1]
        q -= np.dot(np.dot(known, q), known)
        length = below[step] = float(np.sqrt(np.dot(q, q)))
        if length <= 100 * _EPS * diagonal[: step + 1].max():  # the space is exhausted
            steps = step + 1
            break
        q /= np.float32(length)
    if steps == 1:
        return rows[0]
    _, vectors, _ = eigen(diagonal[:steps], below[: steps - 1])
    return np.dot(vectors[:, -1].astype(np.float32), rows[:steps])


def _norm(x: Any) -> float:
    """|x|_2 of a tall matrix."""
    wide = np.asarray(x, np.float64)
    squared = wide.T @ wide
    return sqrt(float(np.linalg.eigvalsh(squared)[-1])) if np.isfinite(squared).all() else float("inf")
