"""Gradient descent on the linear form: stable ranks over time, beside the printed and the corrected bound of Lemma 3.3.

Four families of cases. One pair (B, C), so that all eigenvectors are products, at a small rate: everything that the
proof of the lemma uses is true. Then one thing is changed in turn: several pairs, a high rate, or a G_0 that is not the
gradient at t_0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from joma.theory import galore

ONE, SEVERAL, HIGH, LATE = "one pair", "several pairs", "high rate", "late start"
FAMILIES = (ONE, SEVERAL, HIGH, LATE)
DOUBLE = torch.float64


class Case(NamedTuple):
    """A gradient, its operator and a rate."""

    g: Tensor
    b: Tensor
    c: Tensor
    rate: float
    start: Tensor | None = None
    """G_0, where that is not g."""


def stable_rank(g: Tensor) -> Tensor:
    """|G|_F^2 / |G|_2^2 by a full SVD: these matrices are small, and bounds are compared to rounding."""
    values: Tensor = torch.linalg.svdvals(g)
    return (values / values[..., :1]).square().sum(-1)


def spectrum(size: int, low: float, generator: torch.Generator, count: int = 1, *, even: bool = False) -> Tensor:
    """Random symmetric matrices with random or even eigenvalues from `low` to 1, (count, size, size)."""
    basis = torch.linalg.qr(torch.randn(count, size, size, generator=generator, dtype=DOUBLE)).Q
    values = torch.rand(count, 1, size, generator=generator, dtype=DOUBLE)
    values = low + (1 - low) * (torch.linspace(0, 1, size, dtype=DOUBLE) if even else values)
    turned: Tensor = (basis * values) @ basis.mT
    return turned


def entangled(sign: float = -1.0, corner: float = 1.5, across: float = 4.0, apart: float | None = None) -> Case:
    """S = I + sign X x X + diagonal, X the exchange of two inputs, as a sum of products of semidefinite matrices.

    With sign -1 and corner 1.5 the lowest eigenvector is diag(2, 1), which is no product. With sign 1 the highest is,
    and `apart` is the eigenvalue of a third direction, e_3 x e_3, a product. Beside diag(1, 0.5) the gradient
    has a part along diag(-1, 2), so that its spectral norm is below that of diag(2, 1).
    """
    size = 2 if apart is None else 3
    one, swap = torch.zeros(2, size, size, dtype=DOUBLE)
    one[0, 0] = one[1, 1] = swap[0, 1] = swap[1, 0] = 1.0
    pairs = [(one + swap, one + sign * swap), (one - swap, one - sign * swap)]
    pairs = [(left / 2, right) for left, right in pairs]  # their sum: one x one + sign swap x swap
    extra = torch.full((size, size), across, dtype=DOUBLE)
    extra[0, 0], extra[1, 1] = (0.0, corner) if sign < 0 else (corner, 0.0)
    if apart is not None:
        extra[2, 2] = apart
    unit = torch.eye(size, dtype=DOUBLE)
    for i in range(size):
        for k in range(size):
            pairs.append((torch.outer(unit[i], unit[i]) * extra[i, k], torch.outer(unit[k], unit[k])))
    b, c = (
        len(pairs) * torch.stack(each) if n == 0 else torch.stack(each)
        for n, each in enumerate(zip(*pairs, strict=True))
    )
    g = torch.zeros(size, size, dtype=DOUBLE)
    g[0, 0], g[1, 1] = 2 - 1 / 3, 1 + 2 / 3
    if apart is not None:
        g = g + 0.5
    return Case(g, b, c, 0.1)


def made(family: str) -> Case:
    """One 2 x 2 case per family. All but `several pairs` have B = C = diag(1/2, 1) and a diagonal G.

    At the high rate the part along the highest eigenvalue outlives that along the lowest. The late start happened to
    have a G_0 that is the lowest part of G.
    """
    if family == SEVERAL:
        return entangled()
    side = torch.diag(torch.tensor([0.5, 1.0], dtype=DOUBLE))[None]
    g, low = (torch.diag(torch.tensor([2.0, part], dtype=DOUBLE)) for part in (0.4 if family == HIGH else 1.8, 0.0))
    return Case(g, side, side, 1.97 if family == HIGH else 0.3, low if family == LATE else None)


def drawn(family: str, rows: int, columns: int, generator: torch.Generator) -> Case:
    """One random case of a family."""
    count = 3 if family == SEVERAL else 1
    b, c = spectrum(rows, 0.3, generator, count), spectrum(columns, 0.3, generator, count)
    g = torch.randn(rows, columns, generator=generator, dtype=DOUBLE)
    second, high = _second_and_highest(b, c)
    rate = 1.97 / high if family == HIGH else 2 / (second + high)
    earlier = 0.1 * torch.randn(rows, columns, generator=generator, dtype=DOUBLE)
    return Case(g, b, c, rate, earlier if family == LATE else None)


def _second_and_highest(b: Tensor, c: Tensor) -> tuple[float, float]:
    values = torch.linalg.eigvalsh(galore.operator(b, c))
    return float(values[1]), float(values[-1])


def follow(cases: list[Case], t: Tensor) -> dict[str, Tensor]:
    """Stable rank, both bounds and where it ends, each (cases, times); `end` (cases,)."""
    found: dict[str, list[Tensor]] = {"rank": [], "printed": [], "corrected": [], "end": []}
    for case in cases:
        g, b, c, rate = case[:4]
        found["rank"].append(stable_rank(galore.gradient_path(g, b, c, t, rate=rate)))
        found["printed"].append(galore.stable_rank_bound_as_printed(g, b, c, t, rate=rate, start=case.start))
        found["corrected"].append(galore.stable_rank_bound(g, b, c, t, rate=rate))
        found["end"].append(stable_rank(galore.lasting(g, b, c, rate=rate).part))
    return {name: torch.stack(rows) for name, rows in found.items()}


def lemma(rows: int, columns: int, draws: int, steps: int, seed: int) -> dict[str, Tensor]:
    """All families. Each begins with the case that was made by hand."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.arange(steps + 1, dtype=DOUBLE)
    found: dict[str, Tensor] = {"t": t}
    for family in FAMILIES:
        cases = [drawn(family, rows, columns, generator) for _ in range(draws)]
        found |= {f"{family}/{name}": value for name, value in follow([made(family), *cases], t).items()}
    return found


