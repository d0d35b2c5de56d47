"""One good call of every public function of joma.theory, with the rule for the shapes of its answer.

A rule gets the shapes of all arguments that are arrays, by name, and returns the shape of the answer, or a list of
shapes if the answer has several parts. It raises where the shapes do not fit together (see `Misfit`).
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from joma.theory import attention, cdag, hierarchy, invariant, isotropic, linear, radial, salience
from joma.theory.attention import Attention

Shape = tuple[int, ...]


class Misfit(Exception):
    """These shapes do not belong together: the call must be refused."""


@dataclass(frozen=True)
class Call:
    function: Callable[..., Any]
    arrays: Mapping[str, Any]
    """Arguments that may be numbers, lists or tensors."""
    shape: Callable[..., Shape | list[Shape]]
    others: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that choose: a law, a kind, a count."""
    name: str = ""
    infinite: frozenset[str] = frozenset()
    """Arguments for which infinity is an answer's limit and allowed."""
    may_be: str = ""
    """'inf' and 'nan' where the docstring says that the answer can be."""
    quick: bool = False
    """Called at every step of a flow or of training: looks at shapes and types, not at values."""
    choices: Mapping[str, Any] = field(default_factory=dict)
    """Other values that an argument of `others` may have."""

    @property
    def optional(self) -> set[str]:
        """Arrays that have a number as their default."""
        parameters = inspect.signature(self.function).parameters
        return {name for name in self.arrays if isinstance(parameters[name].default, float)}

    def __call__(self, **changed: Any) -> Any:
        return self.function(**{**self.arrays, **self.others, **changed})

    def __str__(self) -> str:
        return self.name or self.function.__name__


def fit(*shapes: Shape) -> Shape:
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        raise Misfit from None


def need(condition: bool) -> None:
    if not condition:
        raise Misfit


def count(t: Shape) -> int:
    """How many steps."""
    need(len(t) <= 1)
    return t[0] if t else 1


def stepped(shape: Shape, t: Shape, dims: int = 1) -> Shape:
    """Steps go before the last `dims` dimensions."""
    at = len(shape) - dims
    return (*shape[:at], count(t), *shape[at:])


def draw(seed: int, *shape: int, low: float = -1.0, high: float = 1.0) -> torch.Tensor:
    u = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return low + (high - low) * u


def of_all(rule: Callable[..., Shape]) -> Callable[..., Shape]:
    """A rule for which it does not matter which argument is which."""
    return lambda **given: rule(*given.values())


def listed(*shapes: Shape) -> list[Shape]:
    return list(shapes)


T = torch.tensor([0.0, 0.2, 0.5, 0.9], dtype=torch.float64)
MU = draw(0, 2, 3, low=0.5, high=3)
ROWS = draw(1, 2, 3, 2)


def token(delta: Shape, *others: Shape) -> Shape:
    need(len(delta) >= 1)
    return fit(delta, *others)


def row(delta: Shape, v0: Shape, *others: Shape) -> tuple[Shape, int]:
    need(len(delta) >= 2)
    *lead, nodes = fit(delta, v0)
    return fit(tuple(lead), *others), nodes


def rows_shape(delta, t, v0, z0, kappa, norm):
    lead, nodes = row(delta, v0, z0, kappa, norm)
    return stepped((*lead, nodes), t, 2)


def linear_rows_shape(delta, t, v0, z0, kappa, norm):
    lead, nodes = row(delta, v0, z0, kappa, norm)
    return listed(stepped((*lead, nodes), t, 2), stepped(lead, t))


MOVING = {"v0": draw(2, 3), "z0": draw(3, 2, 3), "kappa": 1.3, "norm": torch.tensor([[2.0], [3.0]]).double()}
ROW_MOVING = {"v0": draw(2, 3, 2), "z0": draw(3, 2, 3), "kappa": 1.3, "norm": torch.tensor([[2.0], [3.0]]).double()}

