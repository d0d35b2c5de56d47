"""Gradients projected and freed during backward: the same weights as without, in every way of training."""

import gc
from itertools import pairwise

import pytest
import torch
from training import COUPLED, loss_of, near, network, same, train

from joma.optim import GaLore

OPTIONS = {"rank": 4, "refresh": 3, "lr": 0.01, "weight_decay": 0.1}


def pair(**options):
    models = network(), network()
    return models, [
        GaLore(one, per_layer="project" if one is models[0] else False, **(OPTIONS | options)) for one in models
    ]


def both(step, steps=5, **options):
    models, optimizers = pair(**options)
    for model, optimizer in zip(models, optimizers, strict=True):
        for _ in range(steps):
            step(model, optimizer)
    return models


def plain(model, optimizer):
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()


@pytest.mark.parametrize("options", [{}, {"projected": COUPLED}, {"clip": 0.1}, {"on_move": "rotate"}], ids=str)
def test_equal_to_the_plain_way(options):
    assert same(*both(plain, **options))


def test_the_full_gradient_is_freed_during_backward():
    (model, _), (optimizer, _) = pair()
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
    models, optimizers = pair(refresh=100)
    plain(models[0], optimizers[0])
    plain(models[1], optimizers[1])
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
    (model, _), (optimizer, _) = pair(refresh=2)
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
    plain(other, GaLore(other, **OPTIONS))
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


def test_a_newer_optimizer_takes_the_gradients_over():
    model = network()
    older, newer = (GaLore(model, per_layer="project", **OPTIONS) for _ in range(2))
    loss_of(model).backward()
    with pytest.raises(ValueError, match=r"layers\.0\.weight goes to a newer GaLore"):
        older.step()
    newer.step()
    assert newer.matrices[0].count == 1


def test_a_gradient_that_comes_back_is_refused():
    """DistributedDataParallel does that: it averages after the hook has run."""
    model = network()
    optimizer = GaLore(model, per_layer="project", **OPTIONS)
    loss_of(model).backward()
    model.layers[0].weight.grad = torch.zeros(40, 24)
    with pytest.raises(ValueError, match=r"layers\.0\.weight has a gradient although .* DistributedDataParallel"):
        optimizer.step()


def test_hooks_of_a_forgotten_optimizer_leave_gradients_alone():
    model = network()
    optimizer = GaLore(model, per_layer="project", **OPTIONS)
    del optimizer
    gc.collect()
    loss_of(model).backward()
    assert model.layers[0].weight.grad is not None


def test_a_group_added_later_is_projected_too():
    model = network()
    optimizer = GaLore([("up", model.layers[0].weight)], per_layer="project", **OPTIONS)
    optimizer.add_param_group({"params": [("down", model.layers[2].weight)]})
    loss_of(model).backward()
    assert model.layers[2].weight.grad is None
    optimizer.step()
    assert [matrix.count for matrix in optimizer.matrices] == [1, 1]


def test_a_frozen_matrix_may_be_trained_later():
    model = network()
    frozen = model.layers[0].weight.requires_grad_(False)
    before = frozen.detach().clone()
    optimizer = GaLore(model.named_parameters(), rank=4, lr=0.1, per_layer="project")
    assert not frozen.requires_grad
    train(model, optimizer, 1)
    assert torch.equal(frozen, before)
    frozen.requires_grad_(True)
    train(model, optimizer, 1)
    assert frozen.grad is None
    assert not torch.equal(frozen, before)
