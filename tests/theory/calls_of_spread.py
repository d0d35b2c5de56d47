"""Good calls of joma.theory.spread."""

import torch
from theory.good_call import Call, draw, fit, listed, need, of_all, shapes

from joma.theory import spread

VARIANCE = draw(60, 2, 1, low=0.5, high=20)
KEYS = torch.tensor([2.0, 5.0, 64.0], dtype=torch.float64)

T = torch.tensor([0.0, 0.5, 2.0, 5.0], dtype=torch.float64)
FALL = {"read": draw(62, 2, 1, low=0.5, high=2), "tau": draw(63, 3, low=0.5, high=3)}


def read_of(share, words):
    need(len(share) >= 1)
    shape = fit(share, (*words, 1) if words else ())
    return listed((*shape, 2), (*shape, 1))


SPREAD = [
    Call(spread.gaussian_entropy, {"variance": VARIANCE, "n": KEYS}, of_all(fit)),
    Call(spread.critical_variance, {"n": KEYS}, of_all(fit)),
    Call(spread.random_energy_entropy, {"variance": VARIANCE, "n": KEYS}, of_all(fit)),
    Call(spread.frozen_entropy, {"variance": VARIANCE, "n": KEYS}, of_all(fit), may_be="inf"),
    Call(spread.focus_ratio, {"share": draw(64, 2, 1, low=0, high=0.9), "words": 10 * KEYS}, of_all(fit)),
    Call(spread.reads, {"share": draw(65, 2, 4, low=0.1, high=0.9), "words": KEYS[:2]}, read_of),
    Call(
        spread.gain,
        {"t": T, "read": draw(66, 3, 4, 2), "curvature": draw(67, 2, 1, low=0)},
        shapes("t, ...tc, ... -> ...t"),
    ),
    Call(
        spread.turning_gain,
        {"read": draw(68, 2, 1, low=0.5), "fall": draw(69, 3, low=0.1), "curvature": 0.5},
        of_all(fit),
    ),
    Call(spread.exponential_gain, {"t": T, **FALL, "curvature": 0.5}, shapes("t, ..., ..., ... -> ...t")),
    Call(spread.exponential_turn, {**FALL, "curvature": 0.5}, of_all(fit), slow=True),
    Call(spread.power_gain, {"t": T, **FALL, "power": 0.7}, shapes("t, ..., ..., ... -> ...t")),
    Call(spread.power_turn, {"tau": FALL["tau"], "power": draw(70, 2, 1, low=0.6, high=2)}, of_all(fit), may_be="inf"),
]
