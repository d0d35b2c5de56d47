"""Gradient descent on the linear form: stable ranks over time, with the printed and the corrected bound of Lemma 3.3.

Lemma 3.3 and Corollary 3.5 have four families of cases. One pair (B, C), so that all eigenvectors are products, at a
small rate: everything that the proof of the lemma uses is true. Then one thing is changed in turn: several pairs, a
high rate, or a G_0 that is not the gradient at t_0. Corollary 3.4 has gradients mean_i (a_i - B_i W f_i) f_i^T whose
inputs f_i do not span all of R^n.
"""

from math import log, log1p, log10
from typing import NamedTuple

import torch
from torch import Tensor

from joma.theory import galore

ONE, SEVERAL, HIGH, LATE = FAMILIES = ("one pair", "several pairs", "high rate", "late start")
EVEN, SAME, OWN = KINDS = ("orthonormal inputs", "generic inputs", "generic inputs, own B")
"""The counterexample; generic inputs with one B for all; and with a B_i for each input."""
SMALL = 1e-290
"""How far the slowest part is followed: it is still a number. First 1e-130, where the claim passed by a hair."""
ROUNDING = 1e-9
DOUBLE = torch.float64


class Case(NamedTuple):
    """A gradient, its operator and a rate."""

    g: Tensor
    b: Tensor
    c: Tensor
    rate: float
    start: Tensor | None = None  # G_0, where that is not g


def stable_rank(g: Tensor) -> Tensor:
    """|G|_F^2 / |G|_2^2 by a full SVD: these matrices are small, and bounds are compared to rounding."""
    values: Tensor = torch.linalg.svdvals(g)
    return (values / values[..., :1]).square().sum(-1)


def _symmetric(size: int, low: float, generator: torch.Generator, count: int = 1, *, even: bool = False) -> Tensor:
    basis = torch.linalg.qr(torch.randn(count, size, size, generator=generator, dtype=DOUBLE)).Q
    values = torch.rand(count, 1, size, generator=generator, dtype=DOUBLE)
    values = low + (1 - low) * (torch.linspace(0, 1, size, dtype=DOUBLE) if even else values)
    turned: Tensor = (basis * values) @ basis.mT
    return turned


def _entangled(sign: float = -1.0, corner: float = 1.5, across: float = 4.0, third: float | None = None) -> Case:
    """S = I + sign X x X + diagonal, X the exchange of two inputs, as a sum of products of semidefinite matrices.

    With sign -1 and corner 1.5 the lowest eigenvector is diag(2, 1), which is no product. With sign 1 the highest is,
    and `third` is the eigenvalue of a third direction, e_3 x e_3, a product. Besides diag(1, 0.5) the gradient
    has a part along diag(-1, 2), so that its spectral norm is below that of diag(2, 1).
    """
    size = 2 if third is None else 3
    one, swap = torch.zeros(2, size, size, dtype=DOUBLE)
    one[0, 0] = one[1, 1] = swap[0, 1] = swap[1, 0] = 1.0
    pairs = [(one + swap, one + sign * swap), (one - swap, one - sign * swap)]
    pairs = [(left / 2, right) for left, right in pairs]  # their sum: one x one + sign swap x swap
    extra = torch.full((size, size), across, dtype=DOUBLE)
    extra[0, 0], extra[1, 1] = (0.0, corner) if sign < 0 else (corner, 0.0)
    if third is not None:
        extra[2, 2] = third
    products = [torch.outer(unit, unit) for unit in torch.eye(size, dtype=DOUBLE)]
    pairs += [(products[i] * extra[i, k], products[k]) for i in range(size) for k in range(size)]
    g = torch.zeros(size, size, dtype=DOUBLE)
    g[0, 0], g[1, 1] = 2 - 1 / 3, 1 + 2 / 3
    if third is not None:
        g = g + 0.5
    b, c = (torch.stack(each) for each in zip(*pairs, strict=True))
    return Case(g, len(pairs) * b, c, 0.1)


def _made(family: str) -> Case:
    """One 2 x 2 case per family. All but `several pairs` have B = C = diag(1/2, 1) and a diagonal G."""
    if family == SEVERAL:
        return _entangled()
    side = torch.diag(torch.tensor([0.5, 1.0], dtype=DOUBLE))[None]
    g, low = (torch.diag(torch.tensor([2.0, part], dtype=DOUBLE)) for part in (0.4 if family == HIGH else 1.8, 0.0))
    return Case(g, side, side, 1.97 if family == HIGH else 0.3, low if family == LATE else None)


def _drawn(family: str, rows: int, columns: int, generator: torch.Generator) -> Case:
    count = 3 if family == SEVERAL else 1
    b, c = _symmetric(rows, 0.3, generator, count), _symmetric(columns, 0.3, generator, count)
    g = torch.randn(rows, columns, generator=generator, dtype=DOUBLE)
    values = torch.linalg.eigvalsh(galore.operator(b, c))
    second, high = float(values[1]), float(values[-1])
    rate = 1.97 / high if family == HIGH else 2 / (second + high)
    earlier = 0.1 * torch.randn(rows, columns, generator=generator, dtype=DOUBLE)
    return Case(g, b, c, rate, earlier if family == LATE else None)


