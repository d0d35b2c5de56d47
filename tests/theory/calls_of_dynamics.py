"""Good calls of joma.theory.linear and joma.theory.salience."""

import torch
from theory.good_call import Call, draw, fit, listed, need, of_all, shapes, stepped

from joma.theory import linear, salience

T = torch.tensor([0.0, 0.2, 0.5, 0.9], dtype=torch.float64)
MU = draw(0, 2, 3, low=0.5, high=3)
ROWS = draw(1, 2, 3, 2)


def token(delta, *others):
    need(len(delta) >= 1)
    return fit(delta, *others)


def row(delta, v0, *others):
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
    Call(linear.winner_growth, {"tau": draw(5, 2, 3, low=0, high=0.9)}, shapes("... -> ...")),
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
    *(
        Call(function, {"mu": MU, "t": T, "v0": draw(7, 3)}, lambda mu, t, v0: stepped(token(mu, v0), t), may_be=may_be)
        for function, may_be in (
            (salience.trajectory, ""),
            (salience.depth, "inf"),
            (salience.linear_attention_trajectory, ""),
            (salience.linear_attention_depth, "inf"),
        )
    ),
    Call(
        salience.convergence_ratio,
        {"mu_j": MU, "mu_k": draw(8, 3, low=0.5, high=2), "t": T[1:]},
        shapes("..., ..., t -> ...t; ...t; ...t"),
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
]
