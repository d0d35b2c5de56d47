"""The reversal curse: what a row of weights learns, how fast, and what it never learns (Zhu et al. 2024).

A row model predicts the next of M tokens from the row of weights of one token. SGD starts from zero and visits a row
with one and the same answer. Then all wrong answers have the same logit, and the row is described by one number, the
gap g between the logit of the answer and the others. After s visits at rate eta, gradient flow gives the row law

    e^g + (M - 1) g = M eta s + 1,      1 - p = (M - 1) / (e^g + M - 1),

that is g = C - W0(e^C / (M - 1)) with C = (M eta s + 1) / (M - 1). A row that is never visited keeps g = 0 and
p = 1/M: that is the reversal curse. After many visits 1 - p = (M - 1) / q with q = M eta s. The printed bound of
Theorem 3, 1 - p <= (M - 1) / (2 q^c), so needs c < 1: see `bound_power`.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, at_least_dims, integer, not_negative, positive, real, together
from joma.host.words import brief_repr
from joma.theory._guard import guarded

_MOST_VISITS = 10_000_000


@guarded
def row_gap(visits: Number, *, tokens: Number, rate: Number) -> Tensor:
    """The gap g of a row after `visits`: the root of e^g + (M - 1) g = M rate visits + 1.

    visits >= 0, tokens M >= 2 and rate > 0 broadcast; their common shape comes back. Computed in float64 by Newton's
    method, which is monotone here, so it always converges; nothing overflows. Differentiable, also twice.

    >>> row_gap([0, 10, 100], tokens=100, rate=0.5)
    tensor([0.0000, 4.3092, 8.3370], dtype=torch.float64)
    """
    gap, _, dtype = _gap_and_others(visits, tokens, rate)
    return gap.to(dtype)


@guarded
def sgd_gap(visits: Number, *, tokens: Number, rate: Number) -> Tensor:
    """The gap under SGD with finite steps: `row_gap` with its correction of first order in the rate.

    Euler's method follows a changed flow more closely than its own. Integrated, that flow gives

        e^g + (M - 1) g = M rate (s + ln((e^g + M - 1) / M) / 2) + 1,

    as if there were some more visits. For rates up to 1 and 100 tokens or more it is within 0.013 of `row_recursion`,
    where `row_gap` is within 0.2. rate <= 1. Shapes and derivatives as there.

    >>> sgd_gap([0, 10, 100], tokens=100, rate=0.5)
    tensor([0.0000, 4.3923, 8.3589], dtype=torch.float64)
    """
    speed = positive(rate, "rate")
    if (speed > 1).any():
        raise ValueError(f"rate must be at most 1, for more there is no such law, got {speed.max().item():g}")
    gap, _, dtype = _gap_and_others(visits, tokens, speed, finite=True)
    return gap.to(dtype)


@guarded
def row_loss(visits: Number, *, tokens: Number, rate: Number) -> Tensor:
    """-ln p of the answer after `visits`: ln(1 + (M - 1) e^-g), exact also where p rounds to 1. Shapes as `row_gap`.

    >>> row_loss([0, 10, 100], tokens=100, rate=0.5)
    tensor([4.6052, 0.8463, 0.0234], dtype=torch.float64)
    """
    gap, others, dtype = _gap_and_others(visits, tokens, rate)
    return torch.nn.functional.softplus(others - gap, threshold=1e9).to(dtype)


@guarded
def row_probability(visits: Number, *, tokens: Number, rate: Number) -> Tensor:
    """p of the answer after `visits`: 1 - p = (M - 1) / (e^g + M - 1). Shapes as `row_gap`.

    >>> row_probability([0, 10, 100], tokens=100, rate=0.5)
    tensor([0.0100, 0.4290, 0.9768], dtype=torch.float64)
    """
    gap, others, dtype = _gap_and_others(visits, tokens, rate)
    return torch.sigmoid(gap - others).to(dtype)


@guarded
def row_recursion(visits: int, *, tokens: Number, rate: Number) -> Tensor:
    """The gap under SGD itself, visit by visit: g <- g + M rate / (e^g + M - 1). Shape (..., visits + 1), from g = 0.

    It lies above `row_gap`, because gradient flow slows down within a step. With 100 tokens or more it is by at most
    0.2 rate, so by less than 0.04 for rates up to 0.2. `sgd_gap` describes larger rates.

    >>> row_recursion(2, tokens=100, rate=0.5)
    tensor([0.0000, 0.5000, 0.9968], dtype=torch.float64)
    """
    steps = integer(visits, "visits", 0)
    if steps > _MOST_VISITS:
        raise ValueError(f"visits are gone through one by one, at most {_MOST_VISITS:,}; row_gap and sgd_gap take any "
                         f"number, got {steps:,}")  # fmt: skip
    count, speed = together(tokens=_tokens(tokens), rate=positive(rate, "rate"))
    others, push = torch.log(count.double() - 1), torch.log(count.double()) + torch.log(speed.double())
    gaps = [torch.zeros_like(others)]
    for _ in range(steps):
        gaps.append(gaps[-1] + torch.exp(push - torch.logaddexp(gaps[-1], others)))
    return torch.stack(gaps, -1).to(count.dtype)


@guarded
def train_bound(visits: Number, *, tokens: Number, rate: Number, power: Number = 1.0) -> Tensor:
    """The printed lower bound on p of Theorem 3: 1 - (M - 1) / (2 q^c), q = M rate visits, c = power.

    visits = t / N, the steps per training sequence. The theorem says "for some constant c". With c = 1 the bound is too
    high by a factor of 2 in 1 - p after many visits. It holds with c up to `bound_power`. -inf at no visit.

    >>> train_bound([10, 100], tokens=100, rate=0.5), train_bound([10, 100], tokens=100, rate=0.5, power=0.72)
    (tensor([0.9010, 0.9901], dtype=torch.float64), tensor([0.4359, 0.8925], dtype=torch.float64))
    """
    dtype, s, m, eta, c = _row(visits, tokens, rate, power=positive(power, "power"))
    log_q = torch.log(m) + torch.log(eta) + torch.log(s)
    return -torch.expm1(torch.log(m - 1) - math.log(2) - c * log_q).to(dtype)


@guarded
def bound_power(visits: Number, *, tokens: Number, rate: Number) -> Tensor:
    """The largest c with which the printed bound holds at these visits: ln((e^g + M - 1)/2) / ln q, q = M rate visits.

    From the row law alone, in closed form. It needs q > 1. From rate * visits = ln M on, where the theorem begins, it
    rises towards 1, so its value there is the constant that holds for all later times. It depends on M only:

    >>> bound_power([4.605, 100, 1e6], tokens=100, rate=1.0)
    tensor([0.7121, 0.9157, 0.9624], dtype=torch.float64)
    """
    dtype, s, m, eta = _row(visits, tokens, rate)
    log_q = torch.log(m) + torch.log(eta) + torch.log(s)
    if (log_q <= 0).any():
        raise ValueError("visits must make q = tokens * rate * visits larger than 1: else there is no largest power")
    gap, others, _ = _gap_and_others(s, m, eta)
    return ((torch.logaddexp(gap, others) - math.log(2)) / log_q).to(dtype)


@brief_repr
class Losses(NamedTuple):
    """Mean over facts, each (...): forward is -ln p(B|A), reverse is -ln p(A|B)."""

    forward: Tensor
    reverse: Tensor


@guarded
def bilinear_losses(theta: Number, embeddings: Number, facts: Number) -> Losses:
    """Both losses of the bilinear model of Theorem 1: the logits of the token w after the token u are u^T theta w.

    theta: (..., width, width). embeddings: (tokens, width), one row per token. facts: (n, 2) whole numbers, the tokens
    (A, B) of each fact. Differentiable. With orthonormal embeddings, training A -> B from theta = 0 moves theta only
    along A w^T. B^T theta stays exactly zero where no B is an A, so the reverse loss keeps ln M at all times: the bound
    of Theorem 1 holds with eps = 0, and the forward loss is `row_loss`. With Gaussian embeddings B^T A is of size
    1/sqrt(width), and the smallest eps is of size 1/width: see `smallest_power`.

    >>> bilinear_losses(torch.zeros(4, 4), torch.eye(4), [[0, 1], [2, 3]])
    Losses(forward=1.386, reverse=1.386)
    >>> bilinear_losses([[0.0, 3.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[0, 1]])
    Losses(forward=0.04859, reverse=0.6931)
    """
    weights = at_least_dims(real(theta, "theta"), "theta", 2, "(..., width, width)")
    table, pairs = real(embeddings, "embeddings"), real(facts, "facts")
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(f"embeddings must have shape (tokens, width), got {tuple(table.shape)}")
    tokens, width = table.shape
    if weights.shape[-2:] != (width, width):
        raise ValueError(f"theta must have shape (..., {width}, {width}), as embeddings, got {tuple(weights.shape)}")
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
        raise ValueError(f"facts must have shape (n, 2), at least one pair of tokens, got {tuple(pairs.shape)}")
    if ((pairs != pairs.round()) | (pairs < 0) | (pairs >= tokens)).any():
        got = f"{pairs.min().item():g} to {pairs.max().item():g}"
        raise ValueError(f"facts must hold tokens from 0 to {tokens - 1}, the rows of embeddings, got {got}")
    if (pairs[:, 0] == pairs[:, 1]).any():
        raise ValueError("facts must be of two different tokens, got one whose sides are equal")
    dtype = torch.promote_types(weights.dtype, table.dtype)
    weights, table = weights.to(dtype), table.to(dtype=dtype, device=weights.device)
    first, second = pairs.long().unbind(-1)
    losses = []
    for start, end in ((first, second), (second, first)):
        places = end.to(weights.device)[:, None].expand(*weights.shape[:-2], len(end), 1)
        losses.append(-torch.log_softmax(table[start] @ weights @ table.mT, -1).gather(-1, places).mean((-2, -1)))
    return Losses(*losses)


@guarded
def smallest_power(forward: Number, reverse: Number) -> Tensor:
    """The smallest eps >= 0 with which reverse(t)/reverse(0) >= (forward(t)/forward(0))^eps at all steps (Theorem 1).

    forward, reverse: (..., steps) positive losses over training, the start first. Steps at which the forward loss is
    not below its start are left out. 0: the reverse is never learned. 1: it is learned as fast as the forward facts.

    >>> smallest_power([4.0, 1.0, 0.25], [4.0, 4.0, 2.0])
    tensor(0.2500, dtype=torch.float64)
    """
    losses = {"forward": positive(forward, "forward"), "reverse": positive(reverse, "reverse")}
    for name, loss in losses.items():
        if at_least_dims(loss, name, 1, "(..., steps)").shape[-1] < 2:
            raise ValueError(f"{name} must hold a start and at least one later step, got {loss.shape[-1]} steps")
    first, second = (torch.log(loss) for loss in together(**losses))
    learned, reversed_ = (loss[..., 1:] - loss[..., :1] for loss in (first, second))
    falls = learned < 0
    ratio = torch.where(falls, reversed_ / torch.where(falls, learned, -1.0), 0.0)
    return ratio.amax(-1).clamp(min=0.0) + 0.0  # which makes 0 of -0


def _gap_and_others(
    visits: Number, tokens: Number, rate: Number, *, finite: bool = False
) -> tuple[Tensor, Tensor, torch.dtype]:
    """g and ln(M - 1) in float64, and the type of the arguments."""
    dtype, s, m, eta = _row(visits, tokens, rate)
    zero = s == 0
    gap = _solve(torch.log(m), torch.log(eta), torch.log(torch.where(zero, 1e-300, s)), finite=finite)
    # Without a visit only derivatives are left to give: of a g + b g^2 = M eta s, which the law is to second order.
    a, b = (m - eta / 2, 0.5 - eta / 4 * (1 - 1 / m)) if finite else (m, 0.5)
    first = m * eta * s / a
    return torch.where(zero, first - b * first.square() / a, gap), torch.log(m - 1), dtype


def _row(visits: Number, tokens: Number, rate: Number, **more: Tensor) -> tuple[Any, ...]:
    """The type of the arguments, then these in float64."""
    given = {"visits": not_negative(visits, "visits"), "tokens": _tokens(tokens), "rate": positive(rate, "rate")}
    checked = together(**given, **more)
    return checked[0].dtype, *(each.double() for each in checked)


def _tokens(tokens: Number) -> Tensor:
    tensor = real(tokens, "tokens")
    if (tensor < 2).any():
        raise ValueError(f"tokens must be at least 2, the answer and another one, got {tensor.min().item():g}")
    return tensor


def _solve(log_m: Tensor, log_rate: Tensor, log_visits: Tensor, *, finite: bool = False) -> Tensor:
    """The root g of (e^g - 1) + (M - 1) g = x = M rate visits; float64, differentiable (twice) in all three.

    Divided by e^k = 1 + x, nothing overflows. The left side is increasing and convex in g. Both ln(1 + x) and x / M are
    upper bounds of the root: e^g - 1 <= x, and M g <= e^g - 1 + (M - 1) g = x. From the smaller of them, the left side
    is at least x, so Newton's steps go down monotonically to the root and never past it.

    With finite steps, (M rate / 2) ln((e^g + M - 1) / M) is subtracted on the left. For rates up to 1 it stays
    increasing and convex: its second derivative is e^g (1 - (M rate / 2) (M - 1) / (e^g + M - 1)^2) > 0. So one step of
    Newton's leads to the right of the root, and the next ones go down monotonically.
    """
    log_x = log_m + log_rate + log_visits
    k = torch.logaddexp(log_x, torch.zeros_like(log_x))
    others = log_m + torch.log1p(-torch.exp(-log_m))  # ln(M - 1)
    weight, right, half = torch.exp(others - k), torch.exp(log_x - k), torch.exp(log_m + log_rate - k) / 2

    def newton(gap: Tensor, finite: bool) -> Tensor:
        """By how much the gap is too large."""
        near = gap < 1  # there (e^g - 1) / e^k is exact to the last digit as expm1
        small = torch.expm1(torch.where(near, gap, 0.0)) * torch.exp(-k)
        grown = torch.where(near, small, torch.exp(torch.where(near, 1.0, gap) - k) - torch.exp(-k))
        off = grown + weight * gap - right
        slope = torch.exp(gap - k) + weight
        if finite:
            off = off - half * (torch.logaddexp(gap, others) - log_m)
            slope = slope - half * torch.sigmoid(gap - others)
        return off / slope

    with torch.no_grad():
        gap = torch.minimum(k, torch.exp((log_rate + log_visits).clamp(max=700.0)))
        for of_steps in (False, True)[: 1 + finite]:
            for _ in range(100):  # more than ever needed: about ten are
                step = newton(gap, of_steps)
                gap = gap - step
                if bool((step.abs() <= 1e-14 * gap).all()):
                    break
    if torch.is_grad_enabled():
        for _ in range(2):  # each step with the graph doubles the order of derivatives that are right
            gap = gap - newton(gap, finite)
    return gap
