"""How far logits spread: the entropy of Gaussian logits, and the law of focus and dilution.

Entropy. If the logits of a query over n keys are independent and Gaussian with one variance s2, the expected entropy of
their softmax is a function of s2 and n alone, `gaussian_entropy`. `random_energy_entropy` is its limit for many keys.

Focus and dilution. Gradient flow of one attention layer learns first what all queries want of a key, because all of
them push along the mean of the input (`focus_ratio`). What it has stored is read through the input of now. So if the
layers below shrink that mean, the shared logits fall while the weights still grow. `gain` follows this along any path,
`turning_gain` says where it turns, and two kinds of fall have closed forms. Nothing is fitted. Assumed are: logits so
small that attention is near uniform, fixed values and targets, a square loss, words that keep orthonormal directions,
an input that is given from outside, equally frequent query words (or a mean that outweighs them), and A itself as the
weights, under plain gradient flow: no product of W_Q and W_K, no Adam.
"""

import math

import torch
from torch import Tensor

from joma.host.arguments import Number, not_negative, together, within
from joma.theory import _logit_entropy
from joma.theory._dilution import (
    Reads,
    exponential_gain,
    exponential_turn,
    focus_ratio,
    gain,
    power_gain,
    power_turn,
    reads,
    turning_gain,
)
from joma.theory._guard import guarded

__all__ = [
    "MOST_KEYS", "Reads", "critical_variance", "exponential_gain", "exponential_turn", "focus_ratio", "frozen_entropy",
    "gain", "gaussian_entropy", "power_gain", "power_turn", "random_energy_entropy", "reads", "turning_gain",
]  # fmt: skip

MOST_KEYS = _logit_entropy.MOST_KEYS
"""The largest n: beyond it the densities of single keys leave the range of float64."""


@guarded
def gaussian_entropy(variance: Number, n: Number) -> Tensor:
    """Expected entropy, in nats, of softmax over n independent logits z ~ N(0, variance).

    - variance: of the logits, not negative, as large as you like
    - n: how many keys, 1 to 1e100. Need not be whole: the same integral goes between

    They broadcast; their common shape comes back. ln n at variance 0, falling, like variance^(-1/2) at last.
    Relative error below 1e-10 in float64. Differentiable in the variance, at zero too, where the slope is
    -(n - 1)/(2 n). Assumes that logits are independent and Gaussian with one variance: logits of a trained network
    need not be. A mean that all keys share changes nothing.

    >>> gaussian_entropy([0.0, 1.0, 4.0, 1e4], 64)
    tensor([4.1589, 3.6847, 2.6425, 0.0391], dtype=torch.float64)
    """
    spread, keys, dtype = _spread_and_keys(not_negative(variance, "variance"), "variance", n)
    return _logit_entropy.entropy(spread, keys).to(dtype)


@guarded
def critical_variance(n: Number) -> Tensor:
    """2 ln n: where the random energy model of n keys freezes. Beyond it few keys hold all attention.

    >>> critical_variance([64.0, 1024.0])
    tensor([ 8.3178, 13.8629], dtype=torch.float64)
    """
    return 2 * within(n, "n", 1, MOST_KEYS).log()


@guarded
def random_energy_entropy(variance: Number, n: Number) -> Tensor:
    """The limit of `gaussian_entropy` for many keys, to leading order in ln n: max(ln n - variance/2, 0).

    Assumes that n grows and variance/(2 ln n) stays as it is. Then entropy/ln n tends to this over ln n. It does so
    slowly: at the critical variance 2 ln n it says 0, where 64 keys have 1.89 nats and a million keys 3.86.
    Arguments as in `gaussian_entropy`.

    >>> random_energy_entropy([1.0, 4.0, 100.0], 64)
    tensor([3.6589, 2.1589, 0.0000], dtype=torch.float64)
    """
    spread, keys, dtype = _spread_and_keys(not_negative(variance, "variance"), "variance", n)
    return (keys.log() - spread / 2).clamp(min=0).to(dtype)


@guarded
def frozen_entropy(variance: Number, n: Number) -> Tensor:
    """What is left beyond the critical variance, where `random_energy_entropy` is 0: digamma(1) - digamma(1 - m).

    m = sqrt(2 ln n/variance) < 1. Infinite at and below the critical variance. The same assumption: n grows at a fixed
    m. The weights then are those of a Poisson-Dirichlet law, and a key drawn by its weight has a weight of law
    Beta(1 - m, m) (Derrida; Ruelle). Arguments as in `gaussian_entropy`.

    >>> frozen_entropy([8.0, 30.0, 1e4], 64), gaussian_entropy([8.0, 30.0, 1e4], 64)
    (tensor([   inf, 1.5236, 0.0485], dtype=torch.float64), tensor([1.9265, 0.9003, 0.0391], dtype=torch.float64))
    """
    spread, keys, dtype = _spread_and_keys(not_negative(variance, "variance"), "variance", n)
    frozen = spread > 2 * keys.log()
    m = (2 * keys.log() / torch.where(frozen, spread, 1.0)).sqrt()
    left = torch.digamma(torch.ones_like(m)) - torch.digamma(torch.where(frozen, 1 - m, 1.0))
    return torch.where(frozen, left, math.inf).to(dtype)


def _spread_and_keys(value: Tensor, name: str, n: Number) -> tuple[Tensor, Tensor, torch.dtype]:
    """Both in float64 and of one shape, and the type to answer in."""
    keys = within(n, "n", 1, MOST_KEYS)
    dtype = together(**{name: value, "n": keys})[0].dtype
    value, keys = together(**{name: value.double(), "n": keys.double()})
    return value, keys, dtype
