"""Block Lanczos on W W^T, and the argument that turns its numbers into a bound which holds with known probability.

Notation: A = W W^T on the smaller side (n), eigenvalues lambda_1 >= lambda_2 >= ... = squared singular values.
The start block is [Gamma, start]: b fresh Gaussian columns and, in a series, earlier vectors. k steps with full
reorthogonalisation leave orthonormal blocks Q_1 .. Q_k, the block tridiagonal T = Q^T A Q and the next block, with
A Q = Q T + Q_{k+1} B E_k^T. The Ritz values theta_1 >= theta_2 >= ... of T never exceed the eigenvalues. How far can
lambda_i lie above theta_i?

1. The event. Let V hold the first i eigenvectors, U = Q_1's first b columns (Gamma = U R). V^T Gamma is an i x b
   Gaussian matrix whatever A is, so sigma_min(V^T U) >= delta_i := t_i / |R|_2 except with probability f, where
       i = 1:  t^2 = 2 (f Gamma(b/2 + 1))^(2/b),        as P[chi^2_b < t^2] <= (t^2/2)^(b/2) / Gamma(b/2 + 1);
       i > 1:  t = (b-i+1) f^(1/(b-i+1)) / (e sqrt b),  b - i >= 4 (Halko, Martinsson & Tropp 2011, Prop. 10.4).
2. Before the run is looked at (after Kuczynski & Wozniakowski 1992, Thm 4.2, in the sharp form that its proof gives):
       lambda_i <= theta_i / (1 - eps_k),   eps_k = tanh^2( arcosh(1/delta_i) / (2k-1) ),
   from the Chebyshev polynomial T_{2k-1} applied to the start. It assumes the worst spectrum: 10 times too many steps.
3. From the run itself. An eigenvector v with eigenvalue lambda has y = Q^T v, z = Q_{k+1}^T v with
   (lambda - T) y = E_k B^T z, so with the eigenvectors s_m of T, b_m = B E_k^T s_m (Ritz residuals), |z| <= 1,
       U^T v = sum_m (E_1^T s_m) y_m,    y_m = (b_m . z) / (lambda - theta_m).
   If i eigenvalues were >= a > theta_i, some unit combination of their eigenvectors would be orthogonal to the first
   i - 1 Ritz vectors, and its image in U would be both >= delta_i and
       <= sqrt(i) sup_{lambda >= a} |G_i(lambda)|_F,  G_i(lambda) = sum_{m >= i} (E_1^T s_m) b_m^T / (lambda - theta_m).
   So lambda_i < a as soon as that is below delta_i. By 2 only lambda up to theta_1 / (1 - eps_k) need to be looked at,
   on a grid: between lambda and lambda + h, with S = (lambda - T)^-1 on the Ritz vectors m >= i,
       |G_i| <= |E_1^T S E_k B^T| + h |E_1^T S^2 E_k B^T| + h^2 |E_1^T S^3 E_k B^T| + h^3 |E_1^T S| |S^3 E_k B^T|.
   For one vector and i = 1 this is the bound of Hochstenbach (2013), whose polynomial is monotone and needs no grid.
   Blocks need fewer steps, and keep delta_i far above the rounding error of float32, which one vector would not.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import acosh, exp, lgamma, log, sqrt, tanh
from typing import NamedTuple

import torch
from torch import Tensor

FIRST_STEPS = 32  # Room for the basis to begin with; doubled when it is full.
GRID = 64
PIECE = 1 << 17  # Numbers of a matrix that a thread of a CPU multiplies at a time.
ROUNDING = 16.0  # Rounding of a product in units of eps theta_1 beyond what the basis itself shows (measured: 2 to 6).


class Step(NamedTuple):
    """What one block step leaves behind, where the matrix is."""

    diagonal: Tensor  # (matrices, width, width), of T
    following: Tensor  # (matrices, width, width), the block B below it
    drift: Tensor  # (matrices,): |Q^T A Q_k - T E_k|_F as computed, which is rounding and would be 0 without it


@dataclass(frozen=True)
class Krylov:
    """What k block steps know: T and B in float64 on the CPU (copied when asked for), the basis where the matrix is."""

    steps: int
    rows: Tensor  # (matrices, s, side), one basis vector a row
    taken: list[Step]

    @property
    def basis(self) -> Tensor:
        """(matrices, side, s)"""
        return self.rows.mT

    @cached_property
    def tridiagonal(self) -> Tensor:
        """(matrices, s, s)"""
        matrices, size, _ = self.rows.shape
        t = torch.zeros(matrices, self.steps, size // self.steps, self.steps, size // self.steps, dtype=torch.float64)
        at = torch.arange(self.steps)
        below = self._following[:-1]
        t[:, at, :, at] = self._gather("diagonal").double()
        t[:, at[1:], :, at[:-1]] = below
        t[:, at[:-1], :, at[1:]] = below.mT
        return t.reshape(matrices, size, size)

    @property
    def residual(self) -> Tensor:
        """(matrices, width, width), the block B"""
        return self._following[-1]

    @cached_property
    def drift(self) -> Tensor:
        """(matrices,): |Q^T (A Q) - T|_F as computed."""
        return self._gather("drift").double().square().sum(0).sqrt()

    @cached_property
    def _following(self) -> Tensor:
        return self._gather("following").double()

    def _gather(self, field: str) -> Tensor:
        return torch.stack([getattr(step, field) for step in self.taken[: self.steps]]).cpu()


class Bounds(NamedTuple):
    """theta_i, i <= count, and how far lambda_i may lie above it, relative to theta_1: (matrices, count) each."""

    squares: Tensor
    excess: Tensor
    missing: Tensor  # log of |G_i| sqrt(i) / delta_i at the tolerance: what further steps must bring below 0
    coefficients: Tensor  # (matrices, s, count): the Ritz vectors in the basis


def times(a: Tensor, x: Tensor) -> Tensor:
    """A @ x with a row-major factor on the wide side: the transposed product is several times slower on CPUs."""
    return a @ x if a.stride(-1) == 1 else (x.mT @ a.mT).mT


def _image(a: Tensor, x: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """A x' and x'^T A x' for x = half x', A = half^4 a a^T."""
    if a.stride(-2) != 1 or a.device.type != "cpu":
        y = times(a.mT, x) * half  # (matrices, long, width)
        return times(a, y * half) * half, y.mT @ y
    # The long side in pieces that stay in the cache, so that a large matrix comes from memory once a step.
    x, z, y = x.contiguous(), torch.zeros_like(x.mT).contiguous(), x.new_empty(len(x), a.shape[-1], x.shape[-1])
    rows = max(16, PIECE * torch.get_num_threads() // a.shape[-2])
    for piece, image in zip(a.mT.split(rows, dim=-2), y.split(rows, dim=-2), strict=True):
        image.baddbmm_(piece, x, beta=0).mul_(half)
        z.baddbmm_((image * half).mT, piece)
    return z.mT * half, y.mT @ y


def block_lanczos(a: Tensor, start: Tensor, scale: Tensor) -> Iterator[Krylov]:
    """Krylov spaces of (scale a)(scale a)^T from an orthonormal start, one block larger each time.

    a: (matrices, side, long), side <= long. start: (matrices, side, width). scale: (matrices, 1, 1). The weights are
    never copied: the scale is applied to the vectors in two halves, so that neither product leaves the range.
    Ends when the next block would not fit into the space any more.
    """
    half = scale.sqrt()
    matrices, side, width = start.shape
    rows = start.new_empty(matrices, FIRST_STEPS * width, side)
    q = start
    taken: list[Step] = []
    for steps in range(1, side // width):
        size = steps * width
        if size > rows.shape[1]:
            rows = torch.cat([rows, torch.empty_like(rows)], dim=1)
        rows[:, size - width : size] = q.mT
        z, diagonal = _image(a, q * half, half)
        overlap = rows[:, :size] @ z
        q, following = _orthogonalise(z, overlap, rows[:, :size])
        # Only its last two blocks should not be zero: those of T.
        overlap[:, -width:] -= diagonal
        if steps > 1:
            overlap[:, -2 * width : -width] -= taken[-1].following.mT
        drift = torch.linalg.matrix_norm(overlap)
        taken.append(Step((diagonal + diagonal.mT) / 2, following, drift))
        yield Krylov(steps, rows[:, :size], taken)


def _orthogonalise(z: Tensor, overlap: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Q and R of z less its part in the rows' span (overlap = rows z)."""
    q, r = orthonormal(torch.baddbmm(z, rows.mT, overlap, alpha=-1))
    # Twice is enough, unless the space is exhausted and the block was mostly rounding: then until it is not.
    for _ in range(4):
        q, again = orthonormal(torch.baddbmm(q, rows.mT, rows @ q, alpha=-1))
        r = again @ r
        if bool((again.diagonal(dim1=-2, dim2=-1).abs() > 0.5).all()):
            break
    return q, r


