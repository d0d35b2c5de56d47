"""The gradient flow of one block (eq. 1, 2), and a solver tight enough to judge closed forms by.

    h_k = phi(w_k . f),   f = U_C b + u_q,   b = sigma(z_q) o x / A                                   (eq. 1)
    W' = eta_w E[f (g o h')^T],   z_m' = eta_z E[(db/dz)^T U_C^T W (g o h') | q = m]                  (eq. 2)

This is gradient ascent on E[sum_k g_k h_k] with the back-propagated gradient g held fixed inside the derivative
(eq. 9). `joma.models.block` is the same block as a module that SGD trains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from joma.theory._arguments import Number, real, times
from joma.theory.attention import Attention, derivative

Activation = Callable[[Tensor], Tensor]
Backprop = Callable[[Tensor, float], Tensor]
"""(h, time) -> g, both (..., samples, nodes)."""
Method = Literal["DOP853", "Radau", "LSODA"]


def identity(x: Tensor) -> Tensor:
    """phi(x) = x, the linear MLP."""
    return x


def constant_gradient(g: Tensor) -> Backprop:
    """Assumption 1 to the letter: g never changes. g: (samples, nodes)."""
    return lambda h, time: g


def cross_entropy_gradient(label: Tensor) -> Backprop:
    """g = onehot(label) - softmax(h): a softmax loss directly on the hidden nodes. label: (samples,)."""

    def gradient(h: Tensor, time: float) -> Tensor:
        target = torch.nn.functional.one_hot(label, h.shape[-1]).to(h)
        return target - h.softmax(-1)

    return gradient


class State(NamedTuple):
    """The two halves of the block, or of its velocity: w (..., width, nodes) and z (..., queries, tokens)."""

    w: Tensor
    z: Tensor


@dataclass(frozen=True)
class Block:
    """One Transformer block with its data: everything that eq. 1 and 2 need except the weights.

    x (..., samples, tokens) token frequencies; query (samples,) which query each sample ends in;
    tokens U_C (width, tokens) and queries u_m (width, queries), the embeddings as columns.
    `per_query` averages z_m' over the samples of query m, as eq. 2 is written; otherwise it is the gradient of the
    one mixed loss, p_m times that. Rates are eta_w and eta_z.
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
        samples, tokens = self.x.shape[-2:]
        if self.query.shape != (samples,):
            raise ValueError(f"query must have shape ({samples},), one a sample of x, got {tuple(self.query.shape)}")
        if self.tokens.ndim != 2 or self.tokens.shape[1] != tokens:
            raise ValueError(f"tokens must have shape (width, {tokens}), got {tuple(self.tokens.shape)}")
        if self.queries.ndim != 2 or self.queries.shape[0] != self.tokens.shape[0]:
            raise ValueError(
                f"queries must have shape ({self.tokens.shape[0]}, queries), got {tuple(self.queries.shape)}"
            )
        if int(self.query.min()) < 0 or int(self.query.max()) >= self.queries.shape[1]:
            raise ValueError(
                f"query must index one of {self.queries.shape[1]} queries, got up to {int(self.query.max())}"
            )
        for name in ("rate_w", "rate_z"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)!r}")

    @property
    def kappa(self) -> float:
        """eta_z / eta_w, the factor that Theorem 1 needs and does not print."""
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
        b = self.attend(z)
        f = self._features(b)
        before = f @ w
        h = self.activation(before)
        push = self.backprop(h, time) * derivative(self.activation, before)  # g o h'
        upstream = push @ (w.mT @ self.tokens)  # U_C^T W (g o h'), (..., samples, tokens)
        pulled = self.attention.pull_back(z[..., self.query, :], self.x, b, upstream)
        mean = self._membership(pulled)  # (queries, samples)
        return State(self.rate_w * (f.mT @ push) / push.shape[-2], self.rate_z * (mean @ pulled))

    def solve(self, w0: Tensor, z0: Tensor, t: Number, *, rtol: float = 1e-12, atol: float = 1e-13) -> State:
        """W(t) and z(t) along the flow: (steps, width, nodes) and (steps, queries, tokens), from w0, z0 at t = 0."""
        split = w0.numel()

        def field(time: float, y: Tensor) -> Tensor:
            w, z = y[:split].view_as(w0), y[split:].view_as(z0)
            dw, dz = self.velocity(w, z, time)
            return torch.cat([dw.flatten(), dz.flatten()])

        path = integrate(field, torch.cat([w0.flatten(), z0.flatten()]), t, rtol=rtol, atol=atol)
        return State(path[:, :split].view(-1, *w0.shape), path[:, split:].view(-1, *z0.shape))

    def _features(self, b: Tensor) -> Tensor:
        f = b @ self.tokens.mT
        return f + self.queries.mT[self.query] if self.residual else f

    def _membership(self, like: Tensor) -> Tensor:
        """Row m averages over the samples of query m (`per_query`) or over all samples with those of m marked."""
        member = torch.nn.functional.one_hot(self.query, self.queries.shape[1]).mT.to(like)
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
) -> Tensor:
    """y(t) of y' = field(time, y), y(0) = y0, in float64 by an adaptive solver: the reference that closed forms meet.

    y0: any shape; t: (steps,), increasing. Returns (steps, *y0.shape). Use "Radau" where the flow is stiff.

    >>> integrate(lambda time, y: -y, torch.tensor([1.0]), [0.0, 1.0])
    tensor([[1.0000],
            [0.3679]], dtype=torch.float64)
    """
    from scipy.integrate import solve_ivp

    at = times(t).double()
    if at.numel() == 0 or (at.diff() < 0).any():
        raise ValueError("t must hold at least one time, in increasing order")
    start = real(y0, "y0").double()
    solution = solve_ivp(
        lambda time, y: field(time, torch.from_numpy(y).view(start.shape)).reshape(-1).numpy(),
        (0.0, max(float(at[-1]), 1e-300)),
        start.reshape(-1).numpy(),
        method=method,
        t_eval=at.numpy(),
        rtol=rtol,
        atol=atol,
    )
    if not solution.success:
        raise ValueError(f"the flow could not be followed to t = {float(at[-1]):g}: {solution.message}")
    return torch.from_numpy(solution.y.T.copy()).view(-1, *start.shape)
