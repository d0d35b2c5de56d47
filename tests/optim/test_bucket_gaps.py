"""Parameters of a bucket that have no gradient: left out, frozen or cleared, and gradients in other orders."""

import pytest
import torch
from bucketed import OPTIONS, WIDTH, WORDS, buckets, given, loss_of, made, network, pair, train, updates, weights_of
from torch import nn
from training import near

from joma.optim import GaLore, _backward, _matrix


@pytest.fixture(autouse=True)
def _stacked(monkeypatch):
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))


def test_layers_that_are_left_out_in_some_steps_have_their_own_counts(monkeypatch):
    models, optimizers = pair()
    left_out = [set(), {1}, set(), {4, 5}, {1, 2}, set(), {4}, set()]
    for model, optimizer in zip(models, optimizers, strict=True):

        def leave_out(turn, model=model):
            model.left_out = left_out[turn]

        train(model, optimizer, len(left_out), before=leave_out)
    assert near(*models, 1e-9)
    counts = [[matrix.count for matrix in each.matrices] for each in optimizers]
    assert counts[0] == counts[1]
    assert sorted({*counts[0]}) == [6, 7, 8]
    assert all(each.grad is None for each in models[0].parameters())


def test_a_frozen_parameter_is_waited_for_once(monkeypatch):
    """Then the others of its bucket are updated without it; trained later, it is updated alone."""
    model = network()
    optimizer = GaLore(model, per_layer=True, **OPTIONS)
    frozen = model.layers[0].q.weight.requires_grad_(False)
    before = frozen.detach().clone()
    planned = len(buckets(optimizer))
    loss_of(model).backward()
    there = [name for name, each in model.named_parameters() if each.grad is not None]
    assert 0 < sum(model.get_parameter(name).numel() for name in there) <= 2 * WORDS * WIDTH
    optimizer.step()
    assert len(buckets(optimizer)) == planned + 1
    assert ["layers.0.q.weight"] in buckets(optimizer)
    seen = updates(optimizer, monkeypatch)
    for turn in range(3):
        loss_of(model, turn).backward()
        assert all(each.grad is None for each in model.parameters())
        optimizer.step()
    assert len(seen) == 3 * planned
    assert torch.equal(frozen, before)
    frozen.requires_grad_(True)
    train(model, optimizer, 2)
    assert not torch.equal(frozen, before)
    counts = {matrix.name: matrix.count for matrix in optimizer.matrices}
    assert counts.pop("layers.0.q.weight") == 2
    assert {*counts.values()} == {6}


def test_two_chains_at_once_stay_as_planned_and_a_third_is_too_much():
    """Gradients of two buckets may wait at the same time, as where a model has two branches."""
    for branches, more in ((2, 0), (4, 1)):
        weights = [*weights_of(16), *weights_of(1, (48, 16))]
        optimizer = made(weights, per_layer=True)
        planned = buckets(optimizer)
        assert [len(some) for some in planned] == [4, 4, 4, 4, 1]
        mixed = sorted(range(16), key=lambda at: (at // (4 * branches), at % 4, at))
        given(weights, [16, *mixed], torch.Generator().manual_seed(0)).backward()
        optimizer.step()
        assert (len(buckets(optimizer)) > len(planned)) == bool(more)
        assert [matrix.count for matrix in optimizer.matrices] == [1] * 17


def test_the_oldest_that_wait_are_used_first():
    """Buckets of three, of which two may wait; that of 5, 4 and 3 is split, and its last is alone from then on."""
    weights = [nn.Parameter(torch.zeros(4)) for _ in range(12)] + [nn.Parameter(torch.zeros(24))]
    backward = _backward.InBackward(per_layer=True)
    backward.plan(weights)
    places = {id(each): place for place, each in enumerate(weights)}
    for each in weights:
        each.grad = torch.zeros_like(each)

    def used(found):
        return [[places[id(each)] for each in bucket.parameters] for bucket in found]

    came = (3, 0, 6, 7, 4, 1, 9, 5, 2, 10)
    expected: list[list[list[int]]] = [[]] * 6 + [[[4, 3]], [[5]], [[2, 1, 0]], []]
    assert [used(backward.collect(weights[at])) for at in came] == expected
    assert used(backward.release()) == [[7, 6], [10, 9]]
    assert backward.release() == []


def test_packs_that_part_stay_as_large_as_they_may_be(monkeypatch):
    """Half of all entries may be in one pack, of all matrices that there are and not of those that part."""
    monkeypatch.setattr("joma.optim._groups.SMALL_STACK", 0)
    weights = weights_of(8)
    optimizer = made(weights)
    assert [len(pack.matrices) for pack in optimizer.packs] == [4, 4]
    given(weights, range(7), torch.Generator().manual_seed(0)).backward()
    optimizer.step()
    assert sorted(len(pack.matrices) for pack in optimizer.packs) == [1, 3, 4]


def test_gradients_that_were_cleared_before_the_step_are_not_missed():
    model = network()
    optimizer = GaLore(model, per_layer=True, **OPTIONS)
    model.layers[0].q.weight.requires_grad_(False)
    for _ in range(3):
        loss_of(model).backward()
        optimizer.zero_grad()
        optimizer.step()
    counts = {matrix.name: matrix.count for matrix in optimizer.matrices}
    assert counts["layers.5.q.weight"] == 3
    assert counts["layers.0.k.weight"] == 0
    assert all(each.isfinite().all() for each in model.parameters())
