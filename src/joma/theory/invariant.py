"""Theorem 1: what attention logits z and MLP weights V = U_C^T W conserve together.

Under gradient flow, with kappa = eta_z / eta_w and S = sum_k v_k o v_k, token by token,

    exp attention     z   - kappa/(2T) S = c           linear attention   z^2 - kappa S = c
    any pointwise sigma     int sigma/sigma' dz - kappa/2 S = c

The paper prints these for kappa = T = 1. Needed: orthonormal embeddings, and z and W trained on the same samples.
Not needed: a stationary g (Assumption 1), a linear phi, K = 1, a zero start.

Softmax attention conserves nothing of the kind. Exactly,  T z'/kappa = sum_k v_k o v_k' - bbar N' - Cov(s, b)
with N = sum_k |v_k|^2 / 2, bbar = E[b], s = sum_k g_k h_k' (b . v_k): see `softmax_estimate`.
"""

from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from joma.host.arguments import Number, at_least_dims, common_shape, positive, real, shown, together, within
from joma.theory._guard import guarded
from joma.theory.attention import Attention, Sigma, derivative

Estimate = Literal["published", "integrated", "self-consistent", "identity"]


@guarded
def first_integral(
    z: Number, v: Number, *, kind: str | Sigma = "exp", kappa: Number = 1.0, temperature: Number = 1.0
) -> Tensor:
    """The constant c of Theorem 1 for one query. z: (..., tokens); v: (..., tokens, nodes). Returns (..., tokens).

    kind "exp": z - kappa/(2T) sum_k v_k^2. kind "linear": z^2 - kappa sum_k v_k^2 (the temperature drops out, so
    only 1 is accepted). A function sigma: int_0^z sigma/sigma' - kappa/2 sum_k v_k^2, the integral by quadrature,
    so sigma/sigma' must be smooth between 0 and z. kappa and temperature broadcast against z.

    >>> first_integral([0.5, 0.0], [[1.0], [2.0]])
    tensor([ 0., -2.], dtype=torch.float64)
    """
    logits, weights = _logits_and_weights(z, v)
    rates, heat = _rates(kind, kappa, temperature)
    logits, squares, rates, heat = together(z=logits, v=weights.square().sum(-1), kappa=rates, temperature=heat)
    return _of_logits(kind, logits) - _of_weights(kind, squares, rates, heat)


@partial(guarded, keep="probability")
def first_integral_over_queries(
    z: Number,
    v: Number,
    *,
    kind: str | Sigma = "exp",
    kappa: Number = 1.0,
    temperature: Number = 1.0,
    probability: Number | None = None,
) -> Tensor:
    """What several queries that share W conserve: only the SUM of their logits is tied to V.

    exp: sum_m z_m - kappa/(2T) S; linear: sum_m z_m^2 - kappa S; kinds as in `first_integral`.
    With eq. 2 as written (each z_m' averaged over its own samples) the sum is weighted by `probability` p_m
    (queries,). A single z_m is no function of V. z: (..., queries, tokens), v: (..., tokens, nodes); kappa and
    temperature broadcast against the answer, (..., tokens).

    >>> first_integral_over_queries([[0.5, 0.0], [1.5, 1.0]], [[1.0], [2.0]])
    tensor([ 1.5000, -1.0000], dtype=torch.float64)
    """
    logits = at_least_dims(real(z, "z"), "z", 2, "(..., queries, tokens)")
    queries = logits.shape[-2]
    weight = torch.ones(queries) if probability is None else within(probability, "probability", 0.0, 1.0)
    if weight.shape != (queries,):
        raise ValueError(f"probability must have shape ({queries},), one per query of z, got {tuple(weight.shape)}")
    if probability is not None and (weight.double().sum() - 1).abs() > torch.finfo(weight.dtype).eps ** 0.5:
        raise ValueError(f"probability must sum to 1 over queries, got {weight.sum().item():g}")
    rates, heat = _rates(kind, kappa, temperature)
    over_queries = (weight.to(logits)[:, None] * _of_logits(kind, logits)).sum(-2)
    _, weights = _logits_and_weights(over_queries, v)
    total, squares, rates, heat = together(z=over_queries, v=weights.square().sum(-1), kappa=rates, temperature=heat)
    return total - _of_weights(kind, squares, rates, heat)