LINEAR = [
    Call(
        linear.trajectory,
        {"delta": draw(4, 2, 3), "t": T, **MOVING},
        lambda delta, t, **other: stepped(token(delta, *other.values()), t),
        may_be="inf",
    ),
    Call(
        linear.blow_up_time,
        {"delta": draw(4, 2, 3), **MOVING},
        lambda delta, **other: token(delta, *other.values()),
        may_be="inf",
    ),
    Call(
        linear.limits,
        {"delta": draw(4, 2, 3), "kappa": torch.tensor([[1.0], [2.0]]).double()},
        of_all(token),
        may_be="inf",
    ),
    Call(linear.row_trajectory, {"delta": ROWS, "t": T, **ROW_MOVING}, rows_shape, may_be="inf"),
    Call(
        linear.linear_attention_trajectory,
        {"delta": draw(4, 2, 3), "t": T, **MOVING},
        lambda delta, t, **other: listed(*[stepped(token(delta, *other.values()), t)] * 2),
    ),
    Call(linear.linear_attention_row_trajectory, {"delta": ROWS, "t": T, **ROW_MOVING}, linear_rows_shape),
    Call(linear.winner_growth, {"tau": draw(5, 2, 3, low=0, high=0.9)}, lambda tau: tau),
]

SALIENCE = [
    Call(salience.time_to, {"r": draw(6, 3), "mu": MU}, of_all(fit), may_be="inf"),
    Call(
        salience.time_to_depth,
        {"depth": draw(6, 3, low=0, high=9), "mu": MU},
        of_all(fit),
        infinite={"depth"},
        may_be="inf",
    ),
    Call(salience.remainder, {"r": draw(6, 3), "mu": MU}, of_all(fit)),
    Call(salience.trajectory, {"mu": MU, "t": T, "v0": draw(7, 3)}, lambda mu, t, v0: stepped(token(mu, v0), t)),
    Call(
        salience.depth, {"mu": MU, "t": T, "v0": draw(7, 3)}, lambda mu, t, v0: stepped(token(mu, v0), t), may_be="inf"
    ),
    Call(
        salience.convergence_ratio,
        {"mu_j": MU, "mu_k": draw(8, 3, low=0.5, high=2), "t": T[1:]},
        lambda mu_j, mu_k, t: listed(*[(*fit(mu_j, mu_k), count(t))] * 3),
    ),
    Call(
        salience.entropy_curve,
        {"mu": MU, "t": T, "v0": draw(7, 3), "scale": 0.5},
        lambda mu, t, v0, scale: (need(scale == ()), stepped(token(mu, v0), t)[:-1])[1],
    ),
    Call(
        salience.matrix_trajectory,
        {"mu": ROWS, "t": T, "v0": draw(9, 3, 2)},
        lambda mu, t, v0: (need(len(mu) >= 2), stepped(fit(mu, v0), t, 2))[1],
    ),
    Call(
        salience.stable_rank_curve,
        {"mu": ROWS, "t": T, "v0": draw(9, 3, 2)},
        lambda mu, t, v0: (need(len(mu) >= 2), stepped(fit(mu, v0), t, 2)[:-2])[1],
    ),
    Call(
        salience.linear_attention_trajectory,
        {"mu": MU, "t": T, "v0": draw(7, 3)},
        lambda mu, t, v0: stepped(token(mu, v0), t),
    ),
    Call(
        salience.linear_attention_depth,
        {"mu": MU, "t": T, "v0": draw(7, 3)},
        lambda mu, t, v0: stepped(token(mu, v0), t),
        may_be="inf",
    ),
]

PRIOR = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64)


def classes(*shapes: Shape) -> Shape:
    need(all(len(shape) >= 1 and shape[-1] == shapes[0][-1] for shape in shapes) and shapes[0][-1] > 0)
    return fit(*shapes)[:-1]


def tree_shape(rho, p0, p_zero):
    need(len(p0) >= 1 and len(p_zero) >= 1 and p_zero[-1] == p0[-1] and p0[-1] > 0)
    need(len(p_zero) == 1 or p_zero[-2] == 2)
    need(not rho or rho[-1] in (1, 4))
    lead = fit(p0[:-1], p_zero[:-2], rho[:-1])
    return listed((*lead, 2, 2, 2, 2), (*lead, 4, 4), (4, 4))


