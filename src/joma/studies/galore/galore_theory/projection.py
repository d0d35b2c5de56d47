"""Theorem 3.8: how |P^T G Q| changes in one step with fixed projections, where A, B and C depend on W.

B_i(W) = B_i0 + L_B wave(<U_i, W>) V_i with |V_i|_F = 1, and C_i likewise: they have the Lipschitz constants L_B and L_C
in Frobenius norms. A wave goes straight up and down from 0 at 0. The proof of the theorem uses |B| <= L_B D and
|C| <= L_C D, which is so where B(0) = C(0) = 0. In the other family B and C may be anything.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.linalg import matrix_norm

from joma.theory.galore import contraction, contraction_as_printed

THROUGH_ZERO, FREE = FAMILIES = ("B(0) = C(0) = 0", "any B and C")
PAIRS, RANK = 2, 2
DOUBLE = torch.float64
Curve = Callable[[Tensor], Tensor]
FACTOR = 0.9  # paths whose corrected factor stays below this are followed to their end


class Problem(NamedTuple):
    """Many problems at once: fields are (draws, ...)."""

    a0: Tensor
    b0: Tensor
    c0: Tensor
    along: Tensor
    """U_i, (draws, 3, pairs, m, n), for A, B and C."""
    a1: Tensor
    b1: Tensor
    c1: Tensor
    lipschitz: Tensor
    """(draws, 3)"""
    p: Tensor
    q: Tensor

    def parts(self, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A_i, B_i and C_i at W, (draws, pairs, ., .)."""
        x = (self.along * w[:, None, None]).sum((-2, -1)).movedim(1, 0)  # (3, draws, pairs)
        la, lb, lc = self.lipschitz.T[..., None] * torch.stack([x[0].sin(), wave(x[1]), wave(x[2])])
        a, b, c = (
            fixed + size[..., None, None] * moved
            for fixed, size, moved in ((self.a0, la, self.a1), (self.b0, lb, self.b1), (self.c0, lc, self.c1))
        )
        return a, b, c


def wave(x: Tensor) -> Tensor:
    """The distance to the nearest even number: 0 at 0, slopes 1 and -1."""
    return (x - 2 * (x / 2).round()).abs()


def drawn(family: str, draws: int, m: int, n: int, generator: torch.Generator, calm: float = 1.0) -> Problem:
    """Random problems. calm: what Lipschitz constants are multiplied with."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(draws, *shape, generator=generator, dtype=DOUBLE)

    def positive(size: int) -> Tensor:
        half = normal(PAIRS, size, size)
        return _unit(half @ half.mT)

    free = float(family == FREE)
    return Problem(
        normal(PAIRS, m, n),
        free * (positive(m) + torch.eye(m, dtype=DOUBLE)),
        free * (positive(n) + torch.eye(n, dtype=DOUBLE)),
        _unit(normal(3, PAIRS, m, n)),
        _unit(normal(PAIRS, m, n)),
        positive(m),
        positive(n),
        calm * torch.rand(draws, 3, generator=generator, dtype=DOUBLE),
        torch.linalg.qr(normal(m, RANK)).Q,
        torch.linalg.qr(normal(n, RANK)).Q,
    )


def search(draws: int, m: int, n: int, seed: int) -> dict[str, Tensor]:
    """One step from a random W. Per family and draw: the factor of |R|, three bounds, the rate, kappa's share."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, Tensor] = {}
    for family in FAMILIES:
        problem = drawn(family, draws, m, n, generator)
        w = 2 * torch.rand(draws, 1, 1, generator=generator, dtype=DOUBLE)
        w = w * _unit(torch.randn(draws, m, n, generator=generator, dtype=DOUBLE))
        share = torch.rand(draws, generator=generator, dtype=DOUBLE)  # of the largest rate with rate top <= 1
        found |= {f"{family}/{name}": value for name, value in _step(problem, w, share)[1].items()}
    return found


def settle(draws: int, m: int, n: int, steps: int, seed: int) -> dict[str, Tensor]:
    """Paths of calm problems: the largest corrected factor on the way, and |R| at the end over that at the start."""
    generator = torch.Generator().manual_seed(seed)
    problem = drawn(FREE, draws, m, n, generator, calm=0.05)
    w, worst = torch.zeros(draws, m, n, dtype=DOUBLE), torch.zeros(draws, dtype=DOUBLE)
    share, first = torch.full((draws,), 0.9, dtype=DOUBLE), _projected(problem, w)
    for _ in range(steps):
        w, seen = _step(problem, w, share)
        worst = torch.maximum(worst, seen["corrected"])
    return {"worst factor": worst, "left": matrix_norm(_projected(problem, w)) / matrix_norm(first)}


def _projected(problem: Problem, w: Tensor) -> Tensor:
    a, b, c = problem.parts(w)
    r: Tensor = problem.p.mT @ (a - b @ w[:, None] @ c).mean(1) @ problem.q
    return r


