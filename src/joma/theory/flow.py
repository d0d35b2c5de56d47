"""The gradient flow of one block (eq. 1, 2), and a solver tight enough to judge closed forms by.

    h_k = phi(w_k . f),   f = U_C b + u_q,   b = sigma(z_q) o x / A                                   (eq. 1)
    W' = eta_w E[f (g o h')^T],   z_m' = eta_z E[(db/dz)^T U_C^T W (g o h') | q = m]                  (eq. 2)

This is gradient ascent on E[sum_k g_k h_k] with the back-propagated gradient g held fixed inside the derivative
(eq. 9). `joma.models.block` is the same block as a module that SGD trains.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.host.arguments import (
    Number,
    as_numbers,
    as_tensor,
    at_least_dims,
    common_shape,
    dense,
    described,
    floating,
    integer,
    must_be_callable,
    number,
    real,
    shown,
    times,
)
from joma.host.words import brief_repr
from joma.theory._dormand_prince import Field, Tolerance, TooStiff, solve
from joma.theory.attention import Attention, value_and_derivative

Activation = Callable[[Tensor], Tensor]
Backprop = Callable[[Tensor, float], Tensor]
"""(h, time) -> g, both (..., samples, nodes)."""
Method = Literal["DOP853", "Radau", "LSODA"]
"""DOP853 is built in, the others are scipy's."""
_FINEST = 1e-14  # the least rtol: float64 cannot tell smaller errors from its own rounding


def identity(x: Number) -> Tensor:
    """phi(x) = x, the linear MLP.

    >>> identity(torch.tensor([-1.0, 2.0]))
    tensor([-1.,  2.])
    """
    return as_numbers(x, "x")


def constant_gradient(g: Number) -> Backprop:
    """Assumption 1 to the letter: g never changes. g: (samples, nodes).

    >>> constant_gradient(torch.tensor([[1.0, -1.0]]))(torch.zeros(1, 2), 0.5)
    tensor([[ 1., -1.]])
    """
    fixed = at_least_dims(floating(g, "g"), "g", 2, "(samples, nodes)")
    return lambda h, time: fixed


def cross_entropy_gradient(label: Number) -> Backprop:
    """g = onehot(label) - softmax(h): a softmax loss directly on the hidden nodes. label: (samples,).

    >>> cross_entropy_gradient(torch.tensor([1]))(torch.zeros(1, 2), 0.0)
    tensor([[-0.5000,  0.5000]])
    """
    classes = as_tensor(label, "label")
    if not _holds_indices(classes) or classes.ndim != 1:
        raise ValueError(f"label must hold one class per sample, (samples,) whole numbers, got {described(classes)}")
    low, high = int(classes.min()), int(classes.max())

    def gradient(h: Tensor, time: float) -> Tensor:
        if low < 0 or high >= h.shape[-1]:
            raise ValueError(f"label must be one of the {h.shape[-1]} nodes, got {low} to {high}")
        return torch.nn.functional.one_hot(classes, h.shape[-1]).to(h) - h.softmax(-1)

    return gradient


@brief_repr
class State(NamedTuple):
    """The two halves of the block, or of its velocity: w (..., width, nodes) and z (..., queries, tokens).

    >>> State(w=torch.zeros(3, 2), z=torch.zeros(1, 2))  # width 3, 2 nodes, 1 query, 2 tokens
    State(w=float32[3, 2], z=float32[1, 2])
    """

    w: Tensor
    z: Tensor


