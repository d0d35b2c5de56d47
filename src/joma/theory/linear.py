"""Theorem 2: a linear MLP under attention that was integrated out.

With phi = identity the saliency Delta = E[g x] is constant and every token moves on its own. Under exp
attention, z = z0 + kappa (v^2 - v0^2) / 2 by Theorem 1, so

    v' = Delta exp(z) / A        (eq. 3, 20; A the constant `norm`, kappa = eta_z / eta_w)

and erf(v sqrt(kappa/2)) grows linearly in time. The paper prints erf(v/2); the invariant is erf(v/sqrt 2).
Whoever reaches erf = 1 first blows up in finite time, and everyone else stops where they are: winner take all.
"""

from math import log, pi, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, at_least_dims, positive, real, times, together
from joma.host.words import brief_repr
from joma.theory._guard import guarded


@guarded
def trajectory(
    delta: Number, t: Number, *, v0: Number = 0.0, z0: Number = 0.0, kappa: Number = 1.0, norm: Number = 1.0
) -> Tensor:
    """v(t) of Theorem 2: v' = delta exp(z0 + kappa (v^2 - v0^2)/2) / norm from v0, in closed form.

        v = sqrt(2/kappa) erfinv( erf(v0 sqrt(kappa/2)) + sqrt(2 kappa/pi) delta e^c t / norm ),  c = z0 - kappa v0^2/2

    - delta: (..., tokens) saliency
    - t: (steps,)
    - v0, z0: where v and z begin; they broadcast against delta, as kappa and norm do
    - kappa: the rate of attention over that of the MLP
    - norm: what attention is divided by

    Returns (..., steps, tokens), +-inf from a token's `blow_up_time` on, so that a plot simply stops there.
    Differentiable in every argument, and accurate to the last representable time before the blow-up. Half precision
    is computed in float32 and returned in its own type.

    >>> trajectory([1.0, 0.5], [0.0, 1.0])
    tensor([[0.0000, 0.0000],
            [1.2755, 0.5229]], dtype=torch.float64)
    """
    sign, start, speed, k, begin, push = (each[..., None, :] for each in _token(delta, v0, z0, kappa, norm))
    at = times(t).to(speed)[:, None]
    reached = at * speed  # (..., steps, tokens)
    above = (torch.erfc(start) - reached) / 2  # P(u > v) of a standard normal
    below = (torch.erfc(-start) + reached) / 2
    blown = above <= 0
    # The smaller tail is the accurate one; the other branch gets a harmless 1/2, so that its gradient is no NaN.
    low = below <= 0.5
    from_below = torch.special.ndtri(torch.where(low, below, 0.5))
    from_above = -torch.special.ndtri(torch.where(low | blown, 0.5, above))
    v = sign * torch.where(blown, torch.inf, torch.where(low, from_below, from_above) / k.sqrt())
    # A token without speed stays, but its derivative with respect to delta does not vanish: keep the first order.
    return torch.where(speed == 0, begin + at * push, v)


@guarded
def blow_up_time(
    delta: Number, *, v0: Number = 0.0, z0: Number = 0.0, kappa: Number = 1.0, norm: Number = 1.0
) -> Tensor:
    """When each token's v reaches infinity: t* = (1 - sgn(delta) erf(v0 sqrt(kappa/2))) norm / (rate |delta| e^c).

    - delta, v0, z0, kappa, norm: as in `trajectory`

    rate = sqrt(2 kappa/pi), c = z0 - kappa v0^2/2. The winner is the token with the smallest t*: the one with the
    largest |delta| only if all start alike. Shape (..., tokens); inf where delta = 0.

    >>> blow_up_time([1.0, 0.6], z0=[0.0, 2.0])
    tensor([1.2533, 0.2827], dtype=torch.float64)
    """
    _, start, speed, *_ = _token(delta, v0, z0, kappa, norm)
    still = speed == 0
    return torch.where(still, torch.inf, torch.erfc(start) / torch.where(still, 1.0, speed))


@guarded
def limits(delta: Number, *, kappa: Number = 1.0) -> Tensor:
    """Where every token stands at the winner's blow-up, from a zero start: sqrt(2/kappa) erfinv(delta / max|delta|).

    The winner (every token that shares the largest |delta|) is at +-inf, the losers stay finite.
    delta: (..., tokens), not all zero. Same shape back.

    >>> limits([2.0, -1.0, 0.0])
    tensor([    inf, -0.6745,  0.0000], dtype=torch.float64)
    """
    saliency = at_least_dims(real(delta, "delta"), "delta", 1, "(..., tokens)")
    if saliency.shape[-1] == 0:
        raise ValueError(f"delta must hold at least one token, got shape {tuple(saliency.shape)}")
    largest = saliency.abs().amax(dim=-1, keepdim=True)
    if (largest == 0).any():
        raise ValueError("delta must not be all zero: without saliency nothing moves and nobody wins")
    share, factor = together(delta=saliency / largest, kappa=(2 / positive(kappa, "kappa")).sqrt())
    wins = share.abs() == 1
    # erfinv never sees the winners: its infinite slope there would make NaN of the gradients of the losers.
    infinity = torch.where(share > 0, torch.inf, -torch.inf)
    return torch.where(wins, infinity, factor * torch.erfinv(torch.where(wins, 0.0, share)))


