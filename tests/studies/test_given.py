"""A study that leaves to a default what decides its numbers is stopped, whichever default it is."""

import inspect

import pytest
import torch
from given import Left, nothing_left_to_defaults, with_defaults

from joma.models.llama import Llama
from joma.optim import GaLore, Muon, Projected
from joma.recipes.grid import ensemble
from joma.recipes.optimizers import STATED, make_optimizer
from joma.studies.galore.galore_table import networks
from joma.training import Ensemble, Optimizer, train_all

LEFT = "was left to its default"
TINY = networks.GaloreTableConfig(vocabulary=32, width=8, mlp=16, heads=2, context=8, rank=4)


def test_every_default_is_taken_away_and_comes_back():
    before = {function: inspect.signature(function) for _, function, _ in with_defaults()}
    with nothing_left_to_defaults():
        for owner, function, names in with_defaults():
            found = inspect.signature(function).parameters
            assert all(isinstance(found[name].default, Left) for name in names), owner
    assert {function: inspect.signature(function) for function in before} == before


def test_the_rooms_are_looked_through():
    known = {(owner, name) for owner, _, names in with_defaults() for name in names}
    assert {(Optimizer, name) for name in inspect.signature(Optimizer).parameters} <= known
    assert {
        (Muon, "rounds"),
        (GaLore, "on_move"),
        (GaLore, "nonfinite"),
        (Projected, "conv"),
        (Ensemble, "precision"),
    } <= known
    assert not {name for owner, name in known if owner is train_all}  # what it may leave open decides no number


@pytest.mark.parametrize("name", STATED)
def test_a_stated_optimizer_states_everything(name, monkeypatch):
    with nothing_left_to_defaults():
        make_optimizer("sgd", 0.1)
    monkeypatch.delitem(STATED, name)
    with pytest.raises((AssertionError, ValueError), match=rf"{name} of joma\.training"), nothing_left_to_defaults():
        make_optimizer("sgd", 0.1)


def test_an_ensemble_of_a_config_without_precision_has_it_stated():
    given = dict.fromkeys(("networks", "batch", "loss"))
    with nothing_left_to_defaults():
        made = ensemble(object(), 2, steps=1, optimizer=make_optimizer("sgd", 0.1), **given)
    assert (made.device, made.precision) == ("cpu", "float32")


@pytest.mark.parametrize(
    ("method", "options", "name"),
    [(networks.GALORE, "GALORE_OPTIONS", name) for name in networks.GALORE_OPTIONS]
    + [(networks.MUON, "MUON_OPTIONS", name) for name in networks.MUON_OPTIONS],
)
def test_each_option_of_galore_table_is_its_own(method, options, name, monkeypatch):
    def train():
        network = Llama(TINY.shape)
        with nothing_left_to_defaults():
            for _ in range(2):
                network(torch.zeros(1, 4, dtype=torch.long)).square().mean().backward()
            for optimizer in networks.optimizers_of(method, network, TINY, 0.01, 0):
                optimizer.step()

    train()
    monkeypatch.delitem(getattr(networks, options), name)
    with pytest.raises(Exception, match=f"default of {name}|{name} of .* {LEFT}"):
        train()
