"""One clear sentence for each thing that cannot be done."""

from functools import partial

import pytest
import torch
from torch import nn
from training import loss_of, network, same

from joma.optim import GaLore, Projected, find_projector

WEIGHT = nn.Parameter(torch.zeros(8, 12))


def matrix(shape=(8, 12)):
    return nn.Parameter(torch.zeros(shape))


OPTIONS = {
    "rank must be a whole number of at least 1, got 0": {"rank": 0},
    "rank must be a whole number .* got True": {"rank": True},
    "rank must be a whole number .* got 2.5": {"rank": 2.5},
    "no matrix is projected: rank 128 must be below a shorter side, the largest of 1 matrix is 8": {"rank": 128},
    "refresh must be .* at least 1, got 0": {"refresh": 0},
    "scale must be a positive finite number, got 0.0": {"scale": 0.0},
    "scale must be .* got nan": {"scale": float("nan")},
    "projector must be one of randomized, exact, random, got 'svd'": {"projector": "svd"},
    "on_move must be one of keep, rotate, reset": {"on_move": "turn"},
    "nonfinite must be one of raise, skip": {"nonfinite": "no"},
    "clip must be positive, or None for no clipping, got 0": {"clip": 0},
    "clip must be positive, .* got '1'": {"clip": "1"},
    "clip needs the norm of all gradients, and per_layer updates before": {"per_layer": True, "clip": 1.0},
    "per_layer must be False, True or 'project', got 'both'": {"per_layer": "both"},
    "LBFGS .*one group|LBFGS needs a closure": {"inner": torch.optim.LBFGS},
    "inner must make an optimizer, .* got 'adamw'": {"inner": "adamw"},
    "inner must make an optimizer, .* got an object SGD": {"inner": torch.optim.SGD([matrix()])},
    r"got the text 'head': write \['head'\]": {"skip": "head"},
    "seed must be a whole number, got None": {"seed": None},
}
PARAMS = {
    "params holds no matrix": [matrix((5,))],
    "params is empty": [],
    "params is empty: no group has a parameter": [{"params": []}],
    "params must be a module or an iterable .* got Parameter": matrix(),
    "params must be a module or an iterable .* got NoneType": None,
    "params must hold parameters, got float": [3.0],
    "w is complex: GaLore projects real parameters only": [("w", nn.Parameter(torch.zeros(8, 12, dtype=torch.cfloat)))],
    "w is not a leaf": [("w", matrix() * 2)],
    "params holds one parameter twice, as a and as b": [("a", WEIGHT), ("b", WEIGHT)],
    "params holds one parameter twice, as a and as c": [("a", WEIGHT), ("b", matrix()), ("c", WEIGHT)],
    "twice, as group 0, parameter 0 and as group 1, parameter 0": [{"params": [WEIGHT]}, {"params": [WEIGHT]}],
    "params must have an order, which a set has not": {matrix(), matrix()},
    "params must have an order, which a set has not: give": [{"params": {matrix(), matrix()}}],
    "pairs of name and parameter, got a tuple of 3": [("w", matrix(), 1)],
    "groups alone or parameters alone, got both": [{"params": [matrix()]}, matrix()],
    "group 0 has 1 param_names for 2 params": [{"params": [matrix(), matrix()], "param_names": ["w"]}],
    "rank must be at most the shorter side of w, which is 8, got 9": [{"params": [("w", matrix())], "rank": 9}],
}
PROJECTORS = {
    "rank must be between 1 and the shorter side 3 of the gradient, got 4": (torch.zeros(3, 5), 4),
    "gradient must be finite, got NaN or infinity in it": (torch.full((3, 5), torch.nan), 2),
    "projector must be one of": (torch.zeros(3, 5), 2, "best"),
    r"gradient must be a real matrix, .*\(3,\)": (torch.zeros(3), 1),
}
REFUSED = [
    *((sentence, partial(GaLore, [matrix()], **{"rank": 2, **given})) for sentence, given in OPTIONS.items()),
    *((sentence, partial(GaLore, params, rank=2)) for sentence, params in PARAMS.items()),
    *((sentence, partial(find_projector, *given)) for sentence, given in PROJECTORS.items()),
    *(
        (rf"{name} must be a floating-point torch\.dtype{also}, or None", partial(Projected, **{name: wrong}))
        for name, also, more in (("basis_dtype", ", torch.int8", torch.int4), ("state_dtype", "", torch.int8))
        for wrong in (torch.int16, torch.uint8, "float32", 16, more)
    ),
]


@pytest.mark.parametrize(("sentence", "make"), REFUSED)
def test_refused_in_one_sentence(sentence, make):
    with pytest.raises(ValueError, match=sentence) as refused:
        make()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("per_layer", [False, True])
def test_sparse_gradients(per_layer):
    table = nn.Embedding(20, 8, sparse=True)
    optimizer = GaLore([("table", table.weight)], rank=2, per_layer=per_layer)

    def train():
        table(torch.tensor([1, 2])).sum().backward()
        optimizer.step()

    with pytest.raises(ValueError, match="the gradient of table is sparse and cannot be projected"):
        train()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["layers.2.weight", "lm_head.weight", "layers.0.bias"])
@pytest.mark.parametrize("steps_before", [0, 1])
def test_gradients_that_are_not_finite(name, value, steps_before):
    model = network()
    optimizer = GaLore(model, rank=4, lr=0.01)
    for _ in range(steps_before):
        loss_of(model).backward()
        optimizer.step()
    before = network()
    before.load_state_dict(model.state_dict())
    loss_of(model).backward()
    model.get_parameter(name).grad.view(-1)[-1] = value
    with pytest.raises(ValueError, match=f"the gradient of {name} is not finite: nothing was updated"):
        optimizer.step()
    assert same(model, before)
    optimizer.nonfinite = "skip"
    optimizer.step()
    assert optimizer.skipped == 1
    assert same(model, before)
    assert {matrix.count for matrix in optimizer.matrices} == {steps_before}
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()
    assert optimizer.skipped == 1
    assert not same(model, before)
