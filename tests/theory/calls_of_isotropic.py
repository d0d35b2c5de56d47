"""Good calls of joma.theory.isotropic and of the laws of joma.theory.radial."""

import torch
from theory.good_call import Call, draw, shapes

from joma.theory import isotropic, radial

LAWS = [
    radial.Gaussian(2, 1.3),
    radial.Ball(2, 2.0),
    radial.StudentT(2, 3.0),
    radial.ExponentialRadial(2, 1.1),
]
HEAVY = LAWS[2]
NODE = {
    "v": draw(40, 2, 2),
    "xi": draw(41, 2),
    "centres": draw(42, 3, 2),
    "weights": draw(43, 2, 3),
}
PLANE = {"v": draw(44, 2, 2), "xi": draw(45, 2), "centre": draw(46, 2)}
BASIS = torch.linalg.qr(draw(47, 3, 2)).Q


POINT = isotropic.decayed_point([2.0, 3.0], 1.0, 1.0, LAWS[0], 0.1)
UNIT = torch.tensor([1.0, 0.0], dtype=torch.float64)
RAY = isotropic.printed_critical_point(1.0, 2.0, HEAVY)
CRITICAL = {
    "mu": POINT.norm[:, None] * UNIT,
    "xi": POINT.xi,
    "centre": torch.tensor([2.0, 3.0]).double()[:, None] * UNIT,
    "a_plus": 1.0,
    "a_minus": 1.0,
}


LAW = {"law": LAWS[0]}
SLOPES = {"slopes": (0.1, 1.0)}

ISOTROPIC = [
    Call(isotropic.thetas, {"s": draw(48, 2, 3)}, shapes("... -> ...; ..."), {**LAW, **SLOPES}),
    Call(isotropic.theta_derivatives, {"s": draw(48, 2, 3)}, shapes("... -> ...; ..."), {**LAW, **SLOPES}),
    Call(isotropic.printed_theta_derivatives, {"s": draw(48, 2, 3)}, shapes("... -> ...; ..."), {**LAW, **SLOPES}),
    Call(isotropic.excess, {"s": draw(48, 2, 3)}, shapes("... -> ..."), {**LAW, **SLOPES}),
    Call(isotropic.printed_marginal, {"s": draw(48, 2, 3)}, shapes("... -> ..."), LAW),
    *(
        Call(
            isotropic.smooth_thetas,
            {"r": draw(48, 2, 3), "a": draw(49, 3, low=0.5)},
            shapes("..., ... -> ...; ..."),
            {"law": law, "psi": torch.sigmoid},
            name=f"smooth_thetas {type(law).__name__}",
        )
        for law in LAWS
    ),
    *(
        Call(
            function,
            PLANE,
            shapes("...2, ..., ...2 -> ...; ...2"),
            {**LAW, "psi": psi},
            choices={"psi": (None,)},
            name=f"{function.__name__} {'step' if psi is None else 'smooth'}",
        )
        for function in (isotropic.hyperplane_mean, isotropic.printed_hyperplane_mean)
        for psi in (None, torch.sigmoid)
    ),
    Call(
        isotropic.hyperplane_mean,
        {"v": draw(44, 2, 3), "xi": 0.3, "centre": draw(46, 3), "basis": BASIS},
        shapes("...3, ..., ...3, 32 -> ...; ...3"),
        LAW,
        name="hyperplane_mean in a basis",
    ),
    Call(
        isotropic.velocity,
        {**NODE, "decay": 0.1},
        shapes("...2, ..., ...c2, ...c, ... -> ...2; ..."),
        {**LAW, **SLOPES},
    ),
    Call(isotropic.printed_velocity, NODE, shapes("...2, ..., ...c2, ...c -> ...2; ..."), LAW),
    Call(isotropic.objective, {**NODE, "decay": 0.1}, shapes("...2, ..., ...c2, ...c, ... -> ..."), {**LAW, **SLOPES}),
    Call(isotropic.hessian, {**NODE, "decay": 0.1}, shapes("...2, ..., ...c2, ...c, ... -> ...33"), {**LAW, **SLOPES}),
    Call(isotropic.printed_growth, {**NODE, "xi_velocity": 0.3}, shapes("...2, ..., ...c2, ...c, ... -> ..."), LAW),
    Call(
        isotropic.critical_rays,
        {"m": draw(50, 2, 3, low=0.5, high=3)},
        shapes("... -> ...; ...; ..."),
        {"law": HEAVY, "side": 1},
        may_be="nan",
        slow=True,
    ),
    Call(
        isotropic.printed_critical_point,
        {"m": draw(50, 3, low=0.5, high=3), "gap": draw(51, 2, 3, low=0.5, high=3)},
        shapes("..., ... -> ...; ...; ...; ..."),
        {"law": HEAVY},
        may_be="nan",
        slow=True,
    ),
    Call(isotropic.crossing_value, {}, shapes("-> ..."), LAW),
    Call(isotropic.printed_existence, {}, shapes("-> ..."), LAW),
    Call(
        isotropic.decayed_point,
        {"m": draw(52, 2, 1, low=1, high=3), "a_plus": 1.0, "a_minus": draw(53, 3, low=0.5), "decay": 0.1},
        shapes("..., ..., ..., ... -> ...; ...; ...; ..."),
        LAW,
        may_be="nan",
        slow=True,
    ),
    Call(
        isotropic.linearisation,
        {**CRITICAL, "decay": 0.1},
        shapes("...2, ..., ...2, ..., ..., ... -> ...22; ...; ..."),
        LAW,
    ),
    Call(isotropic.printed_linearisation, CRITICAL, shapes("...2, ..., ...2, ..., ... -> ...22; ...; ..."), LAW),
    *(
        Call(function, PLANE, shapes("...2, ..., ...2 -> ...22"), {**LAW, "power": 1.5}, choices={"power": (1.5,)})
        for function in (isotropic.theta2_jacobian, isotropic.printed_theta2_jacobian)
    ),
]

RADIAL = [
    Call(
        getattr(law, method),
        {argument: draw(54, 2, low=low, high=0.9)},
        shapes("... -> ..."),
        name=f"{type(law).__name__}.{method}",
        may_be="",
    )
    for law in LAWS
    for method, argument, low in (
        ("density", "s", -1),
        ("theta1", "s", -1),
        ("theta2", "s", -1),
        ("F", "s", -1),
        ("residual_life", "s", -1),
        ("inverse_theta1", "y", 0.1),
        ("radial", "r", 0.1),
    )
]