HIERARCHY = [
    Call(hierarchy.transition, {"rho": draw(10, 2, 3)}, lambda rho: (*rho, 2, 2)),
    Call(hierarchy.marginal, {"rho": draw(10, 2, 3)}, lambda rho: (*rho, 2)),
    Call(hierarchy.root_rho, {"p0": PRIOR, "p_zero": draw(11, 3, low=0)}, of_all(classes)),
    Call(hierarchy.printed_root_rho, {"p0": PRIOR, "p_zero": draw(11, 3, low=0)}, of_all(classes)),
    Call(
        hierarchy.cooccurrence,
        {"rho": draw(12, 2, 1), "rho0": draw(13, 3), "depth": 4, "ancestor": [0, 1, 2]},
        of_all(fit),
    ),
    Call(
        hierarchy.root_cooccurrence,
        {"rho": draw(12, 2), "depth": 3, "p0": PRIOR, "tau_a": draw(14, 3), "tau_b": draw(15, 3)},
        lambda rho, depth, p0, tau_a, tau_b: fit(rho, depth, classes(p0, tau_a, tau_b)),
    ),
    Call(
        hierarchy.shallow_limit,
        {"depth": 4, "ancestor": [0, 1, 2], "root_slope": draw(16, 2, 1, low=0.1)},
        of_all(fit),
        infinite={"root_slope"},
    ),
    Call(
        hierarchy.expansion,
        {"eps": draw(16, 2, 1, low=0), "depth": 4, "ancestor": [0, 1, 2]},
        of_all(fit),
        {"order": 1},
    ),
    Call(
        hierarchy.enumerate_tree,
        {"rho": draw(17, 2, 4), "p0": PRIOR, "p_zero": draw(18, 2, 3, low=0)},
        tree_shape,
        {"depth": 2, "branching": 2},
    ),
]

SIGNALS = {"za": draw(20, 2, 5), "zb": draw(21, 5), "f": draw(22, 2, 5), "delta": draw(23, 5)}


def samples(*shapes: Shape) -> Shape:
    need(all(len(shape) >= 1 and shape[-1] == shapes[0][-1] for shape in shapes))
    return fit(*shapes)[:-1]


CDAG = [
    Call(cdag.correlation, {"x": SIGNALS["za"], "y": SIGNALS["zb"]}, of_all(samples), {"normalised": False}),
    Call(
        cdag.correlation,
        {"x": SIGNALS["za"], "y": SIGNALS["zb"]},
        of_all(samples),
        {"normalised": True},
        name="correlation normalised",
    ),
    Call(cdag.premises, SIGNALS, lambda **given: (*samples(*given.values()), 3)),
    Call(
        cdag.conclusion, {name: SIGNALS[name] for name in ("zb", "f", "delta")}, of_all(samples), {"normalised": True}
    ),
    Call(
        cdag.angle_condition,
        SIGNALS,
        lambda **given: listed((*samples(*given.values()), 3), *[samples(*given.values())] * 3),
    ),
    Call(
        cdag.independent_conclusion,
        {"zb": SIGNALS["za"], "delta": SIGNALS["delta"], "gain": draw(24, 2)},
        lambda zb, delta, gain: fit(gain, samples(zb, delta)),
    ),
    Call(cdag.counter_example, {}, lambda: listed(*[(2,)] * 4)),
    Call(cdag.gate_counter_example, {}, lambda: listed(*[(2,)] * 3)),
]

Z, V = draw(30, 2, 4), draw(31, 4, 2)
PATH_Z, PATH_V = draw(32, 2, 5, 4), draw(33, 5, 4, 2)
SHARES = draw(34, 2, 6, 4, low=0.1)
BEFORE = {"v": PATH_V, "z0": draw(35, 4), "kappa": 1.2, "temperature": 0.8}


def conserved(z: Shape, v: Shape, kappa: Shape, temperature: Shape) -> Shape:
    need(len(z) >= 1 and len(v) >= 2 and z[-1] == v[-2])
    return fit(z, v[:-1], kappa, temperature)


def over_queries(z: Shape, v: Shape, kappa: Shape, temperature: Shape, probability: Shape | None = None) -> Shape:
    need(len(z) >= 2 and len(v) >= 2 and z[-1] == v[-2] and probability in (None, (z[-2],)))
    return fit((*z[:-2], z[-1]), v[:-1], kappa, temperature)


def drifting(z: Shape, v: Shape, kappa: Shape, temperature: Shape) -> Shape:
    need(len(z) >= 2 and len(v) >= 3 and z[-2:] == v[-3:-1] and z[-2] > 0)
    need(all(len(rate) < 2 or rate[-2] == 1 for rate in (kappa, temperature)))
    return fit(z, v[:-1], kappa, temperature)


def estimate(v, z0, kappa, temperature, x=None, mean_attention=None, covariance=None, *, published=False):
    need(len(v) >= 3 and v[-3] > 0 and kappa == () and temperature == ())
    path, start = v[:-1], (*v[:-3], v[-2])
    need(fit(z0, start) == start)
    if x is not None:
        need(len(x) >= 2 and x[-1] == v[-2] and fit(x[:-2], v[:-3]) == v[:-3] and x[-2] > 0)
    for given in (mean_attention, covariance):
        like = start if published else path
        need(given is None or fit(given, like) == like)
    return path


