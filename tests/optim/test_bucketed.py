"""Training in buckets where not all goes as planned: gradients that are missing, not finite or come twice; states."""

import copy
import math

import pytest
import torch
from bucketed import OPTIONS, WIDTH, WORDS, buckets, given, loss_of, made, network, pair, train, updates, weights_of
from test_galore_state import stored
from torch import nn
from training import near, same

from joma.optim import GaLore, _matrix
from joma.optim._update import Guard


@pytest.fixture(autouse=True)
def _stacked(monkeypatch):
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))


# ---- gradients that are missing ---------------------------------------------------------


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


# ---- gradients that are not finite or come twice ---------------------------------------------------------


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("frozen", [False, True], ids=["amid backward", "in step"])
def test_a_gradient_that_is_not_finite_stops_its_bucket(guarded, frozen, monkeypatch):
    monkeypatch.setattr(Guard, "devices", ("cpu",) if guarded else ())
    model, other = network(), network()
    optimizer = GaLore(model, per_layer=True, nonfinite="skip", fused=True, **OPTIONS)
    plain = GaLore(other, fused=True, **OPTIONS)
    if frozen:
        for one in (model, other):
            one.layers[2].k.weight.requires_grad_(False)
    spoiled = model.layers[2].q.weight
    handle = spoiled.register_hook(lambda gradient: gradient * math.nan)
    train(model, optimizer, 1)
    handle.remove()
    train(other, plain, 1)
    assert optimizer.skipped == 1
    (stopped,) = (some for some in buckets(optimizer) if "layers.2.q.weight" in some)
    begun = network()
    for name, each in model.named_parameters():
        expected = begun if name in stopped else other
        torch.testing.assert_close(each, expected.get_parameter(name), rtol=1e-9, atol=1e-12)
    assert {m.count for m in optimizer.matrices if m.name in stopped} == {0}
    train(model, optimizer, 2)
    assert {m.count for m in optimizer.matrices if m.name in stopped and m.parameter.requires_grad} == {2}


@pytest.mark.parametrize("guarded", [False, True])
def test_each_bucket_that_is_stopped_counts(guarded, monkeypatch):
    """Whether the host looks at once or later."""
    monkeypatch.setattr(Guard, "devices", ("cpu",) if guarded else ())
    model = network()
    optimizer = GaLore(model, per_layer=True, nonfinite="skip", fused=True, **(OPTIONS | {"refresh": 100}))
    train(model, optimizer, 1)  # now no subspace is due, for which the host would look
    assert optimizer.due() == []
    spoiled = model.layers[0].q.weight, model.layers[5].q.weight
    assert len({optimizer._backward.bucket_of(each) for each in spoiled}) == 2
    handles = [each.register_hook(lambda gradient: gradient * math.nan) for each in spoiled]
    train(model, optimizer, 1)
    for handle in handles:
        handle.remove()
    assert optimizer.skipped == 2
    assert optimizer.skipped == 2  # asked twice, counted once
    counts = {matrix.name: matrix.count for matrix in optimizer.matrices}
    assert (counts["layers.0.q.weight"], counts["layers.5.q.weight"]) == (1, 1)


def test_after_an_error_when_backward_begins_no_gradient_is_left_to_add_up(monkeypatch):
    """The device has held the update back; the next backward says so and ends there."""
    monkeypatch.setattr(Guard, "devices", ("cpu",))
    model = network()
    optimizer = GaLore(model, per_layer=True, fused=True, **(OPTIONS | {"refresh": 100}))
    train(model, optimizer, 1)
    handle = model.layers[2].q.weight.register_hook(lambda gradient: gradient * math.nan)
    train(model, optimizer, 1)
    handle.remove()
    with pytest.raises(ValueError, match=r"layers\.2\.q\.weight is not finite: it was not updated"):
        loss_of(model).backward()
    assert all(each.grad is None for each in model.parameters())
    train(model, optimizer, 1)
    assert {matrix.count for matrix in optimizer.matrices} == {2, 3}


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("how", [True, "project"])
def test_what_is_done_amid_backward_knows_nothing_of_autocast_or_graphs(how):
    """Backward may be called with both on; bfloat16 would be wrong in the third digit."""
    weights, others = ([nn.Parameter(each.detach().float()) for each in weights_of()] for _ in range(2))
    begun = torch.stack([each.detach().clone() for each in weights])
    for some in (weights, others):
        inside = some is weights
        optimizer = made(some, **({"per_layer": how} if inside else {}))
        luck = torch.Generator().manual_seed(0)
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16, enabled=inside):
                sum((each.square() * torch.randn(each.shape, generator=luck)).sum() for each in some).backward(
                    create_graph=inside
                )
            assert not any(one.grad.requires_grad for pack in optimizer.packs if (one := pack.compact).grad is not None)
            optimizer.step()
            optimizer.zero_grad()
    assert all((one - other).abs().max() < 1e-5 for one, other in zip(weights, others, strict=True))
    assert (torch.stack(weights) - begun).abs().max() > 1e-3


# ---- groups that are added, saved states and copies ---------------------------------------------------------


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
