"""Groups that are added, saved states and copies of an optimizer that updates in buckets."""

import copy
import pickle

import pytest
import torch
from bucketed import (
    OPTIONS,
    buckets,
    loss_of,
    network,
    train,
)
from test_checkpoints import stored
from training import near, same

from joma.optim import GaLore, _matrix


@pytest.fixture(autouse=True)
def _stacked(monkeypatch):
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))


def test_a_group_that_is_added_amid_waiting_is_planned_with_the_others():
    model = network()
    later = [name for name, _ in model.named_parameters() if name.startswith("layers.0")]
    first = [(name, each) for name, each in model.named_parameters() if name not in later]
    optimizer = GaLore(first, per_layer=True, **OPTIONS)
    model.narrow.weight.requires_grad_(False)
    loss_of(model).backward()
    there = [each for _, each in first if each.grad is not None]
    assert there
    optimizer.add_param_group({"params": [(name, model.get_parameter(name)) for name in later]})
    optimizer.step()
    assert all(each.grad is None for each in there)
    model.narrow.weight.requires_grad_(True)
    train(model, optimizer, 2)
    counts = {matrix.name: matrix.count for matrix in optimizer.matrices}
    assert (counts["layers.5.q.weight"], counts["layers.1.q.weight"], counts["layers.0.q.weight"]) == (3, 3, 3)
    assert all(len({optimizer._backward.bucket_of(one) for one in pack.parameters}) == 1 for pack in optimizer.packs)


@pytest.mark.parametrize("parted", [False, True])
@pytest.mark.parametrize("how", [{"per_layer": True}, {}], ids=["per_layer", "plain"])
def test_a_saved_state_goes_on(how, parted):
    """Bit for bit in the same way of stepping, though layers had been left out; up to rounding in the other."""
    model, fresh = network(), network()
    optimizer, again = GaLore(model, per_layer=True, **OPTIONS), GaLore(fresh, **how, **OPTIONS)

    def leave_out(turn):
        model.left_out = {2} if parted and turn == 1 else set()

    train(model, optimizer, 4, before=leave_out)
    fresh.load_state_dict(stored(model.state_dict()))
    again.load_state_dict(stored(optimizer.state_dict()))
    assert len({matrix.count for matrix in again.matrices}) == 1 + parted
    train(model, optimizer, 4)
    train(fresh, again, 4)
    assert near(model, fresh, 1e-10)
    assert same(model, fresh) or not how


@pytest.mark.parametrize("inner", [torch.optim.AdamW, torch.optim.SGD])
def test_a_state_is_loaded_amid_training(inner):
    """Packs are others then, since layers had been left out; SGD has no state that would tell counts."""
    model, other = network(), network()
    optimizer, again = (GaLore(each, inner, per_layer=True, **OPTIONS) for each in (model, other))

    def leave_out(turn):
        model.left_out = {2} if turn == 1 else set()

    train(model, optimizer, 4, before=leave_out)
    train(other, again, 2)
    other.load_state_dict(stored(model.state_dict()))
    again.load_state_dict(stored(optimizer.state_dict()))
    assert len(again.packs) == len(optimizer.packs)
    train(model, optimizer, 4)
    train(other, again, 4)
    assert near(model, other, 1e-10)
    counts = [[(matrix.count, matrix.refreshed) for matrix in each.matrices] for each in (optimizer, again)]
    assert counts[0] == counts[1]
    assert len({count for count, _ in counts[0]}) == 2


@pytest.mark.parametrize("inner", [torch.optim.AdamW, torch.optim.NAdam])
def test_a_state_of_large_packs_goes_on_in_small_ones(inner):
    """The plain way has one count of steps for alike matrices of all layers; in buckets each has its own."""
    models = [network() for _ in range(3)]
    options = OPTIONS | {"inner": inner, "projector": "exact"}
    first, plain, split = (GaLore(each, per_layer=each is models[2], **options) for each in models)
    train(models[0], first, 4)
    for model, optimizer in ((models[1], plain), (models[2], split)):
        model.load_state_dict(models[0].state_dict())
        optimizer.load_state_dict(stored(first.state_dict()))
    assert len(split.packs) > len(plain.packs)
    for model, optimizer in zip(models, (first, plain, split), strict=True):
        train(model, optimizer, 4)
        assert {float(optimizer.state[each.parameter]["step"]) for each in optimizer.matrices} == {8.0}
    assert near(models[0], models[1], 1e-10)
    assert near(models[0], models[2], 1e-9)


def test_an_optimizer_takes_up_its_own_earlier_state():
    """Layers were left out in between: packs are formed anew, and no bucket may go on with those of before."""
    model, fresh = network(), network()
    exact = OPTIONS | {"projector": "exact"}  # a search gives a little else, if others are searched for with it
    optimizer, again = (GaLore(one, per_layer=True, **exact) for one in (model, fresh))
    train(model, optimizer, 4)
    weights, state = stored(model.state_dict()), stored(optimizer.state_dict())
    model.left_out = {2}
    train(model, optimizer, 2)
    model.left_out = set()
    for one, its in ((model, optimizer), (fresh, again)):
        one.load_state_dict(weights)
        its.load_state_dict(copy.deepcopy(state))  # as torch does it, an optimizer takes these very tensors
        train(one, its, 4)
        assert {matrix.count for matrix in its.matrices} == {8}
    assert near(model, fresh, 1e-10)


@pytest.mark.parametrize(
    "way", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["copied", "pickled"]
)
def test_a_copy_goes_on_by_itself(way):
    model = network()
    optimizer = GaLore(model, per_layer=True, **OPTIONS)
    train(model, optimizer, 4)
    other, again = way((model, optimizer))
    train(model, optimizer, 4)
    assert [matrix.count for matrix in again.matrices] == [4] * 25
    train(other, again, 4)
    assert near(model, other, 1e-12)
    assert buckets(again) == buckets(optimizer)