INVARIANT = [
    *(
        Call(
            invariant.first_integral,
            {"z": Z, "v": V, "kappa": 1.3, "temperature": 2.0 if kind == "exp" else 1.0},
            conserved,
            {"kind": kind},
            name=f"first_integral {kind if isinstance(kind, str) else 'sigma'}",
        )
        for kind in ("exp", "linear", torch.exp)
    ),
    *(
        Call(
            invariant.first_integral_over_queries,
            {"z": draw(36, 2, 3, 4), "v": V, "kappa": 1.3, "temperature": 1.0, "probability": PRIOR[0]},
            over_queries,
            {"kind": kind},
            name=f"first_integral_over_queries {kind}",
        )
        for kind in ("exp", "linear")
    ),
    *(
        Call(
            invariant.sgd_drift,
            {"z": PATH_Z, "v": PATH_V, "kappa": 1.3, "temperature": 2.0 if kind == "exp" else 1.0},
            drifting,
            {"kind": kind},
            name=f"sgd_drift {kind}",
        )
        for kind in ("exp", "linear")
    ),
    Call(
        invariant.softmax_estimate,
        {**BEFORE, "x": SHARES[0]},
        estimate,
        {"method": "self-consistent"},
        name="softmax_estimate self-consistent",
    ),
    Call(
        invariant.softmax_estimate,
        {**BEFORE, "mean_attention": SHARES[0, 0]},
        lambda **given: estimate(**given, published=True),
        {"method": "published"},
        name="softmax_estimate published",
    ),
    Call(
        invariant.softmax_estimate,
        {**BEFORE, "mean_attention": SHARES[0, :5], "covariance": draw(37, 5, 4)},
        estimate,
        {"method": "identity"},
        name="softmax_estimate identity",
    ),
]