def rank_one(rows: int, columns: int, draws: int, steps: int, seed: int) -> dict[str, Tensor]:
    """Corollary 3.5: a single lowest eigenvector that is a product; at a high rate; one that is no product.

    Late: stable ranks after `steps` steps.
    """
    generator = torch.Generator().manual_seed(seed)
    t = torch.tensor([float(steps)])
    products = [_product(rows, columns, generator) for _ in range(draws)]
    top = entangled(1.0, across=0.5, apart=0.1)
    high = _second_and_highest(top.b, top.c)[1]
    return {
        "late": torch.stack([_late(case, t) for case in products]),
        "late, high rate": _late(top._replace(rate=1.99 / high), t),
        "late, low rate": _late(top._replace(rate=1 / high), t),
        "late, no product": _late(entangled(), t),
        "rank at the start": stable_rank(torch.stack([case.g for case in products])),
    }


def _product(rows: int, columns: int, generator: torch.Generator) -> Case:
    """One pair with even eigenvalues, so that the lowest is well below the next.

    Random ones were tried first. Some lay so close together that the stable rank was still 1.13 after 300 steps.
    """
    b, c = spectrum(rows, 0.3, generator, even=True), spectrum(columns, 0.3, generator, even=True)
    return Case(torch.randn(rows, columns, generator=generator, dtype=DOUBLE), b, c, 1.0)


def _late(case: Case, t: Tensor) -> Tensor:
    return stable_rank(galore.gradient_path(case.g, case.b, case.c, t, rate=case.rate))[0]
