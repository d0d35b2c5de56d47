"""Lemmas 1, 2, 3 and 5: one node with bias xi, fed by a mixture of isotropic clusters. See `joma.theory.isotropic`."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, alongside, at_least_dims, must_be_callable, positive, real, shown, together
from joma.host.words import brief_repr
from joma.theory import radial
from joma.theory._guard import guarded
from joma.theory._radial_law import must_be_law
from joma.theory.attention import Sigma

Law = radial.RadialLaw
Slopes = tuple[float, float]
"""(c_-, c_+) of a homogeneous activation phi(x) = c_- x for x < 0, c_+ x for x > 0: ReLU (0, 1), |x| (-1, 1)."""
RELU: Slopes = (0.0, 1.0)


@brief_repr
class Thetas(NamedTuple):
    """first = E[psi] and second = the length of E[x' psi], each of the shape of the distance; see `thetas`."""

    first: Tensor
    second: Tensor


@guarded
def thetas(s: Number, law: Law, *, slopes: Slopes = RELU) -> Thetas:
    """E[phi'(u + s)] and E[u phi'(u + s)] for a homogeneous phi, at signed distance s (any shape).

        first = c_- + (c_+ - c_-) theta1(s)      second = (c_+ - c_-) theta2(s)

    >>> thetas(0.0, radial.Gaussian(3)).first  # half of the samples are active
    tensor(0.5000, dtype=torch.float64)
    >>> thetas(0.0, radial.Gaussian(3), slopes=(-1.0, 1.0))  # |x|
    Thetas(first=0, second=0.7979)
    """
    must_be_law(law)
    return thetas_at(real(s, "s"), law, slopes)


def thetas_at(s: Tensor, law: Law, slopes: Slopes = RELU) -> Thetas:
    """`thetas` at distances that have been looked at."""
    low, high = slope_pair(slopes)
    return Thetas(low + (high - low) * law.theta1(s), (high - low) * law.theta2(s))


@guarded
def theta_derivatives(s: Number, law: Law, *, slopes: Slopes = RELU) -> Thetas:
    """Lemma 5, corrected: ((c_+ - c_-) p_n(s), -(c_+ - c_-) s p_n(s)). Eq. 61 prints the sum of the slopes.

    >>> theta_derivatives(0.0, radial.Gaussian(3), slopes=(1.0, 1.0)).first  # a linear node has constant thetas
    tensor(0., dtype=torch.float64)
    """
    must_be_law(law)
    low, high = slope_pair(slopes)
    density = law.density(s)
    return Thetas((high - low) * density, -(high - low) * real(s, "s") * density)


@guarded
def excess(s: Number, law: Law, *, slopes: Slopes = RELU) -> Tensor:
    """Lemma 3: F(s) = second + s first = E[phi(u + s)], so that F' = first (`thetas`). Any shape.

    Increasing only where phi' >= 0, and F(-inf) = 0 only for a ReLU.

    >>> excess([-1.0, 0.0, 1.0], radial.Gaussian(3))
    tensor([0.0833, 0.3989, 1.0833], dtype=torch.float64)
    """
    must_be_law(law)
    low, high = slope_pair(slopes)
    return low * real(s, "s") + (high - low) * law.F(s)


@guarded
def smooth_thetas(r: Number, a: Number, law: Law, psi: Sigma) -> Thetas:
    """E[psi(a u + r)] and E[u psi(a u + r)] for a smooth psi, by quadrature: r (...), a > 0 (...).

    For a step both depend on r/a alone; a smooth psi keeps a dependence on a = |v| of its own, which eq. 23 denies.
    Relative error about 1e-12 for a sigmoid with a E|u| up to 100; psi must be smooth (a jump costs 1e-3).

    >>> smooth_thetas(0.0, [1.0, 2.0], radial.Gaussian(3), torch.sigmoid).second
    tensor([0.2066, 0.3029], dtype=torch.float64)
    """
    must_be_law(law)
    must_be_callable(psi, "psi")
    distance, slope = together(r=real(r, "r"), a=positive(a, "a"))
    u, w = (each.to(distance) for each in law.half_rule)
    kept = u.isfinite() & (w > 0)  # a power tail reaches farther out than float32
    u, w = u[kept], w[kept]
    above = psi(slope[..., None] * u + distance[..., None])
    below = psi(-slope[..., None] * u + distance[..., None])
    return Thetas((w * (above + below)).sum(-1), (w * u * (above - below)).sum(-1))


@brief_repr
class HyperplaneMean(NamedTuple):
    """mean = E[psi(v . x + xi)] (...) and vector = E[x psi(v . x + xi)] (..., d); see `hyperplane_mean`."""

    mean: Tensor
    vector: Tensor


@guarded
def hyperplane_mean(
    v: Number, xi: Number, centre: Number, law: Law, *, psi: Sigma | None = None, basis: Number | None = None
) -> HyperplaneMean:
    """Lemma 1, corrected: x = centre + x', x' isotropic in span(basis), psi a step (the default) or smooth.

        E[psi] = Th1      E[x psi] = Th1 centre + Th2 v_R/|v_R|      v_R = R R^T v,   r = v . centre + xi

    Step: Th1 = theta1(rho), Th2 = theta2(rho), rho = r/|v_R|. Smooth: `smooth_thetas` at (r, |v_R|). The printed eq. 23
    has 1/|v| and 1/|v|^3 in front and r in place of rho; the two agree at |v_R| = 1 only. v, centre: (..., d); xi:
    (...); basis: (d, n) with orthonormal columns, n the law's dimension (all of space if left out). v_R must not
    vanish.

    >>> hyperplane_mean([2.0, 0.0], 0.0, [0.0, 1.0], radial.Gaussian(2))
    HyperplaneMean(mean=0.5, vector=[0.3989, 0.5])
    """
    direction, length, r, middle = hyperplane(v, xi, centre, law, basis)
    values = thetas_at(r / length, law) if psi is None else smooth_thetas(r, length, law, psi)
    return HyperplaneMean(values.first, values.first[..., None] * middle + values.second[..., None] * direction)


@brief_repr
class Velocity(NamedTuple):
    """v' (..., d) and xi' (...) of `velocity`: how v and xi move."""

    v: Tensor
    xi: Tensor


@guarded
def velocity(
    v: Number, xi: Number, centres: Number, weights: Number, law: Law, *, decay: Number = 0.0, slopes: Slopes = RELU
) -> Velocity:
    """Lemma 2, corrected: the gradient flow of one node on a mixture of clusters, with weight decay if wanted.

        v' = sum_j a_j th1(rho_j) xbar_j + (sum_j a_j th2(rho_j)) v/|v| - decay v      rho_j = (v . xbar_j + xi)/|v|
        xi' = sum_j a_j th1(rho_j) - decay xi

    Without decay it depends on the direction of (v, xi) alone: every critical point is a whole ray.
    v: (..., d), not zero; xi: (...); centres: (..., clusters, d); weights a_j: (..., clusters), of either sign.

    >>> velocity([1.0, 0.0], 0.0, [[1.0, 0.0], [0.0, 0.0]], [1.0, -1.0], radial.Gaussian(2))
    Velocity(v=[0.6844, 0], xi=0.3413)
    """
    node = Node.of(v, xi, centres, weights, law, decay=decay)
    first, second = thetas_at(node.rho, law, slopes)
    pull = ((node.weights * first)[..., None] * node.centres).sum(-2)
    push = (node.weights * second).sum(-1)[..., None] * node.direction
    bias = (node.weights * first).sum(-1) - node.other * node.xi
    return Velocity(pull + push - node.other[..., None] * node.v, bias)


@guarded
def objective(
    v: Number, xi: Number, centres: Number, weights: Number, law: Law, *, decay: Number = 0.0, slopes: Slopes = RELU
) -> Tensor:
    """What `velocity` climbs: J = sum_j a_j E[phi(v . x + xi)] - decay (|v|^2 + xi^2)/2. Shape (...).

    Without decay J = |v| sum_j a_j F(rho_j), homogeneous of degree one, so v . v' + xi xi' = J by Euler: this is
    eq. 53 corrected, and why sum_j a_j F(rho_j) = 0 at every stationary point (eq. 54).

    >>> objective([[1.0, 0.0], [2.0, 0.0]], 0.0, [[1.0, 0.0], [0.0, 0.0]], [1.0, -1.0], radial.Gaussian(2))
    tensor([0.6844, 1.3687], dtype=torch.float64)
    """
    node = Node.of(v, xi, centres, weights, law, decay=decay)
    gain = node.length * (node.weights * excess(node.rho, law, slopes=slopes)).sum(-1)
    size = node.length**2 + node.xi**2
    size = torch.where((node.other == 0) & size.isinf(), 0.0, size)  # without decay it does not matter
    return gain - node.other * size / 2


@guarded
def hessian(
    v: Number, xi: Number, centres: Number, weights: Number, law: Law, *, decay: Number = 0.0, slopes: Slopes = RELU
) -> Tensor:
    """The Jacobian of `velocity` in (v, xi), at any point: (..., d + 1, d + 1), symmetric.

        H = (c_+ - c_-)/|v| sum_j a_j { p_n(rho_j) y_j y_j^T + theta2(rho_j) diag(I - vhat vhat^T, 0) } - decay I
        y_j = (xbar_j - rho_j vhat, 1)

    Without decay H (v, xi) = 0: nothing holds a point of a critical ray in place along the ray.

    >>> hessian([1.0, 0.0], 0.0, [[1.0, 0.0], [0.0, 0.0]], [1.0, -1.0], radial.Gaussian(2))
    tensor([[ 0.0000,  0.0000,  0.0000],
            [ 0.0000, -0.1570,  0.0000],
            [ 0.0000,  0.0000, -0.1570]], dtype=torch.float64)
    """
    node = Node.of(v, xi, centres, weights, law, decay=decay)
    low, high = slope_pair(slopes)
    offset = node.centres - node.rho[..., None] * node.direction[..., None, :]
    y = torch.cat([offset, torch.ones_like(node.rho)[..., None]], -1)  # (..., clusters, d + 1)
    bend = torch.einsum("...c,...ci,...cj->...ij", node.weights * law.density(node.rho), y, y)
    along = torch.cat([node.direction, torch.zeros_like(node.length)[..., None]], -1)
    identity = torch.eye(along.shape[-1]).to(along)
    across = identity.clone()
    across[-1, -1] = 0  # the bias has no direction to turn
    turn = (node.weights * law.theta2(node.rho)).sum(-1)[..., None, None]
    matrix = bend + turn * (across - along[..., :, None] * along[..., None, :])
    return ((high - low) / node.length)[..., None, None] * matrix - node.other[..., None, None] * identity


class Node(NamedTuple):
    """A node and the clusters it sees, checked and broadcast."""

    v: Tensor  # (..., d)
    xi: Tensor  # (...)
    length: Tensor  # |v|, (...)
    direction: Tensor  # v/|v|, (..., d)
    rho: Tensor  # signed distances, (..., clusters)
    centres: Tensor  # (..., clusters, d)
    weights: Tensor  # (..., clusters)
    other: Tensor  # decay, or what else belongs to each node, (...)

    @classmethod
    def of(cls, v: Number, xi: Number, centres: Number, weights: Number, law: Law, **other: Number) -> Node:
        vector = in_dimension(v, "v", law)
        middles = at_least_dims(real(centres, "centres"), "centres", 2, "(..., clusters, d)")
        if middles.shape[-1] != vector.shape[-1]:
            raise ValueError(f"centres must end in dimension {vector.shape[-1]} like v, got {tuple(middles.shape)}")
        weight = at_least_dims(real(weights, "weights"), "weights", 1, "(..., clusters)")
        if weight.shape[-1] != middles.shape[-2]:
            count = middles.shape[-2]
            raise ValueError(f"weights must be one per cluster, {count} like centres, got {weight.shape[-1]}")
        ((name, value),) = (other or {"decay": 0.0}).items()
        vector, bias, middles, weight, also = alongside(
            {"v": 1, "centres": 2, "weights": 1},
            **{"v": vector, "xi": real(xi, "xi"), "centres": middles, "weights": weight, name: real(value, name)},
        )
        length, direction = direction_of(vector, "v")
        rho = (middles * direction[..., None, :]).sum(-1) + (bias / length)[..., None]
        in_range(rho, "v, xi and centres", "the distance (v . centre + xi)/|v|")
        return cls(vector, bias, length, direction, rho, middles, weight, also)


def hyperplane(v: Number, xi: Number, centre: Number, law: Law, basis: Number | None) -> tuple[Tensor, ...]:
    """v_R/|v_R| (..., d), |v_R| (...), r = v . centre + xi (...), and the centre: what both forms of Lemma 1 need."""
    vector = in_dimension(v, "v", law) if basis is None else at_least_dims(real(v, "v"), "v", 1, "(..., d)")
    middle = at_least_dims(real(centre, "centre"), "centre", 1, "(..., d)")
    if middle.shape[-1] != vector.shape[-1]:
        raise ValueError(f"centre must end in dimension {vector.shape[-1]} like v, got {tuple(middle.shape)}")
    vector, bias, middle = alongside({"v": 1, "centre": 1}, v=vector, xi=real(xi, "xi"), centre=middle)
    inside = vector
    if basis is not None:
        must_be_law(law)
        frame = real(basis, "basis").to(vector)
        if frame.shape != (vector.shape[-1], law.dimension):
            wanted = f"({vector.shape[-1]}, {law.dimension}), the dimensions of v and of the law"
            raise ValueError(f"basis must be {wanted}, got {tuple(frame.shape)}")
        if not torch.allclose(frame.mT @ frame, torch.eye(law.dimension).to(frame), atol=1e-5):
            raise ValueError("basis must have orthonormal columns")
        inside = vector @ frame @ frame.mT
    length, direction = direction_of(inside, "v" if basis is None else "the part of v in span(basis)")
    r = (vector * middle).sum(-1) + bias
    in_range(r, "v, xi and centre", "r = v . centre + xi")
    return direction, length, r, middle


def in_range(found: Tensor, names: str, what: str) -> None:
    """Refuse arguments from which something on the way overflows."""
    if not found.isfinite().all():
        raise ValueError(f"{names} must be smaller: {what} leaves the range of {found.dtype}")


def in_dimension(v: Number, name: str, law: Law) -> Tensor:
    """A vector of the law's space."""
    must_be_law(law)
    vector = at_least_dims(real(v, name), name, 1, "(..., d)")
    if vector.shape[-1] != law.dimension:
        raise ValueError(f"{name} must end in the law's dimension {law.dimension}, got {tuple(vector.shape)}")
    return vector


def direction_of(vector: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Length (...) and unit vector (..., d); the lemmas say nothing about a vector of length zero."""
    largest = vector.detach().abs().amax(-1, keepdim=True)  # scaled by it, nothing over- or underflows
    if (largest == 0).any():
        raise ValueError(f"{name} must not be zero: there is no hyperplane without a direction")
    scaled = vector / largest
    size = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    length = (largest * size)[..., 0]
    in_range(length, name, "its length")
    return length, scaled / size


def slope_pair(slopes: Slopes) -> Slopes:
    """(c_-, c_+), checked."""
    try:
        low, high = (float(slope) for slope in slopes)
    except (TypeError, ValueError, RuntimeError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"slopes must be two finite numbers (c_-, c_+), got {shown(slopes)}")
    return low, high
