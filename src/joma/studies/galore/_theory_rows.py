"""Lemma B.6: the weights V of several nodes under attention that they share, and how fast its rows grow."""

from __future__ import annotations

from math import pi, sqrt

import torch
from torch import Tensor

from joma.theory import linear
from joma.theory.attention import Attention, random_orthonormal
from joma.theory.flow import Block, constant_gradient

DOUBLE = torch.float64
EQUATION, PER_NODE, CORRECTED = "eq. 43", "eq. 44", "corrected"
FORMS = (EQUATION, PER_NODE, CORRECTED)


def rows(tokens: int, nodes: int, blocks: int, steps: int, seed: int) -> dict[str, Tensor]:
    """Real blocks with a linear MLP and constant g, from zero, in units of their first blow-up time.

    Relative errors of three equations for V', (blocks, steps); and of each row its length over that of its saliency,
    alpha, beside the bounds (53) and the closed form, (blocks, steps, tokens).
    """
    generator = torch.Generator().manual_seed(seed)
    samples = 4 * tokens
    embeddings = random_orthonormal(tokens + 1, tokens + 1, generator=generator)
    x = torch.rand(blocks, samples, tokens, generator=generator, dtype=DOUBLE)
    g = torch.randn(blocks, samples, nodes, generator=generator, dtype=DOUBLE)
    delta = x.mT @ g / samples
    blow_up = linear.blow_up_time(delta.norm(dim=-1)).amin(-1)[:, None, None]
    g, delta = g * blow_up, delta * blow_up
    query = torch.zeros(samples, dtype=torch.long)
    block = Block(x, query, embeddings[:, :-1], embeddings[:, -1:], constant_gradient(g), Attention("exp"))
    share = torch.linspace(0, 0.95, steps, dtype=DOUBLE)
    start = torch.zeros(blocks, tokens + 1, nodes, dtype=DOUBLE)
    path = block.solve(start, torch.zeros(blocks, 1, tokens, dtype=DOUBLE), share)
    v, truth = block.project(path.w), block.project(block.velocity(path.w, path.z).w)  # (steps, blocks, tokens, nodes)
    return {"share": share, **_errors(v, truth, delta), **_growth(v, delta, share)}


def _errors(v: Tensor, truth: Tensor, delta: Tensor) -> dict[str, Tensor]:
    """The best normaliser A at every moment is allowed, because the lemma does not say whether it moves."""
    forms = {
        EQUATION: (v.square() / 2).exp().sum(-1, keepdim=True) * delta,
        PER_NODE: (v.square() / 2).exp() * delta,
        CORRECTED: (v.square().sum(-1, keepdim=True) / 2).exp() * delta,
    }
    return {f"off/{name}": _error(form, truth).mT for name, form in forms.items()}


def _error(form: Tensor, truth: Tensor) -> Tensor:
    best = (form * truth).sum((-1, -2), keepdim=True) / form.square().sum((-1, -2), keepdim=True)
    off: Tensor = torch.linalg.matrix_norm(best * form - truth) / torch.linalg.matrix_norm(truth)
    return off


def _growth(v: Tensor, delta: Tensor, share: Tensor) -> dict[str, Tensor]:
    alpha = (v * delta).sum(-1) / delta.square().sum(-1)
    largest, t = delta.abs().amax(-1), share[:, None, None]
    found = {
        "alpha": alpha,
        "low": _solved(t, largest),
        "high": delta.shape[-1] * _solved(t, delta.shape[-1] * largest),
        "closed": _solved(t, delta.norm(dim=-1) / sqrt(2)),
    }
    return {f"growth/{name}": value.movedim(0, 1) for name, value in found.items()}


def _solved(t: Tensor, slope: Tensor) -> Tensor:
    """x(t) of x' = exp(slope^2 x^2) from zero: h of eq. 54 with A = 1. Infinite from its blow-up on."""
    done = 2 * slope * t / sqrt(pi)
    return torch.where(done < 1, torch.erfinv(done.clamp(max=1.0)) / slope, torch.inf)
