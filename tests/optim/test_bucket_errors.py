"""Gradients in buckets that are not finite, or come twice: what is stopped, and that training goes on."""

import math

import pytest
import torch
from bucketed import OPTIONS, buckets, loss_of, made, network, train, weights_of
from torch import nn

from joma.optim import GaLore, _matrix
from joma.optim._guard import Guard


@pytest.fixture(autouse=True)
def _stacked(monkeypatch):
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))


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


def test_after_an_error_amid_backward_training_goes_on():
    model = network()
    optimizer = GaLore(model, per_layer=True, **OPTIONS)
    handle = model.layers[2].q.weight.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(ValueError, match=r"the gradient of layers\.2\.q\.weight is not finite: it was not updated"):
        loss_of(model).backward()
    handle.remove()
    optimizer.step()
    assert all(each.grad is None for each in model.parameters())
    before = [matrix.count for matrix in optimizer.matrices]
    assert {*before} == {0, 1}
    train(model, optimizer, 2)
    assert [matrix.count for matrix in optimizer.matrices] == [count + 2 for count in before]


def test_after_an_error_in_step_the_next_backward_is_a_new_one():
    model = network()
    optimizer = GaLore(model, per_layer=True, **OPTIONS)
    model.layers[2].k.weight.requires_grad_(False)
    handle = model.layers[2].q.weight.register_hook(lambda gradient: gradient * math.nan)
    loss_of(model).backward()
    with pytest.raises(ValueError, match=r"layers\.2\.q\.weight is not finite: it was not updated"):
        optimizer.step()
    handle.remove()
    assert all(each.grad is None for each in model.parameters())
    train(model, optimizer, 2)
    assert {matrix.count for matrix in optimizer.matrices} == {0, 2, 3}


def test_a_second_gradient_is_refused_although_the_first_still_waits():
    model = network()
    optimizer = GaLore(model, per_layer=True, **OPTIONS)
    model.layers[0].norm.requires_grad_(False)
    loss_of(model).backward()
    assert model.layers[0].up.weight.grad is not None
    with pytest.raises(ValueError, match=r"layers\.0\.up\.weight has a second gradient before step\(\)"):
        (model.layers[0].up.weight.sum()).backward()
    optimizer.step()


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
