"""Random signals for the study of CDAG Theorem 1: each function returns what one batch of draws counted.

A signal is a vector over the samples of a dataset, so the number of samples is the dimension.
"""

from collections.abc import Callable
from math import acos, degrees, pi

import torch
from torch import Tensor

from joma.theory import cdag

Counts = dict[str, Tensor]

THRESHOLDS = (0.5, 0.7, 0.8, 0.87, 0.95)
"""Normalised correlations asked of all three premises at once; cos 30° = 0.866 lies just below the fourth."""
BIN = 6
BINS = 270 // BIN  # sums of three angles below 90°, in bins of so many degrees
GAIN = 0.5


def by_sign(draws: int, dim: int, source: torch.Generator) -> Counts:
    """Gaussian signals, as they come and with the premises' signs enforced: how many conclusions are positive."""
    za, zb, f, delta = torch.randn(4, draws, dim, generator=source)  # float32: only signs are counted
    # Turning a Gaussian signal round leaves it Gaussian: the premises then hold without rejecting a draw.
    followed, incoming, received = _agree(f, zb), _agree(delta, zb), _agree(delta, za)
    return {
        "control": _positive(cdag.conclusion(zb, f, delta)),
        "gated control": _positive(cdag.correlation(zb, (f > 0) * delta)),
        "signs": _positive(cdag.conclusion(zb, followed, received)),
        "same latent": _positive(cdag.conclusion(za, _agree(f, za), received)),
        "gated": _positive(cdag.correlation(zb, (followed > 0) * incoming)),
    }


def by_angle(draws: int, dim: int, source: torch.Generator) -> Counts:
    """Signals at angles uniform below 90°, in random directions, against the angle condition and its bound."""
    a, b, c = pi / 2 * torch.rand(3, draws, generator=source, dtype=torch.float64)
    zb = _gaussian(source, draws, dim)
    f, za = _turned(zb, b, source), _turned(zb, c, source)
    delta = _turned(za, a, source)
    opposed = _gaussian(source, draws, 1).sign()  # z_a may point against z_b; then delta does as well
    za, delta = za * opposed, delta * opposed
    condition, value = cdag.angle_condition(za, zb, f, delta), cdag.conclusion(zb, f, delta, normalised=True)
    at = (condition.total * degrees(1) / BIN).long().clamp(max=BINS - 1)
    held = [(condition.angles <= acos(threshold)).all(-1) for threshold in THRESHOLDS]
    twin = _turned(za, b, source)
    same = cdag.angle_condition(za, za, twin, delta).satisfied
    return {
        "binned": torch.bincount(at, minlength=BINS),
        "binned positive": torch.bincount(at[value > 0], minlength=BINS),
        "inside": condition.satisfied.sum(),
        "violated": (condition.satisfied & (value <= 0)).sum(),
        "slack": (value - condition.lower_bound).min(),
        "least": torch.stack([torch.where(mask, value, 1.0).min() for mask in held]),
        "same inside": same.sum(),
        "same violated": (same & (cdag.conclusion(za, twin, delta) <= 0)).sum(),
        **_from_starts(zb, f, delta, condition.satisfied, source),
    }


def by_rest(draws: int, dim: int, source: torch.Generator) -> Counts:
    """f = gain z_b + rest: a rest that leans against delta, one that is unrelated, and one that cancels in pairs."""
    zb, delta, noise = _gaussian(source, 3, draws, dim)
    delta = _agree(delta, zb)
    leaning = GAIN * zb - delta
    held = cdag.correlation(zb, leaning) > 0
    gap = cdag.conclusion(zb, GAIN * zb + noise, delta) - cdag.independent_conclusion(zb, delta, GAIN)
    twice, sent = torch.cat([zb, zb], -1), torch.cat([delta, delta], -1)
    paired = GAIN * twice + torch.cat([noise, -noise], -1)
    off = cdag.conclusion(twice, paired, sent) - cdag.independent_conclusion(twice, sent, GAIN)
    return {
        "leaning": held.sum(),
        "leaning positive": (held & (cdag.conclusion(zb, leaning, delta) > 0)).sum(),
        "independent gap": gap.mean(),
        "independent variance": gap.var(),
        "paired off": (off / (paired.norm(dim=-1) * twice.norm(dim=-1) * sent.norm(dim=-1) ** 2)).abs().max(),
    }


def planar_slack(draws: int, source: torch.Generator) -> Tensor:
    """How far the conclusion stays above the bound when all signals fan out in one plane: at most this much."""
    share = torch.rand(3, draws, generator=source, dtype=torch.float64)
    a, b, c = share / share.sum(0) * pi / 2 * torch.rand(draws, generator=source, dtype=torch.float64)
    zb, f, za, delta = (torch.stack([x.cos(), x.sin()], -1) for x in (0 * a, -b, c, a + c))
    bound = cdag.angle_condition(za, zb, f, delta).lower_bound
    return (cdag.conclusion(zb, f, delta, normalised=True) - bound).abs().max()


def backpropagated(activation: Callable[[Tensor], Tensor], source: torch.Generator) -> Tensor:
    """Three parents of one child, one gradient step from w = 0: what the child receives, against the product."""
    f, zb = _gaussian(source, 2, 50)
    g = _gaussian(source, 3, 50)
    child, weights = f.clone().requires_grad_(), torch.zeros(3, 1, dtype=torch.float64, requires_grad=True)
    (step,) = torch.autograd.grad((g * activation(weights * child)).sum(), weights)
    (received,) = torch.autograd.grad((g * activation(step * child)).sum(), child)
    product = cdag.conclusion(zb, f, g).sum()  # all activations here have slope 1 at w = 0
    return (cdag.correlation(zb, received) / product - 1).abs()


def _from_starts(zb: Tensor, f: Tensor, delta: Tensor, inside: Tensor, source: torch.Generator) -> Counts:
    """One step from w(0): how many draws inside the condition send a gradient along z_b."""
    step, along = cdag.correlation(f, delta, normalised=True), cdag.correlation(zb, delta, normalised=True)
    start = _gaussian(source, len(step))
    starts = {"random": start, "zero": 0 * start, "matched": start.abs() * step.sign()}
    return {f"start {name}": (inside & ((w + step) * along > 0)).sum() for name, w in starts.items()}


def _gaussian(source: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=source, dtype=torch.float64)


def _agree(signal: Tensor, other: Tensor) -> Tensor:
    """The signal, turned round where it correlates negatively with the other."""
    return signal * cdag.correlation(signal, other).sign()[..., None]


def _turned(signal: Tensor, angle: Tensor, source: torch.Generator) -> Tensor:
    """A unit vector at `angle` from the signal, in a random direction."""
    unit = signal / signal.norm(dim=-1, keepdim=True)
    other = _gaussian(source, *signal.shape)
    other = other - (other * unit).sum(-1, keepdim=True) * unit
    turned: Tensor = angle.cos()[:, None] * unit + angle.sin()[:, None] * (other / other.norm(dim=-1, keepdim=True))
    return turned


def _positive(values: Tensor) -> Tensor:
    return (values > 0).sum()
