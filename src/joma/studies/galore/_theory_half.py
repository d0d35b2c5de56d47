"""Corollary 3.4: gradients mean_i (a_i - B_i W f_i) f_i^T whose inputs f_i do not span all of R^n."""

from __future__ import annotations

from math import log, log1p, log10

import torch
from torch import Tensor

from joma.studies.galore._theory_descent import DOUBLE, spectrum, stable_rank
from joma.theory import galore

EVEN, SAME, OWN = "orthonormal inputs", "generic inputs", "generic inputs, own B"
KINDS = (EVEN, SAME, OWN)
"""The counterexample; generic inputs with one B for all; and with a B_i for each input."""
SMALL = 1e-290
"""How far the slowest part is followed: it is still a number. First 1e-130, where the claim passed by a hair."""
ROUNDING = 1e-9


def half(n: int, times: int, seed: int) -> dict[str, Tensor]:
    """Per kind: stable rank over time from W = 0, where it ends, and the size of the part that the bound divides by.

    n - 1 inputs of n dimensions, as many as the corollary allows.
    """
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, Tensor] = {}
    for kind in KINDS:
        found |= {f"{kind}/{name}": value for name, value in _follow(kind, n, times, generator).items()}
    return found


def _follow(kind: str, n: int, times: int, generator: torch.Generator) -> dict[str, Tensor]:
    """In coordinates of the span of the inputs. Outside of it G is zero, and rounding there would never decay."""
    inputs, b = _problem(kind, n, generator)
    targets = torch.eye(n, dtype=DOUBLE)[: len(inputs)]
    span = torch.linalg.qr(inputs.mT).Q
    g, c = (targets[:, :, None] * inputs[:, None]).mean(0), _outer(inputs)
    inside, own = g @ span, _outer(inputs @ span)
    values = torch.linalg.eigvalsh(galore.operator(b, own))
    rate = float((0.1 if kind == EVEN else 1.0) / values[-1])
    last = log(SMALL) / log1p(-rate * float(values[0]))
    t = torch.cat([torch.zeros(1), torch.logspace(0, log10(last), times - 1)]).floor().unique()
    low = galore.split(g, b, c).part
    return {
        "t": t,
        "rank": stable_rank(galore.gradient_path(inside, b, own, t, rate=rate)),
        "end": stable_rank(galore.lasting(inside, b, own, rate=rate).part),
        "exact rank": _ranks(targets, inputs, b, rate),
        "share in V_1": torch.linalg.matrix_norm(low) / torch.linalg.matrix_norm(g),
    }


def _problem(kind: str, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """n - 1 inputs (n - 1, n) and their B_i."""
    count = n - 1
    basis = _turned(n, generator)[:count]
    if kind == EVEN:
        return basis, torch.eye(n, dtype=DOUBLE).expand(count, n, n)
    sizes = torch.linspace(0.25, 1, count, dtype=DOUBLE).sqrt()
    inputs = (_turned(count, generator) * sizes) @ basis
    return inputs, spectrum(n, 0.5, generator, count if kind == OWN else 1, even=True).expand(count, n, n)


def _ranks(targets: Tensor, inputs: Tensor, b: Tensor, rate: float, steps: int = 40) -> Tensor:
    """The rank of G on a real descent from W = 0 in all n dimensions, (steps,)."""
    a, c = targets[:, :, None] * inputs[:, None], _outer(inputs)
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
