"""Gradients that are used during backward: parameters updated (per_layer), or matrices projected ("project").

The weights are those of training without it, or there is one sentence. Where products are stacked few parameters are
updated together: test_buckets.py.
"""

import copy
import gc
from itertools import pairwise

import pytest
import torch
from torch import nn
from training import loss_of, near, network, same, train

from joma.optim import GaLore, memory

OPTIONS = {"rank": 4, "refresh": 3, "lr": 0.01, "weight_decay": 0.1}


def pair(how, **options):
    models = network(), network()
    return models, [GaLore(one, per_layer=how if one is models[0] else False, **(OPTIONS | options)) for one in models]


WAYS = pytest.mark.parametrize("how", [True, "project"])


@pytest.mark.parametrize(
    ("how", "options"),
    [
        *((how, options) for how in (True, "project") for options in ({}, {"on_move": "rotate"})),
        ("project", {"clip": 0.1}),
        (True, {"on_move": "reset"}),
        (True, {"inner": torch.optim.SGD, "momentum": 0.9}),
        (True, {"inner": torch.optim.Adafactor}),
        (True, {"refresh": 3, "projector": "random"}),
    ],
    ids=str,
)
def test_equal_to_the_plain_way(how, options):
    """Each update needs nothing of the others, so that when it is made does not matter."""
    models, optimizers = pair(how, **options)
    schedulers = [torch.optim.lr_scheduler.LinearLR(each, total_iters=4) for each in optimizers]
    for model, optimizer, scheduler in zip(models, optimizers, schedulers, strict=True):
        train(model, optimizer, 5, after=scheduler.step)
    assert same(*models)
    assert not near(models[0], network(), 1e-3)


@WAYS
def test_a_newer_optimizer_takes_the_gradients_over(how):
    model = network()
    older, newer = (GaLore(model, per_layer=how, **OPTIONS) for _ in range(2))
    loss_of(model).backward()
    with pytest.raises(ValueError, match=r"layers\.0\.weight goes to a newer GaLore"):
        older.step()
    newer.step()
    assert newer.matrices[0].count == 1


@WAYS
def test_a_gradient_that_comes_back_is_refused(how):
    """DistributedDataParallel does that: it averages after the hook has run."""
    model = network()
    optimizer = GaLore(model, per_layer=how, **OPTIONS)
    loss_of(model).backward()
    model.layers[0].weight.grad = torch.zeros(40, 24)
    with pytest.raises(ValueError, match=r"layers\.0\.weight has a gradient although .* DistributedDataParallel"):
        optimizer.step()


@WAYS
def test_hooks_of_a_forgotten_optimizer_leave_gradients_alone(how):
    model = network()
    optimizer = GaLore(model, per_layer=how, **OPTIONS)
    del optimizer
    gc.collect()
    loss_of(model).backward()
    assert all(each.grad is not None for each in model.parameters())


@WAYS
def test_a_group_added_later_and_a_frozen_matrix_that_is_trained_later(how):
    model = network()
    frozen = model.layers[0].weight.requires_grad_(False)
    before = frozen.detach().clone()
    optimizer = GaLore([("up", frozen)], per_layer=how, **OPTIONS)
    optimizer.add_param_group({"params": [("down", model.layers[2].weight), ("bias", model.layers[2].bias)]})
    assert not frozen.requires_grad
    loss_of(model).backward()
    assert model.layers[2].weight.grad is None
    assert (model.layers[2].bias.grad is None) == (how is True)
    optimizer.step()
    assert torch.equal(frozen, before)
    frozen.requires_grad_(True)
    train(model, optimizer, 1)
    assert frozen.grad is None
    assert not torch.equal(frozen, before)
    assert [matrix.count for matrix in optimizer.matrices] == [1, 2]


# ---- per_layer=True -------------------------------------------------------------------------------------------------


def test_every_gradient_is_freed_as_soon_as_it_was_used():
    """Those of biases, norms, embedding and head too: after backward none is left, and the weights have moved."""
    (model, _), (optimizer, _) = pair(True)
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
    models, optimizers = pair(True)
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


# ---- per_layer="project" --------------------------------------------------------------------------------------------


def test_the_full_gradient_is_freed_during_backward():
    (model, _), (optimizer, _) = pair("project")
    held = []
    matrices = [matrix.parameter for matrix in optimizer.matrices]
    model.embed_tokens.weight.register_post_accumulate_grad_hook(
        lambda _: held.append([each.grad is None for each in matrices])
    )
    loss_of(model).backward()
    assert held == [[True, True]]
    assert [pack.compact.grad.shape for pack in optimizer.packs] == [(40, 4), (4, 40)]
    optimizer.step()
    assert [pack.compact.grad for pack in optimizer.packs] == [None, None]


