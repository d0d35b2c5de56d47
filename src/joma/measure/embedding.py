"""How far token vectors are from being orthogonal: the |cos| between them, beside that of random vectors."""

from functools import lru_cache
from math import pi, sqrt
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.host.arguments import Number, as_numbers, at_most, floating, integer, must_be_generator, within
from joma.host.words import brief_repr
from joma.measure._gram import compute_dtype
from joma.theory.radial import Ball

CHUNK = 1 << 22  #: Entries of vectors held at once.
WIDEST = 1 << 40  #: Vectors of this width have |cos| of about 1e-6.
CLOSE = 1e-8  #: Relative size of a last Newton step: what is left after it is of the order of its square.


@brief_repr
class Coherence(NamedTuple):
    """|cos| between pairs of vectors: what was found, and what random vectors of that width would show.

    >>> found = coherence(torch.eye(4))
    >>> found.mean, found.pairs
    (tensor(0.), tensor(6))
    """

    mean: Tensor
    """(...) mean |cos|; NaN where fewer than two vectors are not zero."""
    quantiles: Tensor
    """(..., quantiles) of |cos|, in the order asked for."""
    mean_error: Tensor
    """(...) standard error of the mean from sampling pairs; 0 if all pairs were used."""
    quantiles_error: Tensor
    """(..., quantiles) the same for the quantiles."""
    random_mean: float
    """E|cos| of independent random directions."""
    random_quantiles: Tensor
    """(quantiles,) of |cos| of independent random directions."""
    pairs: Tensor
    """(...) how many pairs were compared."""
    zeros: Tensor
    """(...) how many vectors were left out because they are zero and have no direction."""


def coherence(
    vectors: Number,
    *,
    sample: int = 1 << 18,
    quantiles: Number = (0.5, 0.9, 0.99),
    generator: torch.Generator | None = None,
) -> Coherence:
    """Mean and quantiles of |cos(x_i, x_j)|, i != j, over the rows of vectors: (..., tokens, width).

    All pairs where there are at most `sample` of them, else `sample` independent uniform pairs (a vocabulary of 50,000
    has 1.25e9), with the standard errors that this leaves. 2^18 pairs give the mean to about 0.15 %. Zero rows are
    left out and counted. Random directions in width d have

        E|cos| = Gamma(d/2) / (sqrt(pi) Gamma((d+1)/2)),     cos^2 ~ Beta(1/2, (d-1)/2),

    so a mean well above that says that the vectors share directions. Half precision is measured in float32, a few
    rows at a time. Without a generator a private seed is used, and the random numbers of a training run are left alone.

    >>> c = coherence(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 0.0]]))
    >>> c.mean, c.pairs, c.zeros
    (tensor(0.3333), tensor(3), tensor(1))
    >>> round(c.random_mean, 4)
    0.6366
    """
    vectors = floating(as_numbers(vectors, "vectors"), "vectors")
    levels = within(quantiles, "quantiles", 0, 1).detach().cpu().double()
    if vectors.ndim < 2 or vectors.shape[-2] < 2 or vectors.shape[-1] < 1:
        wanted = "shape (..., tokens, width), at least two tokens"
        raise ValueError(f"vectors must have {wanted}, got {tuple(vectors.shape)}")
    if not all(piece.isfinite().all() for piece in vectors.reshape(-1, vectors.shape[-1]).split(1 << 14)):
        raise ValueError("vectors must be finite, got NaN or infinity")
    sample = integer(sample, "sample", 2)
    if levels.ndim != 1:
        raise ValueError(f"quantiles must be one list, got shape {tuple(levels.shape)}")
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    must_be_generator(generator)
    lead, width = vectors.shape[:-2], vectors.shape[-1]
    with torch.no_grad():
        stack = vectors.detach().reshape(-1, *vectors.shape[-2:])
        found = [_of_one(one, sample, levels, generator) for one in stack]
    dtype = compute_dtype(vectors)

    def joined(index: int, *tail: int, dtype: torch.dtype = dtype) -> Tensor:
        stacked = torch.stack([row[index] for row in found]) if found else torch.zeros(0)
        return stacked.to(device=vectors.device, dtype=dtype).reshape((*lead, *tail))

    return Coherence(
        joined(0),
        joined(1, len(levels)),
        joined(2),
        joined(3, len(levels)),
        random_mean_cosine(width),
        random_cosine_quantiles(width, levels).to(device=vectors.device, dtype=dtype),
        joined(4, dtype=torch.int64),
        joined(5, dtype=torch.int64),
    )


def random_mean_cosine(width: int) -> float:
    """E|cos| of two independent random directions in `width` dimensions: about sqrt(2 / (pi width)).

    >>> round(random_mean_cosine(3), 6)
    0.5
    """
    if at_most(width, "width", WIDEST, "2^40") <= 2:
        return 1.0 if width == 1 else 2 / pi
    return Ball(width - 2).mean_distance  # its law is that of a uniform ball in two dimensions less (Archimedes)


