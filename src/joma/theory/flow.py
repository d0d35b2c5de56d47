"""The gradient flow of one block (eq. 1, 2), and a solver tight enough to judge closed forms by.

    h_k = phi(w_k . f),   f = U_C b + u_q,   b = sigma(z_q) o x / A                                   (eq. 1)
    W' = eta_w E[f (g o h')^T],   z_m' = eta_z E[(db/dz)^T U_C^T W (g o h') | q = m]                  (eq. 2)

This is gradient ascent on E[sum_k g_k h_k] with the back-propagated gradient g held fixed inside the derivative
(eq. 9). `joma.models.block` is the same block as a module that SGD trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from joma.theory._arguments import Number, real, times
from joma.theory.attention import Attention, value_and_derivative

Activation = Callable[[Tensor], Tensor]
Backprop = Callable[[Tensor, float], Tensor]
"""(h, time) -> g, both (..., samples, nodes)."""
Method = Literal["DOP853", "Radau", "LSODA"]


def identity(x: Tensor) -> Tensor:
    """phi(x) = x, the linear MLP.

    >>> identity(torch.tensor([-1.0, 2.0]))
    tensor([-1.,  2.])
    """
    return x


def constant_gradient(g: Tensor) -> Backprop:
    """Assumption 1 to the letter: g never changes. g: (samples, nodes).

    >>> constant_gradient(torch.tensor([[1.0, -1.0]]))(torch.zeros(1, 2), 0.5)
    tensor([[ 1., -1.]])
    """
    return lambda h, time: g


def cross_entropy_gradient(label: Tensor) -> Backprop:
    """g = onehot(label) - softmax(h): a softmax loss directly on the hidden nodes. label: (samples,).

    >>> cross_entropy_gradient(torch.tensor([1]))(torch.zeros(1, 2), 0.0)
    tensor([[-0.5000,  0.5000]])
    """

    def gradient(h: Tensor, time: float) -> Tensor:
        target = torch.nn.functional.one_hot(label, h.shape[-1]).to(h)
        return target - h.softmax(-1)

    return gradient


class State(NamedTuple):
    """The two halves of the block, or of its velocity: w (..., width, nodes) and z (..., queries, tokens).

    >>> state = State(w=torch.zeros(3, 2), z=torch.zeros(1, 2))  # width 3, 2 nodes, 1 query, 2 tokens
    >>> state.w.shape, state.z.shape
    (torch.Size([3, 2]), torch.Size([1, 2]))
    """

    w: Tensor
    z: Tensor


@dataclass(frozen=True)
class Block:
    """One Transformer block with its data: everything that eq. 1 and 2 need except the weights.

    x (..., samples, tokens) token frequencies; query (samples,) which query each sample ends in;
    tokens U_C (width, tokens) and queries u_m (width, queries), the embeddings as columns.
    `per_query` averages z_m' over the samples of query m, as eq. 2 is written; otherwise it is the gradient of the
    one mixed loss, p_m times that. Rates are eta_w and eta_z.

    >>> u = torch.eye(3, dtype=torch.float64)
    >>> x, query = torch.tensor([[0.25, 0.75]], dtype=torch.float64), torch.tensor([0])
    >>> block = Block(x, query, u[:, :2], u[:, 2:], constant_gradient(torch.ones(1, 1, dtype=torch.float64)))
    >>> end = block.solve(torch.zeros(3, 1).double(), torch.zeros(1, 2).double(), [1.0])
    >>> torch.allclose(end.z, block.project(end.w).mT ** 2 / 2)  # Theorem 1
    True
    """

    x: Tensor
    query: Tensor
    tokens: Tensor
    queries: Tensor
    backprop: Backprop
    attention: Attention = Attention("exp")  # noqa: RUF009 - frozen
    activation: Activation = identity
    residual: bool = True
    rate_w: float = 1.0
    rate_z: float = 1.0
    per_query: bool = False

    def __post_init__(self) -> None:
        if self.x.ndim < 2 or 0 in self.x.shape or not self.x.is_floating_point():
            raise ValueError(
                f"x must be floating and have shape (..., samples, tokens), got {self.x.dtype} {tuple(self.x.shape)}"
            )
        real(self.x, "x")
        if self.attention.kind == "softmax" and not ((self.x >= 0).all() and (self.x.sum(-1) > 0).all()):
            raise ValueError("x must hold frequencies under softmax attention: none negative, no sample empty")
        samples, tokens = self.x.shape[-2:]
        if self.query.shape != (samples,):
            raise ValueError(f"query must have shape ({samples},), one a sample of x, got {tuple(self.query.shape)}")
        if self.tokens.ndim != 2 or self.tokens.shape[1] != tokens:
            raise ValueError(f"tokens must have shape (width, {tokens}), got {tuple(self.tokens.shape)}")
        if self.queries.ndim != 2 or self.queries.shape[0] != self.tokens.shape[0]:
            raise ValueError(
                f"queries must have shape ({self.tokens.shape[0]}, queries), got {tuple(self.queries.shape)}"
            )
        low, high = int(self.query.min()), int(self.query.max())
        if low < 0 or high >= self.queries.shape[1]:
            raise ValueError(f"query must index one of {self.queries.shape[1]} queries, got {low} to {high}")
        for name in ("rate_w", "rate_z"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)!r}")

    @property
    def kappa(self) -> float:
        """eta_z / eta_w, the factor that Theorem 1 needs and does not print."""
        if self.rate_w == 0:
            raise ValueError("kappa = rate_z / rate_w needs a positive rate_w, got 0")
        return self.rate_z / self.rate_w

    def attend(self, z: Tensor) -> Tensor:
        """b of every sample, (..., samples, tokens)."""
        return self.attention.weights(z[..., self.query, :], self.x)

    def hidden(self, w: Tensor, z: Tensor) -> Tensor:
        """h of every sample, (..., samples, nodes)."""
        return self.activation(self._features(self.attend(z)) @ w)

    def project(self, w: Tensor) -> Tensor:
        """V = U_C^T W, (..., tokens, nodes)."""
        return self.tokens.mT @ w

    def velocity(self, w: Tensor, z: Tensor, time: float = 0.0) -> State:
        """The right-hand side of eq. 2 for w (..., width, nodes) and z (..., queries, tokens)."""
        logits = z[..., self.query, :]
        b = self.attention.weights(logits, self.x)
        f = self._features(b)
        before = f @ w
        h, slope = value_and_derivative(self.activation, before)
        g = self.backprop(h, time)
        if g.shape[-2:] != h.shape[-2:]:  # a broadcast g would be another block, silently
            raise ValueError(f"backprop must return (samples, nodes) = {tuple(h.shape[-2:])}, got {tuple(g.shape)}")
        push = g * slope  # g o h'
        upstream = push @ (w.mT @ self.tokens)  # U_C^T W (g o h'), (..., samples, tokens)
        pulled = self.attention.pull_back(logits, self.x, b, upstream)
        return State(self.rate_w * (f.mT @ push) / push.shape[-2], self.rate_z * (self._mean_by_query @ pulled))

    def solve(self, w0: Tensor, z0: Tensor, t: Number, *, rtol: float = 1e-12, atol: float = 1e-13) -> State:
        """W(t) and z(t) along the flow: (steps, *w0.shape) and (steps, *z0.shape), from w0, z0 at t = 0.

        w0 (..., width, nodes) and z0 (..., queries, tokens) may carry the same leading dimensions: blocks that share
        x and flow side by side, in one call. A kink of the activation costs the adaptive solver many small steps.
        """
        if w0.ndim < 2 or w0.shape[-2] != self.tokens.shape[0]:
            raise ValueError(f"w0 must have shape (..., {self.tokens.shape[0]}, nodes), got {tuple(w0.shape)}")
        wanted = (*w0.shape[:-2], self.queries.shape[1], self.tokens.shape[1])
        if tuple(z0.shape) != wanted:
            raise ValueError(f"z0 must have shape {wanted}, got {tuple(z0.shape)}")
        if any(given.dtype != torch.float64 for given in (self.x, self.tokens, self.queries)):
            raise ValueError("a flow is followed in float64: x, tokens and queries must be float64")
        return State(
            *integrate_together(lambda time, w, z: self.velocity(w, z, time), (w0, z0), t, rtol=rtol, atol=atol)
        )

    def _features(self, b: Tensor) -> Tensor:
        f = b @ self.tokens.mT
        return f + self._residual_stream if self.residual else f

    @cached_property
    def _residual_stream(self) -> Tensor:
        return self.queries.mT[self.query]  # (samples, width)

    @cached_property
    def _mean_by_query(self) -> Tensor:
        """Row m averages over the samples of query m (`per_query`) or over all samples with those of m marked."""
        member = torch.nn.functional.one_hot(self.query, self.queries.shape[1]).mT.to(self.x)
        count = member.sum(1, keepdim=True).clamp(min=1) if self.per_query else member.shape[1]
        return member / count


def integrate(
    field: Callable[[float, Tensor], Tensor],
    y0: Tensor,
    t: Number,
    *,
    rtol: float = 1e-12,
    atol: float = 1e-13,
    method: Method = "DOP853",
    max_evaluations: int = 200_000,
) -> Tensor:
    """y(t) of y' = field(time, y), y(0) = y0, in float64 by an adaptive solver: the reference that closed forms meet.

    y0: any shape; t: (steps,), increasing. Returns (steps, *y0.shape) on y0's device. Use "Radau" where the flow is
    stiff. A flow that blows up before the last time, or that needs more than `max_evaluations` of the field,
    raises ValueError: the usual causes of the latter are a field that jumps, and one that is computed in float32.

    >>> integrate(lambda time, y: -y, torch.tensor([1.0]), [0.0, 1.0])
    tensor([[1.0000],
            [0.3679]], dtype=torch.float64)
    """
    from scipy.integrate import solve_ivp

    at = times(t).double()
    if at.numel() == 0 or (at.diff() <= 0).any():
        raise ValueError("t must hold at least one time, in increasing order")
    start = real(y0, "y0").double().detach()
    end = float(at[-1])
    calls = 0

    def slope(time: float, y: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > max_evaluations:
            raise ValueError(
                f"the flow took {max_evaluations} evaluations to get to t = {time:g} of {end:g}: "
                "the field is not smooth enough"
            )
        moving = field(time, torch.from_numpy(y).to(start.device).view(start.shape))
        return moving.detach().reshape(-1).cpu().numpy()

    with _few_threads(start.numel()):
        solution = solve_ivp(
            slope,
            (0.0, max(end, 1e-300)),
            start.reshape(-1).cpu().numpy(),
            method=method,
            t_eval=at.cpu().numpy(),
            rtol=rtol,
            atol=atol,
        )
    if not solution.success:
        raise ValueError(f"the flow could not be followed to t = {end:g}: {solution.message}")
    return torch.from_numpy(solution.y.T.copy()).to(start.device).view(-1, *start.shape)


def integrate_together(
    field: Callable[..., Sequence[Tensor]],
    start: Sequence[Tensor],
    t: Number,
    *,
    rtol: float = 1e-12,
    atol: float = 1e-13,
) -> tuple[Tensor, ...]:
    """Several tensors of different shapes that flow as one: field(time, *parts) returns the velocity of each part.

    Returns the paths of the parts, each (steps, *its own shape); see `integrate`.

    >>> east, north = integrate_together(lambda time, x, y: (-y, x), (torch.ones(1), torch.zeros(1)), [torch.pi / 2])
    >>> north
    tensor([[1.0000]], dtype=torch.float64)
    """
    sizes = [part.numel() for part in start]

    def parts(y: Tensor) -> tuple[Tensor, ...]:
        pieces = torch.split_with_sizes(y, sizes, -1)
        return tuple(p.view(*y.shape[:-1], *like.shape) for p, like in zip(pieces, start, strict=True))

    def flat(time: float, y: Tensor) -> Tensor:
        return torch.cat([velocity.reshape(-1) for velocity in field(time, *parts(y))])

    return parts(integrate(flat, torch.cat([part.reshape(-1) for part in start]), t, rtol=rtol, atol=atol))


@contextmanager
def _few_threads(size: int) -> Iterator[None]:
    """One thread while a small field is evaluated thousands of times: waking others costs more than they do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if size < 10_000 else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
