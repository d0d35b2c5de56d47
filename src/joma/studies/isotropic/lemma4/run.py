"""Critical rays of Student-t laws, what really happens there, and F/θ₁ of all laws."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from joma.claims.config import Least
from joma.claims.contract import Progress, StudyConfig
from joma.runs import Run
from joma.studies.isotropic._forms import difference
from joma.theory import isotropic
from joma.theory.radial import Ball, ExponentialRadial, Gaussian, RadialLaw, StudentT

DIMENSION = 5
LENGTHS = (0.5, 1.0, 3.0)
"""Of v: places on each ray."""
FAR = (1e2, 1e50, 1e100, 1e150)  # the first is on the way, the others give limits
CONCAVE: dict[str, RadialLaw] = {
    "Gaussian": Gaussian(DIMENSION),
    "ball": Ball(DIMENSION, 2.0),
    "exp-radial": ExponentialRadial(DIMENSION),
}


@dataclass(frozen=True)
class Lemma4Config(StudyConfig):
    """Separations m of the two clusters, and tails ν of the Student-t laws that have critical points."""

    separations: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    tails: tuple[float, ...] = (1.5, 2.0, 3.0, 5.0, 20.0)
    grid: Annotated[int, Least(3, "to see F/θ₁ rise or fall")] = 400


def run(config: Lemma4Config, run: Run, progress: Progress) -> None:
    """Critical rays of the Student-t laws, what really happens there, and F/θ₁ of all laws."""
    m = torch.tensor(config.separations, dtype=torch.float64)
    run.keep("separations", lambda: m)
    run.keep("tails", lambda: np.array(config.tails))
    students: dict[str, RadialLaw] = {f"{nu:g}": StudentT(DIMENSION, nu) for nu in config.tails}
    for i, (name, law) in enumerate(students.items()):
        progress(0.7 * i / len(students), f"rays for ν = {name}")
        if f"{name}/ray" not in run:
            run.record(0, {f"{name}/{what}": value for what, value in _rays(law, m).items()})
    progress(0.7, "F/θ₁")
    for name, law in (CONCAVE | students).items():
        if f"{name}/s" not in run:
            run.record(0, {f"{name}/{what}": value for what, value in _life(law, m, config.grid).items()})
    progress(0.9, "the Laplace law")
    run.keep("laplace", _laplace)


def _relative_speed(v: Tensor, xi: Tensor, centres: Tensor, weights: Tensor, law: RadialLaw) -> Tensor:
    """‖(v', xi')‖ over the sum of |a_j|."""
    motion = isotropic.velocity(v, xi, centres, weights, law)
    speed: Tensor = torch.linalg.vector_norm(torch.cat([motion.v, motion.xi[..., None]], -1), dim=-1)
    return speed / weights.abs().sum(-1)


def _speed(law: RadialLaw, m: Tensor, length: Tensor, xi: Tensor, ratio: Tensor) -> Tensor:
    """The relative speed at v of a length along the axis of two clusters, a_+ = 1 at m and -ratio at 0."""
    axis = torch.eye(DIMENSION, dtype=torch.float64)[0]
    centres = torch.stack([m[:, None] * axis, torch.zeros(len(m), DIMENSION, dtype=torch.float64)], 1)
    weights = torch.stack([torch.ones_like(ratio), -ratio], -1)
    return _relative_speed(length[..., None] * axis, xi, centres, weights, law)


def _rays(law: RadialLaw, m: Tensor) -> dict[str, Tensor]:
    """The critical rays of a law, at several places of each, and what the lemma says about them."""
    ray = isotropic.critical_rays(m, law)
    length = torch.tensor(LENGTHS, dtype=torch.float64)[:, None]
    # printed critical points: r_+ - r_- = |v| m is met by choosing |v|
    placed, gap = m.repeat(len(LENGTHS)), (length * m).flatten()
    point = isotropic.printed_critical_point(placed, gap, law)
    ratio = law.theta1(point.rho_plus) / law.theta1(point.rho_minus)
    sums = []  # at rho_j, and at r_j = |v| rho_j as printed
    for scale in (torch.ones_like(length), length):
        plus, minus = law.F(scale * ray.rho_plus), ray.ratio * law.F(scale * ray.rho_minus)
        sums.append((plus - minus) / (plus + minus))
    shares = [law.theta1(ray.rho_plus), law.theta1(ray.rho_minus)]
    plus, minus = (law.F(law.inverse_theta1(y)) / y for y in shares)
    rho = torch.stack([ray.rho_plus, ray.rho_minus])
    defined = (rho > 0) & (rho < 1)  # where rho is no probability the printed inverse does not exist
    y = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    x = law.inverse_theta1(y)
    slope = difference(lambda share: law.F(law.inverse_theta1(share)), y, step=5e-4)
    return {
        "ray": torch.stack(ray),  # (3, m): ratio, rho_+, rho_-
        "speed": _speed(law, m, length, length * ray.rho_minus, ray.ratio),  # (lengths, m)
        "speed as printed": _speed(law, placed, point.norm, point.xi, ratio).reshape(len(LENGTHS), -1),
        "sum": torch.stack(sums),  # (2, lengths, m): of a_j F over that of |a_j| F
        "line": (plus / minus).log(),  # of G(y_+)/y_+ over G(y_-)/y_-
        "shares as printed": torch.where(defined, law.inverse_theta1(torch.where(defined, rho, 0.5)), torch.nan),
        "G slope": torch.stack([slope, law.theta1(x) / law.density(x)]),  # G' by differences of G = F(theta1^-1(y))
    }


def _life(law: RadialLaw, m: Tensor, grid: int) -> dict[str, Tensor]:
    """F/θ₁ on a grid, and for each m how near it comes to taking one value at two distances m apart."""
    s = torch.linspace(-(0.98 * law.radius if law.radius < float("inf") else 12.0), 4.0, grid, dtype=torch.float64)
    r = -torch.tensor(FAR, dtype=torch.float64)
    return {
        "s": s,
        "life": law.residual_life(s),
        "gap": (law.residual_life(s + m[:, None]) / law.residual_life(s)).log().amin(-1),
        "criterion": isotropic.crossing_value(law),
        "far": torch.stack([law.F(r), r * law.theta1(r)]),
    }


def _laplace() -> Tensor:
    """Eq. 58's value for the Laplace law, and its speed at critical points: a_-/a_+ = e^m, any rho_+ <= 0."""
    law = ExponentialRadial(1)
    m = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    centres = torch.stack([m, torch.zeros_like(m)], -1)[..., None]
    weights = torch.stack([torch.ones_like(m), -m.exp()], -1)
    speed = _relative_speed(torch.ones(3, 1, dtype=torch.float64), -0.3 - m, centres, weights, law)
    return torch.stack([isotropic.crossing_value(law), speed.max()])