def _bounds(
    kappa: Any, top: Any, rate: Tensor, la: Any, lb: Any, lc: Any, *, w: Any, b: Any, c: Any
) -> dict[str, Tensor]:
    """What the theorem, its proof and the corrected form allow the factor of |R| to be. w, b, c: the largest norms."""
    form = {"rate": rate, "la": la, "lb": lb, "lc": lc}
    return {
        "printed": contraction_as_printed(kappa, **form, d=w),
        "proof": contraction_as_printed(kappa, **form, d=w, factor=2.0),
        "corrected": contraction(kappa, top, **form, w=w, b=b, c=c),
        "rate": rate,
    }


def _step(problem: Problem, w: Tensor, share: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """W after one step, and the factor of |R| with its bounds."""
    _, b, c = problem.parts(w)
    left, right = problem.p.mT[:, None] @ b @ problem.p[:, None], problem.q.mT[:, None] @ c @ problem.q[:, None]
    kappa = (torch.linalg.eigvalsh(left)[..., 0] * torch.linalg.eigvalsh(right)[..., 0]).mean(-1)
    top = torch.linalg.eigvalsh(torch.einsum("dpij,dpkl->dikjl", left, right).flatten(1, 2).flatten(2) / PAIRS)[:, -1]
    rate = share / top.clamp(min=1.0)
    r = _projected(problem, w)
    after = w + rate[:, None, None] * problem.p @ r @ problem.q.mT
    _, b2, c2 = problem.parts(after)
    size = torch.maximum(matrix_norm(w), matrix_norm(after))
    la, lb, lc = problem.lipschitz.T
    most_b, most_c = (matrix_norm(torch.stack(both), 2).amax((0, -1)) for both in ((b, b2), (c, c2)))
    return after, {
        "factor": matrix_norm(_projected(problem, after)) / matrix_norm(r),
        **_bounds(kappa, top, rate, la, lb, lc, w=size, b=most_b, c=most_c),
        "kappa over its condition": kappa / (la + lb * lc * size.square()),
    }


def peak(rates: Tensor, push: float = 1e-3) -> dict[str, Tensor]:
    """One number instead of matrices, B = C = wave(W), just beyond the top of the wave: what the constant must be."""
    w, after = torch.ones_like(rates), 1 + rates * push
    return _scalar(wave, wave, w, after, push, rates, lb=1.0, lc=1.0) | {"kappa over its condition": 1 / after.square()}


def constant_c(rates: Tensor, push: float = 1e-3) -> dict[str, Tensor]:
    """C = 1 does not move, so L_C = 0 and both printed terms vanish. B falls as W grows, and the gradient grows."""
    w, after = torch.full_like(rates, 0.75), 0.75 + rates * push
    return _scalar(lambda x: 1 - x, torch.ones_like, w, after, push, rates, lb=1.0, lc=0.0)


def _scalar(
    b: Curve, c: Curve, w: Tensor, after: Tensor, r: float, rate: Tensor, lb: float, lc: float
) -> dict[str, Tensor]:
    """A is constant and such that the gradient at w is r."""
    b0, c0, b1, c1 = b(w), c(w), b(after), c(after)
    kappa, most_b, most_c = b0 * c0, torch.maximum(b0, b1), torch.maximum(c0, c1)
    allowed = _bounds(kappa, kappa, rate, 0.0, lb, lc, w=after, b=most_b, c=most_c)
    return {"factor": 1 + (kappa * w - b1 * c1 * after) / r, **allowed}


def high_rate(rates: Tensor) -> dict[str, Tensor]:
    """Nothing moves, so all Lipschitz constants are 0. The eigenvalues are 0.1 and 1, and R is along the second.

    The proof bounds the eigenvalues of 1 - rate S from above only.
    """
    values, r = torch.tensor([[0.1, 1.0], [0.01, 1.0]], dtype=DOUBLE)
    after = (1 - rates[:, None] * values) * r
    return {"factor": after.norm(dim=-1) / r.norm(), **_bounds(0.1, 1.0, rates, 0.0, 0.0, 0.0, w=1.0, b=1.0, c=1.0)}


def cycle(steps: int) -> dict[str, Tensor]:
    """C = 1, B = 0.1 below W = 1 and steep above it, rate 1: a true gradient whose descent never ends.

    kappa >= 0.1 > 0 = L_A + L_B L_C D^2, and |R| still goes up and down.
    """
    w = torch.tensor(0.5, dtype=DOUBLE)
    sizes, kappas = [], []
    for _ in range(steps):
        b = 0.1 + 5 * (w - 1).clamp(0, 1)
        r = 0.66 - b * w
        sizes.append(r.abs())
        kappas.append(b)
        w = w + r
    return {"size": torch.stack(sizes), "kappa": torch.stack(kappas)}


def _unit(x: Tensor) -> Tensor:
    unit: Tensor = x / matrix_norm(x)[..., None, None]
    return unit
