"""The largest singular value of one matrix on a CPU, certified as in `_factor`, with BLAS and LAPACK called by name.

At sides of a few hundred a call through torch takes longer than its work, and a product of a matrix with its transpose
is done twice over. Here five eighths of the Gram matrix are made, in strips, the search reads its lower triangle
(ssymv), and the factor takes its place (spotrf). The argument is the one of `_factor`: Ritz values from below with
products of the matrix itself, a Cholesky factor from above, and Gaussian probes that measure all rounding.
"""

from functools import lru_cache
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.measure._gram import full_precision
from joma.measure._lanczos import ROUNDING, least_overlap

SIDES = (192, 1280)  # The smaller sides for which this is fastest. Below are stacks, beyond is Lanczos.
PROBES = 8
NEAR = 5e-5  # Relative: how exact a squared norm is to be. Certified is only that it lies within the tolerance.
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
    with torch.no_grad(), full_precision(w.device):
        tall = (w if w.shape[0] >= w.shape[1] else w.mT).detach().to(torch.float32)
        side = tall.shape[1]
        drawn = torch.randn(PROBES + 1, side, generator=generator)
        triangle = _triangle(tall)
        image = ((tall @ drawn[1:].mT).mT @ tall).numpy().T  # so turned a product takes half of the time
    frobenius = float(np.trace(triangle, dtype=np.float64))
    if not _SAFE[0] < frobenius < _SAFE[1]:
        return None
    blas, lapack = _calls()
    u = _search(triangle, drawn[0].numpy(), 4 + int(1.2 * sqrt(side)), blas, lapack.dstev)
    theta = float(np.square(tall.numpy() @ u, dtype=np.float64).sum() / np.square(u, dtype=np.float64).sum())
    limit, probes = np.float32(theta * (1 + tolerance / 2)), drawn[1:].numpy().T
    np.negative(triangle, out=triangle)
    triangle.ravel("K")[:: side + 1] += limit
    factor, _ = lapack.spotrf(triangle, lower=1, overwrite_a=1, clean=0)  # one that broke down shows in the error
    lower = blas.strmm(1.0, factor, blas.strmm(1.0, factor, probes, lower=1, trans_a=1), lower=1)
    rounding = ROUNDING * _EPS
    wrong, drew = _norms(limit * probes - image - lower, probes)
    excess = (float(limit) + (wrong + rounding * theta * drew) / least_overlap(1, PROBES, failure) - theta) / theta
    return Leading(frobenius, theta, excess + rounding) if excess + rounding <= tolerance else None  # not for NaN


def _triangle(tall: Tensor) -> Any:
    """The lower triangle of tall^T tall in Fortran's order, for five eighths of the work. Above it is anything."""
    side = tall.shape[1]
    made = tall.new_empty(side, side)
    for i in range(0, side, step := -(-side // 4)):
        torch.mm(tall[:, i : i + step].mT, tall[:, i:], out=made[i : i + step, i:])
    return made.numpy().T


@lru_cache(maxsize=1)
def _calls() -> tuple[Any, Any]:
    """BLAS and LAPACK as scipy has them: loaded where they are first needed."""
    from scipy.linalg import blas, lapack

    return blas, lapack


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


def _norms(*tall: Any) -> list[float]:
    """|x|_2 of tall matrices of one shape."""
    squared = np.stack([x.T @ x for x in np.asarray(tall, np.float64)])
    return np.sqrt(np.linalg.eigvalsh(squared)[:, -1]).tolist() if np.isfinite(squared).all() else [np.inf, np.inf]
