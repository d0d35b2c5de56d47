"""Good calls of joma.theory.spread."""

import torch
from theory.good_call import Call, draw, fit, of_all

from joma.theory import spread

VARIANCE = draw(60, 2, 1, low=0.5, high=20)
KEYS = torch.tensor([2.0, 5.0, 64.0], dtype=torch.float64)

SPREAD = [
    Call(spread.gaussian_entropy, {"variance": VARIANCE, "n": KEYS}, of_all(fit)),
    Call(
        spread.variance_of_entropy, {"entropy": draw(61, 2, 1, low=0.1, high=0.6), "n": KEYS}, of_all(fit), may_be="inf"
    ),
    Call(spread.critical_variance, {"n": KEYS}, of_all(fit)),
    Call(spread.random_energy_entropy, {"variance": VARIANCE, "n": KEYS}, of_all(fit)),
    Call(spread.frozen_entropy, {"variance": VARIANCE, "n": KEYS}, of_all(fit), may_be="inf"),
]