@guarded
def row_trajectory(
    delta: Number, t: Number, *, v0: Number = 0.0, z0: Number = 0.0, kappa: Number = 1.0, norm: Number = 1.0
) -> Tensor:
    """V(t) with K > 1 nodes: V' = diag(exp(z0 + kappa/2 (|v_l|^2 - |v_l0|^2))) delta / norm, row by row.

    The exponent is the ROW SUM of V o V (the talk's diag(exp(V o V / 2) 1) sums after the exponential: another
    equation). A row only moves along its own delta_l, so with n = |delta_l|, d = delta_l / n, alpha = v_l0 . d

        v_l(t) = v_l0 + (s_l(t) - alpha) d,      s_l = `trajectory` of saliency n from alpha.

    From a zero start V = diag(s/n) delta, so rank V = rank delta at every t > 0: "V becomes low rank" is true of
    the stable rank only. delta, v0: (..., tokens, nodes); z0: (..., tokens). Returns (..., steps, tokens, nodes).
    Differentiable in every argument, also at a row of zeros.

    >>> row_trajectory([[0.6, 0.8], [0.0, 0.5]], [1.0])
    tensor([[[0.7653, 1.0204],
             [0.0000, 0.5229]]], dtype=torch.float64)
    """
    saliency, start, length, direction, along = _row_geometry(delta, v0)
    s = trajectory(length, t, v0=along, z0=z0, kappa=kappa, norm=norm)
    _, logit, scale = together(delta=length, z0=real(z0, "z0"), norm=positive(norm, "norm"))
    push = (logit.exp() / scale)[..., None] * saliency
    still = (length == 0)[..., None, :, None]  # such rows stay, but their derivative in delta does not vanish
    return torch.where(still, _pushed(start, push, t), _move_rows(start, direction, along, s))


@brief_repr
class Motion(NamedTuple):
    """Trajectories of the MLP weights v and of the attention logits z, each (..., steps, tokens[, nodes])."""

    v: Tensor
    z: Tensor


@guarded
def linear_attention_trajectory(
    delta: Number, t: Number, *, v0: Number = 0.0, z0: Number = 0.0, kappa: Number = 1.0, norm: Number = 1.0
) -> Motion:
    """The same block under LINEAR attention: v' = delta z / norm, z' = kappa delta v / norm. No blow-up.

        v = v0 cosh(w t) + z0/sqrt(kappa) sinh(w t),   z = z0 cosh(w t) + sqrt(kappa) v0 sinh(w t),   w = sqrt(kappa) delta / norm

    From v0 = z0 = 0 nothing ever moves: Theorem 1 is then true and empty. Shapes as in `trajectory`.

    >>> v, z = linear_attention_trajectory([1.0, 0.5], [1.0], z0=1.0)
    >>> z, torch.allclose(z**2 - v**2, torch.ones_like(z))  # conserved
    (tensor([[1.5431, 1.1276]], dtype=torch.float64), True)
    """  # noqa: E501
    saliency, v, z, k, scale = _arguments(delta, v0, z0, kappa, norm)
    root = k.sqrt()[..., None, :]
    angle = times(t).to(root)[:, None] * (root * (saliency / scale)[..., None, :])
    v, z = v[..., None, :], z[..., None, :]
    # Early, cosh and sinh keep the digits of what starts at zero; late, exponentials keep those of what decays.
    early = angle.abs() < 1
    small = torch.where(early, angle, 0.0)
    parts = ((v + z / root) / 2, angle.exp()), ((v - z / root) / 2, (-angle).exp())
    # What is zero stays zero however long it grows.
    up, down = (amount * torch.where((amount == 0) & factor.isinf(), 0.0, factor) for amount, factor in parts)
    return Motion(
        torch.where(early, v * small.cosh() + z / root * small.sinh(), up + down),
        torch.where(early, z * small.cosh() + root * v * small.sinh(), root * (up - down)),
    )


@guarded
def linear_attention_row_trajectory(
    delta: Number, t: Number, *, v0: Number = 0.0, z0: Number = 0.0, kappa: Number = 1.0, norm: Number = 1.0
) -> Motion:
    """Linear attention with K > 1 nodes: rows move along their own delta, s = alpha cosh + z0/sqrt(kappa) sinh.

    Shapes as in `row_trajectory`; z is (..., steps, tokens).

    >>> linear_attention_row_trajectory([[0.6, 0.8], [0.0, 0.5]], [1.0], z0=1.0).v
    tensor([[[0.7051, 0.9402],
             [0.0000, 0.5211]]], dtype=torch.float64)
    """
    saliency, start, length, direction, along = _row_geometry(delta, v0)
    s, z = linear_attention_trajectory(length, t, v0=along, z0=z0, kappa=kappa, norm=norm)
    _, _, logit, k, scale = _arguments(length, along, z0, kappa, norm)
    push = (logit / scale)[..., None] * saliency
    pull = (k / scale * (start * saliency).sum(-1))[..., None]  # z' at t = 0
    still = (length == 0)[..., None, :]
    return Motion(
        torch.where(still[..., None], _pushed(start, push, t), _move_rows(start, direction, along, s)),
        torch.where(still, _pushed(logit[..., None], pull, t)[..., 0], z),
    )


