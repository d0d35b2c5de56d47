"""What the singular values of a weight matrix say: stable rank, norms, leading values, effective rank.

A full SVD answers all of it, slowly. The leading values need the Gram matrix and one Cholesky factor of it, or some
twenty products with a block of sixteen vectors, and how far they may be from the truth is part of the answer:
`spectrum` returns an error bound together with the probability with which it holds. Matrices with a small side are
done exactly, through their Gram matrix in float64.
"""

from math import ceil, prod, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from joma.host.arguments import Number, as_numbers, at_most, must_be_generator, number, real
from joma.host.words import brief_repr
from joma.measure import _factor, _lanczos
from joma.measure._gram import checked, compute_dtype, full_precision, gram, scaling

GRAM_SIDE = 256  #: Up to this smaller side all eigenvalues of the Gram matrix are as fast as anything else, and exact.
FACTOR_SIDE = 16384  #: Up to this smaller side an accelerator forms Gram matrices: some square matrices are held.
FACTOR_SIDE_CPU = 1280  #: Up to this smaller side a CPU does: beyond, Lanczos takes less time.
FACTOR_COUNT = 4  #: Up to so many values, which need a factor each.
STARTS, PROBES, PROBES_CPU = 16, 64, 16
"""Gaussian vectors for the Gram matrix: to search from, and to measure rounding with (a product with w each)."""
WIDTH = 16  #: Vectors in a block: a multiple of this is what matrix kernels like best.
FIRST_LOOK = 8  #: The first step after which an error bound is worked out.
PATIENCE = 20  #: From this step on a bound that gets worse is held up by rounding, and more steps only add to that.
SPARE = 6  #: Gaussian vectors beyond the values asked for: with fewer, the odds of a bad start ask for more steps.
FINEST = 200  #: In units of eps: finer tolerances are left to float64.
TOGETHER = 1 << 24  #: Matrices of a stack are done together up to this many entries, which also bounds the memory.


@brief_repr
class Spectrum(NamedTuple):
    """Leading singular values and what they are worth.

    With probability at least `probability` over the random start, |sigma_i^2 - values_i^2| <= error_i sigma_1^2 for
    all i and all matrices of the call. The values are never above the true ones (up to rounding), so the stable rank
    is at most error_0 (relative) too large, the spectral norm at most error_0 / 2 too small.

    >>> found = spectrum(torch.diag(torch.tensor([3.0, 1.0])))
    >>> found.spectral_norm, found.frobenius
    (tensor(3.), tensor(3.1623))
    """

    values: Tensor
    """(..., count) leading singular values, largest first."""
    frobenius: Tensor
    """(...) Frobenius norm."""
    stable_rank: Tensor
    """(...) |w|_F^2 / |w|_2^2; 0 for a zero matrix."""
    error: Tensor
    """(..., count) error bound of the squares, relative to the largest square."""
    probability: float
    """With which all error bounds hold; 1 if nothing was left to chance."""
    iterations: Tensor
    """(...) steps of Lanczos, or squarings of the Gram matrix on accelerators; 0 where all eigenvalues were found."""
    vectors: Tensor
    """(..., smaller side, count) singular vectors of the smaller side (left ones if square): a warm `start`."""

    @property
    def spectral_norm(self) -> Tensor:
        """(...) the largest singular value."""
        return self.values[..., 0]


