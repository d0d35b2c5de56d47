"""The expected entropy of softmax over independent Gaussian logits, as one integral of positive functions.

By the Gumbel-max trick softmax picks key i where y_i = gumbel_i - z_i is least, P(gumbel > y) = exp(-e^y). Let Q be the
survival function of one y_i, q its density, and

    m(y) = int_y^inf (x + gamma) e^(x - e^x) dx = E1(e^y) + (y + gamma) exp(-e^y),      gamma = 0.5772...

with M its mean over y = u + z. All three are kernels smoothed by a Gaussian of the variance v of the logits. From
(w/Z) ln(Z/w) = - int w e^(-t Z) (ln(t w) + gamma) dt with t = e^u, and one integration by parts,

    H = n (n - 1) int M q Q^(n-2) du,      dH/dv = n (n - 1)/2 int Q^(n-2) (M'' q - M' q') du.

The second line uses the heat equation, which every smoothed kernel obeys. Nothing cancels, so H keeps its digits where
it is small. Both integrals are trapezoidal sums of analytic functions that vanish at both ends.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from joma.theory._quadrature import bell, bell_tail, with_slope

MOST_KEYS = 1e100  # beyond this the densities of single keys would leave the range of float64

_EULER = 0.5772156649015329
_NARROW = 0.4  # below this standard deviation nodes lie on the Gaussian, above it on the kernels
_GAUSS_STEP, _GAUSS_END = 0.6, 9.0
_KERNEL_STEP, _KERNEL_END = 0.3, 9.0
_COARSE, _FINE = 96, 160
_NEGLIGIBLE = 48.0  # nats below the largest coarse value, which may itself lie a few below the maximum
_CHUNK = 32


def entropy(variance: Tensor, n: Tensor) -> Tensor:
    """H of n keys, both (...) in float64 and of one shape; its derivative in the variance is the integral above."""
    return with_slope(variance, lambda v: _integrals(v, n)[0], lambda v: slope(v, n))


def slope(variance: Tensor, n: Tensor) -> Tensor:
    """dH/dv."""
    return _integrals(variance, n, slope=True)[1]


class _Smoothed(NamedTuple):
    """Kernels smoothed at the nodes u, (elements, nodes), each times a power of `unit` that keeps them near one."""

    below: Tensor
    """1 - Q, to its own relative precision."""
    m: list[Tensor]
    """M, M', M'', times unit, unit^2, unit^3."""
    q: list[Tensor]
    """q and q', times unit and unit^2."""
    unit: Tensor


_Smooth = Callable[[Tensor, Tensor, Tensor, bool], _Smoothed]


def _value(at: _Smoothed, n: Tensor) -> Tensor:
    """The integrand of H times unit^2 for nodes in u."""
    power = torch.exp((n - 2) * torch.log1p(-at.below))
    return (n * at.m[0]) * ((n - 1) * at.q[0]) * power


def _derivative(at: _Smoothed, n: Tensor) -> Tensor:
    """The integrand of dH/dv times unit^4."""
    power = torch.exp((n - 2) * torch.log1p(-at.below))
    first, second = (n * at.m[2]) * ((n - 1) * at.q[0]), (n * at.m[1]) * ((n - 1) * at.q[1])
    return (first - second) * power / 2


def _integrals(variance: Tensor, n: Tensor, *, slope: bool = False) -> Tensor:
    """H and, if asked for, dH/dv: (1 or 2, ...)."""
    v, keys = variance.reshape(-1), n.reshape(-1)
    narrow = v.detach() < _NARROW**2
    answer = v.new_zeros(1 + slope, len(v))
    for choice, smooth in ((narrow, _on_the_gaussian), (~narrow, _on_the_kernels)):
        for part in choice.nonzero()[:, 0].split(_CHUNK):  # bounds the memory of a long batch
            if len(part):
                answer = answer.index_copy(1, part, _sums(v[part, None], keys[part, None], smooth, slope))
    return answer.reshape(1 + slope, *variance.shape)


