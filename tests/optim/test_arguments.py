"""One clear sentence for each thing that cannot be done."""

import pytest
import torch
from torch import nn
from training import loss_of, network, same

from joma.optim import GaLore, Projected, find_projector

WEIGHT = nn.Parameter(torch.zeros(8, 12))


def matrix(shape=(8, 12)):
    return nn.Parameter(torch.zeros(shape))


REFUSED = {
    "rank 0": (lambda: GaLore([matrix()], rank=0), "rank must be a whole number of at least 1, got 0"),
    "rank True": (lambda: GaLore([matrix()], rank=True), "rank must be a whole number .* got True"),
    "rank 2.5": (lambda: GaLore([matrix()], rank=2.5), "rank must be a whole number .* got 2.5"),
    "rank above": (
        lambda: GaLore([{"params": [("w", matrix())], "rank": 9}]),
        "rank must be at most the shorter side of w, which is 8, got 9",
    ),
    "rank that no matrix has": (
        lambda: GaLore([matrix()], rank=128),
        "no matrix is projected: rank 128 must be below a shorter side, the largest of 1 matrix is 8",
    ),
    "no matrix": (lambda: GaLore([matrix((5,))], rank=2), "params holds no matrix"),
    "refresh": (lambda: GaLore([matrix()], rank=2, refresh=0), "refresh must be .* at least 1, got 0"),
    "scale": (lambda: GaLore([matrix()], rank=2, scale=0.0), "scale must be a positive finite number, got 0.0"),
    "scale nan": (lambda: GaLore([matrix()], rank=2, scale=float("nan")), "scale must be .* got nan"),
    "projector": (
        lambda: GaLore([matrix()], rank=2, projector="svd"),
        "projector must be one of randomized, exact, random, got 'svd'",
    ),
    "on_move": (lambda: GaLore([matrix()], rank=2, on_move="turn"), "on_move must be one of keep, rotate, reset"),
    "nonfinite": (lambda: GaLore([matrix()], rank=2, nonfinite="no"), "nonfinite must be one of raise, skip"),
    "clip": (lambda: GaLore([matrix()], rank=2, clip=0), "clip must be positive, or None for no clipping, got 0"),
    "empty": (lambda: GaLore([]), "params is empty"),
    "empty group": (lambda: GaLore([{"params": []}]), "params is empty: no group has a parameter"),
    "a tensor": (lambda: GaLore(matrix()), "params must be a module or an iterable .* got Parameter"),
    "a number": (lambda: GaLore([3.0]), "params must hold parameters, got float"),
    "complex": (
        lambda: GaLore([("w", nn.Parameter(torch.zeros(8, 12, dtype=torch.complex64)))], rank=2),
        "w is complex: GaLore projects real parameters only",
    ),
    "no leaf": (lambda: GaLore([("w", matrix() * 2)], rank=2), "w is not a leaf"),
    "twice": (
        lambda: GaLore([("a", WEIGHT), ("b", WEIGHT)], rank=2),
        "params holds one parameter twice, as a and as b",
    ),
    "twice, later": (
        lambda: GaLore([("a", WEIGHT), ("b", matrix()), ("c", WEIGHT)], rank=2),
        "params holds one parameter twice, as a and as c",
    ),
    "twice in groups": (
        lambda: GaLore([{"params": [WEIGHT]}, {"params": [WEIGHT]}], rank=2),
        "twice, as group 0, parameter 0 and as group 1, parameter 0",
    ),
    "LBFGS": (lambda: GaLore([matrix()], torch.optim.LBFGS, rank=2), "LBFGS .*one group|LBFGS needs a closure"),
    "inner in words": (lambda: GaLore([matrix()], "adamw", rank=2), "inner must make an optimizer, .* got 'adamw'"),
    "inner already made": (
        lambda: GaLore([matrix()], torch.optim.SGD([matrix()]), rank=2),
        "inner must make an optimizer, .* got an object SGD",
    ),
    "skip in one word": (lambda: GaLore([matrix()], rank=2, skip="head"), r"got the text 'head': write \['head'\]"),
    "clip in words": (lambda: GaLore([matrix()], rank=2, clip="1"), "clip must be positive, .* got '1'"),
    "clip with per_layer": (
        lambda: GaLore([matrix()], rank=2, per_layer=True, clip=1.0),
        "clip needs the norm of all gradients, and per_layer updates before",
    ),
    "per_layer": (
        lambda: GaLore([matrix()], rank=2, per_layer="both"),
        "per_layer must be False, True or 'project', got 'both'",
    ),
    **{
        f"{name} {wrong}": (
            lambda name=name, wrong=wrong: Projected(**{name: wrong}),
            rf"{name} must be a floating-point torch\.dtype{also}, or None",
        )
        for name, also, more in (("basis_dtype", ", torch.int8", torch.int4), ("state_dtype", "", torch.int8))
        for wrong in (torch.int16, torch.uint8, "float32", 16, more)
    },
    "seed": (lambda: GaLore([matrix()], rank=2, seed=None), "seed must be a whole number, got None"),
    "no params": (lambda: GaLore(None), "params must be a module or an iterable .* got NoneType"),
    "a set": (lambda: GaLore({matrix(), matrix()}, rank=2), "params must have an order, which a set has not"),
    "a tuple of three": (lambda: GaLore([("w", matrix(), 1)], rank=2), "pairs of name and parameter, got a tuple of 3"),
    "groups and parameters": (
        lambda: GaLore([{"params": [matrix()]}, matrix()], rank=2),
        "groups alone or parameters alone, got both",
    ),
    "too few names": (
        lambda: GaLore([{"params": [matrix(), matrix()], "param_names": ["w"]}], rank=2),
        "group 0 has 1 param_names for 2 params",
    ),
    "projector's rank": (
        lambda: find_projector(torch.zeros(3, 5), 4),
        "rank must be between 1 and the shorter side 3 of the gradient, got 4",
    ),
    "projector's NaN": (
        lambda: find_projector(torch.full((3, 5), torch.nan), 2),
        "gradient must be finite, got NaN or infinity in it",
    ),
    "projector's kind": (lambda: find_projector(torch.zeros(3, 5), 2, "best"), "projector must be one of"),
    "projector's gradient": (
        lambda: find_projector(torch.zeros(3), 1),
        r"gradient must be a real matrix, .*\(3,\)",
    ),
}


@pytest.mark.parametrize("title", REFUSED)
def test_refused_in_one_sentence(title):
    make, sentence = REFUSED[title]
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
