"""Leading singular values through the Gram matrix, bounded by Cholesky factors.

Notation: A = W W^T on the smaller side (n), eigenvalues lambda_1 >= lambda_2 >= ... = squared singular values. Matrix
products run at full speed where products with a few vectors wait for memory, so that forming G ~ A pays on
accelerators always, on CPUs for small n.

1. From below. G yields approximate eigenvectors u_1, u_2, ..., it does not matter how. The Ritz values theta_i of A
   on their span, from products with W itself, never exceed lambda_i.
2. From above. For a a little above theta_i, factorise a - (G - sum_{j<i} theta_j u_j u_j^T) = L L^T and let
       E = a + sum_{j<i} theta_j u_j u_j^T - A - L L^T,
   which would be 0 without rounding. The sum has rank i - 1 and L L^T has no negative eigenvalue, so (Weyl)
       lambda_i <= lambda_1(A - sum) <= a + |E|_2.
3. However G and L came about, |E|_2 is measured and not assumed: for b Gaussian columns Gamma, drawn apart from all
   of the above, and w the right singular vector that belongs to |E|_2,
       |E Gamma|_2 >= |E|_2 |w^T Gamma|,   |w^T Gamma|^2 ~ chi^2_b,
   so |E|_2 <= |E Gamma|_2 / t except with the probability that chi^2_b is below t^2 (`_lanczos.least_overlap`).
   If E is flat that is some 20 to 30 times too much, and still small: E is rounding.
If a is below lambda_i the factorisation breaks down, and the vectors must be improved: nothing is certified by mistake.
"""

from math import ceil, log2, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.products import float32_products
from joma.measure._lanczos import ROUNDING, least_overlap, times

COLUMNS = 2048
"""Of W at a time, where G is formed from TF32: bounds the copies, and the sums that tensor cores do not round well."""
ROWS = 64  # Of G at a time on a CPU, so that only a little more than half of it is computed.
_TF32 = -(1 << 13)  # Mask of a float32 that leaves the 10 bits of its mantissa which TF32 keeps.


class Certified(NamedTuple):
    """theta_i, i <= count, how far lambda_i may lie above it (relative to theta_1), and u_i."""

    squares: Tensor  # (matrices, count), float64 on the CPU
    excess: Tensor  # (matrices, count), likewise; infinite where a factorisation broke down
    vectors: Tensor  # (matrices, side, count)
    steps: int


def on_cpu(a: Tensor) -> bool:
    """Whether waiting costs nothing, and a product less than to begin one elsewhere."""
    return a.device.type == "cpu"


def certify(
    a: Tensor, scale: Tensor, start: Tensor, probes: Tensor, count: int, tolerance: float, failure: float
) -> Certified:
    """Leading eigenvalues of (scale a)(scale a)^T, bounded except with probability `failure` for each."""
    # a: (matrices, side, long), float32 or float64. scale: (matrices,). start: (matrices, side, any), where the search
    # for eigenvectors begins. probes: (matrices, side, b), Gaussian and independent of start.
    half = scale.sqrt().to(a)[:, None, None]
    g = gram(a, half)
    image = times(a, times(a.mT, probes * half) * half * half) * half
    # The leading eigenvalues of a random matrix lie n^(-2/3) apart: so many steps, or so high a power, resolves them.
    plenty = 12 * count + int((3 + count) / 4 * sqrt(a.shape[-2]))
    squarings = ceil(2 / 3 * log2(a.shape[-2]))
    squared = count == 1 and not on_cpu(a)
    for steps in (squarings, squarings + 4) if squared else (plenty, 3 * plenty):
        theta, u = by_squaring(g, start, steps) if squared else by_lanczos(g, start, steps, count)
        # The same probes serve both times, so each has half of the failure.
        found = _bounded(a, half, g, theta, u, probes, image, tolerance, failure / 2, steps)
        if bool((found.excess <= tolerance).all()):
            break
    return found


def _bounded(
    a: Tensor, half: Tensor, g: Tensor, theta: Tensor, u: Tensor, probes: Tensor, image: Tensor, tolerance: float,
    failure: float, steps: int,
) -> Certified:  # fmt: skip
    """Steps 1 to 3 of the argument for all i; image: A probes."""
    held = times(a.mT, u * half) * half
    small = [_squared(held), _squared(u), _squared(probes)]
    limits, infos = theta + tolerance / 2 * theta[:, :1], []
    for i in range(u.shape[-1]):
        limit, known = limits[:, i, None, None].to(a), u[..., :i]
        weighed = known * theta[:, None, :i].to(a)
        rest = torch.baddbmm(-g, weighed, known.mT) if i else -g
        rest.diagonal(dim1=-2, dim2=-1).add_(limit[..., 0])
        factors = [torch.linalg.cholesky_ex(one) for one in rest]  # one by one: batches are slow at this size
        factor = torch.stack([one.L for one in factors]) if len(factors) > 1 else factors[0].L[None]
        lower = factor @ (factor.mT @ probes)
        small.append(_squared(limit * probes + weighed @ (known.mT @ probes) - image - lower))
        infos.append(torch.stack([one.info for one in factors]))
    widths = [x.shape[-1] for x in small]
    host = torch.cat([x.flatten(1) for x in small], dim=-1).cpu().split([n * n for n in widths], dim=-1)  # one wait
    host = [x.reshape(-1, n, n) for x, n in zip(host, widths, strict=True)]
    norms, tiny = [_norm_squared(x) for x in host], torch.finfo(torch.float64).tiny
    squares = torch.linalg.eigvalsh(host[0]).flip(-1).clamp_min(0.0) / norms[1][:, None].clamp_min(tiny)
    top = squares[:, :1].clamp_min(tiny)
    rounding = ROUNDING * torch.finfo(a.dtype).eps
    t = least_overlap(1, probes.shape[-1], failure)
    errors = (torch.stack(norms[3:], dim=-1).sqrt() + rounding * top * norms[2][:, None].sqrt()) / t
    excess = (limits + errors - squares) / top + rounding
    unbroken = torch.stack(infos, dim=-1).cpu() == 0
    return Certified(squares, torch.where(unbroken & excess.isfinite(), excess, torch.inf), u, steps)