def orthonormal(z: Tensor) -> tuple[Tensor, Tensor]:
    """Q and R of tall blocks by Cholesky, or by Householder where that is not safe."""
    q, r, sound = by_cholesky(z)
    return (q, r) if bool(sound.all()) else torch.linalg.qr(z)


def by_cholesky(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Q and R from Z^T Z = R^T R, and whether the block is far enough from losing rank for that."""
    # Householder takes as long as A z. In float64, because squaring halves the digits, and weights with one large
    # singular value give blocks with one large column.
    wide = z.double()
    factor, info = torch.linalg.cholesky_ex(wide.mT @ wide)
    pivots = factor.diagonal(dim1=-2, dim2=-1)
    sound = (info == 0) & (pivots.amin(-1) > 1e-5 * pivots.amax(-1))
    q = torch.linalg.solve_triangular(factor, wide.mT, upper=False).mT
    return q.to(z.dtype), factor.mT.to(z.dtype), sound


def least_overlap(count: int, gaussians: int, failure: float) -> float:
    """t_i of step 1: sigma_min of a (count x gaussians) Gaussian matrix is below it with probability <= failure."""
    if count == 1:
        return sqrt(2 * exp(2 / gaussians * (log(failure) + lgamma(gaussians / 2 + 1))))
    spare = gaussians - count + 1
    return spare * exp(log(failure) / spare - 1) / sqrt(gaussians)


def worst_case_excess(steps: int, delta: float) -> float:
    """lambda_i / theta_i - 1 of step 2 at most: eps_k / (1 - eps_k)."""
    eps = tanh(acosh(1 / delta) / (2 * steps - 1)) ** 2
    return eps / (1 - eps) if eps < 1 else float("inf")


def certify(krylov: Krylov, count: int, gaussians: int, deltas: list[Tensor], tolerance: float, eps: float) -> Bounds:
    """The tightest excess of each theta_i that step 3 proves, down to a tenth of the tolerance, or that of step 2.

    deltas: delta_i per matrix, count tensors of shape (matrices,). eps: of the products. With rounding the relation of
    step 3 holds up to some Delta, A Q = Q T + Q_{k+1} B E_k^T + Delta; it is allowed for by |E_1^T S| |Delta| and in
    theta_i itself, with |Delta| <= 4 drift + ROUNDING eps theta_1.
    """
    theta, vectors = torch.linalg.eigh(krylov.tridiagonal)
    theta, vectors = theta.flip(-1), vectors.flip(-1)
    top = theta[:, :1].clamp_min(torch.finfo(torch.float64).tiny)
    theta = theta / top
    rounding = allowed_rounding(krylov, top[:, 0], eps)
    entry = vectors[:, :gaussians]  # E_1^T s_m, one per column
    ritz_residual = krylov.residual / top[..., None] @ vectors[:, -krylov.residual.shape[-1] :]
    excess, missing = [], []
    for i in range(count):
        worst = torch.tensor([worst_case_excess(krylov.steps, float(d)) for d in deltas[i]], dtype=torch.float64)
        limit = deltas[i] / sqrt(i + 1)
        offset, image = _on_grid(theta[:, i:], entry[..., i:], ritz_residual[..., i:], worst, tolerance, rounding)
        proven = (image < limit[:, None]).flip(-1).cumprod(-1).sum(-1, keepdim=True)  # so many of the last intervals
        least = torch.where(proven > 0, offset.gather(-1, GRID - 1 - proven), torch.inf)[:, 0]
        excess.append(torch.minimum(least, theta[:, i].clamp_min(0.0) * worst) + rounding)
        missing.append((image[:, GRID // 4 - 1 :].amax(-1) / limit).log())
    return Bounds(
        theta[:, :count] * top, torch.stack(excess, dim=-1), torch.stack(missing, dim=-1), vectors[..., :count]
    )


def allowed_rounding(krylov: Krylov, top: Tensor, eps: float) -> Tensor:
    """|Delta| / theta_1 at most, per matrix."""
    return 4 * krylov.drift / top + ROUNDING * eps


def _on_grid(
    theta: Tensor, entry: Tensor, residual: Tensor, worst: Tensor, tolerance: float, rounding: Tensor
) -> tuple[Tensor, Tensor]:
    """Distances lambda - theta_i up to all that step 2 leaves (theta_1 = 1), and bounds of |G_i| between them."""
    # (matrices, GRID) and (matrices, GRID - 1). The first quarter ends where the tolerance is just met.
    target = (tolerance - rounding).clamp_min(tolerance / 2)[:, None]
    last = torch.clamp(1 + worst - theta[:, 0], min=10 * tolerance)[:, None]
    fine, coarse = (torch.linspace(0, 1, points, dtype=theta.dtype) for points in (GRID // 4, GRID - GRID // 4 + 1))
    offset = torch.cat([target * 10 ** (fine - 1), (target * (last / target) ** coarse)[:, 1:]], dim=-1)
    # Where step 2 knows nothing yet (after very few steps) nothing can be proven: an endless grid, all of it NaN.
    s = 1 / (theta[:, :1, None] + offset[:, :-1, None] - theta[:, None, :])  # (matrices, grid, s)
    h = offset.diff()
    outer = (entry[:, :, None] * residual[:, None]).flatten(1, 2).mT  # (matrices, s, b * width)
    terms = [h**j * torch.linalg.vector_norm(s ** (j + 1) @ outer, dim=-1) for j in range(3)]
    reach = _row_norms(s, entry)
    remainder = h**3 * reach * _row_norms(s**3, residual)
    return offset, sum(terms) + remainder + rounding[:, None] * reach


def _row_norms(s: Tensor, x: Tensor) -> Tensor:
    """|x diag(s)|_F for every grid point: (matrices, grid, s), (matrices, any, s) -> (matrices, grid)."""
    return (s.square() @ x.square().sum(1)[..., None])[..., 0].sqrt()
