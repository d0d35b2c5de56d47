"""Critical rays of a ReLU node between two clusters: what Lemma 4 says about them, and what happens there."""

from __future__ import annotations

import torch
from torch import Tensor

from joma.studies.isotropic._forms import difference
from joma.theory import isotropic
from joma.theory.radial import ExponentialRadial, RadialLaw

DIMENSION = 5
LENGTHS = (0.5, 1.0, 3.0)
"""Of v: places on each ray."""


def _clusters(m: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The axis (d,), centres (m, 2, d) and weights (m, 2) of a_+ = 1 at m and -ratio at 0."""
    axis = torch.eye(DIMENSION, dtype=torch.float64)[0]
    centres = torch.stack([m[:, None] * axis, torch.zeros(len(m), DIMENSION, dtype=torch.float64)], 1)
    return axis, centres, torch.stack([torch.ones_like(ratio), -ratio], -1)


def _relative_speed(v: Tensor, xi: Tensor, centres: Tensor, weights: Tensor, law: RadialLaw) -> Tensor:
    """‖(v', xi')‖ over the sum of |a_j|."""
    motion = isotropic.velocity(v, xi, centres, weights, law)
    speed: Tensor = torch.linalg.vector_norm(torch.cat([motion.v, motion.xi[..., None]], -1), dim=-1)
    return speed / weights.abs().sum(-1)


def speed_on_rays(law: RadialLaw, m: Tensor, ray: isotropic.CriticalRay) -> Tensor:
    """(lengths, m): the true speed at the corrected critical points, at several places of each ray."""
    axis, centres, weights = _clusters(m, ray.ratio)
    length = torch.tensor(LENGTHS, dtype=torch.float64)[:, None]
    return _relative_speed(length[..., None] * axis, length * ray.rho_minus, centres, weights, law)


def speed_as_printed(law: RadialLaw, m: Tensor) -> Tensor:
    """(lengths, m): the true speed at printed critical points, where r_+ - r_- = |v| m is met by choosing |v|."""
    m = m.repeat(len(LENGTHS))
    gap = m * torch.tensor(LENGTHS, dtype=torch.float64).repeat_interleave(len(m) // len(LENGTHS))
    point = isotropic.printed_critical_point(m, gap, law)
    axis, centres, weights = _clusters(m, law.theta1(point.rho_plus) / law.theta1(point.rho_minus))
    speed = _relative_speed(point.norm[:, None] * axis, point.xi, centres, weights, law)
    return speed.reshape(len(LENGTHS), -1)


def sums(law: RadialLaw, ray: isotropic.CriticalRay) -> Tensor:
    """(2, lengths, m): sum_j a_j F at rho_j, and at r_j = |v| rho_j as printed, relative to sum_j |a_j| F."""
    length = torch.tensor(LENGTHS, dtype=torch.float64)[:, None]
    forms = []
    for scale in (torch.ones_like(length), length):
        plus, minus = law.F(scale * ray.rho_plus), ray.ratio * law.F(scale * ray.rho_minus)
        forms.append((plus - minus) / (plus + minus))
    return torch.stack(forms)


def line(law: RadialLaw, ray: isotropic.CriticalRay) -> Tensor:
    """log of G(y_+)/y_+ over G(y_-)/y_-, (m,), with y = theta1(rho)."""
    plus, minus = (law.F(law.inverse_theta1(y)) / y for y in (law.theta1(ray.rho_plus), law.theta1(ray.rho_minus)))
    return (plus / minus).log()


def printed_shares(law: RadialLaw, ray: isotropic.CriticalRay) -> Tensor:
    """y = theta1^-1(rho) as printed, (2, m); NaN where rho is no probability and the inverse does not exist."""
    rho = torch.stack([ray.rho_plus, ray.rho_minus])
    defined = (rho > 0) & (rho < 1)
    return torch.where(defined, law.inverse_theta1(torch.where(defined, rho, 0.5)), torch.nan)


def slopes(law: RadialLaw) -> Tensor:
    """(2, y): G' by differences of G = F(theta1^-1(y)), and theta1/p_n."""
    y = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    x = law.inverse_theta1(y)
    by_differences = difference(lambda share: law.F(law.inverse_theta1(share)), y, step=5e-4)
    return torch.stack([by_differences, law.theta1(x) / law.density(x)])


def laplace() -> Tensor:
    """Eq. 58's value for the Laplace law, and its speed at critical points: a_-/a_+ = e^m, any rho_+ <= 0."""
    law = ExponentialRadial(1)
    m = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    centres = torch.stack([m, torch.zeros_like(m)], -1)[..., None]
    weights = torch.stack([torch.ones_like(m), -m.exp()], -1)
    speed = _relative_speed(torch.ones(3, 1, dtype=torch.float64), -0.3 - m, centres, weights, law)
    return torch.stack([isotropic.crossing_value(law), speed.max()])