@guarded
def sgd_drift(
    z: Number, v: Number, *, kind: Literal["exp", "linear"] = "exp", kappa: Number = 1.0, temperature: Number = 1.0
) -> Tensor:
    """How far plain SGD takes `first_integral` from its start: exact, for any batches and any step size.

        exp:    -kappa/(2T) sum_steps sum_k (dv_k)^2           linear:   sum_steps [ (dz)^2 - kappa sum_k (dv_k)^2 ]

    A sum of squares of steps, so first order in the rate at fixed training time; under exp its sign is fixed: z lags.
    Momentum keeps the order, Adam and weight decay break the invariant outright.
    z: (..., steps, tokens), v: (..., steps, tokens, nodes), the recorded path; kappa and temperature broadcast against
    (..., 1, tokens). Returns (..., steps, tokens), 0 first.

    >>> z, v = [[0.0], [0.0], [0.04]], [[[0.0]], [[0.2]], [[0.4]]]  # two steps: dz = v dv
    >>> sgd_drift(z, v)[-1], first_integral(z[-1], v[-1])
    (tensor([-0.0400], dtype=torch.float64), tensor([-0.0400], dtype=torch.float64))
    """
    if kind not in ("exp", "linear"):
        raise ValueError(f"kind must be 'exp' or 'linear', got {shown(kind)}")
    logits, weights = _logits_and_weights(z, v, steps=True)
    rates, heat = _rates(kind, kappa, temperature)
    for name, rate in (("kappa", rates), ("temperature", heat)):
        if rate.ndim > 1 and rate.shape[-2] != 1:
            raise ValueError(f"{name} must fit (..., 1, tokens), the same at every step, got {tuple(rate.shape)}")
    pushed = logits.diff(dim=-2, prepend=logits[..., :1, :])
    moved = weights.diff(dim=-3, prepend=weights[..., :1, :, :]).square().sum(-1)
    pushed, moved, rates, heat = together(z=pushed, v=moved, kappa=rates, temperature=heat)
    gained = pushed.square() if kind == "linear" else torch.zeros_like(pushed)
    return (gained - _of_weights(kind, moved, rates, heat)).cumsum(-2)


@guarded
def softmax_estimate(
    v: Number,
    *,
    method: Estimate = "self-consistent",
    z0: Number = 0.0,
    x: Number | None = None,
    mean_attention: Number | None = None,
    covariance: Number | None = None,
    kappa: Number = 1.0,
    temperature: Number = 1.0,
) -> Tensor:
    """Softmax logits z(t) reconstructed from the MLP weights: v (..., steps, tokens, nodes) -> (..., steps, tokens).

    published        z0 + kappa/(2T) sum_k [v_k^2 - |v_k|^2 bbar] minus its start, bbar = `mean_attention` of t = 0,
                     (..., tokens). Points the right way and is several times too long late in training.
    integrated       sums kappa/T [sum_k v_k o dv_k - bbar(t) sum_k v_k . dv_k] with the true bbar(t),
                     `mean_attention` (..., steps, tokens).
    self-consistent  the same with bbar(t) rebuilt from the estimate itself, bbar = mean_i softmax(log x_i + z/T):
                     needs only `x` (..., samples, tokens). Recommended.
    identity         integrated, minus kappa/T times `covariance` (..., steps, tokens), which is eta_w Cov(s, b) of
                     each step: exact for SGD, to rounding.

    Sums take the left end of every step, which is what SGD does; along a flow that is first order in the step. The
    estimates keep the mean of z0 over tokens, as softmax does. kappa and temperature are one number each.

    >>> v = [[[0.0], [0.0]], [[0.5], [0.0]], [[1.0], [0.0]]]
    >>> softmax_estimate(v, x=[[0.5, 0.5]])
    tensor([[ 0.0000,  0.0000],
            [ 0.0000,  0.0000],
            [ 0.1250, -0.1250]], dtype=torch.float64)
    """
    weights = at_least_dims(real(v, "v"), "v", 3, "(..., steps, tokens, nodes)")
    given = _only_needed(method, x=x, mean_attention=mean_attention, covariance=covariance)
    rates, heat = positive(kappa, "kappa"), positive(temperature, "temperature")
    if rates.ndim or heat.ndim:
        shapes = f"{tuple(rates.shape)} and {tuple(heat.shape)}"
        raise ValueError(f"kappa and temperature must be one number each, got shapes {shapes}")
    gain, path = rates / heat, weights.sum(-1)  # the latter stands for the shape (..., steps, tokens)
    if path.shape[-2] == 0:
        raise ValueError(f"v must hold at least one step, got shape {tuple(weights.shape)}")
    start = _filling(path[..., 0, :], "z0", real(z0, "z0"))
    if method == "published":
        bbar = _filling(path[..., 0, :], "mean_attention", given["mean_attention"])[..., None, :]
        squares = weights.square().sum(-1)
        form = gain * (squares - squares.sum(-1, keepdim=True) * bbar) / 2
        return start[..., None, :] + (form - form[..., :1, :])
    pull = (weights[..., :-1, :, :] * weights.diff(dim=-3)).sum(-1)  # sum_k v_k o dv_k, (..., steps - 1, tokens)
    if method == "self-consistent":
        return _self_consistent(pull, gain, start, given["x"], float(heat))
    bbar = _filling(path, "mean_attention", given["mean_attention"])[..., :-1, :]
    step = pull - bbar * pull.sum(-1, keepdim=True)
    if method == "identity":
        step = step - _filling(path, "covariance", given["covariance"])[..., :-1, :]
    return torch.cat([start[..., None, :], start[..., None, :] + (gain * step).cumsum(-2)], dim=-2)


