"""Eigenvalues and eigenvectors of the operator G -> mean_i B_i G C_i, and which of them a gradient has a part in."""

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

SAME = 1e-9  # eigenvalues that differ by less, as a share of the largest, are one
NONE = 16 * torch.finfo(torch.float64).eps  # times the root of mn: a part that is a smaller share is rounding
ROUNDED = 1e-6  # what single precision may take from symmetry and from zero eigenvalues
LARGEST = 4096  # of m n: the operator has its square of numbers


@dataclass(frozen=True)
class Spectrum:
    """values: (mn,), rising. vectors: (mn, mn), one column per eigenvalue."""

    values: Tensor
    vectors: Tensor

    def coordinates(self, g: Tensor) -> Tensor:
        """g (..., m, n) along every eigenvector, (..., mn)."""
        return g.flatten(-2) @ self.vectors

    def project(self, g: Tensor, chosen: Tensor) -> Tensor:
        """The part of g along the chosen eigenvectors, (..., m, n). chosen: (mn,) or (..., mn)."""
        return ((self.coordinates(g) * chosen) @ self.vectors.mT).reshape(g.shape)

    def is_lowest(self) -> Tensor:
        """Which eigenvalues are the lowest one, (mn,)."""
        return self._equal(self.values[0])

    def least(self, g: Tensor) -> Tensor:
        """Below this size a part of g is rounding, (...)."""
        return torch.mul(torch.linalg.matrix_norm(g), NONE * len(self.values) ** 0.5)

    def present(self, g: Tensor) -> Tensor:
        """Along which eigenvectors g has a part, (..., mn)."""
        return self.coordinates(g).abs() > self.least(g)[..., None]

    def lasting(self, g: Tensor, rate: float) -> Tensor:
        """Which eigenvalues equal the one that outlives the others of g, (..., mn)."""
        size = torch.where(self.present(g), (1 - rate * self.values).abs(), -1.0)
        return self._equal(self.values[size.argmax(-1)][..., None])

    def slowest(self, chosen: Tensor, rate: float) -> Tensor:
        """The largest |1 - rate lambda| of the chosen eigenvalues, (...); 0 where none is chosen."""
        return torch.where(chosen, (1 - rate * self.values).abs(), 0.0).amax(-1)

    def _equal(self, value: Tensor) -> Tensor:
        return (self.values - value).abs() <= SAME * self.values[-1].abs()


def spectrum_of(b: Tensor, c: Tensor) -> Spectrum:
    """Of the mean of B_i x C_i; both must be symmetric and positive semidefinite."""
    b, c = _semidefinite(b, "b"), _semidefinite(c, "c")
    size = b.shape[-1] * c.shape[-1]
    if size > LARGEST:
        raise ValueError(f"b and c must give m n of at most {LARGEST:,}, an operator that fits in memory, got {size:,}")
    s = operator_of(b, c)
    if not s.isfinite().all():
        largest = f"{b.abs().max():g} and {c.abs().max():g}"
        raise ValueError(f"b and c must have finite products, got numbers up to {largest}")
    return Spectrum(*torch.linalg.eigh(s))


def operator_of(b: Tensor, c: Tensor) -> Tensor:
    """The mean of B_i x C_i, (mn, mn)."""
    return torch.einsum("iab,icd->acbd", b, c).flatten(2).flatten(0, 1) / len(b)


def _semidefinite(x: Tensor, name: str) -> Tensor:
    """The symmetric part, if that is all there is but for rounding."""
    scale = x.abs().amax((-2, -1))
    if ((x - x.mT).abs().amax((-2, -1)) > ROUNDED * scale).any():
        raise ValueError(f"{name} must hold symmetric matrices")
    unit = x / torch.where(scale > 0, scale, 1.0)[:, None, None]
    low = torch.linalg.eigvalsh((unit + unit.mT) / 2)[:, 0]
    if (low < -ROUNDED * x.shape[-1]).any():
        worst = (low * scale)[low.argmin()].item()
        raise ValueError(f"{name} must hold positive semidefinite matrices, got an eigenvalue of {worst:g}")
    return x / 2 + x.mT / 2


def joined(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in one type, on the device of the first."""
    dtype = reduce(torch.promote_types, {each.dtype for each in tensors})
    return tuple(each.to(dtype=dtype, device=tensors[0].device) for each in tensors)
