"""Lemmas 1-5 and Theorem 3: one nonlinear node on a mixture of isotropic clusters, attention uniform.

A node phi(v . x + xi) sees samples x = xbar_j + x', x' isotropic with the law of `joma.theory.radial`, and cluster j
pulls with weight a_j. All that matters of a cluster is its signed distance rho_j = (v . xbar_j + xi)/|v| from the
hyperplane. The paper works with r_j = |v| rho_j, having changed the variable in the measure but not in the density (eq.
31, 38). That one slip gives its equations powers of 1/|v| that are not there, frees critical points that the data fix,
and turns rays into points. Functions without a prefix are right. `printed_...` are the paper's own forms, so that their
residuals can be measured: they agree with the truth at |v| = 1 only.
"""

import math
from math import pi

import torch
from torch import Tensor

from joma.host.arguments import Number, integer, number, positive, real, together
from joma.theory import radial
from joma.theory._critical import (
    CriticalPoint,
    CriticalRay,
    Linearisation,
    Side,
    TwoClusters,
    critical_rays,
    crossing_value,
    decayed_point,
    linearisation,
    rays,
)
from joma.theory._guard import guarded, half_in_single
from joma.theory._mixture import (
    RELU,
    HyperplaneMean,
    Node,
    Slopes,
    Thetas,
    Velocity,
    excess,
    hessian,
    hyperplane,
    hyperplane_mean,
    objective,
    slope_pair,
    smooth_thetas,
    theta_derivatives,
    thetas,
    thetas_at,
    velocity,
)
from joma.theory._quadrature import half_line
from joma.theory._radial_law import must_be_law
from joma.theory.attention import Sigma

Law = radial.RadialLaw

__all__ = [
    "CriticalPoint", "CriticalRay", "HyperplaneMean", "Linearisation", "Side", "Slopes", "Thetas", "Velocity",
    "critical_rays", "crossing_value", "decayed_point", "excess", "hessian", "hyperplane_mean", "linearisation",
    "objective", "printed_critical_point", "printed_existence", "printed_growth", "printed_hyperplane_mean",
    "printed_linearisation", "printed_marginal", "printed_theta2_jacobian", "printed_theta_derivatives",
    "printed_velocity", "smooth_thetas", "theta2_jacobian", "theta_derivatives", "thetas", "velocity",
]  # fmt: skip


@guarded
def printed_hyperplane_mean(
    v: Number, xi: Number, centre: Number, law: Law, *, psi: Sigma | None = None, basis: Number | None = None
) -> HyperplaneMean:
    """Eq. 23: theta1(r)/|v| and theta1(r) xbar/|v| + theta2(r) v_R/|v|^3. Arguments as in `hyperplane_mean`.

    >>> printed_hyperplane_mean([2.0, 0.0], 0.0, [0.0, 1.0], radial.Gaussian(2)).vector  # truly [0.3989, 0.5000]
    tensor([0.0997, 0.2500], dtype=torch.float64)
    """
    direction, length, r, middle = hyperplane(v, xi, centre, law, basis)
    first, second = thetas_at(r, law) if psi is None else smooth_thetas(r, 1.0, law, psi)
    pull = (first / length)[..., None] * middle
    return HyperplaneMean(first / length, pull + (second / length**2)[..., None] * direction)


