"""A critical point of a node between two clusters, and everything Theorem 3 says about it, as one row of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.studies.isotropic._forms import jacobian
from joma.theory import isotropic
from joma.theory.isotropic import Side
from joma.theory.radial import RadialLaw, StudentT

DIMENSION = 4
LAW = StudentT(DIMENSION, 3.0)
JACOBIAN = 1e-8  # closed forms against differences of sixth order


@dataclass(frozen=True)
class Point:
    """A critical point of two clusters, a_+ = 1 at m along the first axis and -a_- at 0."""

    law: RadialLaw
    m: float
    ratio: Tensor
    mu: Tensor
    xi: Tensor
    decay: float = 0.0

    @property
    def setting(self) -> tuple[Tensor, Tensor, RadialLaw]:
        centre = self.m * torch.eye(DIMENSION, dtype=torch.float64)[0]
        return torch.stack([centre, 0 * centre]), torch.stack([torch.ones_like(self.ratio), -self.ratio]), self.law

    @property
    def state(self) -> Tensor:
        return torch.cat([self.mu, self.xi[None]])

    def field(self, state: Tensor) -> Tensor:
        """(v', xi') at states (..., d + 1)."""
        motion = isotropic.velocity(state[..., :-1], state[..., -1], *self.setting, decay=self.decay)
        return torch.cat([motion.v, motion.xi[..., None]], -1)

    def record(self) -> Tensor:
        """What `Record` reads."""
        found = jacobian(self.field, self.state)  # by differences, (d + 1, d + 1)
        centre = self.setting[0][0]
        exact = isotropic.linearisation(self.mu, self.xi, centre, 1.0, self.ratio, self.law, decay=self.decay)
        printed = isotropic.printed_linearisation(self.mu, self.xi, centre, 1.0, self.ratio, self.law)
        closed = isotropic.hessian(self.mu, self.xi, *self.setting, decay=self.decay)
        rates = [self.rates(matrix) for matrix in (-found[:-1, :-1], exact.C, printed.C)]
        coupling = torch.stack([found[:-1, -1].norm(), (found - closed)[:-1, -1].abs().max()])
        return torch.cat([*rates, coupling, self.xi[None], torch.linalg.eigvalsh((found + found.mT) / 2)])

    def rates(self, matrix: Tensor) -> Tensor:
        """Eigenvalues across and along mu of a matrix beta1 I + beta2 mu mu^T; NaN if it is not of that form."""
        along = self.mu / self.mu.norm()
        parallel = along @ matrix @ along
        across = (matrix.trace() - parallel) / (DIMENSION - 1)
        form = across * (torch.eye(DIMENSION) - torch.outer(along, along)) + parallel * torch.outer(along, along)
        rates = torch.stack([across, parallel])
        return rates if (form - matrix).abs().max() <= JACOBIAN else torch.full_like(rates, torch.nan)


class Record:
    """Names for the columns that `Point.record` writes: one row per critical point."""

    def __init__(self, rows: Any) -> None:
        self.rates, self.corrected, self.printed = rows[:, 0:2], rows[:, 2:4], rows[:, 4:6]  # across, along
        self.coupling = rows[:, 6] / np.abs(self.rates).max(1)
        self.coupling_off, self.xi = rows[:, 7], rows[:, 8]
        self.spectrum = rows[:, 9:]  # of the full Jacobian in (v, xi), ascending

    def off(self, which: int, *, printed: bool = False) -> Any:
        """Relative to the larger of the two rates."""
        form = self.printed if printed else self.corrected
        return np.abs(form[:, which] - self.rates[:, which]) / np.abs(self.rates).max(1)


def on_ray(m: float, length: float, side: Side) -> Point:
    ray = isotropic.critical_rays(m, LAW, side=side)
    mu = side * length * torch.eye(DIMENSION, dtype=torch.float64)[0]
    return Point(LAW, m, ray.ratio, mu, length * ray.rho_minus)


def with_decay(law: RadialLaw, m: float, decay: float) -> Point:
    point = isotropic.decayed_point(m, 1.0, 1.0, law, decay)
    axis = torch.eye(DIMENSION, dtype=torch.float64)[0]
    return Point(law, m, torch.ones((), dtype=torch.float64), point.norm * axis, point.xi, decay)