def gram(a: Tensor, half: Tensor) -> Tensor:
    """G, about as exact as float32.

    On accelerators in the time of two products in TF32: each number is split into what TF32 holds and a rest that is a
    thousand times smaller, for which TF32 is good enough; the product of two rests is left out. (Without TF32 these
    are plain float32 products.)
    """
    # Scaled afterwards, unless the squares would leave the range.
    if bool((half.log10().abs() > 4).any()):
        a, half = a * half * half, torch.ones_like(half)
    g = a.new_zeros(len(a), a.shape[-2], a.shape[-2])
    if on_cpu(a):
        for i in range(0, a.shape[-2], ROWS):
            here = slice(i, i + ROWS)
            g[:, : i + ROWS, here] = a[:, : i + ROWS] @ a[:, here].mT
            g[:, here, :i] = g[:, :i, here].mT
    elif a.dtype is torch.float32:
        mixed = torch.zeros_like(g)
        with float32_products("high"):
            for piece in a.split(COLUMNS, dim=-1):
                coarse = (piece.view(torch.int32) & _TF32).view(torch.float32)
                g.baddbmm_(coarse, coarse.mT)
                mixed.baddbmm_(coarse, (piece - coarse).mT)
        g += mixed
        g += mixed.mT
    else:
        g = a @ a.mT
    g *= half**4
    return g


def by_squaring(g: Tensor, start: Tensor, squarings: int) -> tuple[Tensor, Tensor]:
    """The leading Ritz value (matrices, 1), float64 on the CPU, and vector (matrices, side, 1) on G^(2^k) start."""
    # Few and large operations, which nobody waits for. In TF32: the Ritz value is that of G all the same.
    tiny = torch.finfo(g.dtype).tiny
    with float32_products("high"):
        power = g
        for _ in range(squarings):
            power = power / torch.linalg.matrix_norm(power, keepdim=True).clamp_min(tiny)
            power = power @ power
        x = power @ start
    x = x / torch.linalg.vector_norm(x, dim=-2, keepdim=True).clamp_min(tiny)
    held, lengths = torch.stack([x.double().mT @ (g @ x).double(), _squared(x)]).cpu()
    # An orthonormal basis of the span, without the directions that are rounding.
    size, axes = torch.linalg.eigh(lengths)
    kept = size > 1e-5 * size[:, -1:]
    axes = torch.where(kept[:, None], axes / size.clamp_min(1e-30).sqrt()[:, None], 0.0)
    theta, s = torch.linalg.eigh(axes.mT @ ((held + held.mT) / 2) @ axes)
    return theta[:, -1:], x @ (axes @ s[..., -1:]).to(x)


def by_lanczos(g: Tensor, start: Tensor, steps: int, count: int) -> tuple[Tensor, Tensor]:
    """`count` of them after so many Lanczos steps; one start vector after the other, as they exhaust their spaces."""
    rows, images = (g.new_zeros(len(g), steps, g.shape[-1]) for _ in range(2))
    q = start.sum(-1)[:, None]
    for step in range(steps):
        known = rows[:, :step]
        q = torch.baddbmm(q, q @ known.mT, known, alpha=-1)
        before = torch.linalg.vector_norm(q, dim=-1, keepdim=True)
        q = torch.baddbmm(q, q @ known.mT, known, alpha=-1)
        length = torch.linalg.vector_norm(q, dim=-1, keepdim=True)
        new = length > 0.5 * before  # else all that was left was rounding
        q = torch.where(new, q / length, 0.0)
        image = q @ g
        rows[:, step], images[:, step] = q[:, 0], image[:, 0]
        q = torch.where(new, image, start[:, None, :, step % start.shape[-1]])
    held = (images @ rows.mT).cpu().double()
    theta, s = torch.linalg.eigh((held + held.mT) / 2)
    return theta[:, -count:].flip(-1), rows.mT @ s[..., -count:].flip(-1).to(rows)


def _squared(x: Tensor) -> Tensor:
    """x^T x: a small matrix whose largest eigenvalue is |x|_2^2."""
    wide = x.double()
    return wide.mT @ wide


def _norm_squared(squared: Tensor) -> Tensor:
    """(matrices,) |x|_2^2; not a number if something was infinite."""
    finite = squared.isfinite().all(-1).all(-1)
    largest = torch.linalg.eigvalsh(torch.where(finite[:, None, None], squared, 0.0))[:, -1].clamp_min(0.0)
    return torch.where(finite, largest, torch.nan)