def lemma(rows: int, columns: int, draws: int, steps: int, seed: int) -> dict[str, Tensor]:
    """By family: stable rank, both bounds, each (cases, times), and where it ends (cases,)."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.arange(steps + 1, dtype=DOUBLE)
    found: dict[str, list[Tensor]] = {}
    for family in FAMILIES:
        for case in (_made(family), *(_drawn(family, rows, columns, generator) for _ in range(draws))):
            g, b, c, rate = case[:4]
            for name, value in {
                "rank": stable_rank(galore.gradient_path(g, b, c, t, rate=rate)),
                "printed": galore.stable_rank_bound_as_printed(g, b, c, t, rate=rate, start=case.start),
                "corrected": galore.stable_rank_bound(g, b, c, t, rate=rate),
                "end": stable_rank(galore.lasting(g, b, c, rate=rate).part),
            }.items():
                found.setdefault(f"{family}/{name}", []).append(value)
    return {"t": t} | {name: torch.stack(values) for name, values in found.items()}


def rank_one(rows: int, columns: int, draws: int, steps: int, seed: int) -> dict[str, Tensor]:
    """Corollary 3.5: a single lowest eigenvector that is a product; at a high rate; one that is no product.

    Late: stable ranks after `steps` steps. Products have one pair with even eigenvalues, so that the lowest is well
    below the next. Random ones were tried first. Some lay so close together that the stable rank was still 1.13 after
    300 steps.
    """
    generator = torch.Generator().manual_seed(seed)
    products = []
    for _ in range(draws):
        b, c = (_symmetric(size, 0.3, generator, even=True) for size in (rows, columns))
        products.append(Case(torch.randn(rows, columns, generator=generator, dtype=DOUBLE), b, c, 1.0))
    top = _entangled(1.0, across=0.5, third=0.1)
    high = float(torch.linalg.eigvalsh(galore.operator(top.b, top.c))[-1])

    def late(case: Case) -> Tensor:
        t = torch.tensor([float(steps)])
        return stable_rank(galore.gradient_path(case.g, case.b, case.c, t, rate=case.rate))[0]

    return {
        "late": torch.stack([late(case) for case in products]),
        "late, high rate": late(top._replace(rate=1.99 / high)),
        "late, low rate": late(top._replace(rate=1 / high)),
        "late, no product": late(_entangled()),
        "rank at the start": stable_rank(torch.stack([case.g for case in products])),
    }


def half(n: int, times: int, seed: int) -> dict[str, Tensor]:
    """Per kind: stable rank over time from W = 0, where it ends, and the size of the part that the bound divides by.

    n - 1 inputs of n dimensions, as many as the corollary allows. In coordinates of the span of the inputs: outside of
    it G is zero, and rounding there would never decay.
    """
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, Tensor] = {}
    for kind in KINDS:
        inputs, b = _problem(kind, n, generator)
        targets = torch.eye(n, dtype=DOUBLE)[: n - 1]
        span = torch.linalg.qr(inputs.mT).Q
        a, c, own = targets[:, :, None] * inputs[:, None], _outer(inputs), _outer(inputs @ span)
        g = a.mean(0)
        inside = g @ span
        values = torch.linalg.eigvalsh(galore.operator(b, own))
        rate = float((0.1 if kind == EVEN else 1.0) / values[-1])
        last = log(SMALL) / log1p(-rate * float(values[0]))
        t = torch.cat([torch.zeros(1), torch.logspace(0, log10(last), times - 1)]).floor().unique()
        parts = {
            "t": t,
            "rank": stable_rank(galore.gradient_path(inside, b, own, t, rate=rate)),
            "end": stable_rank(galore.lasting(inside, b, own, rate=rate).part),
            "exact rank": _ranks(a, b, c, rate),
            "share in V_1": torch.linalg.matrix_norm(galore.split(g, b, c).part) / torch.linalg.matrix_norm(g),
        }
        found |= {f"{kind}/{name}": value for name, value in parts.items()}
    return found


def _problem(kind: str, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """n - 1 inputs (n - 1, n) and their B_i."""
    count = n - 1
    basis = _turned(n, generator)[:count]
    if kind == EVEN:
        return basis, torch.eye(n, dtype=DOUBLE).expand(count, n, n)
    inputs = (_turned(count, generator) * torch.linspace(0.25, 1, count, dtype=DOUBLE).sqrt()) @ basis
    return inputs, _symmetric(n, 0.5, generator, count if kind == OWN else 1, even=True).expand(count, n, n)


def _ranks(a: Tensor, b: Tensor, c: Tensor, rate: float, steps: int = 40) -> Tensor:
    w, ranks = torch.zeros_like(a[0]), []
    for _ in range(steps):
        g = galore.gradient(w, a, b, c)
        ranks.append(torch.linalg.matrix_rank(g, rtol=ROUNDING))
        w = w + rate * g
    return torch.stack(ranks)


def _outer(rows: Tensor) -> Tensor:
    return rows[:, :, None] * rows[:, None]


def _turned(size: int, generator: torch.Generator) -> Tensor:
    basis: Tensor = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=DOUBLE)).Q
    return basis
