"""CDAG Theorem 1: when does the gradient that reaches a child node point at the latent the child could learn?

A node j of a computational graph has children k with activations f_k and weights w_jk. Write delta = sigma'_j g_j
and corr(x, y) = sum_i x_i y_i over the dataset. One step of gradient ascent from w_jk = 0 gives
w_jk = corr(f_k, delta), the child receives w_jk delta, and so

    corr(z_b, g_{j->k}) = corr(f_k, delta) corr(z_b, delta).        (`conclusion`)

The note asks for three signs, corr(z_a, delta) > 0, corr(z_b, f_k) > 0 and corr(z_a, z_b) != 0. They do not suffice
(`counter_example`). The angles a = (z_a, delta), b = (z_b, f_k), c = (z_a, +-z_b), the smaller of both signs, do if
a + b + c < 90 degrees (`angle_condition`): delta is then within a + c of +-z_b and within a + b + c of +-f_k, the same
sign in both. Either condition also needs w_jk(0) = 0, or a start of the right sign.
"""

from math import pi
from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, alongside, at_least_dims, real, together
from joma.host.words import brief_repr
from joma.theory._guard import guarded


@brief_repr
class Signals(NamedTuple):
    """The four signals of Theorem 1, each (..., samples); see `counter_example`.

    za is the latent that node j is to learn, zb the one that its child k could learn, f the child's activation f_k,
    and delta = sigma'_j g_j what node j passes down.
    """

    za: Tensor
    zb: Tensor
    f: Tensor
    delta: Tensor


@brief_repr
class AngleCondition(NamedTuple):
    """What `angle_condition` finds; angles in radians."""

    angles: Tensor
    """(..., 3): a = (za, delta), b = (zb, f), c = (za, +-zb)."""
    total: Tensor
    """(...): a + b + c."""
    satisfied: Tensor
    """(...): whether the total is below a right angle, so that the conclusion is positive."""
    lower_bound: Tensor
    """(...): the least that the normalised conclusion can be at these angles."""


@brief_repr
class Gated(NamedTuple):
    """The signals at a child k: a latent zb, its activation f, the gradient g that arrives; each (..., samples)."""

    zb: Tensor
    f: Tensor
    g: Tensor


@guarded
def correlation(x: Number, y: Number, *, normalised: bool = False) -> Tensor:
    """corr(x, y) = sum_i x_i y_i over samples, the last dimension; normalised: the cosine of their angle.

    >>> correlation([1.0, 2.0], [3.0, -1.0])
    tensor(1., dtype=torch.float64)
    """
    first, second = _signals(normalised, x=x, y=y)
    return (first * second).sum(-1)


@guarded
def premises(za: Number, zb: Number, f: Number, delta: Number) -> Tensor:
    """The correlations that Theorem 1 wants positive, (..., 3): corr(za, delta), corr(zb, f), abs corr(za, zb).

    >>> premises(*counter_example())
    tensor([0.5000, 0.9900, 0.9500], dtype=torch.float64)
    """
    a, b, activation, gradient = _signals(False, za=za, zb=zb, f=f, delta=delta)
    return torch.stack([(a * gradient).sum(-1), (b * activation).sum(-1), (a * b).sum(-1).abs()], dim=-1)


@guarded
def conclusion(zb: Number, f: Number, delta: Number, *, normalised: bool = False) -> Tensor:
    """corr(zb, g_{j->k}) = corr(f, delta) corr(zb, delta) after one unit step from w = 0; (..., samples) -> (...).
    Normalised: with all signals of length 1, so between -1 and 1.

    >>> za, zb, f, delta = counter_example()
    >>> conclusion(zb, f, delta)
    tensor(-0.0100, dtype=torch.float64)
    """
    b, activation, gradient = _signals(normalised, zb=zb, f=f, delta=delta)
    return (activation * gradient).sum(-1) * (b * gradient).sum(-1)