def _self_consistent(pull: Tensor, gain: Tensor, start: Tensor, x: Tensor, temperature: float) -> Tensor:
    if x.ndim < 2 or x.shape[-1] != pull.shape[-1] or x.shape[-2] == 0:
        wanted = f"(..., samples, {pull.shape[-1]}), with the tokens of v and at least one sample"
        raise ValueError(f"x must have shape {wanted}, got {tuple(x.shape)}")
    try:
        x.expand(*start.shape[:-1], *x.shape[-2:])
    except RuntimeError:
        lead = ", ".join(map(str, start.shape[:-1]))
        raise ValueError(f"x must fit the leading dimensions ({lead}) of v, got {tuple(x.shape)}") from None
    if (x < 0).any() or (x.sum(-1) == 0).any():
        raise ValueError("x must hold frequencies: none negative, no sample empty")
    attention = Attention("softmax", temperature=temperature)
    path = [start]
    for step in pull.unbind(-2):
        bbar = attention.weights(path[-1][..., None, :], x).mean(-2)
        path.append(path[-1] + gain * (step - bbar * step.sum(-1, keepdim=True)))
    return torch.stack(path, dim=-2)


def _only_needed(method: str, **given: Number | None) -> dict[str, Tensor]:
    """Every method gets the arguments it uses, and no other: none is silently ignored."""
    mean = {"mean_attention"}
    needs = {"published": mean, "integrated": mean, "self-consistent": {"x"}, "identity": {*mean, "covariance"}}
    if not isinstance(method, str) or method not in needs:
        raise ValueError(f"method must be one of {', '.join(needs)}, got {shown(method)}")
    for name, value in given.items():
        if name in needs[method] and value is None:
            raise ValueError(f"method {method!r} needs {name}")
        if name not in needs[method] and value is not None:
            raise ValueError(f"method {method!r} does not use {name}")
    return {name: real(value, name) for name, value in given.items() if value is not None}


def _filling(like: Tensor, name: str, value: Tensor) -> Tensor:
    """`value` expanded to the shape of `like`; what would need more room than that has another meaning."""
    try:
        return (value if value.ndim else value.to(like)).expand_as(like)
    except RuntimeError:
        raise ValueError(f"{name} must fit the shape {tuple(like.shape)} of v, got {tuple(value.shape)}") from None


def _rates(kind: str | Sigma, kappa: Number, temperature: Number) -> tuple[Tensor, Tensor]:
    if kind not in ("exp", "linear") and not callable(kind):
        hint = "; softmax conserves nothing, see softmax_estimate" if kind == "softmax" else ""
        raise ValueError(f"kind must be 'exp', 'linear' or a function, got {shown(kind)}{hint}")
    rates, heat = positive(kappa, "kappa"), positive(temperature, "temperature")
    if kind != "exp" and (heat != 1).any():
        raise ValueError("temperature belongs to 'exp'; linear attention does not feel it, a sigma carries its own")
    return rates, heat


def _of_logits(kind: str | Sigma, z: Tensor) -> Tensor:
    """The part of c that z holds; int_0^z sigma/sigma' by Gauss-Legendre, exact to rounding for a smooth sigma."""
    if not callable(kind):
        return z if kind == "exp" else z.square()

    def primitive(count: int) -> Tensor:
        nodes, weights = (torch.from_numpy(a).to(z) for a in np.polynomial.legendre.leggauss(count))
        at = z[..., None] * (nodes + 1) / 2
        return (kind(at) / derivative(kind, at) * weights).sum(-1) * z / 2

    fine, coarse = primitive(40), primitive(30)
    # Where sigma' vanishes on the way the integral diverges, and no two rules agree on its value.
    known = (fine - coarse).abs() <= torch.finfo(z.dtype).eps ** 0.5 * (1 + fine.abs())
    if not known.all():
        at = z[~known].flatten()[0].item()
        raise ValueError(f"kind: sigma/sigma' cannot be integrated from 0 to z = {at:g}; does sigma' vanish there?")
    return fine


def _of_weights(kind: str | Sigma, squares: Tensor, kappa: Tensor, temperature: Tensor) -> Tensor:
    """The part of c that V holds, from sum_k v_k^2."""
    return kappa * squares if kind == "linear" else kappa * squares / (2 * temperature)


def _logits_and_weights(z: Number, v: Number, *, steps: bool = False) -> tuple[Tensor, Tensor]:
    lead = "steps, " if steps else ""
    logits = at_least_dims(real(z, "z"), "z", 1 + steps, f"(..., {lead}tokens)")
    weights = at_least_dims(real(v, "v"), "v", 2 + steps, f"(..., {lead}tokens, nodes)")
    if logits.shape[-1 - steps :] != weights.shape[-2 - steps : -1]:
        raise ValueError(f"z {tuple(logits.shape)} and v {tuple(weights.shape)} disagree on their {lead}tokens")
    if steps and logits.shape[-2] == 0:
        raise ValueError(f"z and v must hold at least one step, got {tuple(logits.shape)} and {tuple(weights.shape)}")
    common_shape(z=logits.shape, v=weights.shape[:-1])
    return logits, weights
