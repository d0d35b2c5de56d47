"""Kernels of convolutions and weights of experts, trained as matrices: against the slow GaLore, one at a time."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from oracle import SlowGaLore
from torch import nn
from training import EXPERTS, FOLDED, KERNELS

from joma.optim import GaLore, Projected, memory

RANK, REFRESH, SCALE, LR = 3, 3, 0.5, 0.05
OPTIONS = {"rank": RANK, "refresh": REFRESH, "scale": SCALE, "lr": LR, "projector": "exact", "weight_decay": 0.1}


class Weights(nn.Module):
    """Weights of given shapes, with no use but to be trained."""

    def __init__(self, **shapes):
        super().__init__()
        drawn = torch.Generator().manual_seed(0)
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=drawn)))


def give_gradients(model, step, zero=()):
    drawn = torch.Generator().manual_seed(100 + step)
    for each in model.parameters():
        each.grad = torch.randn(each.shape, dtype=each.dtype, generator=drawn).contiguous(
            memory_format=torch.preserve_format
        )
        for expert in zero:
            each.grad[expert] = 0


def slow(weight, **options):
    return SlowGaLore(weight.numpy(), rank=RANK, refresh=REFRESH, scale=SCALE, lr=LR, decay=0.1, **options)


@pytest.mark.parametrize("on_move", ["keep", "rotate"])
@pytest.mark.parametrize("shape", [(5, 4, 3, 3), (40, 2, 2, 3), (6, 4, 5), (5, 2, 2, 2, 3)], ids=str)
def test_a_kernel_is_a_matrix_of_output_channels_and_all_the_rest(shape, on_move):
    model = Weights(kernel=shape)
    optimizer = GaLore(model, projected=KERNELS, on_move=on_move, **OPTIONS)
    wanted = slow(model.kernel.detach().flatten(1), on_move=on_move)
    for step in range(7):
        give_gradients(model, step)
        before = model.kernel.grad.clone()
        optimizer.step()
        wanted.step(before.flatten(1).numpy(), optimizer.matrices[0].basis.numpy())
        assert torch.equal(model.kernel.grad, before)
        np.testing.assert_allclose(model.kernel.detach().flatten(1).numpy(), wanted.weight, rtol=0, atol=1e-9)
    assert list(optimizer.captured()) == ["kernel"]
    assert optimizer.state[model.kernel]["basis"].shape == (min(wanted.weight.shape), RANK)


@pytest.mark.parametrize("on_move", ["keep", "rotate"])
@pytest.mark.parametrize("shape", [(3, 5, 8), (4, 9, 5)], ids=str)
def test_every_expert_has_a_subspace_of_its_own(shape, on_move):
    model = Weights(experts=shape)
    optimizer = GaLore(model, projected=EXPERTS, on_move=on_move, **OPTIONS)
    wanted = [slow(one, on_move=on_move) for one in model.experts.detach()]
    for step in range(7):
        give_gradients(model, step)
        optimizer.step()
        for place, one in enumerate(wanted):
            one.step(model.experts.grad[place].numpy(), optimizer.matrices[place].basis.numpy())
            np.testing.assert_allclose(model.experts[place].detach().numpy(), one.weight, rtol=0, atol=1e-9)
    assert list(optimizer.captured()) == [f"experts[{place}]" for place in range(shape[0])]
    (pack,) = optimizer.packs
    state = optimizer.state[model.experts]
    assert state["basis"] is pack.basis
    assert state["basis"].shape == (shape[0], min(shape[1:]), RANK)
    assert state["exp_avg"] is optimizer.inner.state[pack.compact]["exp_avg"]
    assert set(optimizer.state) == {model.experts}


def test_an_expert_without_tokens_waits_and_disturbs_nobody():
    model, others = Weights(experts=(3, 5, 8)), Weights(experts=(3, 5, 8))
    options = {**OPTIONS, "weight_decay": 0.0}
    optimizer, beside = (GaLore(model, projected=EXPERTS, **options), GaLore(others, projected=EXPERTS, **options))
    start = model.experts[1].detach().clone()
    for step in range(4):
        give_gradients(model, step, zero=[1])
        give_gradients(others, step)
        optimizer.step()
        beside.step()
        assert torch.equal(model.experts[1], start)
        assert torch.equal(model.experts[::2], others.experts[::2])
    assert [matrix.refreshed for matrix in optimizer.matrices] == [3, -1, 3]
    assert optimizer.state[model.experts]["refreshed"].tolist() == [3, -1, 3]
    give_gradients(model, 4)
    optimizer.step()
    assert not torch.equal(model.experts[1], start)
    assert [matrix.refreshed for matrix in optimizer.matrices] == [3, 4, 3]


def mixed(**dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 10, 3), nn.Conv1d(6, 8, 2), nn.Linear(12, 16))
    model.register_parameter("experts", nn.Parameter(torch.randn(4, 6, 10)))
    return model.to(**dtype)


def steps(model, optimizer, numbers):
    for step in numbers:
        give_gradients(model, step)
        optimizer.step()
    return [each.detach().clone() for each in model.parameters()]


@pytest.mark.parametrize("way", ["file", "deepcopy", "pickle"])
def test_training_goes_on_bit_for_bit(way):
    options = {**OPTIONS, "projected": FOLDED, "projector": "randomized"}
    whole_model = mixed()
    whole = steps(whole_model, GaLore(whole_model, **options), range(8))
    model = mixed()
    optimizer = GaLore(model, **options)
    steps(model, optimizer, range(4))
    if way == "file":
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict()], file)
        file.seek(0)
        weights, state = torch.load(file, weights_only=True)
        assert state["state"][0]["basis"].shape == (4, 6, RANK)
        assert state["state"][0]["refreshed"].shape == (4,)
        model = mixed()
        optimizer = GaLore(model, **options)
        steps(model, optimizer, [50])  # what it had is forgotten
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
    elif way == "deepcopy":
        model, optimizer = copy.deepcopy((model, optimizer))
    else:
        model, optimizer = pickle.loads(pickle.dumps((model, optimizer)))
    for one, other in zip(steps(model, optimizer, range(4, 8)), whole, strict=True):
        assert torch.equal(one, other)


def test_one_dimensional_convolutions_are_not_experts():
    model = mixed()
    names = {matrix.name for matrix in GaLore(model, **OPTIONS, projected=EXPERTS).matrices}
    assert names == {"2.weight", *(f"experts[{place}]" for place in range(4))}
    names = {matrix.name for matrix in GaLore(model, **OPTIONS, projected=Projected(conv=True, experts=False)).matrices}
    assert names == {"0.weight", "1.weight", "2.weight", "experts"}  # of three axes, and no experts are asked for
    names = {matrix.name for matrix in GaLore(model, **OPTIONS, projected=FOLDED).matrices}
    assert names == {"0.weight", "1.weight", "2.weight", *(f"experts[{place}]" for place in range(4))}
    names = [matrix.name for matrix in GaLore(model, **OPTIONS).matrices]  # the name says that they are experts
    assert sorted(names) == ["2.weight", *(f"experts[{place}]" for place in range(4))]
    names = [matrix.name for matrix in GaLore(model, **OPTIONS, projected=Projected(experts=False)).matrices]
    assert names == ["2.weight"]


def test_what_is_skipped_or_small_passes_as_it_is():
    model = Weights(head=(3, 5, 8), experts=(2, 5, 8), ids=(2, 3, 3))
    optimizer = GaLore(model, projected=Projected(experts=True), **OPTIONS)
    assert {each.name: each.role for each in optimizer.passing} == {"head": "passing", "ids": "scaled"}
    give_gradients(model, 0)
    optimizer.step()
    assert all(model.get_parameter(name).shape == value.shape for name, value in model.named_parameters())


@pytest.mark.parametrize("shape", [(5, 4, 3, 3), (4, 5, 8)], ids=["kernel", "experts"])
def test_a_weight_that_is_frozen_is_not_due(shape):
    """Its matrices are parameters of their own, which nobody freezes."""
    model = Weights(frozen=shape, trained=shape)
    optimizer = GaLore(model, projected=FOLDED, **OPTIONS)
    model.frozen.requires_grad_(False)
    due = optimizer.due()
    assert due == [matrix.name for matrix in optimizer.matrices if matrix.name.startswith("trained")] != []
    model.frozen.requires_grad_(True)
    assert len(optimizer.due()) == len(optimizer.matrices) == 2 * len(due)


def test_memory_that_moves_is_followed():
    """model.to and tools that give parameters other memory: views of the old one would be trained, and nobody told."""
    model, plain = mixed(), mixed()
    options = {**OPTIONS, "projected": FOLDED}
    optimizer, other = GaLore(model, **options), GaLore(plain, **options)
    for step in range(3):
        for each in model.parameters():
            each.data = each.data.clone()
        for one, same in zip(steps(model, optimizer, [step]), steps(plain, other, [step]), strict=True):
            assert torch.equal(one, same)


def test_channels_may_come_last_in_memory():
    model, plain = Weights(kernel=(6, 4, 3, 3)), Weights(kernel=(6, 4, 3, 3))
    model.kernel.data = model.kernel.data.contiguous(memory_format=torch.channels_last)
    optimizer, other = (GaLore(model, projected=KERNELS, **OPTIONS), GaLore(plain, projected=KERNELS, **OPTIONS))
    for step in range(5):
        give_gradients(plain, step)
        other.step()
        model.kernel.grad = plain.kernel.grad.contiguous(memory_format=torch.channels_last)
        optimizer.step()
        torch.testing.assert_close(model.kernel, plain.kernel, rtol=0, atol=1e-12)
        assert model.kernel.is_contiguous(memory_format=torch.channels_last)
        assert optimizer.matrices[0].parameter.untyped_storage().nbytes() == 8  # the copy is gone
    model.kernel.grad = None
    before = model.kernel.detach().clone()
    optimizer.step()
    assert torch.equal(model.kernel, before)


def test_nothing_is_held_between_steps_and_gradients_that_are_missing_are_none():
    model = mixed()
    optimizer = GaLore(model, projected=FOLDED, **OPTIONS)
    steps(model, optimizer, range(2))
    assert all(matrix.parameter.grad is None for matrix in optimizer.matrices if matrix.parameter is not matrix.owner)
    before = model.experts.detach().clone()
    give_gradients(model, 2)
    model.experts.grad = None
    optimizer.step()
    assert torch.equal(model.experts, before)
    assert {matrix.count for matrix in optimizer.matrices if matrix.expert is not None} == {2}
    assert {matrix.count for matrix in optimizer.matrices if matrix.expert is None} == {3}
    assert model.experts.untyped_storage().data_ptr() == optimizer.matrices[0].parameter.untyped_storage().data_ptr()


def test_memory_counts_weights_once_and_its_formula_is_what_is_held():
    model = mixed(dtype=torch.float32)
    optimizer = GaLore(model, projected=FOLDED, **OPTIONS)
    steps(model, optimizer, range(1))
    projected = memory(model, optimizer).rows[0]
    assert projected.tensors == 4
    weights = sum(each.numel() for each in model.parameters() if each.ndim > 1)
    assert (projected.entries, projected.measured.weights) == (weights, 4 * weights)
    assert projected.measured.gradients == projected.formula.gradients == 4 * weights
    compact = RANK * (36 + 12 + 16 + 4 * 10)
    bases = RANK * (10 + 8 + 12 + 4 * 6)
    assert projected.formula.states == 8 * compact
    assert projected.formula.projections == 4 * bases
    assert 0 <= projected.measured.states - 8 * compact <= 64  # step counts
    assert 0 <= projected.measured.projections - 4 * bases <= 4 * RANK * 7  # shares of energy


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"per_layer": True}, "per_layer takes gradients of matrices during backward"),
        ({"per_layer": "project"}, "per_layer takes gradients of matrices"),
        ({"on_move": "reset"}, "experts of one weight have one step count"),
        ({"inner": torch.optim.Adafactor}, "experts need an inner optimizer that updates .* got Adafactor"),
    ],
    ids=str,
)  # fmt: skip
def test_what_experts_cannot_have_gets_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        GaLore(Weights(experts=(3, 6, 9)), projected=EXPERTS, **{**OPTIONS, **options})
    assert "\n" not in str(caught.value)


def test_a_state_of_other_experts_is_refused_and_changes_nothing():
    model, fewer = Weights(experts=(3, 5, 8)), Weights(experts=(2, 5, 8))
    optimizer, other = (GaLore(model, projected=EXPERTS, **OPTIONS), GaLore(fewer, projected=EXPERTS, **OPTIONS))
    steps(model, optimizer, range(2))
    steps(fewer, other, range(2))
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="of experts has 2 experts, this optimizer has 3"):
        optimizer.load_state_dict(other.state_dict())
    broken = copy.deepcopy(before)
    broken["state"][0]["basis"][2] *= 3
    with pytest.raises(ValueError, match=r"the saved subspace of experts\[2\] is damaged"):
        optimizer.load_state_dict(broken)
    after = optimizer.state_dict()
    assert all(
        torch.equal(after["state"][0][key], before["state"][0][key]) for key in ("basis", "exp_avg", "refreshed")
    )


def test_a_step_that_is_refused_leaves_kernels_as_they_were():
    """Those with channels last are copied for a step: what was never copied must not come back."""
    model = Weights(one=(6, 4, 3, 3), other=(6, 4, 3, 3))
    for each in model.parameters():
        each.data = each.data.contiguous(memory_format=torch.channels_last)
    optimizer = GaLore(model, projected=KERNELS, **OPTIONS)
    steps(model, optimizer, [0])
    give_gradients(model, 1)
    model.one.grad = model.one.grad.to_sparse()
    before = [each.detach().clone() for each in model.parameters()]
    with pytest.raises(ValueError, match="the gradient of one is sparse"):
        optimizer.step()
    assert all(torch.equal(one, each) for one, each in zip(before, model.parameters(), strict=True))


def test_each_weight_of_experts_is_one_pack_whatever_its_size(monkeypatch):
    monkeypatch.setattr("joma.optim._groups.SMALL_STACK", 1)
    model = Weights(up=(3, 5, 8), down=(3, 5, 8))
    optimizer = GaLore(model, projected=EXPERTS, **OPTIONS)
    steps(model, optimizer, range(2))
    assert [len(pack.matrices) for pack in optimizer.packs] == [3, 3]
    for each in model.parameters():
        assert optimizer.state[each]["basis"].shape == (3, 5, RANK)
        assert optimizer.state[each]["exp_avg"].shape == (3, RANK, 8)
    assert not torch.equal(optimizer.state[model.up]["basis"], optimizer.state[model.down]["basis"])


def test_a_group_that_is_refused_leaves_the_optimizer_as_it_was():
    model = Weights(matrix=(6, 8), experts=(3, 5, 8), kernel=(6, 4, 3, 3))
    options = {**OPTIONS, "projected": FOLDED}
    optimizer = GaLore([("matrix", model.matrix)], torch.optim.Adafactor, **options)
    with pytest.raises(ValueError, match="experts need an inner optimizer that updates each entry"):
        optimizer.add_param_group({"params": [("kernel", model.kernel), ("experts", model.experts)]})
    assert (len(optimizer.param_groups), len(optimizer.matrices), len(optimizer.packs)) == (1, 1, 1)
    kernel = model.kernel.detach().clone()
    give_gradients(model, 0)
    optimizer.step()
    assert torch.equal(model.kernel, kernel)
    assert not optimizer._members.folded


def test_groups_added_later_and_clipping_know_them():
    model = Weights(matrix=(6, 8), experts=(3, 5, 8), kernel=(6, 4, 3, 3))
    optimizer = GaLore([("matrix", model.matrix)], projected=FOLDED, clip=0.1, **{**OPTIONS, "weight_decay": 0.0})
    optimizer.add_param_group({"params": [("experts", model.experts), ("kernel", model.kernel)]})
    start = [each.detach().clone() for each in model.parameters()]
    give_gradients(model, 0)
    optimizer.step()
    assert len(optimizer.matrices) == 5
    assert all(not torch.equal(one, each) for one, each in zip(start, model.parameters(), strict=True))
