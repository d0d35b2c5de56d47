"""The exponent alpha of a power law that the large eigenvalues of w^T w follow, as WeightWatcher defines it.

alpha needs the whole spectrum of a matrix, where the stable rank needs its largest value alone. It is a fit, and its
standard error is at least (alpha - 1) / sqrt(tail): with 50 eigenvalues in the tail, alpha = 3 is 3.0 +- 0.3. An alpha
of few eigenvalues means little. It is no test either: Gaussian matrices of side 200 to 800 have no such tail, and get
alphas from 4 to 30. Their distance tells: it is above 0.1.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, real
from joma.host.words import brief_repr
from joma.measure._gram import TOGETHER, unit_squares

LEAST = 20  #: Fewer values are refused: WeightWatcher goes over to another estimator there, and neither says much.
FLOOR = 1e-10  #: Eigenvalues below this share of the largest are rounding, or as good as zero, and begin no tail.
EVEN = 1e-9  #: A tail whose mean logarithm is no further above its beginning is one number repeated, not a power law.
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