LAWS = [
    radial.Gaussian(2, 1.3),
    radial.Ball(2, 2.0),
    radial.StudentT(2, 3.0),
    radial.ExponentialRadial(2, 1.1),
    radial.RadialDensity(2, lambda r: torch.exp(-r)),
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


def node(v, xi, centres, weights, *others):
    need(len(v) >= 1 and v[-1] == 2 and len(centres) >= 2 and centres[-1] == 2)
    need(len(weights) >= 1 and weights[-1] == centres[-2])
    return fit(v[:-1], xi, centres[:-2], weights[:-1], *others)


def plane(v, xi, centre, basis=None):
    need(len(v) >= 1 and len(centre) >= 1)
    need(v[-1] == centre[-1] == (2 if basis is None else 3) and basis in (None, (3, 2)))
    return fit(v[:-1], centre[:-1], xi)


def plane_mean(**given):
    lead = plane(**given)
    return listed(lead, (*lead, given["v"][-1]))


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


def critical(mu, centre, *others):
    need(len(mu) >= 1 and len(centre) >= 1 and mu[-1] == centre[-1] == 2)
    return fit(mu[:-1], centre[:-1], *others)


def critical_shape(mu, xi, centre, a_plus, a_minus, decay=()):
    lead = critical(mu, centre, xi, a_plus, a_minus, decay)
    return listed((*lead, 2, 2), lead, lead)


LAW = {"law": LAWS[0]}
SLOPES = {"slopes": (0.1, 1.0)}

ISOTROPIC = [
    Call(isotropic.thetas, {"s": draw(48, 2, 3)}, lambda s: listed(s, s), {**LAW, **SLOPES}),
    Call(isotropic.theta_derivatives, {"s": draw(48, 2, 3)}, lambda s: listed(s, s), {**LAW, **SLOPES}),
    Call(isotropic.printed_theta_derivatives, {"s": draw(48, 2, 3)}, lambda s: listed(s, s), {**LAW, **SLOPES}),
    Call(isotropic.excess, {"s": draw(48, 2, 3)}, lambda s: s, {**LAW, **SLOPES}),
    Call(isotropic.printed_marginal, {"s": draw(48, 2, 3)}, lambda s: s, LAW),
    *(
        Call(
            isotropic.smooth_thetas,
            {"r": draw(48, 2, 3), "a": draw(49, 3, low=0.5)},
            lambda r, a: listed(fit(r, a), fit(r, a)),
            {"law": law, "psi": torch.sigmoid},
            name=f"smooth_thetas {type(law).__name__}",
        )
        for law in LAWS
    ),
    *(
        Call(
            function,
            PLANE,
            plane_mean,
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
        plane_mean,
        LAW,
        name="hyperplane_mean in a basis",
    ),
    Call(
        isotropic.velocity,
        {**NODE, "decay": 0.1},
        lambda v, xi, centres, weights, decay: listed(
            (*node(v, xi, centres, weights, decay), 2), node(v, xi, centres, weights, decay)
        ),
        {**LAW, **SLOPES},
    ),
    Call(
        isotropic.printed_velocity,
        NODE,
        lambda **given: listed((*node(**given), 2), node(**given)),
        LAW,
    ),
    Call(isotropic.objective, {**NODE, "decay": 0.1}, lambda **given: node(*given.values()), {**LAW, **SLOPES}),
    Call(
        isotropic.hessian,
        {**NODE, "decay": 0.1},
        lambda **given: (*node(*given.values()), 3, 3),
        {**LAW, **SLOPES},
    ),
    Call(
        isotropic.printed_growth,
        {**NODE, "xi_velocity": 0.3},
        lambda **given: node(*given.values()),
        LAW,
    ),
    Call(
        isotropic.critical_rays,
        {"m": draw(50, 2, 3, low=0.5, high=3)},
        lambda m: listed(m, m, m),
        {"law": HEAVY, "side": 1},
        may_be="nan",
    ),
    Call(
        isotropic.printed_critical_point,
        {"m": draw(50, 3, low=0.5, high=3), "gap": draw(51, 2, 3, low=0.5, high=3)},
        lambda m, gap: listed(*[fit(m, gap)] * 4),
        {"law": HEAVY},
        may_be="nan",
    ),
    Call(isotropic.crossing_value, {}, lambda: (), LAW),
    Call(isotropic.printed_existence, {}, lambda: (), LAW),
    Call(
        isotropic.decayed_point,
        {"m": draw(52, 2, 1, low=1, high=3), "a_plus": 1.0, "a_minus": draw(53, 3, low=0.5), "decay": 0.1},
        lambda **given: listed(*[fit(*given.values())] * 4),
        LAW,
        may_be="nan",
    ),
    Call(isotropic.linearisation, {**CRITICAL, "decay": 0.1}, critical_shape, LAW),
    Call(isotropic.printed_linearisation, CRITICAL, critical_shape, LAW),
    *(
        Call(function, PLANE, lambda **given: (*plane(**given), 2, 2), {**LAW, "power": 1.5}, choices={"power": (1.5,)})
        for function in (isotropic.theta2_jacobian, isotropic.printed_theta2_jacobian)
    ),
]

RADIAL = [
    Call(
        getattr(law, method),
        {argument: draw(54, 2, low=low, high=0.9)},
        lambda **given: next(iter(given.values())),
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

ATTENTION = [
    *(
        Call(
            Attention(kind).weights,
            {"z": draw(60, 2, 3), "x": draw(61, 3, low=0.1)},
            of_all(fit),
            name=f"Attention.weights {kind if isinstance(kind, str) else 'sigma'}",
            quick=True,
        )
        for kind in ("linear", "exp", "softmax", torch.sinh)
    ),
    *(
        Call(
            Attention(kind).pull_back,
            {
                "z": draw(60, 2, 3),
                "x": draw(61, 2, 3, low=0.1),
                "b": draw(62, 2, 3, low=0.1),
                "upstream": draw(63, 2, 3),
            },
            lambda **given: fit(*given.values()),
            name=f"Attention.pull_back {kind if isinstance(kind, str) else 'sigma'}",
            quick=True,
        )
        for kind in ("linear", "exp", "softmax", torch.sinh)
    ),
    Call(attention.derivative, {"at": draw(64, 2, 3)}, lambda at: at, {"function": torch.sin}, quick=True),
    Call(
        attention.value_and_derivative,
        {"at": draw(64, 2, 3)},
        lambda at: listed(at, at),
        {"function": torch.sin},
        quick=True,
    ),
    Call(attention.entropy, {"p": PRIOR}, lambda p: p[:-1], {"dim": -1}),
]

CALLS = {
    "attention": ATTENTION,
    "cdag": CDAG,
    "hierarchy": HIERARCHY,
    "invariant": INVARIANT,
    "isotropic": ISOTROPIC,
    "linear": LINEAR,
    "radial": RADIAL,
    "salience": SALIENCE,
}
"""By the module that makes the function public."""
