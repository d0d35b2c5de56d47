"""Whether a model still has the modules and parameters it had: every kind of change is noticed, training is none."""

import pytest
import torch
from torch import nn

from joma.monitor.names import Structure


def model_of():
    torch.manual_seed(0)
    floor = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3))
    return nn.ModuleDict({"up": nn.Sequential(floor, nn.Linear(3, 2))})


def low(model):
    return model["up"][0]


def same_weights(layer):
    other = nn.Linear(3, 3)
    other.load_state_dict(layer.state_dict())
    return other


CHANGES = {
    "a parameter is another one": lambda low: setattr(low[2], "weight", nn.Parameter(low[2].weight.detach().clone())),
    "a parameter is that of another module": lambda low: low[0]._parameters.update(weight=low[2].weight),
    "a bias comes": lambda low: setattr(low[0], "bias", nn.Parameter(torch.zeros(3))),
    "a bias goes": lambda low: setattr(low[2], "bias", None),
    "a parameter comes": lambda low: low[1].register_parameter("slope", nn.Parameter(torch.ones(()))),
    "a parameter is gone": lambda low: low[2].__delattr__("bias"),
    "a parameter has another name": lambda low: low[2]._parameters.update(other=low[2]._parameters.pop("bias")),
    "a module is another one": lambda low: low.__setitem__(2, same_weights(low[2])),
    "a module without parameters is another one": lambda low: low.__setitem__(1, nn.Tanh()),
    "a module comes": lambda low: low.append(nn.Tanh()),
    "the last module goes": lambda low: low.__delitem__(2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_noticed_and_stays_one(change):
    model = model_of()
    structure = Structure(model)
    assert structure.is_the_same()
    CHANGES[change](low(model))
    assert not structure.is_the_same()
    assert not structure.is_the_same()
    assert Structure(model).is_the_same()


def test_training_and_loading_numbers_change_nothing():
    model = model_of()
    structure = Structure(model)
    model["up"](torch.ones(2, 3)).sum().backward()
    with torch.no_grad():
        for each in model.parameters():
            each.sub_(0.1 * each.grad)
    model.eval()
    model.load_state_dict(model_of().state_dict())
    model.double()
    low(model).register_buffer("seen", torch.zeros(()))
    low(model)[2].register_forward_hook(lambda *_: None)
    assert structure.is_the_same()
