"""Parameters updated during backward, each gradient freed at once: the same weights as without, or one sentence.

Where products are stacked few of them are updated together: test_buckets.py.
"""

import gc

import pytest
import torch
from torch import nn
from training import COUPLED, loss_of, near, network, same, train

from joma.optim import GaLore, Refresh, memory

OPTIONS = {"rank": 4, "refresh": 3, "lr": 0.01, "weight_decay": 0.1}


def pair(**options):
    models = network(), network()
    return models, [GaLore(one, per_layer=one is models[0], **(OPTIONS | options)) for one in models]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"projected": COUPLED},
        {"on_move": "rotate"},
        {"on_move": "reset"},
        {"inner": torch.optim.SGD, "momentum": 0.9},
        {"inner": torch.optim.Adafactor},
        {"refresh": Refresh(3, stagger=False), "projector": "random"},
    ],
    ids=str,
)
def test_equal_to_the_plain_way(options):
    """Each update needs nothing of the others, so that when it is made does not matter."""
    models, optimizers = pair(**options)
    schedulers = [torch.optim.lr_scheduler.LinearLR(each, total_iters=4) for each in optimizers]
    for model, optimizer, scheduler in zip(models, optimizers, schedulers, strict=True):
        train(model, optimizer, 5, after=scheduler.step)
    assert same(*models)
    assert not near(models[0], network(), 1e-3)


def test_every_gradient_is_freed_as_soon_as_it_was_used():
    """Those of biases, norms, embedding and head too: after backward none is left, and the weights have moved."""
    (model, _), (optimizer, _) = pair()
    held = []
    for each in model.parameters():
        each.register_post_accumulate_grad_hook(
            lambda _: held.append(sum(one.grad is not None for one in model.parameters()))
        )
    loss_of(model).backward()
    assert max(held) == 0  # the hooks of GaLore were there first
    assert len(held) == len([*model.parameters()])
    assert not near(model, network(), 1e-4)
    assert memory(model, optimizer).total.measured.gradients == 0
    before = network()
    before.load_state_dict(model.state_dict())
    optimizer.step()
    assert same(model, before)
    assert [matrix.count for matrix in optimizer.matrices] == [1, 1]


def test_gradients_that_are_given_by_hand_are_used_in_the_step():
    """As torch's checkpoints do it, to make an optimizer have a state."""
    models, optimizers = pair()
    for model, optimizer in zip(models, optimizers, strict=True):
        luck = torch.Generator().manual_seed(0)
        for each in model.parameters():
            each.grad = torch.randn(each.shape, generator=luck)
        optimizer.step()
    assert same(*models)


def test_microbatches_are_refused():
    model = network()
    optimizer = GaLore(model, per_layer=True, **OPTIONS)
    loss_of(model, slice(0, 8)).backward()
    with pytest.raises(ValueError, match=r"lm_head.weight has a second gradient before step\(\): .*microbatches"):
        loss_of(model, slice(8, 16)).backward()
    assert optimizer.matrices[0].count == 1


def test_a_scaler_is_refused():
    model = network()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = GaLore(model, per_layer=True, **OPTIONS)
    scaler.scale(loss_of(model)).backward()
    with pytest.raises(ValueError, match="before GradScaler could unscale: leave GradScaler out"):
        scaler.step(optimizer)
    train(model, optimizer, 1)  # without it the optimizer goes on
    off = torch.amp.GradScaler("cpu", enabled=False)
    off.scale(loss_of(model)).backward()
    off.step(optimizer)


def test_clipping_and_other_ways_are_refused():
    with pytest.raises(ValueError, match="clip needs the norm of all gradients, and per_layer updates before"):
        GaLore(network(), per_layer=True, clip=1.0, **OPTIONS)
    with pytest.raises(ValueError, match="per_layer must be False, True or 'project', got 'both'"):
        GaLore(network(), per_layer="both", **OPTIONS)


@pytest.mark.parametrize("name", ["layers.0.weight", "layers.2.bias"])
@pytest.mark.parametrize("steps_before", [0, 1])
def test_a_gradient_that_is_not_finite_stops_its_own_parameter(name, steps_before):
    model, other = network(), network()
    optimizer = GaLore(model, per_layer=True, nonfinite="skip", **OPTIONS)
    plain = GaLore(other, **OPTIONS)
    for one, each in ((model, optimizer), (other, plain)):
        train(one, each, steps_before)
    spoiled = model.get_parameter(name)
    before = spoiled.detach().clone()
    handle = spoiled.register_hook(lambda gradient: gradient * float("nan"))
    train(model, optimizer, 1)
    handle.remove()
    train(other, plain, 1)
    assert optimizer.skipped == 1
    assert torch.equal(spoiled, before)
    for key, each in model.named_parameters():
        assert key == name or torch.equal(each, other.get_parameter(key))
    optimizer.nonfinite = "raise"
    spoiled.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(ValueError, match=f"the gradient of {name} is not finite: it was not updated"):
        loss_of(model).backward()


def test_a_newer_optimizer_takes_the_gradients_over():
    model = network()
    older, newer = (GaLore(model, per_layer=True, **OPTIONS) for _ in range(2))
    loss_of(model).backward()
    with pytest.raises(ValueError, match="goes to a newer GaLore"):
        older.step()
    newer.step()
    assert newer.matrices[0].count == 1


def test_a_gradient_that_comes_back_is_refused():
    """DistributedDataParallel does that: it averages after the hook has run."""
    model = network()
    optimizer = GaLore(model, per_layer=True, **OPTIONS)
    loss_of(model).backward()
    model.layers[0].weight.grad = torch.zeros(40, 24)
    with pytest.raises(ValueError, match=r"layers\.0\.weight has a gradient although .* DistributedDataParallel"):
        optimizer.step()


def test_hooks_of_a_forgotten_optimizer_leave_gradients_alone():
    model = network()
    optimizer = GaLore(model, per_layer=True, **OPTIONS)
    del optimizer
    gc.collect()
    loss_of(model).backward()
    assert all(each.grad is not None for each in model.parameters())


def test_a_group_added_later_and_a_frozen_matrix_that_is_trained_later():
    model = network()
    frozen = model.layers[0].weight.requires_grad_(False)
    before = frozen.detach().clone()
    optimizer = GaLore([("up", frozen)], per_layer=True, **OPTIONS)
    optimizer.add_param_group({"params": [("down", model.layers[2].weight), ("bias", model.layers[2].bias)]})
    train(model, optimizer, 1)
    assert torch.equal(frozen, before)
    frozen.requires_grad_(True)
    train(model, optimizer, 1)
    assert frozen.grad is None
    assert model.layers[2].bias.grad is None
    assert not torch.equal(frozen, before)
    assert [matrix.count for matrix in optimizer.matrices] == [1, 2]


def test_a_weight_that_is_used_twice_is_updated_once():
    torch.manual_seed(0)
    layer = nn.Linear(24, 24, bias=False)
    other = nn.Linear(24, 24, bias=False)
    other.load_state_dict(layer.state_dict())
    for one, how in ((layer, True), (other, False)):
        optimizer = GaLore(one, per_layer=how, **OPTIONS)
        for _ in range(3):
            one(one(torch.eye(24))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(layer.weight, other.weight)