@brief_repr
@dataclass(frozen=True)
class Block:
    """One Transformer block with its data: everything that eq. 1 and 2 need except the weights.

    x (..., samples, tokens) token frequencies; query (samples,) which query each sample ends in;
    tokens U_C (width, tokens) and queries u_m (width, queries), the embeddings as columns.
    `backprop` gives g of h and the time (see `constant_gradient`). `attention` and `activation` are sigma and phi of
    eq. 1; `residual` says whether u_q is added. `rate_w` and `rate_z` are eta_w and eta_z. `per_query` averages z_m'
    over the samples of query m, as eq. 2 is written; otherwise z_m' is the gradient of the mixed loss, p_m times that.

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
        for name, take in (("x", as_numbers), ("query", as_tensor), ("tokens", as_numbers), ("queries", as_numbers)):
            object.__setattr__(self, name, take(getattr(self, name), name))
        for name in ("backprop", "activation"):
            must_be_callable(getattr(self, name), name)
        if not isinstance(self.attention, Attention):
            raise ValueError(f"attention must be an Attention, as Attention('exp'), got {shown(self.attention)}")
        for name in ("rate_w", "rate_z"):
            number(getattr(self, name), name, least=0)
        x = dense(self.x, "x")
        if x.ndim < 2 or 0 in x.shape or x.dtype not in (torch.float32, torch.float64):
            wanted = "float64, or float32 for velocities alone, and have shape (..., samples, tokens)"
            raise ValueError(f"x must be {wanted}, got {described(x)}")
        real(x, "x")
        if self.attention.kind == "softmax" and not ((x >= 0).all() and (x.sum(-1) > 0).all()):
            raise ValueError("x must hold frequencies under softmax attention: none negative, no sample empty")
        if not _holds_indices(self.query) or self.query.shape != x.shape[-2:-1]:
            wanted = f"({x.shape[-2]},), a whole number for each sample of x"
            raise ValueError(f"query must have shape {wanted}, got {described(self.query)}")
        tokens, queries = real(self.tokens, "tokens"), real(self.queries, "queries")
        if tokens.ndim != 2 or tokens.shape[1] != self.x.shape[-1]:
            raise ValueError(f"tokens must have shape (width, {self.x.shape[-1]}) like x, got {tuple(tokens.shape)}")
        width = tokens.shape[0]
        if queries.ndim != 2 or queries.shape[0] != width:
            raise ValueError(f"queries must have shape ({width}, queries) like tokens, got {tuple(queries.shape)}")
        self._check_type(tokens=self.tokens, queries=self.queries)
        low, high = int(self.query.min()), int(self.query.max())
        if low < 0 or high >= queries.shape[1]:
            raise ValueError(f"query must index one of {queries.shape[1]} queries, got {low} to {high}")

    def _check_type(self, **given: Tensor) -> None:
        for name, tensor in given.items():
            if tensor.dtype != self.x.dtype or tensor.device != self.x.device:
                wanted, got = (f"{each.dtype} on {each.device}" for each in (self.x, tensor))
                raise ValueError(f"{name} must be like x, {wanted}, got {got}")

    @property
    def kappa(self) -> float:
        """eta_z / eta_w, the factor that Theorem 1 needs and does not print."""
        if self.rate_w == 0:
            raise ValueError("kappa = rate_z / rate_w needs a positive rate_w, got 0")
        return self.rate_z / self.rate_w

    def attend(self, z: Number) -> Tensor:
        """b of every sample, (..., samples, tokens)."""
        return self._attend(*self._checked(z=z))

    def hidden(self, w: Number, z: Number) -> Tensor:
        """h of every sample, (..., samples, nodes)."""
        w, z = self._checked(w=w, z=z)
        return self.activation(self._features(self._attend(z)) @ w)

    def project(self, w: Number) -> Tensor:
        """V = U_C^T W, (..., tokens, nodes)."""
        return self.tokens.mT @ self._checked(w=w)[0]

    def velocity(self, w: Number, z: Number, time: float = 0.0) -> State:
        """The right-hand side of eq. 2 for w (..., width, nodes) and z (..., queries, tokens)."""
        w, z = self._checked(w=w, z=z)
        return self._velocity(w, z, time)

    def _velocity(self, w: Tensor, z: Tensor, time: float) -> State:
        logits = z[..., self.query, :]
        b = self.attention.weights_unchecked(logits, self.x)
        f = self._features(b)
        h, slope = value_and_derivative(self.activation, f @ w)
        g = self.backprop(h, time)
        if g.shape[-2:] != h.shape[-2:]:  # a broadcast g would be another block, silently
            raise ValueError(f"backprop must return (samples, nodes) = {tuple(h.shape[-2:])}, got {tuple(g.shape)}")
        push = g * slope  # g o h'
        upstream = push @ (w.mT @ self.tokens)  # U_C^T W (g o h'), (..., samples, tokens)
        pulled = self.attention.pull_back_unchecked(logits, self.x, b, upstream)
        return State(self.rate_w * (f.mT @ push) / push.shape[-2], self.rate_z * (self._mean_by_query @ pulled))

    def solve(self, w0: Number, z0: Number, t: Number, *, rtol: float = 1e-12, atol: float = 1e-13) -> State:
        """W(t) and z(t) along the flow: (steps, *w0.shape) and (steps, *z0.shape), from w0, z0 at t = 0.

        w0 (..., width, nodes) and z0 (..., queries, tokens) may carry the same leading dimensions: blocks that share
        x and flow side by side, in one call. A kink of the activation costs the adaptive solver many small steps.
        """
        w0, z0 = floating(w0, "w0"), floating(z0, "z0")
        for name, given in (("w0", w0), ("z0", z0)):
            if given.device != self.x.device:
                raise ValueError(f"{name} must be on the device of x, {self.x.device}, got {given.device}")
        if w0.ndim < 2 or w0.shape[-2] != self.tokens.shape[0]:
            raise ValueError(f"w0 must have shape (..., {self.tokens.shape[0]}, nodes), got {tuple(w0.shape)}")
        wanted = (*w0.shape[:-2], self.queries.shape[1], self.tokens.shape[1])
        if tuple(z0.shape) != wanted:
            raise ValueError(f"z0 must have shape {wanted} to go with w0, got {tuple(z0.shape)}")
        common_shape(x=self.x.shape[:-2], w0=w0.shape[:-2])
        if self.x.dtype != torch.float64:
            raise ValueError("a flow is followed in float64: x, tokens and queries must be float64")
        field = lambda time, w, z: self._velocity(w, z, time)
        return State(*integrate_together(field, (w0, z0), t, rtol=rtol, atol=atol))

    def _attend(self, z: Tensor) -> Tensor:
        return self.attention.weights_unchecked(z[..., self.query, :], self.x)

    def _checked(self, **given: Number) -> list[Tensor]:
        """w and z of this block's shapes and type. Cheap, because this runs at every step of a flow."""
        state = {name: floating(value, name) for name, value in given.items()}
        self._check_type(**state)
        (width, tokens), queries = self.tokens.shape, self.queries.shape[1]
        if "w" in state and state["w"].shape[-2:-1] != (width,):
            raise ValueError(f"w must have shape (..., {width}, nodes), got {tuple(state['w'].shape)}")
        if "z" in state and state["z"].shape[-2:] != (queries, tokens):
            raise ValueError(f"z must have shape (..., {queries}, {tokens}), got {tuple(state['z'].shape)}")
        leads = {name: given.shape[:-2] for name, given in {"x": self.x, **state}.items()}
        if len(set(leads.values())) > 1:
            common_shape(**leads)
        return list(state.values())

    def _features(self, b: Tensor) -> Tensor:
        f = b @ self.tokens.mT
        return f + self.queries.mT[self.query] if self.residual else f

    @cached_property
    def _mean_by_query(self) -> Tensor:
        """Row m averages over the samples of query m (`per_query`) or over all samples with those of m marked."""
        member = torch.nn.functional.one_hot(self.query, self.queries.shape[1]).mT.to(self.x)
        count = member.sum(1, keepdim=True).clamp(min=1) if self.per_query else member.shape[1]
        return member / count


