"""Good calls of joma.theory.hierarchy, cdag, invariant and attention."""

from functools import partial

import torch
from theory.good_call import Call, draw, fit, listed, need, of_all, shapes

from joma.theory import attention, cdag, hierarchy, invariant
from joma.theory.attention import Attention

PRIOR = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64)


def tree_shape(rho, p0, p_zero):
    need(len(p0) >= 1 and len(p_zero) >= 1 and p_zero[-1] == p0[-1] and p0[-1] > 0)
    need(len(p_zero) == 1 or p_zero[-2] == 2)
    need(not rho or rho[-1] in (1, 4))
    lead = fit(p0[:-1], p_zero[:-2], rho[:-1])
    return listed((*lead, 2, 2, 2, 2), (*lead, 4, 4), (4, 4))


HIERARCHY = [
    Call(hierarchy.transition, {"rho": draw(10, 2, 3)}, shapes("... -> ...22")),
    Call(hierarchy.marginal, {"rho": draw(10, 2, 3)}, shapes("... -> ...2")),
    Call(hierarchy.root_rho, {"p0": PRIOR, "p_zero": draw(11, 3, low=0)}, shapes("...K, ...K -> ...")),
    Call(hierarchy.printed_root_rho, {"p0": PRIOR, "p_zero": draw(11, 3, low=0)}, shapes("...K, ...K -> ...")),
    Call(
        hierarchy.cooccurrence,
        {"rho": draw(12, 2, 1), "rho0": draw(13, 3), "depth": 4, "ancestor": [0, 1, 2]},
        of_all(fit),
    ),
    Call(
        hierarchy.root_cooccurrence,
        {"rho": draw(12, 2), "depth": 3, "p0": PRIOR, "tau_a": draw(14, 3), "tau_b": draw(15, 3)},
        shapes("..., ..., ...K, ...K, ...K -> ..."),
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


CDAG = [
    Call(
        cdag.correlation, {"x": SIGNALS["za"], "y": SIGNALS["zb"]}, shapes("...s, ...s -> ..."), {"normalised": False}
    ),
    Call(
        cdag.correlation,
        {"x": SIGNALS["za"], "y": SIGNALS["zb"]},
        shapes("...s, ...s -> ..."),
        {"normalised": True},
        name="correlation normalised",
    ),
    Call(cdag.premises, SIGNALS, shapes("...s, ...s, ...s, ...s -> ...3")),
    Call(
        cdag.conclusion,
        {name: SIGNALS[name] for name in ("zb", "f", "delta")},
        shapes("...s, ...s, ...s -> ..."),
        {"normalised": True},
    ),
    Call(cdag.angle_condition, SIGNALS, shapes("...s, ...s, ...s, ...s -> ...3; ...; ...; ...")),
    Call(
        cdag.independent_conclusion,
        {"zb": SIGNALS["za"], "delta": SIGNALS["delta"], "gain": draw(24, 2)},
        shapes("...s, ...s, ... -> ..."),
    ),
    Call(cdag.counter_example, {}, shapes("-> 2; 2; 2; 2")),
    Call(cdag.gate_counter_example, {}, shapes("-> 2; 2; 2")),
]

Z, V = draw(30, 2, 4), draw(31, 4, 2)
PATH_Z, PATH_V = draw(32, 2, 5, 4), draw(33, 5, 4, 2)
SHARES = draw(34, 2, 6, 4, low=0.1)
BEFORE = {"v": PATH_V, "z0": draw(35, 4), "kappa": 1.2, "temperature": 0.8}


def conserved(z, v, kappa, temperature):
    need(len(z) >= 1 and len(v) >= 2 and z[-1] == v[-2])
    return fit(z, v[:-1], kappa, temperature)


def over_queries(z, v, kappa, temperature, probability=None):
    need(len(z) >= 2 and len(v) >= 2 and z[-1] == v[-2] and probability in (None, (z[-2],)))
    return fit((*z[:-2], z[-1]), v[:-1], kappa, temperature)


def drifting(z, v, kappa, temperature):
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
    *(
        Call(
            invariant.softmax_estimate,
            {**BEFORE, **given},
            partial(estimate, published=method == "published"),
            {"method": method},
            name=f"softmax_estimate {method}",
        )
        for method, given in (
            ("self-consistent", {"x": SHARES[0]}),
            ("published", {"mean_attention": SHARES[0, 0]}),
            ("identity", {"mean_attention": SHARES[0, :5], "covariance": draw(37, 5, 4)}),
        )
    ),
]

SIZES, KEYS = draw(65, 2, 1, low=0.5, high=9), torch.tensor([2.0, 5.0, 64.0], dtype=torch.float64)

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
    Call(attention.derivative, {"at": draw(64, 2, 3)}, shapes("... -> ..."), {"function": torch.sin}, quick=True),
    Call(
        attention.value_and_derivative,
        {"at": draw(64, 2, 3)},
        shapes("... -> ...; ..."),
        {"function": torch.sin},
        quick=True,
    ),
    Call(attention.entropy, {"p": PRIOR}, lambda p: p[:-1], {"dim": -1}),
    Call(attention.entropy_floor, {"size": SIZES, "n": KEYS}, of_all(fit)),
    Call(attention.entropy_floor_of_range, {"span": SIZES, "n": KEYS}, of_all(fit)),
]
