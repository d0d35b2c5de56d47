"""The clock of eq. 6, read both ways without time stepping, elementwise in float64. See `joma.theory.salience`.

A component v' = (mu - v) exp(v^2/2) from v0 is described by its depth L = ln((mu - v0)/(mu - v)), which grows from 0
without bound and stays accurate long after mu - v has underflowed. Time as a function of depth is

    t = int_0^L exp(-v(l)^2/2) dl,      v(l) = mu - (mu - v0) e^-l
      = e^(-mu^2/2) L + R,              R = int_{v0}^{v} (e^(-u^2/2) - e^(-mu^2/2)) / (mu - u) du

The integrand of R is entire, so Gauss-Legendre gets it to rounding error with few nodes. The inverse is Newton's
iteration in L, whose slope exp(-v^2/2) costs nothing, nor does its second derivative (hence Halley's correction).
"""

from math import pi, sqrt
from typing import Any, cast

import torch
from torch import Tensor

from joma.host.arguments import together
from joma.theory._quadrature import jacobi_rule

LARGEST = 35.0  # of |mu| and |v0|: beyond it exp(v^2/2) leaves the range of float64

Rule = tuple[Tensor, Tensor]  # nodes (nodes, 1) and weights (nodes,) of a quadrature on [0, 1]

_CHUNK = 8192  # elements a chunk: 16 nodes each fill a megabyte, small enough for caches, large enough to be few
_ENOUGH = ((16, 18.0), (24, 60.0), (32, 128.0), (48, 300.0))  # nodes, and the e-folds that they resolve
_MOST_STEPS = 60  # about ten are needed at most; this only bounds the loop


def relative_depth(mu: Tensor, t: Tensor, v0: Tensor) -> Tensor:
    """L = ln((mu - v0)/(mu - v(t))), elementwise over tensors that broadcast; differentiable, also twice."""
    return cast(Tensor, _Depth.apply(mu, t, v0))  # type: ignore[no-untyped-call]


def position(mu: Tensor, v0: Tensor, depth: Tensor) -> Tensor:
    """v at a relative depth: counted from v0 while it is near v0, from mu once it is near mu, to lose no digits."""
    gap = mu - v0
    return torch.where(depth < 1, v0 - gap * torch.expm1(-depth), mu - gap * torch.exp(-depth))


def excess(mu: Tensor, v0: Tensor, remaining: Tensor, share: Tensor) -> Tensor:
    """R at mu - v = remaining (mu - v0), where share = 1 - remaining is given by itself so that neither cancels."""
    mu, v0, remaining, share = together(mu=mu, v0=v0, remaining=remaining, share=share)
    if mu.numel() == 0:
        return torch.zeros_like(mu)
    rule = _gauss_legendre(_node_count(v0, v0 + (mu - v0) * share), mu)
    flat = [x.reshape(-1) for x in (mu, v0, remaining, share)]
    pieces = [_excess(*(x[i : i + _CHUNK] for x in flat), rule=rule) for i in range(0, mu.numel(), _CHUNK)]
    return torch.cat(pieces).reshape(mu.shape)


def _excess(mu: Tensor, v0: Tensor, remaining: Tensor, share: Tensor, *, rule: Rule) -> Tensor:
    """R of one chunk, (elements,)."""
    x, weight = rule
    left = torch.addcmul(remaining, share, 1 - x)  # (mu - u)/(mu - v0), (nodes, elements)
    u = torch.addcmul(v0, (mu - v0) * share, x)
    # What cancels in the difference near u = mu is below the rounding of e^(-mu^2/2): no depth is known better.
    return share * (weight @ ((torch.exp(u.square().mul_(-0.5)) - torch.exp(-mu * mu / 2)) / left))


def _node_count(v0: Tensor, v: Tensor) -> int:
    """Nodes with which t is off by no more than the rounding of e^(-u^2/2), relative 2e-13, from v0 to v; measured."""
    # What counts is by how many e-folds e^(-u^2/2) falls, not the distance: near u = 35 by one in every 1/35.
    folds = float((v * v - v0 * v0).detach().abs().max()) / 2
    return next((nodes for nodes, most in _ENOUGH if folds <= most), 64)


