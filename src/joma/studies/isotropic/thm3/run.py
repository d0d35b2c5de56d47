"""Critical points of a node between two clusters: Jacobians there, remainders around them, and flows towards them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Progress, StudyConfig
from joma.runs import Run
from joma.studies.isotropic._forms import jacobian
from joma.theory import isotropic
from joma.theory.isotropic import Side
from joma.theory.radial import Ball, Gaussian, RadialLaw, StudentT

DIMENSION = 4
LAW = StudentT(DIMENSION, 3.0)
DECAYED: tuple[RadialLaw, ...] = (Gaussian(DIMENSION), LAW, Ball(DIMENSION, 2.0))
JACOBIAN = 1e-8  # closed forms against differences of sixth order


@dataclass(frozen=True)
class Thm3Config(StudyConfig):
    """Critical rays of the Student-t law, seen at one length of mu, and isolated points under weight decay."""

    separations: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    length: float = 1.7
    decay: float = 0.1
    steps: int = 160
    """Of the flows towards the critical points."""
    starts: int = 12
    seed: int = 0


def run(config: Thm3Config, run: Run, progress: Progress) -> None:
    """Jacobians by differences at critical points, remainders around them, and flows towards them."""
    run.keep("separations", lambda: np.array(config.separations))
    run.keep("eq69", lambda: _eq69(config.seed))
    progress(0.1, "Jacobians on critical rays")
    run.keep("ray +1", lambda: torch.stack([on_ray(each, config.length, 1).record() for each in config.separations]))
    run.keep("ray -1", lambda: torch.stack([on_ray(each, config.length, -1).record() for each in config.separations]))
    progress(0.3, "the printed equation at its own critical points")
    run.keep("own", lambda: torch.stack([_own(each) for each in config.separations]))
    progress(0.4, "weight decay")
    pairs = [(law, each) for law in DECAYED for each in config.separations]
    run.keep("decayed", lambda: torch.stack([with_decay(law, m, config.decay).record() for law, m in pairs]))
    progress(0.5, "remainders")
    gamma = torch.logspace(-1, -4, 13, dtype=torch.float64)
    run.keep("gamma", lambda: gamma)
    run.keep("remainder", lambda: _remainders(on_ray(2.0, config.length, 1), gamma, config.seed))
    progress(0.6, "flows")
    run.keep("critical ray", lambda: on_ray(2.0, config.length, 1).state)
    run.keep("flow/ray", lambda: _flow(on_ray(2.0, config.length, 1), 0.3, config))
    run.keep("flow/decayed", lambda: _flow(with_decay(DECAYED[0], 2.0, config.decay), 1.0, config))


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
        """What `judge.Record` reads."""
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


def on_ray(m: float, length: float, side: Side) -> Point:
    """The point at a length of v on the critical ray of two clusters m apart."""
    ray = isotropic.critical_rays(m, LAW, side=side)
    mu = side * length * torch.eye(DIMENSION, dtype=torch.float64)[0]
    return Point(LAW, m, ray.ratio, mu, length * ray.rho_minus)


def with_decay(law: RadialLaw, m: float, decay: float) -> Point:
    """The isolated critical point that weight decay makes."""
    point = isotropic.decayed_point(m, 1.0, 1.0, law, decay)
    axis = torch.eye(DIMENSION, dtype=torch.float64)[0]
    return Point(law, m, torch.ones((), dtype=torch.float64), point.norm * axis, point.xi, decay)


def _eq69(seed: int) -> Tensor:
    """Largest error of eq. 69 as printed and as corrected, against differences, at a random v."""
    generator = torch.Generator().manual_seed(seed)
    v, centre = torch.randn(2, DIMENSION, generator=generator, dtype=torch.float64)

    def pushed(v: Tensor) -> Tensor:
        length: Tensor = v.norm(dim=-1, keepdim=True)
        return LAW.theta2(v @ centre + 0.3)[..., None] * v / length**3

    truth = jacobian(pushed, v, step=1e-3)
    forms = (isotropic.printed_theta2_jacobian, isotropic.theta2_jacobian)
    return torch.stack([(form(v, 0.3, centre, LAW, power=3) - truth).abs().max() for form in forms])


def _own(m: float) -> Tensor:
    """Errors of eq. 73 and 74 on the equation they were derived from, at its own critical point with |v| = 1/2."""
    gap = m / 2
    found = isotropic.printed_critical_point(m, gap, LAW)
    ratio = isotropic.critical_rays(gap, LAW).ratio
    point = Point(LAW, m, ratio, found.norm * torch.eye(DIMENSION, dtype=torch.float64)[0], found.xi)
    printed = isotropic.printed_linearisation(point.mu, point.xi, point.setting[0][0], 1.0, ratio, LAW)
    truth = -jacobian(lambda v: isotropic.printed_velocity(v, point.xi, *point.setting).v, point.mu, step=1e-3)
    truth_rates = point.rates(truth)
    return (point.rates(printed.C) - truth_rates).abs() / truth_rates.abs().max()


def _remainders(point: Point, gamma: Tensor, seed: int) -> Tensor:
    """(gammas, directions, 2): |v' - C(mu - v)| / |v'|, whole and after the best scalar factor; xi fixed."""
    generator = torch.Generator().manual_seed(seed)
    step = torch.randn(16, DIMENSION, generator=generator, dtype=torch.float64)
    step = gamma[:, None, None] * point.mu.norm() * step / step.norm(dim=-1, keepdim=True)
    true = isotropic.velocity(point.mu + step, point.xi, *point.setting).v
    linear = -step @ isotropic.linearisation(point.mu, point.xi, point.setting[0][0], 1.0, point.ratio, point.law).C
    best = (true * linear).sum(-1, keepdim=True) / (linear**2).sum(-1, keepdim=True) * linear
    size: Tensor = true.norm(dim=-1)[..., None]
    return torch.stack([(true - linear).norm(dim=-1), (true - best).norm(dim=-1)], -1) / size


def _flow(point: Point, step: float, config: Thm3Config) -> Tensor:
    """(steps, starts, 5): distance to the point, to its ray, sine of the angle to xbar_+, |v|, xi."""
    generator = torch.Generator().manual_seed(config.seed)
    noise = torch.randn(config.starts, DIMENSION + 1, generator=generator, dtype=torch.float64)
    state = point.state + 0.35 * point.mu.norm() * noise / noise.norm(dim=-1, keepdim=True)
    unit = point.state / point.state.norm()
    rows = []
    for i in range(config.steps + 1):
        v, off, off_ray = state[:, :-1], state - point.state, state - (state @ unit)[:, None] * unit
        length = v.norm(dim=-1)
        sine = v[:, 1:].norm(dim=-1) / length
        rows.append(torch.stack([off.norm(dim=-1), off_ray.norm(dim=-1), sine, length, state[:, -1]], -1))
        if i < config.steps:
            state = _runge_kutta(point.field, state, step)
    return torch.stack(rows)


def _runge_kutta(field: Callable[[Tensor], Tensor], state: Tensor, step: float) -> Tensor:
    """One classical step of fourth order; the ends of these flows do not depend on its accuracy."""
    one = field(state)
    two = field(state + step / 2 * one)
    three = field(state + step / 2 * two)
    four = field(state + step * three)
    return state + step / 6 * (one + 2 * two + 2 * three + four)
