"""Good calls of joma.theory.galore."""

import torch
from theory.good_call import Call, draw, fit, need, of_all, shapes

from joma.theory import galore


def definite(seed, count, size):
    half = draw(seed, count, size, size)
    return torch.eye(size).double() + half @ half.mT / size


G, B, C = draw(80, 2, 3, 4), definite(81, 2, 3), definite(82, 2, 4)
FORM = {"b": B, "c": C}
LAYER = {"jacobian": draw(83, 2, 5, 3), "w": draw(84, 3, 4), "f": draw(85, 2, 4), "y": draw(86, 5)}
SIZES = {name: draw(90 + i, 2, 3, low=0.1, high=1) for i, name in enumerate(("la", "lb", "lc"))}
SHAPES = {"m": torch.tensor([3.0, 8.0]).double(), "n": torch.tensor([[6.0], [5.0]]).double()}
ITEMSIZE = torch.tensor(4.0).double()
RANK = torch.tensor(2.0).double()


def pair(b, c):
    need(len(b) == len(c) == 3 and b[0] == c[0])
    need(b[1] == b[2] and c[1] == c[2] and 0 not in (*b, *c))
    return b[1], c[1]


def operator_shape(b, c):
    m, n = pair(b, c)
    return m * n, m * n


PARTS = shapes("...MN, AMM, ANN -> ...MN; ...MN")
RANKED = shapes("..., ..., ..., ... -> ...; ...; ...")

GALORE = [
    Call(galore.gradient, {"w": G, "a": draw(87, 2, 3, 4), **FORM}, shapes("...MN, AMN, AMM, ANN -> ...MN")),
    Call(galore.operator, FORM, operator_shape),
    Call(
        galore.gradient_path,
        {"g": G, **FORM, "t": [0, 1, 5]},
        shapes("...MN, AMM, ANN, t -> ...tMN"),
        {"rate": 0.1},
        choices={"rate": (1.5,)},
    ),
    Call(galore.split, {"g": G, **FORM}, PARTS),
    Call(galore.lasting, {"g": G, **FORM}, PARTS, {"rate": 0.1}, choices={"rate": (1.5,)}),
    Call(
        galore.stable_rank_bound,
        {"g": G, **FORM, "t": [0, 1, 5]},
        shapes("...MN, AMM, ANN, t -> ...t"),
        {"rate": 0.1},
        choices={"rate": (1.5,)},
    ),
    Call(
        galore.stable_rank_bound_as_printed,
        {"g": G, **FORM, "t": [0, 1, 5], "start": draw(88, 2, 3, 4)},
        shapes("...MN, AMM, ANN, t, ...MN -> ...t"),
        {"rate": 0.1},
        may_be="inf",
        choices={"rate": (1.5,)},
    ),
    Call(
        galore.reversible_gradient,
        {**LAYER, "degree": draw(89, 2, low=1, high=3)},
        shapes("...KM, ...MN, ...N, ...K, ... -> ...MN"),
    ),
    Call(galore.softmax_gradient, LAYER, shapes("...KM, ...MN, ...N, ...K -> ...MN")),
    Call(
        galore.contraction,
        {
            "kappa": draw(93, 3, low=0.1, high=1),
            "top": draw(94, 2, 1, low=1, high=2),
            "rate": draw(95, 3, low=0.1, high=0.5),
            **SIZES,
            **{name: draw(96 + i, 3, low=0.1, high=2) for i, name in enumerate("wbc")},
        },
        of_all(fit),
    ),
    Call(
        galore.contraction_as_printed,
        {
            "kappa": draw(93, 3, low=0.1, high=1),
            "rate": draw(95, 3, low=0.1, high=0.5),
            **SIZES,
            "d": draw(99, 3, low=0.1, high=2),
            "factor": draw(100, 3, low=1, high=2),
        },
        of_all(fit),
    ),
    Call(galore.adam_bytes, {**SHAPES, "itemsize": ITEMSIZE}, shapes("..., ..., ... -> ...; ...; ...")),
    Call(galore.galore_bytes, {**SHAPES, "rank": RANK, "itemsize": ITEMSIZE}, RANKED),
    Call(galore.lora_bytes, {**SHAPES, "rank": RANK, "itemsize": ITEMSIZE}, RANKED),
]