def _gauss_legendre(nodes: int, like: Tensor) -> Rule:
    x, weight = jacobi_rule(0.0, nodes)
    return x.to(like.device)[:, None], weight.to(like.device)


class _Depth(torch.autograd.Function):
    """Solved without a graph; its derivatives are those of the implicit equation t(L, mu, v0) = t, in closed form."""

    @staticmethod
    def forward(ctx: Any, mu: Tensor, t: Tensor, v0: Tensor) -> Tensor:
        flip = torch.where(mu < 0, -1.0, 1.0).to(mu)
        target, start = together(mu=flip * mu, v0=flip * v0)
        depth = _solve(target, start, t)
        ctx.save_for_backward(mu, t, v0, depth)
        return depth

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mu, t, v0, depth = ctx.saved_tensors
        v = position(mu, v0, depth)
        speed = torch.exp(v * v / 2)
        # (exp((v^2 - v0^2)/2) - 1)/(mu - v0), finite where mu = v0 because v - v0 is then zero as well.
        travelled = -torch.expm1(-depth)
        w = (mu - v0) * travelled * (v + v0) / 2
        small = w.abs() < 1e-5
        safe = torch.where(small, 1.0, w)
        by_start = travelled * (v + v0) / 2 * torch.where(small, 1 + w / 2 + w * w / 6, torch.expm1(safe) / safe)
        # int_{v0}^{v} u e^(-u^2/2)/(mu - u) du, which is what is left of d t/d mu after integrating by parts.
        # The difference of erf is taken in the tail that both are in: far out erf is 1 and says nothing.
        mirror = torch.where(v0 + v < 0, -1.0, 1.0).to(v0)
        bell = mirror * (torch.erfc(mirror * v0 / sqrt(2)) - torch.erfc(mirror * v / sqrt(2)))
        drift = mu * t - sqrt(pi / 2) * bell
        parts = (mu, speed * drift - by_start), (t, speed), (v0, by_start)
        by_mu, by_t, by_v0 = ((grads[0] * slope).sum_to_size(x.shape) for x, slope in parts)
        return by_mu, by_t, by_v0


def _solve(mu: Tensor, v0: Tensor, t: Tensor) -> Tensor:
    """Depths for mu >= 0 and any v0, which have one shape; t broadcasts against it."""
    # Time is counted from a pivot, where |v| no longer exceeds mu by much. A start farther out races there so fast that
    # the two terms of t = e^(-mu^2/2) L + R would cancel; that stretch is integrated over depth instead.
    from_above, from_below = torch.minimum(v0, mu + 1 / mu.clamp(min=1)), torch.maximum(v0, (mu - 1).clamp(max=0.0))
    pivot = torch.where(v0 > mu, from_above, from_below)
    far = pivot != v0
    if not bool(far.any()):
        return _solve_inside(mu, v0, t)
    before, arrival = torch.zeros_like(mu), torch.zeros_like(mu)  # depth and time at the pivot
    before[far] = torch.log((mu - v0)[far] / (mu - pivot)[far])
    arrival[far] = _time_outside(mu[far], v0[far], before[far])
    depth = before + _solve_inside(mu, pivot, (t - arrival).clamp(min=0.0))
    mu, v0, t, pivot, arrival = together(mu=mu, v0=v0, t=t, pivot=pivot, arrival=arrival)
    early = (t > 0) & (t < arrival)
    depth[early] = _solve_outside(mu[early], t[early], v0[early], pivot[early])
    return torch.where(t > 0, depth, 0.0)