@guarded
def printed_marginal(s: Number, law: Law) -> Tensor:
    """Eq. 36: p_n(s) from p_0, with its double factorials; n >= 2. This one is right.

    Quadrature in l, so relative accuracy about 1e-13 for a law that is smooth in r.

    >>> torch.allclose(printed_marginal([0.0, 1.0], radial.Gaussian(3)), radial.Gaussian(3).density([0.0, 1.0]))
    True
    """
    must_be_law(law)
    n = integer(law.dimension, "the law's dimension", 2)
    given = real(s, "s")
    distance = given.double()[..., None]  # the nodes lie as far out as 1e50
    end = law.radius if law.radius == math.inf else 1.0
    l, w = (each.to(distance) for each in half_line(end, law.mean_distance))
    if end == 1.0:
        room = (law.radius**2 - distance**2).clamp(min=0).sqrt()
        l, w = l * room, w * room
    density = law.radial(torch.hypot(distance, l))
    integral = (w * density * torch.where(density > 0, l, 1.0) ** (n - 2)).sum(-1)  # far out the power overflows
    if n % 2 == 0:
        constant = math.pow(2, n / 2) * math.pow(pi, n / 2 - 1) / math.prod(range(n - 3, 1, -2))
    else:
        constant = 2 * math.pow(pi, (n - 1) / 2) / math.factorial((n - 3) // 2)
    return (constant * integral).to(given.dtype)


@guarded
def printed_velocity(v: Number, xi: Number, centres: Number, weights: Number, law: Law) -> Velocity:
    """Eq. 42-43, 50: v' = sum a theta1(r) xbar/|v| + sum a theta2(r) v/|v|^3, xi' = sum a theta1(r)/|v|, for a ReLU.

    >>> node = ([2.0, 0.0], 0.0, [[1.0, 0.0], [0.0, 0.0]], [1.0, -1.0], radial.Gaussian(2))
    >>> printed_velocity(*node).xi, velocity(*node).xi
    (tensor(0.2386, dtype=torch.float64), tensor(0.3413, dtype=torch.float64))
    """
    node = Node.of(v, xi, centres, weights, law)
    length = node.length[..., None]
    first, second = thetas_at(node.rho * length, law)
    pull = ((node.weights * first)[..., None] * node.centres).sum(-2) / length
    push = (node.weights * second).sum(-1, keepdim=True) * node.direction / length**2
    return Velocity(pull + push, (node.weights * first).sum(-1) / node.length)


@guarded
def printed_growth(v: Number, xi: Number, xi_velocity: Number, centres: Number, weights: Number, law: Law) -> Tensor:
    """v . v' as eq. 53 has it: sum_j a_j F(r_j)/|v| - xi xi'. The truth is |v| sum_j a_j F(rho_j) - xi xi'.

    >>> clusters = ([[1.0, 0.0], [0.0, 0.0]], [1.0, -1.0], radial.Gaussian(2))
    >>> moves = velocity([2.0, 0.0], 0.5, *clusters)
    >>> printed_growth([2.0, 0.0], 0.5, moves.xi, *clusters), 2.0 * moves.v[0]
    (tensor(0.7543, dtype=torch.float64), tensor(1.3807, dtype=torch.float64))
    """
    node = Node.of(v, xi, centres, weights, law, xi_velocity=xi_velocity)
    gain = (node.weights * law.F(node.rho * node.length[..., None])).sum(-1) / node.length
    return gain - node.xi * node.other


@guarded
def printed_theta_derivatives(s: Number, law: Law, *, slopes: Slopes = RELU) -> Thetas:
    """Eq. 61: (c_- + c_+) p_n and -(c_- + c_+) s p_n. The sum should be the difference c_+ - c_-.

    >>> printed_theta_derivatives(0.0, radial.Gaussian(3), slopes=(1.0, 1.0)).first  # truly 0: a linear node
    tensor(0.7979, dtype=torch.float64)
    """
    must_be_law(law)
    density = sum(slope_pair(slopes)) * law.density(s)
    return Thetas(density, -real(s, "s") * density)


@half_in_single
def printed_critical_point(m: Number, gap: Number, law: Law) -> CriticalPoint:
    """Eq. 56 with r_+ - r_- = |v| m left free: any gap > 0 is met by |v| = gap/m. The distances returned are r_+-.

    >>> printed_critical_point(1.0, [0.5, 2.0], radial.StudentT(4, 3.0)).norm  # two points for the same m
    tensor([0.5000, 2.0000], dtype=torch.float64)
    """
    separation, free = together(m=positive(m, "m"), gap=positive(gap, "gap"))
    ray = rays(free, "gap", law, 1)
    return CriticalPoint(free / separation, ray.rho_minus, ray.rho_plus, ray.rho_minus)


@guarded
def printed_existence(law: Law) -> Tensor:
    """Eq. 58: is p_n(0) theta2(0) >= 1/4 (to rounding)? Sufficient for critical points, not necessary.

    >>> printed_existence(radial.StudentT(4, 3.0))  # and yet it has critical rays
    tensor(False)
    """
    return crossing_value(law) >= 0.25 * (1 - 1e-12)


@guarded
def theta2_jacobian(v: Number, xi: Number, centre: Number, law: Law, *, power: float) -> Tensor:
    """Eq. 69 corrected: d/dv_j [theta2(r) v_i/|v|^p] with r = v . centre + xi. (..., d, d), rows i.

    {[theta2'(r) xbar_j |v|^2 - p v_j theta2(r)] v_i + theta2(r) |v|^2 delta_ij} / |v|^(p+2)

    >>> theta2_jacobian([1.0, 0.0], 0.0, [1.0, 0.0], radial.Gaussian(2), power=1.0)
    tensor([[-0.2420,  0.0000],
            [ 0.0000,  0.2420]], dtype=torch.float64)
    """
    return _theta2_jacobian(v, xi, centre, law, power, printed=False)


@guarded
def printed_theta2_jacobian(v: Number, xi: Number, centre: Number, law: Law, *, power: float) -> Tensor:
    """Eq. 69: the scalar |v| stands where the vector v belongs; here it is added to every component.

    >>> printed_theta2_jacobian([1.0, 0.0], 0.0, [1.0, 0.0], radial.Gaussian(2), power=1.0)  # lower left should be 0
    tensor([[-0.2420,  0.0000],
            [-0.4839,  0.2420]], dtype=torch.float64)
    """
    return _theta2_jacobian(v, xi, centre, law, power, printed=True)


@guarded
def printed_linearisation(
    mu: Number, xi: Number, centre: Number, a_plus: Number, a_minus: Number, law: Law
) -> Linearisation:
    """Eq. 72-74: beta1 = s a_+ m theta1(r_+)/|mu|^2, beta2 = s a_+ m (xi theta1'(r_+) - 2 theta1(r_+))/|mu|^4.

    They linearise the printed velocity at its own critical points (`printed_critical_point`), not the true one.

    >>> printed_linearisation([2.0, 0.0], -1.0, [2.0, 0.0], 1.0, 1.0, radial.Gaussian(2)).beta1
    tensor(0.4993, dtype=torch.float64)
    """
    point = TwoClusters.of(mu, xi, centre, a_plus, a_minus, law)
    r_plus = point.rho[..., 0] * point.length
    scale = point.side * point.plus * point.m
    beta1 = scale * law.theta1(r_plus) / point.length**2
    beta2 = scale * (point.xi * law.density(r_plus) - 2 * law.theta1(r_plus)) / point.length**4
    return point.linearised(beta1, beta2)


def _theta2_jacobian(v: Number, xi: Number, centre: Number, law: Law, power: float, *, printed: bool) -> Tensor:
    number(power, "power")
    direction, length, r, middle = hyperplane(v, xi, centre, law, None)
    vector = direction * length[..., None]
    second, bend = law.theta2(r)[..., None], -(r * law.density(r))[..., None]
    row = bend * middle * length[..., None] ** 2 - power * vector * second  # (..., j)
    column = length[..., None].expand_as(vector) if printed else vector  # (..., i)
    diagonal = torch.diag_embed((second * length[..., None] ** 2).expand_as(vector))
    return (column[..., :, None] * row[..., None, :] + diagonal) / length[..., None, None] ** (power + 2)