def spectrum(
    w: Number, *, count: int = 1, tolerance: float = 1e-3, failure: float = 1e-6, start: Number | None = None,
    generator: torch.Generator | None = None,
) -> Spectrum:  # fmt: skip
    """The `count` leading singular values of every matrix, to `tolerance`, except with probability `failure`.

    w: (..., rows, columns), any float type, any scale; products are taken in float32 (float64 for float64). With n the
    smaller side, there are three ways, each stopped when the error bound of every matrix is below the tolerance:

    - n up to 256, or a tolerance too fine for float32, or if the others give up: the eigenvalues of the Gram matrix in
      float64, exact up to rounding;
    - n up to 1280 on a CPU, 16384 elsewhere, count up to 4: the Gram matrix in float32, and a Cholesky factor for each
      value. Cost: rows columns n flops on a CPU, four times as many in TF32 elsewhere. See `joma.measure._factor`;
    - else: block Lanczos on w w^T with full reorthogonalisation (the Krylov spaces of Golub-Kahan, orthogonalised on
      the smaller side only). Cost: about two reads of w per step, 15 to 25 steps without a spectral gap, fewer with
      one. See `joma.measure._lanczos`.

    start: (..., smaller side, any) vectors of a similar matrix, e.g. `vectors` of the checkpoint before. They are used
    in addition to Gaussian vectors: alone they can miss a value that came up in a direction orthogonal to them.
    generator: draws the Gaussian vectors; without one a private seed is used, so that measuring a training run does
    not disturb its random numbers and the same weights give the same answer. Not differentiable (`stable_rank` is).

    >>> s = spectrum(torch.diag(torch.tensor([3.0, 2.0, 1.0])), count=2)
    >>> s.values, s.stable_rank, s.probability
    (tensor([3., 2.]), tensor(1.5556), 1.0)
    """
    w = checked(w)
    side = min(w.shape[-2:])
    count = at_most(count, "count", side, "the smaller side of w")
    if not 0 < number(tolerance, "tolerance") < 1 or not 0 < number(failure, "failure") < 1:
        raise ValueError(f"tolerance and failure must lie between 0 and 1, got {tolerance!r} and {failure!r}")
    known = None if start is None else real(start, "start").to(w.device)
    if known is not None and (known.ndim != w.ndim or known.shape[:-1] != (*w.shape[:-2], side)):
        wanted = f"shape (..., {side}, vectors), {side} being the smaller side of w {tuple(w.shape)}"
        raise ValueError(f"start must have {wanted}, got {tuple(known.shape)}")
    if generator is None:
        generator = torch.Generator(w.device).manual_seed(0)
    must_be_generator(generator)
    warm = 0 if known is None else known.shape[-1]
    with torch.no_grad(), full_precision(w.device):
        stack = w.detach().reshape(-1, *w.shape[-2:])
        stack = stack if stack.shape[-2] <= stack.shape[-1] else stack.mT
        width = -(-(count + warm + SPARE) // WIDTH) * WIDTH
        eps = torch.finfo(compute_dtype(w)).eps
        exact = side <= GRAM_SIDE or 4 * width > side or tolerance < FINEST * eps
        factor = side <= (FACTOR_SIDE_CPU if _factor.on_cpu(w) else FACTOR_SIDE) and count <= FACTOR_COUNT
        earlier = (
            stack.new_zeros(len(stack), side, 0) if known is None else known.detach().reshape(len(stack), side, -1)
        )
        each = failure / (count * max(1, len(stack)) * 2)  # 2: a matrix may come to be tried in two ways
        parts = []
        step = max(1, TOGETHER // prod(w.shape[-2:]))
        for i in range(0, len(stack), step):
            some, before, part = stack[i : i + step], earlier[i : i + step].to(compute_dtype(w)), None
            if not exact and factor:
                part = _by_factor(some, before, count, tolerance, each, generator)
            if not exact and part is None:
                part = _by_lanczos(some, before, width - warm, count, tolerance, each, generator)
            parts.append(_by_gram(some, count) if part is None else part)
    return _assemble(parts, w, count, 1.0 if exact else 1.0 - failure)


def stable_rank(w: Number, *, tolerance: float = 1e-3, generator: torch.Generator | None = None) -> Tensor:
    """|w|_F^2 / |w|_2^2 of every matrix: between 1 and the rank, and 0 for a zero matrix.

    - w: (..., rows, columns); returns (...), at least float32
    - tolerance: relative, kept with probability 1 - 1e-6; exact up to a smaller side of 256, see `spectrum`
    - generator: of the random start; None: a fixed one

    Unlike the rank it moves continuously with the weights. Differentiable once: through |w|_F^2 / |u^T w|^2 with the
    leading singular vector u held fixed, which has the right gradient because u maximises |u^T w|.

    >>> stable_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0])))
    tensor(1.5000)
    """
    w = as_numbers(w, "w")
    found = spectrum(w, tolerance=tolerance, generator=generator)
    if not (torch.is_grad_enabled() and w.requires_grad):
        return found.stable_rank
    wide = w.to(compute_dtype(w))
    size = wide.detach().abs().amax((-2, -1), keepdim=True)
    wide = wide / torch.where(size > 0, size, 1.0)
    u = found.vectors
    image = u.mT @ wide if w.shape[-2] <= w.shape[-1] else wide @ u
    top = image.square().sum((-2, -1))
    return torch.where(top > 0, wide.square().sum((-2, -1)) / torch.where(top > 0, top, 1.0), 0.0)


def spectral_norm(w: Number, *, tolerance: float = 1e-3, generator: torch.Generator | None = None) -> Tensor:
    """The largest singular value of every matrix, w: (..., rows, columns) -> (...), at most tolerance/2 too small.

    >>> spectral_norm(torch.tensor([[3.0, 0.0, 4.0]]))
    tensor(5.)
    """
    return spectrum(w, tolerance=tolerance, generator=generator).spectral_norm


def leading_singular_values(
    w: Number, count: int, *, tolerance: float = 1e-3, generator: torch.Generator | None = None
) -> Tensor:
    """The `count` largest singular values, w: (..., rows, columns) -> (..., count); squares within tolerance sigma_1^2.

    >>> leading_singular_values(torch.diag(torch.tensor([1.0, 3.0, 2.0])), 2)
    tensor([3., 2.])
    """
    return spectrum(w, count=count, tolerance=tolerance, generator=generator).values


def effective_rank(w: Number) -> Tensor:
    """exp of the entropy of the normalised singular values sigma_i / sum_j sigma_j (Roy & Vetterli 2007).

    Between 1 and the rank; 0 for a zero matrix. It needs all singular values: the Gram matrix of the smaller side n in
    float64 and its eigenvalues, 2 n^2 m + O(n^3) flops for n x m, so it costs nearly as much as an SVD without
    vectors on a CPU. Singular values below 1e-7 of the largest cannot be told from zero this way and count as zero.
    w: (..., rows, columns) -> (...). Differentiable.

    >>> effective_rank(torch.eye(4)).item()
    4.0
    """
    w = checked(w)
    stack = w.reshape(-1, *w.shape[-2:])
    stack = stack if stack.shape[-2] <= stack.shape[-1] else stack.mT
    with full_precision(w.device):
        parts = [torch.linalg.eigvalsh(gram(one, scaling(one)[1])) for one in stack.split(1)]
    squares = torch.cat(parts) if parts else stack.new_zeros(0, stack.shape[-2], dtype=torch.float64)
    present = squares > 1e-14 * squares.amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    sigma = torch.where(present, torch.where(present, squares, 1.0).sqrt(), 0.0)
    total = sigma.sum(-1, keepdim=True)
    share = sigma / torch.where(total > 0, total, 1.0)
    entropy = torch.special.entr(torch.where(present, share, 1.0)).sum(-1)
    rank = torch.where(total[:, 0] > 0, entropy.exp(), 0.0)
    return rank.to(compute_dtype(w)).reshape(w.shape[:-2])


class _Part(NamedTuple):
    """One group of matrices: squares relative to (1/scale)^2; everything small is float64 on the CPU."""

    squares: Tensor
    frobenius: Tensor
    scale: Tensor
    error: Tensor
    iterations: Tensor
    vectors: Tensor


def _by_factor(
    a: Tensor, earlier: Tensor, count: int, tolerance: float, failure: float, generator: torch.Generator
) -> _Part | None:
    """The Gram matrix and Cholesky factors; None if they do not settle it."""
    frobenius, scale = scaling(a)
    a = a.to(compute_dtype(a))
    drawn = _gaussians(a, STARTS + (PROBES_CPU if _factor.on_cpu(a) else PROBES), generator).to(a.device)
    first, probes = drawn[..., :STARTS] / sqrt(STARTS * a.shape[-2]), drawn[..., STARTS:].contiguous()
    # Earlier vectors are a good place to begin: nothing is concluded from this start.
    start = torch.cat([earlier.to(a.device), first], dim=-1)
    found = _factor.certify(a, scale, start, probes, count, tolerance, failure)
    error = torch.where(frobenius[:, None] > 0, found.excess, 0.0)
    if bool((error <= tolerance).all()):
        iterations = torch.full((len(a),), found.steps)
        return _Part(found.squares, frobenius, scale, error, iterations, found.vectors)
    return None


def _by_lanczos(
    a: Tensor, earlier: Tensor, gaussians: int, count: int, tolerance: float, failure: float, generator: torch.Generator
) -> _Part | None:
    """Steps until every matrix is certified; None if the Krylov space would fill the whole one, or rounding forbids."""
    frobenius, scale = scaling(a)
    a = a.to(compute_dtype(a))
    # Gaussian columns first, so that QR leaves them a basis of their own. On the CPU, which is faster at that.
    block = torch.cat([_gaussians(a, gaussians, generator).cpu(), earlier.cpu()], dim=-1)
    start, r = torch.linalg.qr(block)
    start = start.to(a.device)
    largest = torch.linalg.matrix_norm(r[:, :gaussians, :gaussians].double(), 2)
    deltas = [_lanczos.least_overlap(i + 1, gaussians, failure) / largest for i in range(count)]
    eps = torch.finfo(a.dtype).eps
    done: dict[int, tuple[int, Tensor, Tensor, Tensor]] = {}
    look, before = FIRST_LOOK, None
    for krylov in _lanczos.block_lanczos(a, start, scale.to(a)[:, None, None]):
        if krylov.steps < look:
            continue
        bounds = _lanczos.certify(krylov, len(deltas), gaussians, deltas, tolerance, eps)
        error = torch.where(frobenius[:, None] > 0, bounds.excess, 0.0)
        for i in (error.amax(-1) <= tolerance).nonzero()[:, 0].tolist():
            if i not in done:
                vectors = krylov.basis[i] @ bounds.coefficients[i].to(krylov.basis)
                done[i] = krylov.steps, bounds.squares[i], error[i], vectors
        if len(done) == len(a):
            found = [done[i] for i in range(len(a))]
            squares, errors, vectors = (torch.stack(column) for column in list(zip(*found, strict=True))[1:])
            iterations = torch.tensor([f[0] for f in found])
            return _Part(squares, frobenius, scale, errors, iterations, vectors)
        now = krylov.steps, float(bounds.missing[[i for i in range(len(a)) if i not in done]].amax())
        if before and now[0] > PATIENCE and now[1] > before[1]:
            return None
        # When to look again: the eigenvalues of T cost as much as some steps, so not at every one. Extrapolates the
        # rate since the last look, at most twice as far. The rate grows, so a fifth is added to it.
        rate = (before[1] - now[1]) / (now[0] - before[0]) if before else 0.0
        ahead = now[1] / (1.2 * rate) if 0 < rate < float("inf") else now[0] / 2
        look, before = now[0] + max(1, min(ceil(ahead), now[0])), now
    return None


def _by_gram(a: Tensor, count: int) -> _Part:
    frobenius, scale = scaling(a)
    squares, vectors = torch.linalg.eigh(gram(a, scale))
    squares, vectors = squares[..., -count:].flip(-1), vectors[..., -count:].flip(-1)
    # In float64, and then of the numbers that are handed back.
    rounding = a.shape[-1] * torch.finfo(torch.float64).eps + 2 * torch.finfo(compute_dtype(a)).eps
    error = torch.where(frobenius > 0, rounding, 0.0)[:, None].expand(-1, count)
    return _Part(squares.clamp_min(0.0).cpu(), frobenius, scale, error, torch.zeros(len(a), dtype=torch.int64), vectors)


def _gaussians(a: Tensor, columns: int, generator: torch.Generator) -> Tensor:
    """(matrices, side, columns), where the generator is."""
    return torch.randn(*a.shape[:-1], columns, generator=generator, device=generator.device, dtype=compute_dtype(a))


def _assemble(parts: list[_Part], w: Tensor, count: int, probability: float) -> Spectrum:
    lead, side = w.shape[:-2], min(w.shape[-2:])

    def joined(pieces: list[Tensor], *tail: int, dtype: torch.dtype | None = None) -> Tensor:
        whole = torch.cat(pieces) if pieces else torch.zeros(0)
        return whole.to(device=w.device, dtype=dtype or compute_dtype(w)).reshape((*lead, *tail))

    return Spectrum(
        values=joined([part.squares.sqrt() / part.scale[:, None] for part in parts], count),
        frobenius=joined([part.frobenius for part in parts]),
        # |scale w|_F is 1 by the choice of scale
        stable_rank=joined([torch.where(part.frobenius > 0, 1 / part.squares[:, 0], 0.0) for part in parts]),
        error=joined([part.error for part in parts], count),
        probability=probability,
        iterations=joined([part.iterations for part in parts], dtype=torch.int64),
        vectors=joined([part.vectors for part in parts], side, count),
    )
