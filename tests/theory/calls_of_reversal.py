"""Good calls of joma.theory.reversal."""

import torch
from theory.good_call import Call, draw, fit, need, of_all, shapes

from joma.theory import reversal

ROW = {
    "visits": draw(30, 2, 3, low=1, high=90),
    "tokens": torch.tensor([[100.0], [400.0]]).double(),
    "rate": draw(31, 3, low=0.1, high=0.9),
}
LOSSES = {"forward": draw(32, 2, 5, low=0.1, high=2), "reverse": draw(33, 2, 5, low=0.1, high=2)}


def power_shape(forward, reverse):
    need(forward != () and reverse != () and forward[-1] > 1 and reverse[-1] > 1)
    return fit(forward, reverse)[:-1]


REVERSAL = [
    Call(reversal.row_gap, ROW, of_all(fit)),
    Call(reversal.sgd_gap, ROW, of_all(fit)),
    Call(reversal.row_loss, ROW, of_all(fit)),
    Call(reversal.row_probability, ROW, of_all(fit)),
    Call(
        reversal.row_recursion,
        {"tokens": ROW["tokens"], "rate": ROW["rate"]},
        shapes("..., ... -> ...6"),
        {"visits": 5},
    ),
    Call(reversal.train_bound, {**ROW, "power": draw(35, 3, low=0.6, high=1)}, of_all(fit), may_be="inf"),
    Call(reversal.bound_power, ROW, of_all(fit)),
    Call(
        reversal.bilinear_losses,
        {"theta": draw(36, 2, 3, 3), "embeddings": draw(37, 4, 3), "facts": [[0, 1], [2, 3]]},
        shapes("...WW, TW, F2 -> ...; ..."),
    ),
    Call(reversal.smallest_power, LOSSES, power_shape),
]
