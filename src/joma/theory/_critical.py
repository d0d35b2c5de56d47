"""Lemma 4 and Theorem 3: where the node stops, and how it moves nearby. See `joma.theory.isotropic`.

Two clusters: weight a_+ > 0 at xbar_+, m = |xbar_+|, and weight -a_- < 0 at the origin. phi is a ReLU unless there are
slopes to choose.
"""

from __future__ import annotations

from functools import lru_cache
from math import pi
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, alongside, positive, real, shown, together
from joma.host.words import brief_repr
from joma.theory import radial
from joma.theory._guard import guarded, half_in_single
from joma.theory._mixture import RELU, Slopes, direction_of, in_dimension, in_range, theta_derivatives, thetas_at
from joma.theory._radial_law import bisect, must_be_law

Law = radial.RadialLaw
Side = Literal[1, -1]  # sgn(mu . xbar_+): does the critical weight point towards the positive cluster or away from it?


@brief_repr
class CriticalRay(NamedTuple):
    """The ratio a_-/a_+ that m asks for, and the signed distances rho_plus and rho_minus; NaN where there is no ray."""

    ratio: Tensor
    rho_plus: Tensor
    rho_minus: Tensor


@half_in_single
def critical_rays(m: Number, law: Law, *, side: Side = 1) -> CriticalRay:
    """Lemma 4, corrected: v = side |v| xbar_+/m stands still iff, with rho_+ - rho_- = side m fixed by the data,

        theta1(rho_+)/theta1(rho_-) = F(rho_+)/F(rho_-) = a_-/a_+          (eq. 56, at rho = r/|v|)

    One unknown, two equations: solutions lie on a curve in (m, a_-/a_+), and each is a ray, since |v| drops out
    (xi = rho_- |v|). F/theta1 must take one value twice. For a log-concave p_n (Gaussian, ball, exp-radial) it is
    increasing and there is no critical point at all; for power tails it falls, then rises, and every m has one.
    The Laplace law in one dimension sits in between: for a_-/a_+ = e^(rate m) any rho_+ <= 0 will do. It gets NaN too.
    m: any shape, positive. Not differentiable.

    >>> critical_rays([1.0, 8.0], radial.StudentT(4, 3.0)).ratio
    tensor([  2.5295, 149.6061], dtype=torch.float64)
    >>> critical_rays(1.0, radial.StudentT(4, 3.0))
    CriticalRay(ratio=2.53, rho_plus=0.03335, rho_minus=-0.9667)
    >>> critical_rays(1.0, radial.Gaussian(4)).ratio
    tensor(nan, dtype=torch.float64)
    """
    return rays(positive(m, "m"), "m", law, side)


def rays(m: Tensor, name: str, law: Law, side: Side) -> CriticalRay:
    """`critical_rays`, for an m that its caller knows by another name."""
    must_be_law(law)
    if not isinstance(side, int | float) or side not in (1, -1):
        raise ValueError(f"side must be 1 or -1, got {shown(side)}")
    gap = m.detach()
    bottom = _flattest(law)
    if bottom is None:
        return CriticalRay(*[torch.full_like(gap, torch.nan)] * 3)
    # The two distances lie on either side of the bottom of F/theta1, so the lower one is within m below it.
    if (law.theta1(bottom - gap) == 0).any():
        raise ValueError(f"{name} must be smaller: at {gap.max().item():g} the law's tail is not a {gap.dtype}")

    def falls(near: Tensor) -> Tensor:
        pair = law.residual_life(torch.stack([near, near + gap]))
        return pair[1] < pair[0]

    near = bisect(falls, bottom - gap, torch.full_like(gap, bottom))
    plus, minus = (near + gap, near) if side > 0 else (near, near + gap)
    return CriticalRay(law.theta1(plus) / law.theta1(minus), plus, minus)


@guarded
def crossing_value(law: Law) -> Tensor:
    """p_n(0) theta2(0), which eq. 58 compares with 1/4: at or above it F/theta1 does not rise at 0, so rays exist.

    Sufficient, not necessary: the Student-t with nu = 3 has 0.203 and critical rays. The Gaussian has 1/(2 pi).

    >>> crossing_value(radial.Gaussian(4)), crossing_value(radial.StudentT(4, 3.0))
    (tensor(0.1592, dtype=torch.float64), tensor(0.2026, dtype=torch.float64))
    """
    must_be_law(law)
    zero = torch.zeros((), dtype=torch.float64)
    return law.density(zero) * law.theta2(zero)