def microbatches(model, optimizer):
    optimizer.zero_grad()
    for part in (slice(0, 8), slice(8, 12), slice(12, 16)):
        (loss_of(model, part) / 3).backward()
    optimizer.step()


def test_microbatches_add_up_and_nothing_moves_before_the_step():
    """Within a subspace; the plain way would find it from the sum, per layer from the first microbatch."""
    models, optimizers = pair("project", refresh=100)
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, 1)
    before = network()
    before.load_state_dict(models[0].state_dict())
    for part in (slice(0, 8), slice(8, 16)):
        loss_of(models[0], part).backward()
    assert same(models[0], before)
    optimizers[0].zero_grad()
    for _ in range(4):
        for model, optimizer in zip(models, optimizers, strict=True):
            microbatches(model, optimizer)
    assert near(*models, 1e-6)
    assert optimizers[0].matrices[0].count == 5


def test_a_subspace_is_found_once_per_refresh_and_from_the_first_microbatch():
    (model, _), (optimizer, _) = pair("project", refresh=2)
    found = []
    for _ in range(4):
        for part in (slice(0, 8), slice(8, 16)):
            loss_of(model, part).backward()
            found.append(optimizer.matrices[0].basis.clone())
        optimizer.step()
    same_basis = [torch.equal(a, b) for a, b in pairwise(found)]
    assert same_basis == [True, True, True, False, True, True, True]


@pytest.mark.parametrize("per_layer", [False, "project"])
def test_the_loss_may_be_scaled(per_layer):
    scaled, other = network(), network()
    options = OPTIONS | {"inner": torch.optim.SGD, "momentum": 0.9, "lr": 0.1, "weight_decay": 0}
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = GaLore(scaled, per_layer=per_layer, **options)
    for _ in range(5):
        optimizer.zero_grad()
        scaler.scale(loss_of(scaled)).backward()
        scaler.step(optimizer)
        scaler.update()
    train(other, GaLore(other, **options), 5)
    assert near(scaled, other, 1e-6)


def test_a_loss_that_overflows_is_skipped_by_the_scaler_and_the_scale_falls():
    model = network()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    optimizer = GaLore(model, per_layer="project", **OPTIONS)
    before = network()
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(loss_of(model) * 100).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0**125
    assert same(model, before)
    scaler.update(1.0)
    optimizer.zero_grad()
    scaler.scale(loss_of(model)).backward()
    scaler.step(optimizer)
    other = network()
    train(other, GaLore(other, **OPTIONS), 1)
    assert near(model, other, 1e-6)  # the subspace is that of the first gradient that is finite


def test_nothing_is_found_from_a_gradient_that_is_not_finite():
    model = network()
    optimizer = GaLore(model, per_layer="project", nonfinite="skip", **OPTIONS)
    (loss_of(model) * float("inf")).backward()
    optimizer.step()
    assert optimizer.skipped == 1
    assert same(model, network())
    other = network()
    assert same(train(model, optimizer, 4), train(other, GaLore(other, per_layer="project", **OPTIONS), 4))


# ---- clipping that misses what was projected -------------------------------------------------------------------------

MISSED = "gradients were scaled after backward, as clip_grad_norm_ does, .* give clip="


def clipped(optimizer, model, parameters, *, most=0.1):
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, slice(None, 8)).backward()
        loss_of(model, slice(8, None)).backward()
        nn.utils.clip_grad_norm_(parameters(), most)
        optimizer.step()


def test_clipping_that_misses_projected_gradients_is_named_once():
    model = network()
    optimizer = GaLore(model, rank=4, lr=0.01, per_layer="project")
    with pytest.warns(UserWarning, match=MISSED) as noted:
        clipped(optimizer, model, model.parameters)
    assert len(noted) == 1
    again = copy.deepcopy(optimizer)
    assert again.matrices


def test_clipping_that_sees_all_is_not_named(recwarn):
    model = network()
    clipped(GaLore(model, rank=4, lr=0.01), model, model.parameters)
    model = network()
    optimizer = GaLore(model, rank=4, lr=0.01, per_layer="project", clip=0.1)
    for _ in range(2):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    clipped(optimizer, model, lambda: [each for group in optimizer.param_groups for each in group["params"]])
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    loss_of(model).backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    assert not [one for one in recwarn if "clip" in str(one.message)]
