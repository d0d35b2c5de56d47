"""The exponent alpha of a power law that the large eigenvalues of w^T w follow, as WeightWatcher defines it.

alpha needs the whole spectrum of a matrix, where the stable rank needs its largest value alone. It is a fit, and its
standard error is at least (alpha - 1) / sqrt(tail): with 50 eigenvalues in the tail, alpha = 3 is 3.0 +- 0.3. An alpha
of few eigenvalues means little. It is no test either: Gaussian matrices of side 200 to 800 have no such tail, and get
alphas from 4 to 30. So an alpha stands with its interval, and with those of Gaussian matrices of its shape.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.host.arguments import Number, real
from joma.host.numbers import at_most
from joma.host.words import brief_repr
from joma.measure._gram import TOGETHER, unit_squares

LEAST = 20  #: Fewer values are refused: WeightWatcher goes over to another estimator there, and neither says much.
FLOOR = 1e-10  #: Eigenvalues below this share of the largest are rounding, or as good as zero, and begin no tail.
EVEN = 1e-9  #: A tail whose mean logarithm is no further above its beginning is one number repeated, not a power law.
RESAMPLES, STARTS = 200, 24  #: Of a bootstrap, and places in each at which a tail may begin.
DRAWS = 19  #: Gaussian matrices: another lies between the smallest and the largest alpha of so many in 90 of 100 cases.
_CANDIDATES = 128


@brief_repr
class PowerLaw(NamedTuple):
    """A density proportional to x^-alpha from xmin on, fitted to the values there.

    >>> fit = power_law(((torch.arange(400) + 0.5) / 400) ** -0.5)
    >>> round(float(fit.alpha), 2), round(float(fit.standard_error), 2)
    (3.0, 0.1)
    """

    alpha: Tensor
    """(...) the exponent, above 1."""
    xmin: Tensor
    """(...) where the tail begins: one of the values."""
    distance: Tensor
    """(...) Kolmogorov-Smirnov distance of the tail from the law, the smallest over all xmin."""
    tail: Tensor
    """(...) how many values are in the tail."""

    @property
    def standard_error(self) -> Tensor:
        """(...) of alpha, were xmin known: (alpha - 1) / sqrt(tail)."""
        return (self.alpha - 1) / self.tail.double().sqrt()


def power_law(values: Number) -> PowerLaw:
    """The power law of the largest of positive values, (..., values) in any order; in float64, without a gradient.

    For every x_i as xmin, the n values from it on have the exponent of largest likelihood (Clauset, Shalizi and Newman
    2009, eq. 3.1), and that xmin is taken which has the smallest distance D:

        alpha = 1 + n / sum_j log(x_j / xmin),   D = max_j |1 - (x_j / xmin)^(1 - alpha) - j / n|,   j = 0 ... n - 1

    This is what WeightWatcher 0.7 does by default: all values but the largest are tried, and none is clipped at the
    top. alpha and D do not change when all values are multiplied by a number. Cost: n^2 / 2 exponentials, which is
    little beside the eigenvalues. At least 20 values are needed, not all equal.

    >>> power_law([(400 / k) ** 0.5 for k in range(1, 401)]).alpha
    tensor(3.0198, dtype=torch.float64)
    """
    x = real(values, "values").detach().double()
    if x.ndim < 1 or x.shape[-1] < LEAST:
        raise ValueError(f"values must have shape (..., values) with at least {LEAST} values, got {tuple(x.shape)}")
    if bool((x <= 0).any()):
        advice = "leave out eigenvalues that are zero up to rounding"
        raise ValueError(f"values must be above zero, got {float(x.min()):g}: {advice}")
    return _fitted(x.sort(dim=-1).values)


def spectral_power_law(w: Number) -> PowerLaw:
    """`power_law` of the squared singular values of every matrix, w: (..., rows, columns) -> (...). No gradient.

    These are the eigenvalues of w^T w as they are, not divided by anything, so xmin is in units of the weights squared.
    Those below 1e-10 of the largest begin no tail. WeightWatcher leaves out those below 1e-5, whatever the scale of the
    weights; neither limit matters unless the tail reaches down to it.

    Cost: `squared_singular_values`. For the stable rank alone `joma.measure.stable_rank` takes about half the time.

    >>> fit = spectral_power_law(torch.diag(torch.arange(1, 101) ** -0.5))  # eigenvalues 1/k
    >>> round(float(fit.alpha), 2)
    2.03
    """
    squares, scale = unit_squares(w)
    found = power_law_of_squares(squares)
    return found._replace(xmin=found.xmin / scale / scale)


def power_law_of_squares(squares: Number) -> PowerLaw:
    """`spectral_power_law`, given what `squared_singular_values` found: (..., values) in ascending order.

    >>> squares = squared_singular_values(torch.diag(torch.arange(1, 101) ** -0.5))
    >>> round(float(squares.sum() / squares.max()), 2), round(float(power_law_of_squares(squares).alpha), 2)
    (5.19, 2.03)
    """
    x = real(squares, "squares").detach().double()
    if x.ndim < 1 or x.shape[-1] < 2 or bool((x.diff(dim=-1) < 0).any()) or bool((x < 0).any()):
        raise ValueError(f"squares must be (..., values) from 0 on in ascending order, got {tuple(x.shape)}")
    count = int((x > FLOOR * x[..., -1:]).sum(-1).min()) if x.numel() else LEAST
    if count < LEAST:
        wanted = f"a matrix with at least {LEAST} singular values other than zero"
        raise ValueError(f"alpha needs {wanted}, got one with {count} of them")
    return _fitted(x, floor=FLOOR)


@brief_repr
class Exponent(NamedTuple):
    """An alpha with its interval, and the same fit to Gaussian matrices of the same shape."""

    alpha: float
    """Of the matrix."""
    low: float
    """Lower end of the bootstrap interval."""
    high: float
    """Upper end of the bootstrap interval."""
    gaussian: float
    """Median of Gaussian matrices of the shape."""
    gaussian_low: float
    """Smallest of Gaussian matrices of the shape."""
    gaussian_high: float
    """Largest of Gaussian matrices of the shape."""


def exponent_of_squares(squares: Number, long: int) -> Exponent:
    """Alpha of one matrix, a 95 % bootstrap interval, and what Gaussian matrices of its shape get.

    - squares: what `squared_singular_values` found of it, (values,) in ascending order
    - long: the larger side of the matrix

    The bootstrap draws eigenvalues with replacement and fits each draw anew, xmin too, as Clauset et al. (2009, Sec. 2)
    do; it takes eigenvalues for independent draws, which those of one matrix are not quite. The interval holds alpha
    itself. Gaussian matrices are `DRAWS` in number, the same ones for every matrix of a shape: their median, smallest
    and largest alpha. Both are drawn from fixed seeds.

    >>> found = exponent_of_squares((torch.arange(200, 0, -1) / 200) ** -0.8, 300)
    >>> found.low <= found.alpha <= found.high < found.gaussian_low <= found.gaussian
    True
    """
    x = real(squares, "squares").detach().double()
    if x.ndim != 1:
        raise ValueError(f"squares must be those of one matrix, (values,), got shape {tuple(x.shape)}")
    long = at_most(long, "long", 2**31, "the side of a matrix", low=len(x))
    alpha = float(power_law_of_squares(x).alpha)
    low, high = _bootstrapped(x[x > FLOOR * x[-1]].log())
    return Exponent(alpha, min(low, alpha), max(high, alpha), *_gaussian_alphas(len(x), long))


def _bootstrapped(logs: Tensor) -> tuple[float, float]:
    """The 2.5 % and the 97.5 % quantile of alpha over resamples of the values, whose logarithms are given ascending."""
    count, device = len(logs), logs.device
    draws = torch.randint(count, (RESAMPLES, count), generator=torch.Generator().manual_seed(0))
    starts = torch.linspace(0, count - 2, min(STARTS, count - 1), dtype=torch.float64).round().long().to(device)
    rest = torch.arange(count, 0, -1, device=device, dtype=torch.float64)
    found, step = list[Tensor](), max(1, TOGETHER // (count * STARTS))
    for some in draws.sort(-1).values.to(device).split(step):
        mine = logs[some]
        begins = mine[:, starts]
        above = ((mine.flip(-1).cumsum(-1).flip(-1) / rest)[:, starts] - begins).clamp_min(EVEN)
        beyond = (mine[:, None] - begins[..., None]) / above[..., None]
        share = rest / rest[starts, None]
        inside = torch.arange(count, device=device) >= starts[:, None]
        distance = torch.where(inside, (torch.exp(-beyond) - share).abs(), 0.0).amax(-1)
        distance = torch.where(above > EVEN, distance, torch.inf)  # one number repeated is no tail
        found.append(1 + 1 / above.gather(-1, distance.argmin(-1, keepdim=True))[:, 0])
    low, high = torch.cat(found).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64, device=device)).tolist()
    return low, high


@lru_cache(maxsize=256)
def _gaussian_alphas(side: int, long: int) -> tuple[float, float, float]:
    """Median, smallest and largest alpha of Gaussian matrices (side, long), side <= long.

    Householder reflections make a Gaussian matrix bidiagonal, with independent chi variables in it (Dumitriu and
    Edelman 2002): eigenvalues of the very distribution, in O(side^2).
    """
    rng = np.random.default_rng([side, long])
    found = [float(power_law_of_squares(_gaussian_squares(side, long, rng)).alpha) for _ in range(DRAWS)]
    return float(np.median(found)), min(found), max(found)


def _gaussian_squares(side: int, long: int, rng: np.random.Generator) -> Tensor:
    """(side,) squared singular values of a Gaussian matrix, ascending."""
    from scipy.linalg import eigvalsh_tridiagonal

    diagonal = np.sqrt(rng.chisquare(long - np.arange(side)))
    below = np.sqrt(rng.chisquare(np.arange(side - 1, 0, -1)))
    squares: Any = eigvalsh_tridiagonal(diagonal**2 + np.append(0.0, below) ** 2, diagonal[:-1] * below)
    return torch.from_numpy(np.sort(squares).clip(0.0))


def squared_singular_values(w: Number) -> Tensor:
    """All eigenvalues of w^T w that can be other than zero, ascending: (..., rows, columns) -> (..., smaller side).

    They are found from the Gram matrix of the smaller side n, in float64: n^2 m flops for n x m and about as long
    again for n^3, a third of what an SVD without vectors takes. Each is off by about 1e-15 of the largest, which
    matters only to those below 1e-10 of it. A square beyond the range of float64 is infinite. Without a gradient.

    >>> squared_singular_values([[3.0, 0.0, 0.0], [0.0, 0.0, 2.0]])
    tensor([4., 9.], dtype=torch.float64)
    """
    squares, scale = unit_squares(w)
    return squares / scale[..., None] / scale[..., None]  # the square of a scale could be 0


def _fitted(x: Tensor, *, floor: float = 0.0) -> PowerLaw:
    """The fit to numbers in ascending order; those up to `floor` of the largest begin no tail, and may be zero."""
    stack = x.reshape(-1, x.shape[-1])
    counts = stack > floor * stack[:, -1:]
    logs = torch.where(counts, stack, 1.0).log()
    rest = torch.arange(x.shape[-1], 0, -1, device=x.device, dtype=torch.float64)
    above = logs.flip(-1).cumsum(-1).flip(-1) / rest - logs  # the mean of log(x_j / x_i) over the tail from i on
    usable = counts & (above > EVEN)
    usable[:, -1] = False  # a tail of one
    if not bool(usable.any(-1).all()):
        raise ValueError("a power law needs values that differ, got values that are all equal up to rounding")
    distance = torch.where(usable, _distances(logs, torch.where(usable, above, 1.0), rest), torch.inf)
    best = distance.argmin(-1, keepdim=True)
    found = (1 + 1 / above.gather(-1, best), stack.gather(-1, best), distance.gather(-1, best), rest[best].long())
    return PowerLaw(*(part.reshape(x.shape[:-1]) for part in found))


def _distances(logs: Tensor, above: Tensor, rest: Tensor) -> Tensor:
    """The Kolmogorov-Smirnov distance for every tail, (matrices, values): some candidates at a time, from theirs on."""
    found = []
    step = max(1, min(_CANDIDATES, TOGETHER // (logs.numel() or 1)))
    for first in range(0, logs.shape[-1], step):
        these = slice(first, first + step)
        beyond = (logs[:, None, first:] - logs[:, these, None]) / above[:, these, None]
        share = rest[None, None, first:] / rest[None, these, None]  # of the tail, from x_j on
        found.append(beyond.neg_().exp_().sub_(share).abs_().triu_().amax(-1))
    return torch.cat(found, dim=-1)