@guarded
def angle_condition(za: Number, zb: Number, f: Number, delta: Number) -> AngleCondition:
    """The condition under which Theorem 1 is true: a + b + c < pi/2, with the bound that it gives.

        cos(f, delta) cos(zb, delta) >= (cos b + cos min(b + 2(a + c), pi)) / 2  =  cos(a+b+c) cos(a+c) > 0 if satisfied

    The bound holds at any angles; it is positive exactly where the condition is satisfied, and is reached there
    in the plane, so no weaker condition on these three angles would do.
    za, zb, f, delta: (..., samples), none of them zero. Differentiable except at parallel signals.

    >>> result = angle_condition([1.0, 0.2], [1.0, 0.0], [1.0, -0.3], [1.0, 0.5])
    >>> result.satisfied, result.lower_bound
    (tensor(True), tensor(0.6513, dtype=torch.float64))
    >>> angle_condition(*counter_example()).total.rad2deg()
    tensor(107.1318, dtype=torch.float64)
    """
    a_, b_, f_, d_ = _signals(True, za=za, zb=zb, f=f, delta=delta)
    between = _angle(a_, b_)
    a, b, c = _angle(a_, d_), _angle(b_, f_), torch.minimum(between, pi - between)
    total = a + b + c
    bound = (b.cos() + (b + 2 * (a + c)).clamp(max=pi).cos()) / 2
    return AngleCondition(torch.stack([a, b, c], dim=-1), total, total < pi / 2, bound)


@guarded
def independent_conclusion(zb: Number, delta: Number, gain: Number) -> Tensor:
    """The expected conclusion where E[f | zb, delta] = gain zb: gain corr(zb, delta)^2, never negative for gain > 0.

    The other sufficient condition: whatever else f carries has mean zero given both signals.
    zb, delta: (..., samples); gain: (...). Returns (...).

    >>> independent_conclusion([1.0, -1.0], [0.5, 0.0], 2.0)
    tensor(0.5000, dtype=torch.float64)
    """
    b, gradient = _signals(False, zb=zb, delta=delta)
    factor, b, gradient = alongside({"zb": 1, "delta": 1}, gain=real(gain, "gain"), zb=b, delta=gradient)
    return factor * (b * gradient).sum(-1) ** 2


def counter_example() -> Signals:
    """Two samples for which all premises of Theorem 1 are positive (0.5, 0.99, 0.95) and the conclusion is -0.01.

    >>> za, zb, f, delta = counter_example()
    >>> bool((premises(za, zb, f, delta) > 0).all()), bool(conclusion(zb, f, delta) > 0)
    (True, False)
    """
    return Signals(*(torch.tensor(x, dtype=torch.float64) for x in ([0.5, 1], [-0.1, 1], [0.1, 1], [1, 0])))


def gate_counter_example() -> Gated:
    """Two samples for which corr(zb, f) and corr(zb, g) are positive and corr(zb, 1[f > 0] g) is negative.

    The note continues its recursion from the first two to the third: a gate can remove just those samples on
    which the gradient agreed with the latent.

    >>> zb, f, g = gate_counter_example()
    >>> correlation(zb, f).item(), correlation(zb, g).item(), correlation(zb, (f > 0) * g).item()
    (0.5, 1.0, -1.0)
    """
    return Gated(*(torch.tensor(x, dtype=torch.float64) for x in ([1, 1], [-0.5, 1], [2, -1])))


def _signals(normalised: bool, /, **values: Number) -> tuple[Tensor, ...]:
    """Each (..., samples), over the same samples: a single sample does not stand for many. At length 1 if asked for."""
    tensors = {name: at_least_dims(real(value, name), name, 1, "(..., samples)") for name, value in values.items()}
    if len({tensor.shape[-1] for tensor in tensors.values()}) > 1:
        counts = ", ".join(f"{name} {tensor.shape[-1]}" for name, tensor in tensors.items())
        raise ValueError(f"all signals need the same number of samples, got {counts}")
    signals = together(**tensors)
    if not normalised:
        return signals
    units = []
    for name, signal in zip(tensors, signals, strict=True):
        if signal.shape[-1] == 0:
            raise ValueError(f"{name} must hold at least one sample, got shape {tuple(signal.shape)}")
        largest = signal.abs().amax(-1, keepdim=True)
        if (largest == 0).any():
            raise ValueError(f"{name} must not be zero on all samples: it then has no direction")
        scaled = signal / largest  # so that nothing over- or underflows
        units.append(scaled / torch.linalg.vector_norm(scaled, dim=-1, keepdim=True))
    return tuple(units)


def _angle(x: Tensor, y: Tensor) -> Tensor:
    """The angle between unit vectors in [0, pi], accurate near both ends, where arccos is not."""
    return 2 * torch.atan2(*(torch.linalg.vector_norm(v, dim=-1) for v in (x - y, x + y)))
