"""Lemmas 1-5 and Theorem 3: one nonlinear node on a mixture of isotropic clusters, attention uniform.

A node phi(v . x + xi) sees samples x = xbar_j + x', x' isotropic with the law of `joma.theory.radial`, and cluster j
pulls with weight a_j. All that matters of a cluster is its signed distance from the hyperplane,

    rho_j = (v . xbar_j + xi)/|v|

The paper works with r_j = |v| rho_j instead, having changed the variable in the measure but not in the density
(eq. 31, 38). That one slip gives its equations powers of 1/|v| that are not there, frees critical points that the data
fix, and turns rays into points. Functions without a prefix are right; `printed_...` are the paper's own forms.

- Lemma 1: `hyperplane_mean`, `smooth_thetas`. Lemma 2: `velocity`, and what it climbs, `objective`.
- Lemmas 3 and 5, for any homogeneous phi: `thetas`, `theta_derivatives`, `excess`.
- Lemma 4: `critical_rays`, `crossing_value`; with weight decay `decayed_point`.
- Theorem 3: `linearisation` (xi fixed), `hessian` ((v, xi) together, at any point).
"""

from joma.theory._critical import (
    CriticalPoint,
    CriticalRay,
    Linearisation,
    Side,
    critical_rays,
    crossing_value,
    decayed_point,
    linearisation,
)
from joma.theory._isotropic_as_printed import (
    printed_critical_point,
    printed_existence,
    printed_growth,
    printed_hyperplane_mean,
    printed_linearisation,
    printed_marginal,
    printed_theta2_jacobian,
    printed_theta_derivatives,
    printed_velocity,
    theta2_jacobian,
)
from joma.theory._mixture import (
    HyperplaneMean,
    Slopes,
    Thetas,
    Velocity,
    excess,
    hessian,
    hyperplane_mean,
    objective,
    smooth_thetas,
    theta_derivatives,
    thetas,
    velocity,
)

__all__ = [
    "CriticalPoint", "CriticalRay", "HyperplaneMean", "Linearisation", "Side", "Slopes", "Thetas", "Velocity",
    "critical_rays", "crossing_value", "decayed_point", "excess", "hessian", "hyperplane_mean", "linearisation",
    "objective", "printed_critical_point", "printed_existence", "printed_growth", "printed_hyperplane_mean",
    "printed_linearisation", "printed_marginal", "printed_theta2_jacobian", "printed_theta_derivatives",
    "printed_velocity", "smooth_thetas", "theta2_jacobian", "theta_derivatives", "thetas", "velocity",
]  # fmt: skip