@guarded
def winner_growth(tau: Number) -> Tensor:
    """How slowly the winner goes to infinity: v ~ sqrt(W0(2 / (pi (1 - tau)^2))), tau = t/t*, from a zero start.

    W0 is Lambert's function: only the square root of a logarithm. Relative error 0.015 at tau = 0.99 and
    falling; an asymptote, so meant for tau near 1 (`trajectory` is exact everywhere).

    >>> tau = torch.tensor([0.99, 0.9999], dtype=torch.float64)
    >>> winner_growth(tau), trajectory([1.0], tau * blow_up_time([1.0]))[:, 0]
    (tensor([2.6147, 3.9045], dtype=torch.float64), tensor([2.5758, 3.8906], dtype=torch.float64))
    """
    fraction = real(tau, "tau")
    if ((fraction < 0) | (fraction >= 1)).any():
        raise ValueError(f"tau must lie in [0, 1), got {fraction.max().item():g}")
    argument = 2 / (pi * (1 - fraction) ** 2)
    w = torch.log1p(argument)
    for _ in range(40):  # Newton on w e^w = argument, in logarithms: monotone, a handful of steps suffices
        w = w - (w + w.log() - argument.log()) * w / (1 + w)
    return w.sqrt()


def _token(delta: Number, v0: Number, z0: Number, kappa: Number, norm: Number) -> tuple[Tensor, ...]:
    """What moves one token: its sign, start and speed, in units where the boundary is erfc = 0; kappa, v0 and v'(0)."""
    d, v, z, k, a = _arguments(delta, v0, z0, kappa, norm)
    # Starts at which exp leaves its type are refused: a speed of 0 or infinity would pass for an answer.
    most = -log(torch.finfo(d.dtype).tiny) - 8  # room for erfc, which is smaller than its exponential, and for delta
    for name, value in (("z0", z), ("kappa v0^2/2", k * v**2 / 2)):
        if (value > most).any():
            got = f"{value.max().item():g}: exp overflows"
            raise ValueError(f"{name} must not exceed {most:.0f} in {d.dtype}, got {got}")
    sign = torch.where(d < 0, -1.0, 1.0).to(d)
    speed = (2 * k / pi).sqrt() * sign * d * torch.exp(z - k * v**2 / 2) / a  # of erf(v sqrt(kappa / 2)), >= 0
    return sign, sign * v * k.sqrt() / sqrt(2), speed, k, v, d * z.exp() / a


def _arguments(delta: Number, v0: Number, z0: Number, kappa: Number, norm: Number) -> tuple[Tensor, ...]:
    d, k, a = real(delta, "delta"), positive(kappa, "kappa"), positive(norm, "norm")
    at_least_dims(d, "delta", 1, "(..., tokens)")
    return together(delta=d, v0=real(v0, "v0"), z0=real(z0, "z0"), kappa=k, norm=a)


def _row_geometry(delta: Number, v0: Number) -> tuple[Tensor, ...]:
    """delta, v0, |delta_l|, the unit vector along it (zero for a zero row) and the start's component on it."""
    saliency = at_least_dims(real(delta, "delta"), "delta", 2, "(..., tokens, nodes)")
    saliency, start = together(delta=saliency, v0=real(v0, "v0"))
    length = torch.linalg.vector_norm(saliency, dim=-1)
    direction = saliency / torch.where(length > 0, length, 1.0)[..., None]
    return saliency, start, length, direction, (start * direction).sum(-1)


def _move_rows(start: Tensor, direction: Tensor, along: Tensor, s: Tensor) -> Tensor:
    """v_l0 + (s_l - alpha_l) d_l; an infinite s leaves the entries with d = 0 where they are."""
    # No product meets an infinity: its derivative would be NaN, and spoil the gradient of the finite entries as well.
    blown, d = s.isinf()[..., None], direction[..., None, :, :]
    step = torch.where(blown, 0.0, (s - along[..., None, :])[..., None])
    infinity = torch.where((d > 0) == (s > 0)[..., None], torch.inf, -torch.inf)
    return torch.where(blown & (d != 0), infinity, start[..., None, :, :] + step * d)


def _pushed(start: Tensor, push: Tensor, t: Number) -> Tensor:
    """The first order in time, exact for a row without saliency: start + t push, (..., steps, tokens, nodes)."""
    return start[..., None, :, :] + times(t).to(push)[:, None, None] * push[..., None, :, :]
