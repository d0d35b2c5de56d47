"""Equation 6 and Theorem 4: a nonlinear MLP under attention learns its salient components first.

Near its critical point mu the MLP moves straight towards it; attention, integrated out by Theorem 1, multiplies the
speed of every component: v' = (mu - v) o exp(v^2/2) (eq. 6). The critical point stays, the clocks do not. From
v(0) = 0 the time at which v = r mu is F(r, mu) of eq. 79, and

    F(r, mu) = e^(-mu^2/2) L + R(r, mu),   L = ln 1/delta,   delta = 1 - v/mu,   0 <= R < 0.8644.

So late in training L_j / L_k = e^((mu_j^2 - mu_k^2)/2) (1 + Lambda) (Theorem 4). The paper's condition for
|Lambda| << 1 has the sign of an exponent wrong: it takes L_k >> e^(+mu_k^2/2), see `convergence_ratio`.

Nothing here steps through time: F is a quadrature that is exact to rounding, its inverse a Newton iteration in L, all
in float64. Answers have the type of the arguments. |mu| and |v0| go up to 35: beyond, exp(v^2/2) leaves float64.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, at_least_dims, positive, real, times, together, within
from joma.host.words import brief_repr
from joma.theory._depth import LARGEST, excess, position, relative_depth

REMAINDER_BOUND = 0.8643247772318799
"""sup of R(r, mu), reached at r = 1, |mu| = 1.8722; the paper has sqrt(pi/2) + 1 = 2.2533 (eq. 88)."""

_VANISHED = 38.5  # e^(-u^2/2) is below the smallest float64 beyond it


def time_to(r: Number, mu: Number) -> Tensor:
    """F(r, mu) of eq. 79: the time at which v = r mu, from v(0) = 0. Infinite at r = 1, negative for r < 0.

        F(r, mu) = int_0^r e^(-mu^2 x^2/2) / (1 - x) dx

    r <= 1 and mu broadcast; their common shape comes back. Even in mu. From v(0) = r0 mu instead of zero it takes
    F(r) - F(r0). For r within rounding of 1 use `time_to_depth`. Differentiable.

    >>> time_to([0.5, 0.9, 1.0], 2.0)
    tensor([0.5761, 1.1118,    inf], dtype=torch.float64)
    """
    share, target, dtype = _share_and_target(r, mu)
    remaining = 1 - share
    rest = excess(target, torch.zeros_like(target), remaining, share)
    return (-torch.exp(-target * target / 2) * torch.log(remaining) + rest).to(dtype)


def time_to_depth(depth: Number, mu: Number) -> Tensor:
    """The time at which ln 1/delta = depth, from v(0) = 0: `time_to` for deltas that no float can hold.

    Depth may be infinite. To draw a trajectory no root needs to be found: choose depths, get their times.

    >>> time_to_depth([1.0, 1e4], [1.0, 4.0])
    tensor([0.9212, 3.7662], dtype=torch.float64)
    """
    level, target, dtype = _real_and_target(real(depth, "depth", finite=False), "depth", mu)
    level = torch.maximum(level, -torch.log1p(_VANISHED / target.abs().clamp(min=1e-300)))
    rest = excess(target, torch.zeros_like(target), torch.exp(-level), -torch.expm1(-level))
    return (torch.exp(-target * target / 2) * level + rest).to(dtype)


def remainder(r: Number, mu: Number) -> Tensor:
    """R(r, mu) = F(r, mu) - e^(-mu^2/2) ln 1/(1 - r): the part of the time that stays bounded (eq. 88).

    0 <= R <= R(1, mu) <= `REMAINDER_BOUND` for r in [0, 1]. Shapes as in `time_to`; differentiable, also at r = 1.

    >>> remainder(1.0, [0.5, 1.8722, 10.0])
    tensor([0.1720, 0.8643, 0.1368], dtype=torch.float64)
    """
    share, target, dtype = _share_and_target(r, mu)
    return excess(target, torch.zeros_like(target), 1 - share, share).to(dtype)


def trajectory(mu: Number, t: Number, *, v0: Number = 0.0) -> Tensor:
    """v(t) of eq. 6: v' = (mu - v) exp(v^2/2) from v0, at any times, without stepping through them.

    mu: (..., components); v0 broadcasts against it, on either side of mu; t: (steps,). Returns
    (..., steps, components). Differentiable in every argument, also twice, by the implicit derivative.

    >>> trajectory([3.0, 1.0], [0.0, 0.5, 2.0])
    tensor([[0.0000, 0.0000],
            [1.6387, 0.4027],
            [3.0000, 0.9178]], dtype=torch.float64)
    """
    target, start, dtype = _target_and_start(mu, v0)
    depth = relative_depth(target, times(t).double()[:, None], start)
    return position(target, start, depth).to(dtype)


def depth(mu: Number, t: Number, *, v0: Number = 0.0) -> Tensor:
    """L(t) = ln 1/|delta|, delta = 1 - v/mu, along eq. 6: how far each component has converged.

    Stays exact when delta underflows, which it does early: L grows like t e^(mu^2/2). Shapes and derivatives as in
    `trajectory`. mu must not be zero, for then there is no delta.

    >>> depth([3.0, 1.0], [0.5, 2.0])
    tensor([[  0.7902,   0.5154],
            [124.5334,   2.4987]], dtype=torch.float64)
    """
    target, start, dtype = _target_and_start(mu, v0)
    if (target == 0).any():
        raise ValueError("mu must not be zero: delta = 1 - v/mu has no meaning there")
    level = relative_depth(target, times(t).double()[:, None], start)
    return (level - torch.log((1 - start / target).abs())).to(dtype)


@brief_repr
class ConvergenceRatio(NamedTuple):
    """Both sides of eq. 7, each (..., steps): ratio = leading * (1 + Lambda)."""

    ratio: Tensor
    leading: Tensor
    Lambda: Tensor


def convergence_ratio(mu_j: Number, mu_k: Number, t: Number) -> ConvergenceRatio:
    """Theorem 4: L_j/L_k, its leading term e^((mu_j^2 - mu_k^2)/2), and Lambda, from v(0) = 0.

        Lambda = lambda e^(mu_k^2/2) / L_k,      lambda = R(r_k, mu_k) - R(r_j, mu_j),   |lambda| <= 0.8644

    So |Lambda| << 1 once L_k >> 0.8644 e^(mu_k^2/2); the paper prints 4.5066 e^(-mu_k^2) on the right, which is met
    while Lambda is still of order one. mu_j, mu_k: (...), broadcast together; t: (steps,), positive.

    >>> ratio, leading, Lambda = convergence_ratio(3.0, 2.0, [1.0, 100.0])
    >>> ratio, Lambda
    (tensor([19.2225, 12.2122], dtype=torch.float64), tensor([0.5779, 0.0024], dtype=torch.float64))
    >>> leading * (1 + Lambda)
    tensor([19.2225, 12.2122], dtype=torch.float64)
    """
    at = times(t)
    if (at == 0).any():
        raise ValueError("t must be positive: at t = 0 both depths are zero and have no ratio")
    first, second = (within(mu, name, -LARGEST, LARGEST) for mu, name in ((mu_j, "mu_j"), (mu_k, "mu_k")))
    dtype = torch.result_type(first, second)
    pair = torch.stack(together(mu_j=first.double(), mu_k=second.double()), -1)  # (..., 2)
    start = torch.zeros_like(pair[..., None, :])
    level = relative_depth(pair[..., None, :], at.double()[:, None], start)
    rest = excess(pair[..., None, :], start, torch.exp(-level), -torch.expm1(-level))
    half = pair * pair / 2
    leading = torch.exp(half[..., :1] - half[..., 1:]).expand(level.shape[:-1])
    deviation = (rest[..., 1] - rest[..., 0]) * torch.exp(half[..., 1:]) / level[..., 1]
    return ConvergenceRatio((level[..., 0] / level[..., 1]).to(dtype), leading.to(dtype), deviation.to(dtype))


def entropy_curve(mu: Number, t: Number, *, v0: Number = 0.0, scale: float = 0.5) -> Tensor:
    """Entropy of the attention softmax(scale v^2) over the components, along eq. 6 (Figure 4, right).

    - mu, t, v0: as in `trajectory`
    - scale: with exp attention z = v^2/2 (Theorem 1), hence 1/2; the caption of Figure 4 says softmax(v^2), the figure
      itself was drawn with v^2/3

    Shapes as in `trajectory`, less the components: (..., steps). In nats.

    >>> entropy_curve([3.0, 2.0, 1.0], [0.0, 0.7, 30.0])
    tensor([1.0986, 0.1729, 0.3487], dtype=torch.float64)
    """
    factor = positive(scale, "scale")
    if factor.ndim:
        raise ValueError(f"scale must be a single number, got shape {tuple(factor.shape)}")
    target, start, dtype = _target_and_start(mu, v0)
    v = position(target, start, relative_depth(target, times(t).double()[:, None], start))
    logits = torch.log_softmax(factor.to(v) * v * v, dim=-1)
    return -(logits.exp() * logits).sum(-1).to(dtype)


def matrix_trajectory(mu: Number, t: Number, *, v0: Number = 0.0) -> Tensor:
    """V(t) with many nodes: V' = (Mu - V) o exp(|row of V|^2/2), row by row.

    A row moves straight from V0 to Mu. With h the distance of that line from the origin, the coordinate along it obeys
    eq. 6 on a clock that is e^(h^2/2) times faster. From a zero start row l is r_l(t) Mu_l with t = F(r_l, |Mu_l|).
    mu, v0: (..., rows, nodes), no row longer than 35. Returns (..., steps, rows, nodes). Differentiable.

    >>> matrix_trajectory([[3.0, 4.0], [0.6, 0.8]], [0.25])
    tensor([[[0.8983, 1.1977],
             [0.1337, 0.1783]]], dtype=torch.float64)
    """
    goal, start, dtype = _goal_and_start(mu, v0)
    gap = goal - start
    length = torch.linalg.vector_norm(gap, dim=-1, keepdim=True)
    direction = gap / torch.where(length > 0, length, 1.0)
    target, origin = (goal * direction).sum(-1), (start * direction).sum(-1)
    aside = goal - target[..., None] * direction
    clock = torch.exp((aside * aside).sum(-1) / 2)
    level = relative_depth(target[..., None, :], times(t).double()[:, None] * clock[..., None, :], origin[..., None, :])
    return position(goal[..., None, :, :], start[..., None, :, :], level[..., None]).to(dtype)


def stable_rank_curve(mu: Number, t: Number, *, v0: Number = 0.0) -> Tensor:
    """|V|_F^2 / |V|_2^2 along `matrix_trajectory`: (..., steps). Where V = 0, the limit from later times.

    From a zero start the exact rank never changes; it is this that drops and recovers.

    >>> stable_rank_curve([[3.0, 0.0], [0.0, 2.0]], [0.0, 0.6, 30.0])
    tensor([1.4444, 1.1936, 1.4444], dtype=torch.float64)
    """
    goal, start, dtype = _goal_and_start(mu, v0)
    if 0 in goal.shape[-2:]:
        raise ValueError(f"mu must hold at least one row and one node, got shape {tuple(goal.shape)}")
    v = matrix_trajectory(goal, t, v0=start)
    v = torch.where((v == 0).all(-1, keepdim=True).all(-2, keepdim=True), (goal - start)[..., None, :, :], v)
    size = v.abs().amax((-2, -1), keepdim=True)
    square = torch.linalg.svdvals(v / torch.where(size > 0, size, 1.0)) ** 2  # scaled: early V may be tiny
    largest = square[..., 0]
    return torch.where(largest > 0, square.sum(-1) / torch.where(largest > 0, largest, 1.0), 0.0).to(dtype)


def linear_attention_trajectory(mu: Number, t: Number, *, v0: Number) -> Tensor:
    """v(t) under LINEAR attention, z = |v|: v' = (mu - v)|v|, a logistic.

        v = mu / (1 + c e^(-|mu| t)),   c = mu/v0 - 1        (mu v0 > 0)

    From v0 = 0 nothing moves, and a start on the other side of zero only creeps to zero. Shapes as in `trajectory`.

    >>> linear_attention_trajectory([3.0, 1.0, 1.0], [2.0], v0=[0.1, 0.1, 0.0])
    tensor([[2.7988, 0.4509, 0.0000]], dtype=torch.float64)
    """
    target, start, dtype = _target_and_start(mu, v0)
    at = times(t).double()[:, None]
    rate = torch.where(start < 0, -target, target)  # |v|' = |v| (rate - |v|)
    growth = rate * at
    up, down = torch.exp(growth.clamp(max=0.0)), torch.exp(-growth.clamp(min=0.0))  # one of them is 1
    # int_0^t e^(rate s) ds e^(-max(growth, 0)), finite for either sign of the rate and t at rate 0
    still = rate == 0
    moved = torch.where(still, at, (up - down) / torch.where(still, 1.0, rate))
    return (start * up / (down + start.abs() * moved)).to(dtype)


def linear_attention_depth(mu: Number, t: Number, *, v0: Number) -> Tensor:
    """L(t) = ln 1/|delta| along `linear_attention_trajectory`; L_j/L_k tends to |mu_j|/|mu_k|, as slowly as 1/t.

    Exact when delta underflows. mu must not be zero. Shapes as in `trajectory`.

    >>> linear_attention_depth([3.0, 1.0], [1000.0], v0=0.001)
    tensor([[2991.9940,  993.0932]], dtype=torch.float64)
    """
    target, start, dtype = _target_and_start(mu, v0)
    if (target == 0).any():
        raise ValueError("mu must not be zero: delta = 1 - v/mu has no meaning there")
    growth = torch.where(start < 0, -target, target) * times(t).double()[:, None]
    rising = growth > 0
    # delta = c e^(-growth) / (1 + c e^(-growth)), written for v0 = 0 (delta = 1) and for either sign of the growth
    share = start / target
    fall = torch.exp(-torch.where(rising, growth, 0.0))
    ahead = growth - torch.log((1 - share).abs()) + torch.log((share + (1 - share) * fall).abs())
    behind = torch.log((1 - share + share * torch.exp(torch.where(rising, 0.0, growth))).abs())
    level = torch.where(rising, ahead, behind - torch.log((1 - share).abs()))
    return torch.where(start == 0, 0.0, level).to(dtype)


def _share_and_target(r: Number, mu: Number) -> tuple[Tensor, Tensor, torch.dtype]:
    """r and mu together, r no farther below zero than where e^(-v^2/2) still is a number."""
    share, target, dtype = _real_and_target(real(r, "r"), "r", mu)
    if (share > 1).any():
        raise ValueError(f"r must not exceed 1, got {share.max().item():g}: v never passes mu")
    return torch.maximum(share, -_VANISHED / target.abs().clamp(min=1e-300)), target, dtype


def _real_and_target(value: Tensor, name: str, mu: Number) -> tuple[Tensor, Tensor, torch.dtype]:
    target = within(mu, "mu", -LARGEST, LARGEST)
    dtype = torch.result_type(value, target)
    value, target = together(**{name: value.double(), "mu": target.double()})
    return value, target, dtype


def _target_and_start(mu: Number, v0: Number) -> tuple[Tensor, Tensor, torch.dtype]:
    """mu and v0 as (..., 1, components) in float64, ready for (steps, 1) times, and the type to answer in."""
    target = at_least_dims(within(mu, "mu", -LARGEST, LARGEST), "mu", 1, "(..., components)")
    start = within(v0, "v0", -LARGEST, LARGEST)
    dtype = torch.result_type(target, start)
    target, start = together(mu=target.double(), v0=start.double())
    return target[..., None, :], start[..., None, :], dtype


def _goal_and_start(mu: Number, v0: Number) -> tuple[Tensor, Tensor, torch.dtype]:
    goal = at_least_dims(real(mu, "mu"), "mu", 2, "(..., rows, nodes)")
    start = real(v0, "v0")
    dtype = torch.result_type(goal, start)
    goal, start = together(mu=goal.double(), v0=start.double())
    for name, matrix in (("mu", goal), ("v0", start)):
        longest = torch.linalg.vector_norm(matrix, dim=-1).max().item() if matrix.numel() else 0.0
        if longest > LARGEST:
            raise ValueError(f"no row of {name} may be longer than {LARGEST:g}, got {longest:g}")
    return goal, start, dtype
