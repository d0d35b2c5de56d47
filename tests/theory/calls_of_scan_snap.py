"""Good calls of joma.theory.scan_snap."""

import torch
from theory.good_call import Call, draw, fit, need, of_all, shapes

from joma.theory import scan_snap

P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64)
PATH = draw(30, 2, 4, 3, low=0.2, high=0.9)  # systems, steps, tokens


def tokens(p, *others):
    need(len(p) >= 1)
    return fit(p, *others)


def some_tokens(p, z):
    shape = tokens(p, z)
    need(0 not in shape[-1:])
    return shape


def path(*shapes):
    shape = fit(*shapes)
    need(len(shape) >= 2)
    return shape


SCAN_SNAP = [
    *(
        Call(
            scan_snap.attended,
            {"p": P, "z": draw(31, 3)},
            some_tokens,
            {"norm": norm},
            name=f"attended {norm}",
            may_be="inf" if norm == "none" else "",
            choices={"norm": ("unit", "softmax", "none")},
        )
        for norm in ("unit", "softmax", "none")
    ),
    Call(scan_snap.relative_gain, {"c": P}, shapes("...l -> ...ll")),
    Call(scan_snap.gain_factor, {"f": PATH, "growth": draw(32, 2, 4, low=0)}, shapes("...sl, ...s -> ...sl")),
    Call(
        scan_snap.gain_bounds,
        {"f0": draw(34, 2, 1, low=0), "growth": draw(35, 4, low=0)},
        shapes("..., ... -> ...; ..."),
    ),
    Call(scan_snap.clock, {"p": P, "z": draw(36, 3)}, of_all(fit)),
    Call(
        scan_snap.transition_time,
        {
            "classes": torch.tensor([2.0, 3.0, 5.0]).double(),
            "vocabulary": torch.tensor([[10.0], [100.0]]).double(),
            "rate_y": 0.5,
        },
        of_all(fit),
    ),
    Call(
        scan_snap.late_growth_as_printed,
        {
            "t": torch.tensor([1.0, 10.0, 100.0]).double(),
            "classes": torch.tensor([[2.0], [5.0]]).double(),
            "vocabulary": 1000.0,
            "rate_y": 1.0,
            "rate_z": draw(37, 3, low=0.1),
            "constant": 1.5,
        },
        of_all(fit),
    ),
]
