"""The largest singular value of one matrix on a CPU, certified, in a few dozen products of matrices.

What a product costs beyond its work (the call, waking threads) is paid per call, so they are few and large, and all are
torch's own: a second library would bring threads of its own, which wait in the way of the first.

Notation: A = W^T W on the smaller side (n), G its Gram matrix as computed, X = P(G) Gamma for a Gaussian block Gamma of
b columns and a product P of Chebyshev polynomials, each at most 1 on an interval [0, edge] below the values sought.

1. From below. The Ritz values theta_j of G on the span of X (their vectors: u_j) do not exceed its eigenvalues.
2. From above. Let G v = lambda v with |v| = 1, lambda >= a > theta_1, and r_j = G u_j - theta_j u_j. Then
       v^T u_j = v^T r_j / (lambda - theta_j),   v^T X = P(lambda) v^T Gamma,   X = sum_j u_j (u_j^T X),
   so with t such that |v^T Gamma| >= t but for a known probability (`_lanczos.least_overlap`),
       P(a) t <= sum_j |r_j| |u_j^T X| / (a - theta_j).
   The left side grows with a and the right one falls: where that is false at some a there is no such v, and all
   eigenvalues of G are below a. Rounding of X is allowed for.
3. Gamma is drawn without regard to A - G, so |A - G|_2 <= |(A - G) Gamma|_2 / t likewise: that rounding is measured,
   with fewer columns.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.measure._gram import full_precision
from joma.measure._lanczos import ROUNDING, least_overlap

SIDES = (192, 1280)  # The smaller sides for which this is fastest with one thread. Below are stacks, beyond is Lanczos.
LARGEST = 4096  # With more threads it is up to here: they speed up these products more than those of Lanczos.
PROBES = 8
BLOCK = 16  # Vectors: what a product costs hardly depends on them up to here.
EDGE = 11  # The Ritz value at which the interval of the next polynomial ends: those below are still too small.
FIRST = 4  # Degree of the first polynomial, whose edge is the mean eigenvalue: the largest is never below it.
GROWTH = 30.0  # Of a polynomial, as a logarithm: that much float32 has room for.
_SAFE = (1e-15, 1e15)  # Squared Frobenius norms for which nothing leaves the range of float32.
_EPS = ROUNDING * torch.finfo(torch.float32).eps


class Leading(NamedTuple):
    """Squared norms of a matrix, and how far the spectral one may lie above (relative)."""

    frobenius: float
    spectral: float
    excess: float


class _Ritz(NamedTuple):
    """Of the rows of every X: Ritz values, largest first, with sizes of residuals and of u_j^T X, and more."""

    values: Any
    residuals: Any
    weights: Any
    rest: Any  # Size of what no u_j holds.
    scale: Any  # Of X.


def fits(w: Tensor) -> bool:
    """Whether `leading` is for matrices like these."""
    narrow = w.dtype in (torch.float32, torch.float16, torch.bfloat16)
    largest = min(LARGEST, SIDES[1] * torch.get_num_threads())
    return w.device.type == "cpu" and narrow and SIDES[0] <= min(w.shape[-2:]) <= largest


def leading(stack: Tensor, tolerance: float, failure: float, generator: torch.Generator) -> list[Leading | None]:
    """Both norms of (matrices, rows, columns), certified to `tolerance`; None where float32 does not settle it."""
    with torch.no_grad(), full_precision(stack.device):
        tall = (stack if stack.shape[-2] >= stack.shape[-1] else stack.mT).detach().to(torch.float32)
        drawn = torch.randn(BLOCK, tall.shape[-1], generator=generator)
        # One matrix after the other, while it lies in the cache.
        pairs = [(_gram(one), (one @ drawn[:PROBES].mT).mT @ one) for one in tall]
        gram, exact = (torch.stack(each) if len(pairs) > 1 else each[0][None] for each in zip(*pairs, strict=True))
        frobenius = _diagonal(gram).sum(-1, dtype=torch.float64).numpy()
        sound = (frobenius > _SAFE[0]) & (frobenius < _SAFE[1])
        if not sound.all():
            others = leading(stack[torch.from_numpy(sound)], tolerance, failure, generator) if sound.any() else []
            return [others.pop(0) if one else None for one in sound]
        image = drawn @ gram
        apart = torch.linalg.matrix_norm(image[:, :PROBES] - exact).numpy() / least_overlap(1, PROBES, failure / 2)
        overlap = least_overlap(1, BLOCK, failure / 2)
        spectral, limit = _search(gram, drawn, image, frobenius / gram.shape[-1], tolerance, overlap)
    excess = (limit + apart) / spectral - 1 + _EPS
    found = map(Leading, frobenius.tolist(), spectral.tolist(), excess.tolist())
    return [one if one.excess <= tolerance else None for one in found]  # not for NaN


def _gram(tall: Tensor) -> Tensor:
    """tall^T tall: for a little more than half of the work, if that is more than to copy the rest."""
    side = tall.shape[1]
    if len(tall) <= 128 * (3 + torch.get_num_threads()):
        return tall.mT @ tall
    made = tall.new_empty(side, side)
    for i in range(0, side, step := max(64, -(-side // 8))):
        here, beyond = slice(i, i + step), slice(i + step, None)
        torch.mm(tall[:, here].mT, tall[:, i:], out=made[here, i:])
        made[beyond, here] = made[here, beyond].mT
    return made


def _search(gram: Tensor, drawn: Tensor, image: Tensor, mean: Any, tolerance: float, overlap: float) -> tuple[Any, Any]:
    """Of each G the leading Ritz value, and a bound of all eigenvalues: infinite where none is found.

    drawn: rows, which stand for columns of Gamma; image: their products with each G. Spoils the diagonals of `gram`.
    """
    x, size = drawn.expand(len(gram), -1, -1), float(torch.linalg.matrix_norm(drawn))
    found, bound = np.zeros_like(mean), np.full_like(mean, np.inf)
    stages: list[tuple[int, Any]] = []
    degree, edge, shift, scale, scaled, steps = FIRST, mean, 0 * mean, 1 + 0 * mean, 0 * mean, 0
    while (steps := steps + degree) <= max(FIRST, gram.shape[-1] // 2):  # beyond, all eigenvalues come as fast
        half = (edge / 2).astype(np.float32).astype(np.float64)
        numbers = np.stack([half - shift, scale, scale / half, scale * (shift / half - 1), 2 / half])
        lower, *factors = torch.from_numpy(numbers).float()
        _diagonal(gram).sub_(lower[:, None])  # so that [-half, half] is the interval
        same, first, rest, twice = (each[:, None, None] for each in factors)
        before, x = x * same, image * first + x * rest
        for _ in range(degree - 1):
            before, x = x, _less(before, x * twice, gram)
        image, shift = x @ gram, half
        stages.append((degree, 2 * half))
        scaled += np.log(scale)
        ritz = _ritz(x, image)
        values = ritz.values + shift[:, None]
        top = values[:, 0]
        limit = top * (1 + tolerance / 2)
        beyond = np.stack([2 * limit / end - 1 for _, end in stages])
        degrees, rates = np.array([[degree] for degree, _ in stages]), np.arccosh(np.maximum(beyond, 1 + 1e-9))
        # The logarithm of P(limit), and the rounding of all steps in units of what it has become at the end.
        grown = scaled + (degrees * rates + np.log1p(np.exp(-2 * degrees * rates)) - np.log(2)).sum(0)
        drift = size * (degrees * (2 * np.cosh(rates) + 1) / np.sinh(rates)).sum(0)
        reach = ritz.weights / (limit[:, None] - values)
        seen = (ritz.residuals * reach).sum(-1) + _EPS * top * np.linalg.norm(reach, axis=-1) + ritz.rest
        missing = (seen * np.exp(-grown) + _EPS * drift) / overlap
        now = (missing < 1) & np.isinf(bound) & (beyond > 1).all(0)
        found[now], bound[now] = top[now], limit[now]
        if not (going := np.isinf(bound)).any():
            break
        # What is done does not grow any further.
        edge = np.where(going, np.clip(values[:, EDGE], mean, top * (1 - tolerance)), 2 * found)
        rate = np.arccosh(2 * limit[going] / edge[going] - 1)
        wanted = (np.arccosh(np.maximum(2 * missing[going], 2.0)) / rate).max()
        degree, scale = max(2, int(min(np.ceil(wanted), GROWTH / rate.max()))), ritz.scale
    return found, bound


def _ritz(x: Tensor, image: Tensor) -> _Ritz:
    """Rayleigh-Ritz on the rows of x in float64; image: x G. Directions that are rounding have no weight."""
    both, count = torch.cat([x, image], dim=-2).double(), x.shape[-2]
    products = (both @ both.mT).numpy()
    lengths, axes = np.linalg.eigh(products[:, :count, :count])
    kept = lengths > 1e-12 * lengths[:, -1:]
    root = np.sqrt(np.where(kept, lengths, 0.0))
    whiten = axes / np.where(kept, root, np.inf)[:, None]
    # Below its diagonal, each entry is with the image of the longer direction, which is the more exact one.
    held = whiten.mT @ products[:, count:, :count] @ whiten
    values, turn = (each[..., ::-1] for each in np.linalg.eigh(held))
    to = whiten @ turn
    # |image - values x|^2 from products of the two: float64 has the digits for that.
    mixed = products[:, count:, count:] @ to - 2 * values[:, None] * (products[:, count:, :count] @ to)
    return _Ritz(
        values,
        np.sqrt(np.maximum((mixed * to).sum(-2) + values**2, 0.0)),
        np.linalg.norm(turn * root[..., None], axis=-2),
        np.sqrt(np.where(kept, 0.0, np.maximum(lengths, 0.0)).sum(-1)),
        1 / root[:, -1],
    )


def _less(before: Tensor, x: Tensor, gram: Tensor) -> Tensor:
    """x G - before."""
    if len(gram) == 1:  # whose threads a product of stacks would not use
        return torch.addmm(before[0], x[0], gram[0], beta=-1)[None]
    return torch.baddbmm(before, x, gram, beta=-1)


def _diagonal(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1)
