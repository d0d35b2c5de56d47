"""The law of focus and dilution: what one attention layer learns about keys, and what is left when its input changes.

Word w is read as x_w = a mu + c e_w, c^2 = 1 - a^2: a direction mu that all words share and one of their own, all
orthonormal. a(t) is given from outside: the layers below move it. Logits are z_uw = x_u . A x_w for query u and key w,
values and targets are fixed, the loss is a square. To first order in the logits attention is p_w (1 + z_uw - mean), so

    -dL/dz_uw = p_u R_uw,   R_u = C_u - K z_u,
    C_uw = p_w (v_w - v) . (y_u - v),   K_ww' = p_w p_w' (v_w - v) . (v_w' - v)

with v the mean value, y_u the target: C is how useful a key is, K the curvature. Both sum to zero over keys, so A never
reads mu on the key side. Gradient flow A' = sum_u p_u x_u (sum_w R_uw x_w)^T stores beta_w for mu and B_uw for e_u:

    beta' = a c R,   B_u' = c^2 p_u R_u,   z_u = c (a beta + c B_u),   R = sum_u p_u R_u.

For V equally frequent query words the mean over queries closes, b = sum_u p_u z_u, and so does the rest, z_u - b. Along
an eigenvector of K with eigenvalue k each is its part of C times one gain y(t),

    y = sum_i f_i beta_i,   beta_i' = f_i (1 - k y),   shared: f = (a c, c^2/sqrt V),   specific: f = c^2/sqrt V.

f is what is read. It counts twice: once when A stores, once when A is read. With one component y obeys

    y' = (f'/f) y + f^2 (1 - k y) = f^2 (1 - (k + g) y),   g = (1/f^2)'/2.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, alongside, at_least_dims, not_negative, positive, real, times, together, within
from joma.host.words import brief_repr
from joma.theory._guard import guarded
from joma.theory._quadrature import jacobi_rule

_SMOOTH = 25.0  # up to here the Gauss rule has the integrand to rounding


@guarded
def focus_ratio(share: Number, words: Number) -> Tensor:
    """How many times faster the shared part is learned than the specific one: 1 + V a^2/(1 - a^2).

    - share: of the mean in what is read, a^2 = |mean x|^2 / mean |x|^2, from 0 to below 1
    - words: V, how many query words, counted as 1/sum p^2 where they differ in frequency

    They broadcast. All queries push the shared part along mu; only queries of one word push along that word.

    >>> focus_ratio([0.0, 0.1, 0.5], 100)
    tensor([  1.0000,  12.1111, 101.0000], dtype=torch.float64)
    """
    given = within(share, "share", 0, 1)
    if (given == 1).any():
        raise ValueError("share must be below 1: words that are all the same have no specific part")
    part, many = together(share=given, words=_many(words))
    return 1 + many * part / (1 - part)


@brief_repr
class Reads(NamedTuple):
    """What is read, for `gain`: shared (..., steps, 2) by mean and by word, specific (..., steps, 1)."""

    shared: Tensor
    specific: Tensor


@guarded
def reads(share: Number, words: Number) -> Reads:
    """f of the shared and of the specific part, from the share of the mean along training: for `gain`.

    - share: a^2, (..., steps), from 0 to 1
    - words: V, as in `focus_ratio`; its shape is that of `share` less the steps, or broadcasts against it

    Assumes |x| = 1; for |x|^2 = N multiply by N.

    >>> reads([0.5, 0.2], 100).shared
    tensor([[0.5000, 0.0500],
            [0.4000, 0.0800]], dtype=torch.float64)
    """
    given, many = at_least_dims(within(share, "share", 0, 1), "share", 1, "(..., steps)"), _many(words)
    part, many = together(share=given, words=many[..., None] if many.ndim else many)
    own = (1 - part) / many.sqrt()
    return Reads(torch.stack([(part * (1 - part)).sqrt(), own], -1), own[..., None])


@guarded
def gain(t: Number, read: Number, *, curvature: Number = 0.0) -> Tensor:
    """y(t) along any path of what is read: logits are their push C times this, their variance C's variance times y^2.

        y = sum_i f_i beta_i,   beta_i' = f_i (1 - k y),   beta = 0 at the first moment

    - t: (steps,), learning rate times time, rising
    - read: f at those moments, (..., steps, components), as `reads` gives it or measured
    - curvature: k, not negative, broadcasts against (...). 0: a push that never tires

    Returns (..., steps). Within a step f is taken as its mean over the two ends, the rest is exact. The error is of the
    second order in the steps; where k f^2 times a step is large, it is the change of f within half a step. Assumes
    small logits, fixed values and targets, plain gradient flow: not Adam.

    >>> gain([0.0, 1.0, 2.0, 3.0], [[1.0], [1.0], [0.5], [0.25]])  # it falls while A still grows
    tensor([0.0000, 1.0000, 0.8750, 0.5312], dtype=torch.float64)
    """
    at = times(t)
    path = at_least_dims(real(read, "read"), "read", 2, "(..., steps, components)")
    if path.shape[-2] != len(at):
        raise ValueError(f"read must have {len(at)} steps like t, got {path.shape[-2]}")
    if (at.diff() < 0).any():
        raise ValueError("t must not fall")
    path, bend = alongside({"read": 2}, read=path, curvature=not_negative(curvature, "curvature"))
    bend, step = bend[..., None, None], at.diff().to(path)[:, None]
    middle = (path[..., 1:, :] + path[..., :-1, :]) / 2
    tired = bend * middle.square().sum(-1, keepdim=True) * step
    mean = torch.where(tired > 0, -torch.expm1(-tired) / torch.where(tired > 0, tired, 1.0), 1.0)
    stored = [torch.zeros_like(path[..., :1, :].sum(-2))]
    for down, up in zip((bend * middle).unbind(-2), (step * middle * mean).unbind(-2), strict=True):
        left = 1 - (down * stored[-1]).sum(-1, keepdim=True)  # of the push
        stored.append(stored[-1] + up * left)
    return (path * torch.stack(stored, -2)[..., : len(at), :]).sum(-1)


@guarded
def turning_gain(read: Number, fall: Number, *, curvature: Number = 0.0) -> Tensor:
    """y where it turns, for any path of one component: 1/(k + g), g = fall/f^2, fall = -d ln f/dt > 0 there.

    Below this y rises, above it falls; where g settles, y tends to it. As a share of the optimum 1/k it is k/(k + g):
    the layer holds its preference as far as it learns faster than its input changes. All broadcast.

    >>> turning_gain(0.5, 0.1), turning_gain(0.5, 0.1, curvature=[0.4, 40.0])
    (tensor(2.5000, dtype=torch.float64), tensor([1.2500, 0.0248], dtype=torch.float64))
    """
    given = {"read": real(read, "read"), "fall": positive(fall, "fall")}
    f, fading, bend = together(**given, curvature=not_negative(curvature, "curvature"))
    return 1 / (fading / f.square() + bend)


@guarded
def exponential_gain(t: Number, read: Number, tau: Number, *, curvature: Number = 0.0) -> Tensor:
    """y(t) where what is read falls as f = f0 e^(-t/tau), in closed form. Zero at last: A stays, nothing reads it.

        y = f0^2 tau w int_w^1 e^(-k f0^2 tau (x^2 - w^2)/2) dx,   w = e^(-t/tau);   k = 0: f0^2 tau w (1 - w)

    - t: (steps,), learning rate times time
    - read: f0; tau: positive; curvature: k, not negative. They broadcast to (...); (..., steps) comes back

    >>> exponential_gain([0.0, 2.0, 8.0], 1.0, 2.0, curvature=[0.0, 1.0])
    tensor([[0.0000, 0.4651, 0.0360],
            [0.0000, 0.3326, 0.0267]], dtype=torch.float64)
    """
    at, (f, time, bend), dtype = times(t).double(), *_wide(read=read, tau=tau, curvature=curvature)
    pull = bend * f.square() * time
    return ((f.square() * time)[..., None] * _shape(at.to(f) / time[..., None], pull[..., None])).to(dtype)


@guarded
def exponential_turn(read: Number, tau: Number, *, curvature: Number = 0.0) -> Tensor:
    """When `exponential_gain` turns. Without curvature at tau ln 2; with it earlier. Arguments as there.

    >>> exponential_turn(1.0, 2.0, curvature=[0.0, 1.0, 100.0])
    tensor([1.3863, 1.2311, 0.1018], dtype=torch.float64)
    """
    (f, time, bend), dtype = _wide(read=read, tau=tau, curvature=curvature)
    pull = bend * f.square() * time
    with torch.no_grad():
        low, high = torch.zeros_like(pull), torch.full_like(pull, 0.7)
        for _ in range(60):
            middle = (low + high) / 2
            rising = _shape(middle, pull) < _turned(middle, pull)
            low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    x = (low + high) / 2
    steep = 2 * torch.exp(-2 * x) / (1 + pull.detach() * torch.exp(-2 * x)).square()
    last = (_shape(x, pull) - _turned(x, pull)) / steep  # a Newton step, which carries the gradient
    return (time * (x - last)).to(dtype)


@guarded
def power_gain(t: Number, read: Number, tau: Number, power: Number) -> Tensor:
    """y(t) where what is read falls as f = f0 (1 + t/tau)^(-power), without curvature.

        y = f0^2 tau (s^(1 - 2 power) - s^(-power))/(1 - power),   s = 1 + t/tau

    Arguments as in `exponential_gain`; power is not negative, and 0 is a constant: y = f0^2 t.

    >>> power_gain([0.0, 1.0, 10.0, 100.0], 1.0, 1.0, 1.0)
    tensor([0.0000, 0.3466, 0.2180, 0.0457], dtype=torch.float64)
    """
    at, (f, time, fast), dtype = times(t).double(), *_wide(read=read, tau=tau, power=power)
    f, time, fast = f[..., None], time[..., None], fast[..., None]
    log = torch.log1p(at.to(f) / time)
    rest = (1 - fast) * log
    still = rest == 0
    grown = log * torch.where(still, 1.0, torch.expm1(rest) / torch.where(still, 1.0, rest))
    return (f.square() * time * torch.exp(-fast * log) * grown).to(dtype)


@guarded
def power_turn(tau: Number, power: Number) -> Tensor:
    """When `power_gain` turns: tau ((power/(2 power - 1))^(1/(1 - power)) - 1). Infinite for a power up to 1/2.

    So the preference fades only if what is read falls faster than 1/sqrt t.

    >>> power_turn(1.0, [0.5, 0.6, 1.0, 2.0])
    tensor([    inf, 14.5885,  1.7183,  0.5000], dtype=torch.float64)
    """
    (time, fast), dtype = _wide(tau=tau, power=power)
    turns = fast > 0.5
    rest = torch.where(turns, 1 - fast, 0.0)
    one = rest == 0
    safe = torch.where(one, 1.0, rest)
    log = torch.where(one, 1.0, torch.log1p(safe / torch.where(turns & ~one, 2 * fast - 1, 1.0)) / safe)
    return torch.where(turns, time * torch.expm1(log), torch.inf).to(dtype)


def _many(words: Number) -> Tensor:
    many = real(words, "words")
    if (many < 1).any():
        raise ValueError(f"words must be at least 1, got {many.min().item():g}")
    return many


_KINDS = {"read": real, "tau": positive, "curvature": not_negative, "power": not_negative}


def _wide(**given: Number) -> tuple[tuple[Tensor, ...], torch.dtype]:
    """The arguments checked by their names, broadcast and in float64, and the type to answer in."""
    parts = together(**{name: _KINDS[name](value, name) for name, value in given.items()})
    return tuple(part.double() for part in parts), parts[0].dtype


def _turned(x: Tensor, pull: Tensor) -> Tensor:
    """`turning_gain` over f0^2 tau at t = x tau, pull = k f0^2 tau."""
    square = torch.exp(-2 * x)
    return square / (1 + pull * square)


def _shape(x: Tensor, pull: Tensor) -> Tensor:
    """w int_w^1 e^(-pull (x^2 - w^2)/2) dx, w = e^(-x): by a Gauss rule, or by erfc where the integrand is steep."""
    x, pull = torch.broadcast_tensors(x, pull)
    w, room = torch.exp(-x), -torch.expm1(-x)
    nodes, weights = (each.to(x) for each in jacobi_rule(0.0))
    ahead = room[..., None] * nodes  # x - w
    mild = (torch.exp(-pull.clamp(max=2 * _SMOOTH)[..., None] * ahead * (w[..., None] + ahead / 2)) * weights).sum(-1)
    root = (pull.clamp(min=2 * _SMOOTH) / 2).sqrt()
    end = torch.exp(-root.square() * room * (1 + w)) * torch.special.erfcx(root)
    steep = (torch.special.erfcx(root * w) - end) * (torch.pi**0.5 / 2) / root
    return w * torch.where(pull <= 2 * _SMOOTH, room * mild, steep)
