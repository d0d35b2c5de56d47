"""Parameters updated during backward, each gradient freed at once: the same weights as without, or one sentence."""

import gc

import pytest
import torch
from torch import nn
from training import loss_of, near, network, same, train

from joma.optim import GaLore, _matrix, _refresh, memory

OPTIONS = {"rank": 4, "refresh": 3, "lr": 0.01, "weight_decay": 0.1}


def pair(**options):
    models = network(), network()
    return models, [GaLore(one, per_layer=one is models[0], **(OPTIONS | options)) for one in models]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"decay": "coupled"},
        {"on_move": "rotate"},
        {"on_move": "reset"},
        {"inner": torch.optim.SGD, "momentum": 0.9},
        {"inner": torch.optim.Adafactor},
        {"stagger": False, "projector": "random"},
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


@pytest.mark.parametrize("share", [1, 4])
def test_gradients_may_wait_for_each_other_where_large_steps_are_faster(share, monkeypatch):
    """Until they are a quarter of the largest one; the weights are the same, and after the step none is left."""
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))
    monkeypatch.setattr("joma.optim._backward.WAITING_SHARE", share)
    models, optimizers = pair()
    largest = max(each.numel() for each in models[0].parameters())
    held = []
    for each in models[0].parameters():
        each.register_post_accumulate_grad_hook(
            lambda _: held.append(sum(one.numel() for one in models[0].parameters() if one.grad is not None))
        )
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, 4)
    assert near(*models, 1e-6)
    assert 0 < max(held) < largest // share
    loss_of(models[0]).backward()
    assert share > 1 or any(each.grad is not None for each in models[0].parameters())
    optimizers[0].step()
    assert all(each.grad is None for each in models[0].parameters())


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


def test_clipping_and_both_ways_at_once_are_refused():
    with pytest.raises(ValueError, match="clip needs the norm of all gradients, and per_layer updates before"):
        GaLore(network(), per_layer=True, clip=1.0, **OPTIONS)
    with pytest.raises(ValueError, match="give one of them"):
        GaLore(network(), per_layer=True, project_in_backward=True, **OPTIONS)


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


def test_a_gradient_whose_subspace_is_followed_waits_for_the_step(monkeypatch):
    """The weights are those of the plain way, and no other gradient waits."""
    monkeypatch.setattr(_refresh, "FOLLOWED_ON", ("cpu",))
    models, optimizers = pair(tolerance=1.0)  # with which every subspace settles at once
    waited = []
    for turn in range(7):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            due = optimizer.due()
            loss_of(model).backward()
            if model is models[0]:
                here = [name for name, each in model.named_parameters() if each.grad is not None]
                assert here == ([] if turn == 0 else due)  # the first subspaces are searched for at once
                waited += here
            optimizer.step()
            assert model is models[1] or all(each.grad is None for each in model.parameters())
    assert same(*models)
    assert sorted(waited) == ["layers.0.weight"] * 2 + ["layers.2.weight"] * 2


def test_no_more_gradients_wait_for_the_step_than_the_largest_has_entries(monkeypatch):
    monkeypatch.setattr(_refresh, "FOLLOWED_ON", ("cpu",))
    weights = {f"w{at}": nn.Parameter(torch.zeros(60, 80)) for at in range(4)}
    optimizer = GaLore(list(weights.items()), rank=4, refresh=1, lr=0.1, per_layer=True)
    luck = torch.Generator().manual_seed(0)
    for _ in range(3):
        sum((each * torch.randn(60, 80, generator=luck)).sum() for each in weights.values()).backward()
        waiting = [name for name, each in weights.items() if each.grad is not None]
        optimizer.step()
        assert not any(each.grad is not None for each in weights.values())
    assert len(waiting) == 1
    assert [matrix.count for matrix in optimizer.matrices] == [3] * 4


def test_a_gradient_that_was_cleared_before_the_step_is_not_missed(monkeypatch):
    monkeypatch.setattr(_refresh, "FOLLOWED_ON", ("cpu",))
    model = network()
    optimizer = GaLore(model, per_layer=True, **OPTIONS)
    for _ in range(4):
        loss_of(model).backward()
        optimizer.zero_grad()
        optimizer.step()
    assert max(matrix.count for matrix in optimizer.matrices) == 4
    assert all(torch.isfinite(each).all() for each in model.parameters())


@pytest.mark.parametrize("projector", ["exact", "random"])
def test_no_gradient_waits_for_the_step_where_subspaces_are_not_followed(projector, monkeypatch):
    monkeypatch.setattr(_refresh, "FOLLOWED_ON", ("cpu",))
    model = network()
    optimizer = GaLore(model, per_layer=True, projector=projector, **OPTIONS)
    due = 0
    for turn in range(5):
        due += len(optimizer.due()) if turn else 0
        loss_of(model).backward()
        assert all(each.grad is None for each in model.parameters())
        optimizer.step()
    assert due


def test_after_a_gradient_that_waited_and_was_not_finite_training_goes_on(monkeypatch):
    """step() says what was wrong, and the next backward is a new one."""
    monkeypatch.setattr(_refresh, "FOLLOWED_ON", ("cpu",))
    weight, bias = nn.Parameter(torch.zeros(60, 80)), nn.Parameter(torch.zeros(80))
    optimizer = GaLore([("w", weight), ("b", bias)], rank=4, refresh=1, lr=0.1, per_layer=True)
    luck = torch.Generator().manual_seed(0)
    for turn in range(4):
        given = torch.randn(60, 80, generator=luck)
        if turn == 1:
            given[3, 4] = torch.nan
        ((weight * given).sum() + bias.sum()).backward()
        if turn == 1:
            with pytest.raises(ValueError, match="not finite"):
                optimizer.step()
        else:
            optimizer.step()
    assert optimizer.matrices[0].count == 3
    assert weight.isfinite().all()


def test_where_processes_must_be_of_one_mind_no_gradient_waits_for_the_step(monkeypatch):
    """There nothing is followed: each subspace is searched for, and the first process tells the others."""
    monkeypatch.setattr(_refresh, "FOLLOWED_ON", ("cpu",))
    model = network()
    optimizer = GaLore(model, per_layer=True, **(OPTIONS | {"refresh": 1}))
    train(model, optimizer, 1)
    assert all(optimizer._is_followed(pack) for pack in optimizer.packs)
    monkeypatch.setattr(optimizer, "group", object())
    assert not any(optimizer._is_followed(pack) for pack in optimizer.packs)
