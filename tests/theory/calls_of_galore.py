"""Good calls of joma.theory.galore."""

import torch
from theory.good_call import Call, draw, fit, listed, need, of_all, stepped

from joma.theory import galore


def definite(seed, count, size):
    """Symmetric matrices whose eigenvalues lie from 1 to about 3."""
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
    """m and n of a good pair."""
    need(len(b) == len(c) == 3 and b[0] == c[0])
    need(b[1] == b[2] and c[1] == c[2] and 0 not in (*b, *c))
    return b[1], c[1]


def form(g, b, c):
    need(len(g) >= 2 and g[-2:] == pair(b, c))
    return g


def path_shape(g, b, c, t):
    return stepped(form(g, b, c), t, 2)


def bound_shape(g, b, c, t, start=None):
    lead = form(g, b, c)[:-2]
    if start is not None:
        need(len(start) >= 2 and start[-2:] == g[-2:])
        lead = fit(lead, start[:-2])
    return stepped((*lead, 1), t)[:-1]


def gradient_shape(w, a, b, c):
    need(len(a) == 3 and a[0] == b[0] and a[1:] == w[-2:])
    return form(w, b, c)


def operator_shape(b, c):
    m, n = pair(b, c)
    return m * n, m * n


def layer_shape(jacobian, w, f, y, degree=()):
    need(len(jacobian) >= 2 and len(w) >= 2 and f != () and y != ())
    need(jacobian[-1] == w[-2] and w[-1] == f[-1] and jacobian[-2] == y[-1])
    need(0 not in (*jacobian[-2:], w[-1]))
    return (*fit(jacobian[:-2], w[:-2], f[:-1], y[:-1], degree), *w[-2:])


def parts_shape(g, b, c):
    return listed(form(g, b, c), g)


def bytes_shape(**given):
    return [fit(*given.values())] * 3


GALORE = [
    Call(galore.gradient, {"w": G, "a": draw(87, 2, 3, 4), **FORM}, gradient_shape),
    Call(galore.operator, FORM, operator_shape),
    Call(galore.gradient_path, {"g": G, **FORM, "t": [0, 1, 5]}, path_shape, {"rate": 0.1}, choices={"rate": (1.5,)}),
    Call(galore.split, {"g": G, **FORM}, parts_shape),
    Call(galore.lasting, {"g": G, **FORM}, parts_shape, {"rate": 0.1}, choices={"rate": (1.5,)}),
    Call(
        galore.stable_rank_bound, {"g": G, **FORM, "t": [0, 1, 5]}, bound_shape, {"rate": 0.1}, choices={"rate": (1.5,)}
    ),
    Call(
        galore.stable_rank_bound_as_printed,
        {"g": G, **FORM, "t": [0, 1, 5], "start": draw(88, 2, 3, 4)},
        bound_shape,
        {"rate": 0.1},
        may_be="inf",
        choices={"rate": (1.5,)},
    ),
    Call(galore.reversible_gradient, {**LAYER, "degree": draw(89, 2, low=1, high=3)}, layer_shape),
    Call(galore.softmax_gradient, LAYER, layer_shape),
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
    Call(galore.adam_bytes, {**SHAPES, "itemsize": ITEMSIZE}, bytes_shape),
    Call(galore.galore_bytes, {**SHAPES, "rank": RANK, "itemsize": ITEMSIZE}, bytes_shape),
    Call(galore.lora_bytes, {**SHAPES, "rank": RANK, "itemsize": ITEMSIZE}, bytes_shape),
]