@brief_repr
class CriticalPoint(NamedTuple):
    """norm = |mu|, xi, and the signed distances rho_plus and rho_minus to its two clusters; NaN where there is none."""

    norm: Tensor
    xi: Tensor
    rho_plus: Tensor
    rho_minus: Tensor


@half_in_single
def decayed_point(m: Number, a_plus: Number, a_minus: Number, law: Law, decay: Number) -> CriticalPoint:
    """With weight decay the rays give way to an isolated, stable point mu = |mu| xbar_+/m: this one.

    On the circle v = cos(alpha) xbar_+/m, xi = sin(alpha) the objective J has its maximum where the flow is radial;
    decay only sets the distance, |(mu, xi)| = J_max/decay. It exists for every law, wherever J is positive somewhere;
    elsewhere everything decays to zero and the answer is NaN. All arguments broadcast; not differentiable.

    >>> point = decayed_point(2.0, 1.0, 1.0, radial.Gaussian(4), 0.1)
    >>> point.norm, torch.isclose(point.xi, point.rho_minus * point.norm)
    (tensor(16.1992, dtype=torch.float64), tensor(True))
    """
    must_be_law(law)
    given = {"m": m, "a_plus": a_plus, "a_minus": a_minus, "decay": decay}
    checked = {name: positive(value, name).detach() for name, value in given.items()}
    gap, plus, minus, shrink = (each[..., None] for each in together(**checked))

    def height(alpha: Tensor) -> Tensor:
        rho = torch.tan(alpha)
        return torch.cos(alpha) * (plus * law.F(rho + gap) - minus * law.F(rho))

    def rises(alpha: Tensor) -> Tensor:
        rho = torch.tan(alpha)
        active = plus * law.theta1(rho + gap)
        along = gap * active + plus * law.theta2(rho + gap) - minus * law.theta2(rho)
        bias = active - minus * law.theta1(rho)
        return bias * torch.cos(alpha) - along * torch.sin(alpha) > 0

    angles = torch.linspace(-pi / 2, pi / 2, 1001, dtype=torch.float64)[1:-1].to(gap)
    heights = height(angles)
    in_range(heights, "m, a_plus and a_minus", "the objective")
    best = heights.argmax(-1, keepdim=True).clamp(1, len(angles) - 2)
    angle = bisect(rises, angles[best - 1], angles[best + 1])
    length = torch.where(height(angle) > 0, height(angle) / shrink, torch.nan)
    rho = torch.where(length.isnan(), torch.nan, torch.tan(angle))
    point = length * torch.cos(angle), length * torch.sin(angle), rho + gap, rho
    return CriticalPoint(*(each[..., 0] for each in point))


@brief_repr
class Linearisation(NamedTuple):
    """v' = C (mu - v) near mu, xi held fixed: C = beta1 I + beta2 mu mu^T. (..., d, d), (...), (...)."""

    C: Tensor
    beta1: Tensor
    beta2: Tensor


