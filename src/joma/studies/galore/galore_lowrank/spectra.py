"""Numbers of many gradients at once: stable rank, captured energy, subspaces, and random matrices of the same norms."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

STATISTICS = (
    "stable rank", "stable rank of the rest", "effective dimension", "energy 1", "energy 4", "energy m/16", "energy m/4"
)  # fmt: skip
"""What `statistics` gives, in this order."""
BALANCING = 20
"""Rounds that give a random matrix the wanted norms: both are then right to 1e-3 on matrices of real gradients."""


def projector_ranks(side: int) -> tuple[int, int, int, int]:
    """The ranks whose captured energy is recorded.

    >>> projector_ranks(200)
    (1, 4, 12, 50)
    """
    return 1, 4, side // 16, side // 4


def gram(matrices: Tensor) -> Tensor:
    """Of the shorter side, (..., side, side), float64, with trace 1 (0 for a zero matrix); rows where both are equal.

    >>> gram(torch.diag(torch.tensor([3.0, 1.0]))).diagonal()
    tensor([0.9000, 0.1000], dtype=torch.float64)
    """
    wide = matrices.double()
    wide = wide if wide.shape[-2] <= wide.shape[-1] else wide.mT
    found = wide @ wide.mT
    trace = found.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return found / torch.where(trace > 0, trace, 1.0)


def spectrum_of(grams: Tensor, *, vectors: bool = False) -> tuple[Tensor, Tensor]:
    """Shares of energy (..., side), largest first, and with `vectors` the directions (..., side, side // 4).

    In float64 and on the processor, by as many threads as torch has: in float32 some solvers give up on gradients that
    are nearly of rank one, and a GPU takes one matrix after the other. A network that diverged has NaN everywhere and
    disturbs no other.
    """
    fine = grams.isfinite().all(-1).all(-1)[..., None]
    safe, threads = torch.where(fine[..., None], grams, 0.0).double(), torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            solved = list(pool.map(partial(_solve, vectors=vectors), safe.reshape(-1, *grams.shape[-2:]).cpu()))
    finally:
        torch.set_num_threads(threads)
    flat, directions = (torch.stack(column).to(grams.device) for column in zip(*solved, strict=True))
    values = torch.where(fine, flat.view(grams.shape[:-1]).clamp_min(0.0).flip(-1), torch.nan)
    kept = directions.view(*grams.shape[:-1], -1)[..., -(grams.shape[-1] // 4) :].flip(-1)
    return values / values.sum(-1, keepdim=True), kept


def _solve(gram: Tensor, *, vectors: bool) -> tuple[Tensor, Tensor]:
    """Ascending, as eigh has them; by an SVD where eigh gives up: of a Gram matrix it is the same."""
    try:
        if vectors:
            values, directions = torch.linalg.eigh(gram)
            return values, directions
        return torch.linalg.eigvalsh(gram), gram[:, :0]
    except RuntimeError:  # torch.linalg.LinAlgError is one
        if vectors:
            directions, values, _ = torch.linalg.svd(gram)
            return values.flip(-1), directions.flip(-1)
        return torch.linalg.svdvals(gram).flip(-1), gram[:, :0]


def statistics(shares: Tensor) -> Tensor:
    """STATISTICS of a spectrum's shares of energy (..., side), (..., 7).

    The rest is the matrix without its first direction. The effective dimension is 1 / sum of squared shares: n where n
    directions have equal energy.

    >>> statistics(torch.tensor([0.5, 0.25, 0.25] + [0.0] * 13))[:4]
    tensor([2.0000, 2.0000, 2.6667, 0.5000])
    """
    kept = shares.cumsum(-1)
    energies = [kept[..., rank - 1] for rank in projector_ranks(shares.shape[-1])]
    rest = (1 - shares[..., 0]) / shares[..., 1]
    return torch.stack([1 / shares[..., 0], rest, 1 / shares.square().sum(-1), *energies], -1)


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """The share of one subspace that lies in the other, (...): 1 if equal, r / side for random ones of dimension r.

    one, other: (..., side, r), orthonormal columns.
    """
    shared: Tensor = (one.mT.double() @ other.double()).square().sum((-2, -1))
    return shared / one.shape[-1]


def captured(grams: Tensor, directions: Tensor) -> Tensor:
    """The share of energy that the projector onto these directions keeps, (...)."""
    wide = directions.double()
    return (wide * (grams @ wide)).sum((-2, -1))


def same_norms(matrices: Tensor, generator: torch.Generator) -> Tensor:
    """Gaussian matrices whose rows and columns have the norms of the given ones, (..., rows, columns).

    Rows and columns are rescaled in turn, which ends with both right: what is left of a matrix if nothing but the sizes
    of its rows and columns is known.
    """
    rows = matrices.norm(dim=-1, keepdim=True)
    columns = matrices.norm(dim=-2, keepdim=True)
    made: Tensor = torch.randn(matrices.shape, generator=generator, device=matrices.device, dtype=matrices.dtype)
    made = made * rows * columns
    for _ in range(BALANCING):
        for wanted, dim in ((columns, -2), (rows, -1)):
            have = made.norm(dim=dim, keepdim=True)
            made = made * (wanted / torch.where(have > 0, have, 1.0))
    return made