def _solve_inside(mu: Tensor, v0: Tensor, t: Tensor) -> Tensor:
    """Newton's iteration from the tangents of t(L) at L = 0 and L = infinity."""
    # For 0 <= v0 <= mu, t(L) is concave and both tangents start below the root, so the iterates climb to it;
    # for the other starts that a pivot leaves, the slope hardly changes along the way.
    last = excess(mu, v0, torch.zeros_like(mu), torch.ones_like(mu))
    slowest = torch.where(v0 < 0, 0.0, torch.minimum(mu, v0))
    first_tangent, last_tangent = t * torch.exp(slowest * slowest / 2), (t - last) * torch.exp(mu * mu / 2)
    depth = torch.maximum(first_tangent, last_tangent).clamp(max=1e300)
    # Late enough, the last tangent is the answer: it leaves out less than (mu + d) d with d = |mu - v|.
    left = (mu - v0).abs() * torch.exp(-depth)
    todo = ((mu + left) * left > 1e-17 * depth.clamp(min=1)).reshape(-1).nonzero()[:, 0]
    if not todo.numel():
        return depth
    rule = _gauss_legendre(_node_count(v0, mu), mu)
    shape, depth = depth.shape, depth.reshape(-1)
    mu, v0, t = (x.expand(shape).reshape(-1) for x in (mu, v0, t))
    for i in range(0, len(todo), _CHUNK):
        chunk = todo[i : i + _CHUNK]
        depth[chunk] = _climb(mu[chunk], t[chunk], v0[chunk], depth[chunk], rule)
    return depth.reshape(shape)


def _climb(mu: Tensor, t: Tensor, v0: Tensor, depth: Tensor, rule: Rule) -> Tensor:
    """L <- L + (t - t(L)) exp(v^2/2) with Halley's correction, dropping the elements that have arrived."""
    answer = depth.clone()
    alive = torch.arange(len(depth), device=depth.device)
    for _ in range(_MOST_STEPS):
        time = torch.exp(-mu * mu / 2) * depth
        time += _excess(mu, v0, torch.exp(-depth), -torch.expm1(-depth), rule=rule)
        v = position(mu, v0, depth)
        step = (t - time) * torch.exp(v * v / 2)
        step /= (1 - step * v * (mu - v) / 2).clamp(min=0.5)  # t'' = -v (mu - v) t', known as well
        depth = (depth + step).clamp(min=0.0)
        answer[alive] = depth
        # Cubic: the next error is below the cube of this, so that there is no need to look at it.
        moving = step.abs() * (1 + mu * mu) > 1e-5
        if not bool(moving.any()):
            break
        alive, mu, t, v0, depth = (y[moving] for y in (alive, mu, t, v0, depth))
    return answer


def _time_outside(mu: Tensor, v0: Tensor, depth: Tensor) -> Tensor:
    """int_0^L exp(-v(l)^2/2) dl over a stretch on which |v| falls: from where the integrand matters at all."""
    end = position(mu, v0, depth)
    horizon = torch.sqrt(end * end + 90).minimum(v0.abs()) * torch.where(v0 < 0, -1.0, 1.0).to(v0)
    start = torch.log((mu - v0) / (mu - horizon)).clamp(min=0.0).minimum(depth)
    x, weight = _gauss_legendre(48, mu)
    v = position(mu, v0, start + (depth - start) * x)
    return (depth - start) * (weight @ torch.exp(-v * v / 2))


def _solve_outside(mu: Tensor, t: Tensor, v0: Tensor, pivot: Tensor) -> Tensor:
    """Newton on ln t(L), which is concave there (the integrand of t is log-concave in L): it climbs to the root."""
    gently = torch.minimum(t * torch.exp(v0 * v0 / 2 - 1), 1 / (v0 * (mu - v0)).abs())  # speed within a factor e
    depth = torch.maximum(t * torch.exp(pivot * pivot / 2), gently)
    for _ in range(_MOST_STEPS):
        time = _time_outside(mu, v0, depth)
        step = torch.log(t / time) * time * torch.exp(position(mu, v0, depth) ** 2 / 2)
        depth = (depth + step).clamp(min=0.0)
        if bool((step.abs() <= 1e-8 * depth).all()):
            break
    return depth