def _holds_indices(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.int64 and not value.is_meta and value.numel() > 0


def integrate(
    field: Callable[[float, Tensor], Tensor],
    y0: Number,
    t: Number,
    *,
    rtol: float = 1e-12,
    atol: float = 1e-13,
    method: Method = "DOP853",
    max_evaluations: int = 200_000,
) -> Tensor:
    """y(t) of y' = field(time, y), y(0) = y0, in float64 by an adaptive solver: the reference that closed forms meet.

    y0: any shape; t: (steps,), increasing. Returns (steps, *y0.shape) on y0's device. Use "Radau" where the flow is
    stiff. A flow that blows up before the last time, or that needs more than `max_evaluations` of the field, raises
    ValueError: the usual causes of the latter are a field that jumps, and one that is computed in float32.

    >>> integrate(lambda time, y: -y, torch.tensor([1.0]), [0.0, 1.0])
    tensor([[1.0000],
            [0.3679]], dtype=torch.float64)
    """
    must_be_callable(field, "field")
    at = times(t).double()
    if at.numel() == 0 or (at.diff() <= 0).any():
        raise ValueError("t must hold at least one time, in increasing order")
    start = real(y0, "y0").double().detach()
    tolerance = Tolerance(number(rtol, "rtol", least=_FINEST), number(atol, "atol", least=0))
    if method not in ("DOP853", "Radau", "LSODA"):
        raise ValueError(f"method must be 'DOP853', 'Radau' or 'LSODA', got {shown(method)}")
    slope = _counted(field, start, integer(max_evaluations, "max_evaluations", 1), end=float(at[-1]))
    solver = solve if method == "DOP853" else partial(_solve_by_scipy, method)
    threads = torch.get_num_threads()
    # One thread while a small field is evaluated thousands of times: waking others costs more than they do.
    torch.set_num_threads(1 if start.numel() < 10_000 else threads)
    try:
        path = solver(slope, start.reshape(-1).cpu().numpy().copy(), at.cpu().numpy(), tolerance)
    except TooStiff as reason:
        raise ValueError(f"the flow could not be followed to t = {float(at[-1]):g}: {reason}") from None
    finally:
        torch.set_num_threads(threads)
    return torch.from_numpy(path).to(start.device).view(len(at), *start.shape)


def _counted(field: Callable[[float, Tensor], Tensor], start: Tensor, most: int, *, end: float) -> Field:
    """The field as a solver wants it, on flat arrays; what it returns is checked, and how often it is asked."""
    calls = 0

    def slope(time: float, y: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls > most:
            asked = f"{most} evaluations (max_evaluations) to get to t = {time:g} of {end:g}"
            raise ValueError(f"the flow took {asked}: the field is not smooth enough")
        moving = field(time, torch.from_numpy(y).to(start.device).view(start.shape))
        if not isinstance(moving, Tensor) or moving.shape != start.shape:
            raise ValueError(f"field must return the shape {tuple(start.shape)} of y0, got {described(moving)}")
        found: np.ndarray = moving.detach().double().reshape(-1).cpu().numpy()
        if calls == 1 and not np.isfinite(found).all():
            raise ValueError(f"field must be finite at y0, got {found[~np.isfinite(found)][0]}")
        return found

    return slope


def _solve_by_scipy(method: str, field: Field, start: np.ndarray, at: np.ndarray, tolerance: Tolerance) -> np.ndarray:
    from scipy.integrate import solve_ivp

    span = (0.0, max(float(at[-1]), 1e-300))
    solution = solve_ivp(field, span, start, method=method, t_eval=at, **tolerance._asdict())  # type: ignore[call-overload]
    if not solution.success:
        raise TooStiff(solution.message)
    return np.array(solution.y.T)


def integrate_together(
    field: Callable[..., Sequence[Tensor]],
    start: Sequence[Number],
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
    must_be_callable(field, "field")
    begin = [real(part, "start") for part in start]
    if not begin:
        raise ValueError("start must hold at least one part, got none")
    sizes, shapes = [part.numel() for part in begin], [part.shape for part in begin]

    def parts(y: Tensor) -> tuple[Tensor, ...]:
        pieces = torch.split_with_sizes(y, sizes, -1)
        return tuple(piece.view(*y.shape[:-1], *shape) for piece, shape in zip(pieces, shapes, strict=True))

    def flat(time: float, y: Tensor) -> Tensor:
        moving = field(time, *parts(y))
        if [one.shape for one in moving] != shapes:
            wanted, got = ([tuple(one.shape) for one in each] for each in (begin, moving))
            raise ValueError(f"field must return the velocity of each part, of shapes {wanted}, got {got}")
        return torch.cat([velocity.reshape(-1) for velocity in moving])

    return parts(integrate(flat, torch.cat([part.reshape(-1).double() for part in begin]), t, rtol=rtol, atol=atol))