def random_cosine_quantiles(width: int, levels: Number) -> Tensor:
    """Quantiles of |cos| of two independent random directions: cos^2 ~ Beta(1/2, (width - 1)/2). float64.

    >>> random_cosine_quantiles(3, torch.tensor([0.25, 0.5]))
    tensor([0.2500, 0.5000], dtype=torch.float64)
    """
    share = within(levels, "levels", 0.0, 1.0).detach().cpu().double()
    found = _quantiles_of_random(at_most(width, "width", WIDEST, "2^40"), tuple(share.flatten().tolist()))
    return torch.tensor(found, dtype=torch.float64).reshape(share.shape)


@lru_cache(maxsize=256)
def _quantiles_of_random(width: int, levels: tuple[float, ...]) -> list[float]:
    """Kept, for a monitor asks for the same at every step."""
    share = torch.tensor(levels, dtype=torch.float64)
    if width <= 2:
        return (torch.ones_like(share) if width == 1 else torch.sin(pi / 2 * share)).tolist()
    law = Ball(width - 2)  # see `random_mean_cosine`
    low, high = _from_within(law, share.clamp(max=0.5)), _from_beyond(law, share.clamp(min=0.5))
    return torch.where(share <= 0.5, low, high).tolist()


def _density(law: Ball, u: Tensor) -> Tensor:
    """p(u) = p(0) (1 - u^2)^((n-1)/2), to all digits also where n is large and u small."""
    peak = law.mean_distance * (law.dimension + 1) / 2  # E|u| = 2 p(0)/(n + 1)
    return peak * torch.exp((law.dimension - 1) / 2 * torch.log1p(-u * u))


def _from_within(law: Ball, share: Tensor) -> Tensor:
    """q with P(|u| <= q) = share <= 1/2. That probability is concave in q, so Newton climbs to the root from below."""
    x, weight = (torch.from_numpy(each) for each in np.polynomial.legendre.leggauss(32))
    q = share / (2 * _density(law, torch.zeros_like(share)))
    for _ in range(50):
        inside = q * (_density(law, q[..., None] * (x + 1) / 2) * weight).sum(-1)
        step = (share - inside) / (2 * _density(law, q))
        q = q + step
        if bool((step.abs() <= CLOSE * q).all()):
            break
    return q


def _from_beyond(law: Ball, share: Tensor) -> Tensor:
    """The same for share >= 1/2, by the logarithm of what lies beyond q: concave in q, and exact far out."""
    last = share == 1
    beyond = torch.where(last, 0.25, (1 - share) / 2)
    q = _from_within(law, torch.full_like(share, 0.5))
    for _ in range(100):
        left = law.theta1(-q)
        step = torch.log(left / beyond) * left / _density(law, q)
        step = torch.minimum(step, (1 - q) / 2)  # a step from below overshoots: not beyond the end of the law
        q = q + step
        if bool((step.abs() <= CLOSE * torch.minimum(q, 1 - q)).all()):
            break
    return torch.where(last, 1.0, q)


def _of_one(vectors: Tensor, sample: int, levels: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Mean, quantiles, their errors, pairs and zeros of one (tokens, width)."""
    largest = vectors.abs().amax(-1)
    present = (largest > 0).nonzero()[:, 0]
    count, zeros = len(present), len(vectors) - len(present)
    everything = count * (count - 1) // 2
    if count < 2:
        nothing = torch.full_like(levels, torch.nan)
        return nothing.sum(), nothing, nothing.sum(), nothing, torch.tensor(0), torch.tensor(zeros)
    if everything <= sample:
        left, right = torch.triu_indices(count, count, offset=1)
    else:
        left = torch.randint(count, (sample,), generator=generator, device=generator.device)
        # A second one that is not the first: uniform over the others.
        right = torch.randint(count - 1, (sample,), generator=generator, device=generator.device)
        right = right + (right >= left)
    cosines = _cosines(vectors, present[left.to(present.device)], present[right.to(present.device)])
    cosines = cosines.cpu().double().sort().values
    mean, at = cosines.mean(), _quantiles(cosines, levels)
    if everything <= sample:
        mean_error, error = torch.zeros_like(mean), torch.zeros_like(at)
    else:
        mean_error = cosines.std() / sqrt(sample)
        spread = (levels * (1 - levels) / sample).sqrt()  # of the share of pairs below the quantile
        above, below = (_quantiles(cosines, (levels + sign * spread).clamp(0, 1)) for sign in (1, -1))
        error = (above - below) / 2
    return mean, at, mean_error, error, torch.tensor(len(cosines)), torch.tensor(zeros)


def _cosines(vectors: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """|cos| of the pairs, a few at a time. Rows are divided by their largest entry first: no square overflows."""

    def direction(rows: Tensor) -> Tensor:
        wide = vectors[rows].to(compute_dtype(vectors))
        wide = wide / wide.abs().amax(-1, keepdim=True)
        length: Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        return wide / length

    size = max(1, CHUNK // (2 * vectors.shape[-1]))
    pieces = zip(left.split(size), right.split(size), strict=True)
    return torch.cat([(direction(i) * direction(j)).sum(-1).abs().clamp_max(1.0) for i, j in pieces])


def _quantiles(ordered: Tensor, levels: Tensor) -> Tensor:
    place = levels * (len(ordered) - 1)
    low = place.floor().long()
    high = (low + 1).clamp_max(len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