def _sums(v: Tensor, n: Tensor, smooth: _Smooth, slope: bool) -> Tensor:
    """v and n: (elements, 1). First where the integrand lives, on few nodes, then the trapezoidal sum."""
    low, high = _wide(v.detach(), n)
    with torch.no_grad():
        u = _nodes(low, high, _COARSE)
        height = _value(smooth(u, v.detach(), n, False), n).log()
        seen = height > height.amax(-1, keepdim=True) - _NEGLIGIBLE
        first = seen.to(torch.uint8).argmax(-1, keepdim=True)
        last = _COARSE - 1 - seen.flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
        low, high = u.gather(-1, (first - 1).clamp(min=0)), u.gather(-1, (last + 1).clamp(max=_COARSE - 1))
    at = smooth(_nodes(low, high, _FINE), v, n, slope)
    step = ((high - low) / at.unit)[:, 0] / (_FINE - 1)
    unit = at.unit[:, 0]
    sums = [_value(at, n).sum(-1) * step / unit]
    return torch.stack([*sums, _derivative(at, n).sum(-1) * step / unit / unit**2] if slope else sums)


def _wide(v: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """Ends between which all of the integrand lies, many times too far apart."""
    s, log = v.sqrt(), n.log()
    typical = torch.where(v < 2 * log, log + v / 2, s * (2 * log).sqrt())  # ln Z of the random energy model
    return -typical - 30 - 9 * s, 5 + 9 * s


def _nodes(low: Tensor, high: Tensor, count: int) -> Tensor:
    return low + (high - low) * torch.linspace(0, 1, count, dtype=low.dtype, device=low.device)


def _on_the_gaussian(u: Tensor, v: Tensor, n: Tensor, slope: bool) -> _Smoothed:
    """Means over y = u + s g with nodes in g: for a Gaussian that is narrow beside the kernels."""
    g = torch.arange(-_GAUSS_END, _GAUSS_END + _GAUSS_STEP / 2, _GAUSS_STEP, dtype=u.dtype, device=u.device)
    weight = bell(g) * _GAUSS_STEP
    y = u[..., None] + v.sqrt()[..., None] * g
    x = y.exp()
    e = torch.exp(y - x)
    m, q = [entropy_kernel(y)], [e]
    if slope:
        bent = e * (1 - x)
        m, q = [*m, -e * (y + _EULER), -(bent * (y + _EULER) + e)], [*q, bent]
    below = (-torch.expm1(-x) @ weight).clamp(max=1 - 1e-16)
    return _Smoothed(below, [f @ weight for f in m], [f @ weight for f in q], torch.ones_like(v))


def _on_the_kernels(u: Tensor, v: Tensor, n: Tensor, slope: bool) -> _Smoothed:
    """The same with nodes where the kernels live, whatever the width of the Gaussian; its derivatives are in u."""
    end = _KERNEL_STEP * math.ceil((n.max().log().item() + 48) / _KERNEL_STEP)
    y = torch.arange(-end, _KERNEL_END, _KERNEL_STEP, dtype=u.dtype, device=u.device)
    x = y.exp()
    m, q = entropy_kernel(y), torch.exp(y - x)
    rest = -torch.expm1(-x) - bell_tail(-y)  # of the distribution of a gumbel that is no standard normal
    s = v.sqrt()
    distance = (y - u[..., None]) / s[..., None]
    flat = bell(distance) * _KERNEL_STEP
    bells = [flat, flat * distance, flat * (distance * distance - 1)] if slope else [flat]
    below = bell_tail(-u / torch.hypot(s, torch.ones_like(s))) + flat @ rest / s
    return _Smoothed(below.clamp(0, 1 - 1e-16), [b @ m for b in bells], [b @ q for b in bells[:2]], s)


def entropy_kernel(y: Tensor) -> Tensor:
    """m(y) = E1(e^y) + (y + gamma) exp(-e^y), to its own relative precision."""
    x = y.exp()
    small = x.clamp(max=2.0)
    series = torch.zeros_like(y)  # of E1(x) + ln x + gamma
    for k in range(26, 0, -1):
        series = small / k * (1 / k - series)
    near = series + torch.expm1(-small) * (y + _EULER)
    large = x.clamp(min=2.0)
    fraction = large + 81
    for k in range(40, 0, -1):
        fraction = large + (2 * k - 1) - k * k / fraction
    return torch.where(x <= 2, near, torch.exp(-large) * (y + _EULER + 1 / fraction))
