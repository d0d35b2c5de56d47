"""What all radial laws share: the functions of the marginal, their derivatives, and drawing samples."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from joma.host.arguments import Number, integer, must_be_generator, number, real, shown
from joma.theory._guard import half_in_single
from joma.theory._quadrature import half_line, with_slope


class RadialLaw(ABC):
    """One isotropic law: its dimension n, its radial density, and its one-dimensional marginal.

    >>> from joma.theory.radial import Gaussian
    >>> law = Gaussian(3)
    >>> torch.isclose(law.F(0.5), law.theta2(0.5) + 0.5 * law.theta1(0.5))
    tensor(True)
    """

    dimension: int
    radius: float
    """Nothing lies further out; inf for a law on the whole space."""
    _above: ClassVar[tuple[str, float]]
    """The parameter of the law, and above which number it lies."""

    def __post_init__(self) -> None:
        integer(self.dimension, "dimension", 1)
        name, limit = self._above
        number(getattr(self, name), name, above=limit)

    @abstractmethod
    def _radial(self, r: Tensor) -> Tensor: ...

    @abstractmethod
    def _density(self, s: Tensor) -> Tensor: ...

    @abstractmethod
    def _theta2(self, s: Tensor) -> Tensor: ...

    @abstractmethod
    def _tail(self, x: Tensor) -> Tensor:
        """P(u > x), x >= 0."""

    @abstractmethod
    def _excess(self, x: Tensor) -> Tensor:
        """E[(u - x)_+], x >= 0."""

    @abstractmethod
    def _radii(self, count: int, generator: torch.Generator | None) -> Tensor:
        """`count` independent |x'|."""

    @half_in_single
    def radial(self, r: Number) -> Tensor:
        """p_0(r): the density of x' itself, as a function of r = |x'| >= 0."""
        distance = real(r, "r")
        if (distance < 0).any():
            raise ValueError(f"r is a radius and must not be negative, got {distance.min().item():g}")
        return self._radial(distance)

    @half_in_single
    def density(self, s: Number) -> Tensor:
        """p_n(s): the marginal density along any direction. Same shape as s."""
        return self._density(real(s, "s"))

    @half_in_single
    def theta1(self, s: Number) -> Tensor:
        """P(u > -s): the share of the law on the positive side of a hyperplane at signed distance s."""
        return with_slope(real(s, "s"), self._theta1, self._density)

    @half_in_single
    def theta2(self, s: Number) -> Tensor:
        """int_{|s|}^inf u p_n(u) du = E[u 1[u > -s]]: even in s, largest at 0."""
        return self._theta2(real(s, "s"))

    @half_in_single
    def F(self, s: Number) -> Tensor:
        """theta2(s) + s theta1(s) = E[relu(u + s)]: positive, increasing, F' = theta1."""
        return with_slope(real(s, "s"), self._F, self.theta1)

    @half_in_single
    def residual_life(self, s: Number) -> Tensor:
        """F(s) / theta1(s) = E[u + s | u > -s]: how far, on average, the active samples are beyond the hyperplane.

        Increasing in s for a log-concave p_n; not monotone for power tails. Lemma 4 hangs on that difference.
        """
        distance = real(s, "s")
        share = with_slope(distance, self._theta1, self._density)
        if (share == 0).any():
            farthest = distance[share == 0].max().item()
            raise ValueError(f"s must be larger: beyond the hyperplane at s = {farthest:g} there is nothing to average")
        return with_slope(distance, self._F, self.theta1) / share

    @half_in_single
    def inverse_theta1(self, y: Number) -> Tensor:
        """The s with theta1(s) = y, for y in (0, 1), by bisection. Not differentiable."""
        share = real(y, "y").detach()
        if ((share <= 0) | (share >= 1)).any():
            raise ValueError("y must lie strictly between 0 and 1")
        low, high = torch.full_like(share, -self.mean_distance), torch.full_like(share, self.mean_distance)
        while ((self._theta1(low) > share) | (self._theta1(high) < share)).any():
            low, high = 2 * low, 2 * high
        return bisect(lambda s: self._theta1(s) < share, low, high, steps=64)

    @cached_property
    def mean_distance(self) -> float:
        """E|u| = 2 theta2(0), the law's natural unit of length."""
        return 2 * float(self._theta2(torch.zeros((), dtype=torch.float64)))

    @cached_property
    def half_rule(self) -> tuple[Tensor, Tensor]:
        """Nodes u > 0 and weights w (both (nodes,)) with E[f(u)] = sum w (f(u) + f(-u)) for a smooth f.

        Double-exponential, so a kink of p_n at 0 or an end of its support costs nothing. Relative error about 1e-14
        for an f that is analytic on the real line and no wilder than the law on its own scale.
        """
        u, w = half_line(self.radius, self.mean_distance)
        w = w * self._density(u)
        kept = w > 0
        return u[kept], w[kept]

    def sample(self, count: int, *, generator: torch.Generator | None = None) -> Tensor:
        """`count` independent x': (count, dimension), float64, on the generator's device."""
        if generator is not None:
            must_be_generator(generator)
        radii = self._radii(integer(count, "count", 1), generator)
        return radii[:, None] * directions(int(count), self.dimension, generator)

    def _theta1(self, s: Tensor) -> Tensor:
        tail = self._tail(s.abs())
        return torch.where(s < 0, tail, 1 - tail)

    def _F(self, s: Tensor) -> Tensor:
        return s.clamp(min=0) + self._excess(s.abs())  # F(s) - F(-s) = s


def bisect(is_below: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, *, steps: int = 60) -> Tensor:
    """Where `is_below` turns from true to false between `low` and `high`, elementwise."""
    for _ in range(steps):
        middle = (low + high) / 2
        below = is_below(middle)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def must_be_law(law: object) -> None:
    """One sentence for anything else where a law is wanted."""
    if not isinstance(law, RadialLaw):
        raise ValueError(f"law must be a radial law, for example Gaussian(2) of joma.theory.radial, got {shown(law)}")


def _device(generator: torch.Generator | None) -> torch.device:
    return torch.device("cpu") if generator is None else generator.device


def uniform(shape: int | tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """In (0, 1]: safe to take the logarithm of."""
    return 1 - torch.rand(shape, generator=generator, dtype=torch.float64, device=_device(generator))


def normal(count: int, dimension: int, generator: torch.Generator | None) -> Tensor:
    """Standard normal vectors."""
    return torch.randn(count, dimension, generator=generator, dtype=torch.float64, device=_device(generator))


def directions(count: int, dimension: int, generator: torch.Generator | None) -> Tensor:
    """Uniform on the sphere."""
    gauss = normal(count, dimension, generator)
    return gauss.div(torch.linalg.vector_norm(gauss, dim=-1, keepdim=True))