@guarded
def linearisation(
    mu: Number,
    xi: Number,
    centre: Number,
    a_plus: Number,
    a_minus: Number,
    law: Law,
    *,
    decay: Number = 0.0,
    slopes: Slopes = RELU,
) -> Linearisation:
    """Theorem 3, corrected, at a critical weight mu = +-|mu| xbar_+/m (xbar_- = 0), with s = sgn(mu . xbar_+):

        beta1 = s a_+ m theta1(rho_+)/|mu|      beta2 |mu|^2 = decay - rho_-^2 D/|mu| - beta1
        D = a_+ theta1'(rho_+) - a_- theta1'(rho_-)

    C has the eigenvalue beta1 across mu and decay - rho_-^2 D/|mu| along it. The remainder is an additive vector of
    order |v - mu|^2, and xi does not wait: see `hessian` for (v, xi) together. Refuses a mu where v' is not zero.
    mu, centre: (..., d); xi, a_plus, a_minus, decay: (...).

    >>> point = decayed_point(2.0, 1.0, 1.0, radial.Gaussian(2), 0.1)
    >>> mu = point.norm * torch.tensor([1.0, 0.0], dtype=torch.float64)
    >>> linearisation(mu, point.xi, [2.0, 0.0], 1.0, 1.0, radial.Gaussian(2), decay=0.1).C
    tensor([[0.1013, 0.0000],
            [0.0000, 0.1219]], dtype=torch.float64)
    """
    point = TwoClusters.of(mu, xi, centre, a_plus, a_minus, law, decay)
    first, second = thetas_at(point.rho, law, slopes)
    pull = point.side * point.m * point.plus * first[..., 0]
    push = point.plus * second[..., 0] - point.minus * second[..., 1]
    speed = (pull + push - point.decay * point.length).abs()
    still = speed <= torch.finfo(pull.dtype).eps ** 0.5 * pull.abs()
    if not still.all():
        given = "xi, centre, a_plus, a_minus and decay"
        raise ValueError(f"mu is not a critical point for this {given}: |v'| is {speed[~still][0].item():g}, not 0")
    bend = theta_derivatives(point.rho, law, slopes=slopes).first
    spread = point.plus * bend[..., 0] - point.minus * bend[..., 1]
    beta1 = pull / point.length
    beta2 = (point.decay - point.rho[..., 1] ** 2 * spread / point.length - beta1) / point.length**2
    return point.linearised(beta1, beta2)


class TwoClusters(NamedTuple):
    """A weight parallel to xbar_+ and what it sees, checked."""

    mu: Tensor  # (..., d)
    xi: Tensor
    length: Tensor  # |mu|
    m: Tensor
    side: Tensor
    plus: Tensor
    minus: Tensor
    rho: Tensor  # (..., 2): at xbar_+, at 0
    decay: Tensor

    @classmethod
    def of(
        cls, mu: Number, xi: Number, centre: Number, a_plus: Number, a_minus: Number, law: Law, decay: Number = 0.0
    ) -> TwoClusters:
        given = {name: in_dimension(value, name, law) for name, value in {"mu": mu, "centre": centre}.items()}
        given |= {"xi": real(xi, "xi"), "a_plus": positive(a_plus, "a_plus"), "a_minus": positive(a_minus, "a_minus")}
        v, middle, bias, plus, minus, shrink = alongside({"mu": 1, "centre": 1}, **given, decay=real(decay, "decay"))
        length, direction = direction_of(v, "mu")
        m, towards = direction_of(middle, "centre")
        cosine = (direction * towards).sum(-1)
        if (cosine.abs() < 1 - 1e-6).any():
            raise ValueError("mu must be parallel to centre, as every critical point is")
        side, lower = cosine.sign(), bias / length
        rho = torch.stack([lower + side * m, lower], -1)
        in_range(rho, "xi/|mu| and centre", "the distance from the hyperplane")
        return cls(v, bias, length, m, side, plus, minus, rho, shrink)

    def linearised(self, beta1: Tensor, beta2: Tensor) -> Linearisation:
        identity, mu = torch.eye(self.mu.shape[-1]).to(self.mu), self.mu
        matrix = beta1[..., None, None] * identity + beta2[..., None, None] * mu[..., :, None] * mu[..., None, :]
        return Linearisation(matrix, beta1, beta2)


@lru_cache(maxsize=64)
def _flattest(law: Law) -> float | None:
    """Where F/theta1 stops falling and starts to rise; None if it never falls."""

    def falls(s: Tensor) -> Tensor:  # (F/theta1)' = 1 - F p_n/theta1^2
        return law.F(s) * law.density(s) > (1 + 1e-9) * law.theta1(s) ** 2

    ladder = law.mean_distance * torch.logspace(-3, 3, 241, dtype=torch.float64)
    grid = torch.cat([-ladder.flip(0), torch.zeros(1, dtype=torch.float64), ladder])
    falling = falls(grid).nonzero()
    if not len(falling):
        return None
    last = int(falling.max())
    return float(bisect(falls, grid[last], grid[last + 1]))
