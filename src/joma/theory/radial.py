"""Isotropic laws in n dimensions, seen along one direction.

An isotropic x' has a density p_0(|x'|). What Lemmas 1-5 need of it is the marginal u = e . x' along a unit vector,
with density p_n (eq. 33-36), and three functions of a signed distance s:

    theta1(s) = P(u > -s)     theta2(s) = int_{|s|}^inf u p_n(u) du     F(s) = theta2(s) + s theta1(s) = E[relu(u + s)]

so that theta1' = p_n, theta2' = -s p_n and F' = theta1; autograd delivers exactly these. The marginal is even, which
leaves each law two positive integrals to supply: the tail P(u > x) and the excess E[(u - x)_+] for x >= 0. Both are
evaluated without cancellation, so tails keep their relative accuracy (about 1e-13) down to underflow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf, lgamma, log, pi, sqrt

import torch
from torch import Tensor

from joma.theory._quadrature import (
    bell,
    bell_excess,
    bell_tail,
    drop,
    log_sphere_area,
    sine_integral,
    sine_norm,
)
from joma.theory._radial_law import RadialLaw, directions, normal, uniform

__all__ = ["Ball", "ExponentialRadial", "Gaussian", "RadialLaw", "StudentT"]


@dataclass(frozen=True)
class Gaussian(RadialLaw):
    """x' ~ N(0, scale^2 I) in `dimension` dimensions. Log-concave: no critical point besides v = 0.

    >>> Gaussian(5).theta1([-1.0, 0.0, 1.0])
    tensor([0.1587, 0.5000, 0.8413], dtype=torch.float64)
    """

    dimension: int
    scale: float = 1.0
    radius = inf
    _above = ("scale", 0.0)

    def _radial(self, r: Tensor) -> Tensor:
        return torch.exp(-((r / self.scale) ** 2) / 2 - self.dimension * log(sqrt(2 * pi) * self.scale))

    def _density(self, s: Tensor) -> Tensor:
        return bell(s / self.scale) / self.scale

    def _theta2(self, s: Tensor) -> Tensor:
        return bell(s / self.scale) * self.scale

    def _tail(self, x: Tensor) -> Tensor:
        return bell_tail(x / self.scale)

    def _excess(self, x: Tensor) -> Tensor:
        return bell_excess(x / self.scale) * self.scale

    def _radii(self, count: int, generator: torch.Generator | None) -> Tensor:
        lengths: Tensor = torch.linalg.vector_norm(normal(count, self.dimension, generator), dim=-1)
        return self.scale * lengths


@dataclass(frozen=True)
class Ball(RadialLaw):
    """x' uniform in the ball of this dimension and radius. Log-concave and bounded: theta2 is 0 beyond |s| = radius.

    p_n(s) = p_n(0) (1 - s^2/R^2)^((n-1)/2),   theta2(s) = p_n(0) R^2/(n+1) (1 - s^2/R^2)^((n+1)/2)

    >>> Ball(3, 2.0).density([0.0, 1.2, 2.0])
    tensor([0.3750, 0.2400, 0.0000], dtype=torch.float64)
    """

    dimension: int
    radius: float = 1.0
    _above = ("radius", 0.0)

    @property
    def _peak(self) -> float:
        return sine_norm(self.dimension) / self.radius

    def _inside(self, s: Tensor) -> Tensor:
        return ((self.radius - s) * (self.radius + s)).clamp(min=0) / self.radius**2  # 1 - s^2/R^2

    def _angle(self, x: Tensor) -> Tensor:
        return 2 * torch.asin(((1 - x / self.radius).clamp(min=0) / 2).sqrt())  # cos(angle) = x/R

    def _radial(self, r: Tensor) -> Tensor:
        n = self.dimension
        volume = log_sphere_area(n) - log(n) + n * log(self.radius)  # its logarithm
        return torch.where(r <= self.radius, torch.exp(torch.full_like(r, -volume)), 0.0)

    def _density(self, s: Tensor) -> Tensor:
        if self.dimension == 1:
            return torch.where(s.abs() <= self.radius, torch.full_like(s, self._peak), 0.0)
        return self._peak * self._inside(s) ** ((self.dimension - 1) / 2)

    def _theta2(self, s: Tensor) -> Tensor:
        n = self.dimension
        return self._peak * self.radius**2 / (n + 1) * self._inside(s) ** ((n + 1) / 2)

    def _tail(self, x: Tensor) -> Tensor:
        return sine_norm(self.dimension) * sine_integral(self._angle(x), self.dimension)

    def _excess(self, x: Tensor) -> Tensor:
        return self.radius * sine_norm(self.dimension) * sine_integral(self._angle(x), self.dimension, drop)

    def _radii(self, count: int, generator: torch.Generator | None) -> Tensor:
        return self.radius * uniform(count, generator) ** (1 / self.dimension)


@dataclass(frozen=True)
class StudentT(RadialLaw):
    """The multivariate Student-t with nu > 1 degrees of freedom: power tails, so critical rays exist.

    The marginal is the one-dimensional t with the same nu, whatever the dimension.
    theta2(s) = p_n(s) (nu + s^2)/(nu - 1).

    >>> StudentT(4, 3.0).theta2(0.0)
    tensor(0.5513, dtype=torch.float64)
    """

    dimension: int
    nu: float
    radius = inf
    _above = ("nu", 1.0)  # below that E|u| is infinite, and with it theta2

    def _radial(self, r: Tensor) -> Tensor:
        n, nu = self.dimension, self.nu
        constant = lgamma((nu + n) / 2) - lgamma(nu / 2) - n / 2 * log(nu * pi)
        return torch.exp(constant - (nu + n) / 2 * torch.log1p(r**2 / nu))

    def _density(self, s: Tensor) -> Tensor:
        return sine_norm(self.nu - 1) / sqrt(self.nu) * (1 + s**2 / self.nu) ** (-(self.nu + 1) / 2)

    def _theta2(self, s: Tensor) -> Tensor:
        nu = self.nu
        return sine_norm(nu - 1) * sqrt(nu) / (nu - 1) * (1 + s**2 / nu) ** (-(nu - 1) / 2)

    def _angle(self, x: Tensor) -> Tensor:
        return torch.atan2(torch.full_like(x, sqrt(self.nu)), x)  # cot(angle) = x/sqrt(nu)

    def _tail(self, x: Tensor) -> Tensor:
        return sine_norm(self.nu - 1) * sine_integral(self._angle(x), self.nu - 1)

    def _excess(self, x: Tensor) -> Tensor:
        # With u = sqrt(nu) cot t, u - x is proportional to sin(angle - t)/(sin angle sin t): positive, no cancellation.
        beyond = sine_integral(self._angle(x), self.nu - 2, lambda t, end: torch.sin(end - t) / torch.sin(end))
        return sine_norm(self.nu - 1) * sqrt(self.nu) * beyond

    def _radii(self, count: int, generator: torch.Generator | None) -> Tensor:
        # Two coordinates at a time have a closed inverse: 1 + |x|^2/nu is a product of U_k^(-2/(nu + 2k)), k < n/2.
        pairs, odd = divmod(self.dimension, 2)
        waits = -torch.log(uniform((count, pairs + odd), generator))
        rates = (self.nu + 2 * torch.arange(pairs + odd, dtype=torch.float64)).to(waits)
        radii = (self.nu * torch.expm1((2 * waits / rates).sum(-1))).sqrt()
        if not odd:
            return radii
        # One coordinate too many was drawn: leave it out.
        return radii.mul(torch.linalg.vector_norm(directions(count, self.dimension + 1, generator)[:, 1:], dim=-1))


@dataclass(frozen=True)
class ExponentialRadial(RadialLaw):
    """p_0(r) proportional to exp(-rate r): in one dimension the Laplace law, else p_n ~ |s|^(n/2) K_(n/2)(rate |s|).

    n is the `dimension`. Computed as a Gaussian of random width: u = sqrt(2 Y) z / rate with Y ~ Gamma((n+1)/2).
    Relative accuracy about 1e-13 for rate |s| <= 200. Log-concave; for n = 1 F/theta1 is constant below 0.

    >>> ExponentialRadial(1).theta1([-1.0, 0.0])
    tensor([0.1839, 0.5000], dtype=torch.float64)
    """

    dimension: int
    rate: float = 1.0
    radius = inf
    _above = ("rate", 0.0)

    @cached_property
    def _widths(self) -> tuple[Tensor, Tensor]:
        """Widths of the Gaussians and their shares: the trapezoid rule in log Y, which converges exponentially."""
        # From where Y has no share left to where it has none yet; in high dimension log Y is sharp, 1/sqrt(shape).
        shape = (self.dimension + 1) / 2
        step = min(1 / 16, 0.5 / sqrt(shape))
        start = -80 / self.dimension if self.dimension < 100 else max(0.0, log(shape) - 40 / sqrt(shape))
        end = log(shape + sqrt(1500 * shape) + 1100)
        tau = torch.arange(start, end, step, dtype=torch.float64)
        return (2 * tau.exp()).sqrt() / self.rate, torch.exp(shape * tau - tau.exp() - lgamma(shape)) * step

    def _mix(self, shape: Callable[[Tensor], Tensor], s: Tensor, power: int) -> Tensor:
        width, share = self._widths
        width = width.to(s)
        return (shape(s[..., None] / width) * width**power * share.to(s)).sum(-1)

    def _radial(self, r: Tensor) -> Tensor:
        n = self.dimension
        return torch.exp(n * log(self.rate) - lgamma(n) - log_sphere_area(n) - self.rate * r)

    def _density(self, s: Tensor) -> Tensor:
        return self._mix(bell, s, -1)

    def _theta2(self, s: Tensor) -> Tensor:
        return self._mix(bell, s, 1)

    def _tail(self, x: Tensor) -> Tensor:
        return self._mix(bell_tail, x, 0)

    def _excess(self, x: Tensor) -> Tensor:
        return self._mix(bell_excess, x, 1)

    def _radii(self, count: int, generator: torch.Generator | None) -> Tensor:
        return -torch.log(uniform((count, self.dimension), generator)).sum(-1) / self.rate
