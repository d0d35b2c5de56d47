"""Integrals that the radial laws share: rules for half-lines, powers of the sine, the Gaussian's tail."""

import math
from collections.abc import Callable
from functools import lru_cache
from math import inf, lgamma, pi, sqrt
from typing import Any, cast

import torch
from torch import Tensor


def with_slope(s: Tensor, value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Tensor:
    """value(s), with slope(s) as its derivative: for integrals, whose derivative is known in closed form."""
    if not s.requires_grad:
        return value(s)  # the machinery of a custom derivative costs more than most integrals
    return cast(Tensor, _Primitive.apply(s, value, slope))  # type: ignore[no-untyped-call]


class _Primitive(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(s: Tensor, value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Tensor:
        return value(s)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        s, _, ctx.slope = inputs
        ctx.save_for_backward(s)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (s,) = ctx.saved_tensors
        return grad * ctx.slope(s), None, None


def half_line(end: float, scale: float, *, step: float = 1 / 32) -> tuple[Tensor, Tensor]:
    """Double-exponential nodes and weights, both (nodes,), for the integral from 0 to `end`, which may be inf."""
    t = torch.arange(-5 + step / 2, 5, step, dtype=torch.float64)
    if end == inf:  # the nodes run to about 1e50 times `scale`, the length on which the integrand varies
        x = scale * torch.exp(pi / 2 * torch.sinh(t))
        return x, x * (pi / 2 * step) * torch.cosh(t)
    share, rest = torch.sigmoid(pi * torch.sinh(t)), torch.sigmoid(-pi * torch.sinh(t))
    return end * share, end * (pi * step) * torch.cosh(t) * share * rest


@lru_cache(maxsize=64)
def jacobi_rule(power: float, count: int = 48) -> tuple[Tensor, Tensor]:
    """Gauss nodes and weights, both (count,), for int_0^1 x^power f(x) dx, power > -1 (Golub and Welsch)."""
    k = torch.arange(count, dtype=torch.float64)
    twice = 2 * k + power
    diagonal = (1 + power**2 / (twice * (twice + 2))) / 2
    diagonal[0] = (power + 1) / (power + 2)  # the general term is 0/0 there when power = 0
    n, twice = k[1:], twice[1:]
    square = n**2 * (n + power) ** 2 / (twice**2 * (twice**2 - 1))
    beside = torch.diag(square.sqrt(), 1)
    nodes, vectors = torch.linalg.eigh(torch.diag(diagonal) + beside + beside.mT)
    return nodes, vectors[0] ** 2 / (power + 1)


def gamma_ratio(x: float) -> float:
    """Gamma(x + 1/2)/Gamma(x), x > 0: for large x by its series in 1/x, where logarithms would lose digits."""
    if x < 100:
        return math.exp(lgamma(x + 0.5) - lgamma(x))
    series = (1.0, -1 / 8, 1 / 128, 5 / 1024, -21 / 32768, -399 / 262144)
    return sqrt(x) * sum(factor / x**k for k, factor in enumerate(series))


def sine_norm(power: float) -> float:
    """1 / int_0^pi sin^power."""
    return gamma_ratio((power + 1) / 2) / sqrt(pi)


def sine_integral(angle: Tensor, power: float, kernel: Callable[[Tensor, Tensor], Tensor] | None = None) -> Tensor:
    """int_0^angle kernel(t, angle) sin^power t dt for 0 <= angle <= pi/2, accurate however small it is; power > -1."""
    end = angle[..., None]
    if power <= 40:  # part of the Gauss rule, so that it may be any real number
        nodes, weights = (each.to(angle) for each in jacobi_rule(power))
        t = end * nodes
        values = end ** (power + 1) * torch.sinc(t / pi) ** power * weights
    else:  # it peaks at the upper end, which the double-exponential rule resolves
        nodes, weights = (each.to(angle) for each in half_line(1.0, 1.0))
        t = end * nodes
        values = end * torch.sin(t) ** power * weights
    return (values if kernel is None else values * kernel(t, end)).sum(-1)


def drop(t: Tensor, angle: Tensor) -> Tensor:
    """cos t - cos angle, as a product: no cancellation."""
    return 2 * torch.sin((angle + t) / 2) * torch.sin((angle - t) / 2)


def bell(x: Tensor) -> Tensor:
    """The standard normal density."""
    return torch.exp(-(x**2) / 2) / sqrt(2 * pi)


def bell_tail(x: Tensor) -> Tensor:
    """P(z > x) of a standard normal."""
    return torch.erfc(x / sqrt(2)) / 2


def bell_excess(x: Tensor) -> Tensor:
    """E[(z - x)_+] of a standard normal, x >= 0. Written with the scaled erfc: loses only a factor x^2 of precision."""
    x = x.clamp(max=50)  # where the density has long underflowed: infinity times zero would be NaN
    mills: Tensor = sqrt(pi / 2) * torch.special.erfcx(x / sqrt(2))
    return bell(x) * (1 - x * mills).clamp(min=0)


def log_sphere_area(dimension: int) -> float:
    """ln of the surface of the unit sphere in `dimension` dimensions, which is 2, 2 pi, 4 pi, ..."""
    return math.log(2) + dimension / 2 * math.log(pi) - lgamma(dimension / 2)
