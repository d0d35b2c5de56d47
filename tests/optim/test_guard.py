"""A fused inner optimizer decides on the device whether a step happens; here a CPU stands for the device."""

import copy
import math

import pytest
import torch
from test_galore_state import stored
from training import loss_of, near, network, same, train

from joma.optim import GaLore, _update
from joma.optim._update import Guard

OPTIONS = {"rank": 4, "refresh": 3, "lr": 0.01, "weight_decay": 0.1, "fused": True}


@pytest.fixture(autouse=True)
def _on_this_machine(monkeypatch):
    monkeypatch.setattr(Guard, "devices", ("cpu",))


def bad_step(model, optimizer):
    optimizer.zero_grad()
    loss_of(model).backward()
    model.layers[2].bias.grad[3] = float("nan")
    optimizer.step()


def test_a_step_that_is_fine_is_the_same_step(monkeypatch):
    guarded, waited = network(), network()
    optimizer = GaLore(guarded, **OPTIONS)
    assert optimizer._guard.serves([torch.device("cpu")])
    train(guarded, optimizer, 7)
    assert optimizer.skipped == 0
    monkeypatch.setattr(Guard, "devices", ())
    assert near(guarded, train(waited, GaLore(waited, **OPTIONS), 7), 1e-6)  # their tensors may lie otherwise in memory


@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_step_that_is_not_does_not_happen_and_is_counted(at):
    model, other = network(), network()
    optimizer = GaLore(model, nonfinite="skip", **OPTIONS)
    train(model, optimizer, at)
    before = network()
    before.load_state_dict(model.state_dict())
    bad_step(model, optimizer)
    assert same(model, before)
    assert optimizer.skipped == 1
    bad_step(model, optimizer)
    assert same(model, before)
    assert optimizer.skipped == 2
    train(model, optimizer, 7 - at)
    assert same(model, train(other, GaLore(other, **OPTIONS), 7))
    assert {matrix.count for matrix in optimizer.matrices} == {7}


def test_the_next_step_says_which_gradient_it_was():
    model = network()
    optimizer = GaLore(model, **OPTIONS)
    train(model, optimizer, 1)
    bad_step(model, optimizer)
    with pytest.raises(ValueError, match=r"the gradient of layers\.2\.bias is not finite: nothing was updated"):
        optimizer.step()
    bad_step(model, optimizer)
    with pytest.raises(ValueError, match=r"the gradient of layers\.2\.bias is not finite"):
        optimizer.state_dict()


def test_a_state_saved_after_a_skipped_step_knows_of_it():
    model, other = network(), network()
    optimizer = GaLore(model, nonfinite="skip", **OPTIONS)
    train(model, optimizer, 2)
    bad_step(model, optimizer)
    state = stored(optimizer.state_dict())
    assert state["param_groups"][0]["galore_skipped"] == 1
    again = GaLore(model, nonfinite="skip", **OPTIONS)
    again.load_state_dict(state)
    train(model, again, 3)
    assert same(model, train(other, GaLore(other, **OPTIONS), 5))


def test_a_copy_knows_of_a_step_that_did_not_happen():
    """Flags that are on their way stay behind: they are read before."""
    model = network()
    optimizer = GaLore(model, nonfinite="skip", **OPTIONS)
    train(model, optimizer, 2)
    bad_step(model, optimizer)
    _, again = copy.deepcopy((model, optimizer))
    for each in (again, optimizer):
        assert {matrix.count for matrix in each.matrices} == {2}
        assert each.skipped == 1


def test_other_inner_optimizers_are_waited_for():
    options = {key: value for key, value in OPTIONS.items() if key != "fused"}
    optimizer = GaLore(network(), **options)
    assert not optimizer._guard.serves([torch.device("cpu")])
    adafactor = GaLore(network(), torch.optim.Adafactor, rank=4)
    assert not adafactor._guard.serves([torch.device("cpu")])


def bad_backward(model):
    loss_of(model).backward(inputs=[each for name, each in model.named_parameters() if name != "layers.2.weight"])
    hook = model.layers[2].weight.register_hook(lambda gradient: gradient * float("nan"))
    loss_of(model).backward(inputs=[model.layers[2].weight])
    hook.remove()


@pytest.mark.parametrize("nonfinite", ["skip", "raise"])
def test_with_per_layer_the_next_backward_looks_back_and_no_step_does(nonfinite, monkeypatch):
    """At the step the device is still at work on what it is asked for: the host would wait for all of backward."""
    model = network()
    optimizer = GaLore(model, per_layer=True, nonfinite=nonfinite, **OPTIONS)
    train(model, optimizer, 2)
    looked, look_back = [], Guard.look_back
    monkeypatch.setattr(Guard, "look_back", lambda guard: looked.append(1) or look_back(guard))
    before = model.layers[2].weight.detach().clone()
    bad_backward(model)
    looked.clear()
    optimizer.step()
    assert not looked
    assert torch.equal(model.layers[2].weight, before)
    counts = {matrix.name: matrix.count for matrix in optimizer.matrices}
    if nonfinite == "raise":
        with pytest.raises(ValueError, match=r"the gradient of layers\.2\.weight is not finite: it was not updated"):
            loss_of(model).backward()
        return
    loss_of(model).backward()
    assert len(looked) == 1
    assert [matrix.count for matrix in optimizer.matrices if matrix.name == "layers.2.weight"] == [3]
    assert [matrix.count for matrix in optimizer.matrices if matrix.name == "layers.0.weight"] == [4]
    assert counts["layers.2.weight"] == 3  # as if it had counted, until somebody looked
    optimizer.step()
    assert optimizer.skipped == 1


def test_what_a_graph_captures_holds_back_and_is_not_looked_at_later():
    """A replay has no flags of its own, and its steps are counted by who replays; the device counts what it held."""
    optimizer = GaLore(network(), **OPTIONS)
    guard, matrices = Guard(optimizer.inner), optimizer.matrices
    for captured, name, count in ((False, ["w1"], -1), (True, [], -1)):
        assert guard.held_in_replays(wait=True) == 0
        for finite, expected in ((torch.tensor([True, False]), 1.0), (torch.tensor([True, True]), 0.0)):
            held = guard.hold(lambda flag: f"w{flag}", finite, matrices, captured=captured)
            assert held.item() == optimizer.inner.found_inf.item() == expected
        assert guard.look_back() == name
        assert {matrix.count for matrix in matrices} == {count}
    assert guard.held_in_replays(wait=True) == 1
    assert guard.held_in_replays(wait=True) == 0
    guard.release()
    assert not hasattr(optimizer.inner, "found_inf")


def test_the_flag_lies_where_the_gradients_are():
    """What has no numbers stands for another device."""
    optimizer = GaLore(network(), **OPTIONS)
    guard, finite = Guard(optimizer.inner), torch.ones(3, dtype=torch.bool, device="meta")
    guard._held[finite.device] = torch.empty((), device="meta")
    held = guard.hold(str, finite, [], captured=True)
    assert held is optimizer.inner.found_inf
    assert (held.device.type, held.dtype, held.shape) == ("meta", torch.float32, ())


def test_only_a_gpu_has_the_kernel(monkeypatch):
    finite = pytest.importorskip("joma.optim._finite_triton", reason="Triton is not installed here")
    monkeypatch.setattr(finite, "zero_if_finite", lambda one: pytest.fail("the kernel is for a GPU"))
    assert float(_update._of_large(torch.tensor([2.0, -3.0]))) == 3.0
    assert math.isnan(float(_update._of_large(torch.tensor([2.0, math.nan]))))
