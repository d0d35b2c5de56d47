"""Muon against a slow version in float64, and torch's own, which computes in bfloat16; with `others` for the rest."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from test_galore_state import stored
from torch import nn
from training import network, same, train

from joma.optim import GaLore, Muon, memory


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def slow_orthogonal(matrix, rounds=5):
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.sqrt((values**2).sum())
    for _ in range(rounds):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return (left * values) @ right


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 6)])
def test_equal_to_the_slow_version(shape):
    weight = nn.Parameter(draw(*shape))
    alike = nn.Parameter(draw(*shape, seed=1))
    expected, average = weight.detach().numpy().copy(), np.zeros(shape)
    optimizer = Muon([weight, alike], lr=0.1, momentum=0.8, weight_decay=0.5)
    for step in range(4):
        weight.grad, alike.grad = draw(*shape, seed=2 + step), draw(*shape, seed=20 + step)
        gradient = weight.grad.numpy()
        average = 0.8 * average + 0.2 * gradient
        update = slow_orthogonal(0.2 * gradient + 0.8 * average)
        expected = expected * (1 - 0.1 * 0.5) - 0.1 * 0.2 * max(shape) ** 0.5 * update
        optimizer.step()
        np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-5, atol=1e-6)


def test_as_torch_does_it_but_for_bfloat16():
    weights = [nn.Parameter(draw(8, 20, dtype=torch.float32)) for _ in range(2)]
    ours = Muon(weights[:1], lr=0.1, weight_decay=0.1)
    theirs = torch.optim.Muon(weights[1:], lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    start = weights[0].detach().clone()
    for step in range(3):
        for each in weights:
            each.grad = draw(8, 20, seed=1 + step, dtype=torch.float32)
        ours.step()
        theirs.step()
    moved = float((weights[1] - start).detach().norm())
    assert float((weights[0] - weights[1]).detach().norm()) < 0.02 * moved


def test_a_stack_is_done_matrix_by_matrix():
    stack = nn.Parameter(draw(3, 4, 7))
    single = [nn.Parameter(each.clone()) for each in stack.detach()]
    together, alone = Muon([stack], lr=0.1), Muon(single, lr=0.1)
    stack.grad = draw(3, 4, 7, seed=1)
    for each, gradient in zip(single, stack.grad, strict=True):
        each.grad = gradient.clone()
    together.step()
    alone.step()
    torch.testing.assert_close(stack.detach(), torch.stack([each.detach() for each in single]))


def test_matrices_without_gradients_stay_and_a_closure_is_evaluated_once():
    weight, still = nn.Parameter(draw(4, 6)), nn.Parameter(draw(4, 6))
    before, calls = still.detach().clone(), []
    optimizer = Muon([weight, still])

    def closure():
        calls.append(1)
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    assert calls == [1]
    assert torch.equal(still, before)
    assert still not in optimizer.state


def test_inside_galore():
    weight = nn.Parameter(torch.zeros(16, 24))
    optimizer = GaLore([weight], Muon, rank=4, scale=1.0, lr=0.1)
    for _ in range(30):
        weight.grad = weight.detach() - draw(16, 2, dtype=torch.float32) @ draw(2, 24, dtype=torch.float32)
        optimizer.step()
    assert float(weight.grad.norm()) < 0.8 * float((draw(16, 2) @ draw(2, 24)).norm())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, got 1.0"),
        ({"rounds": 0}, "rounds must be a whole number from 1 to 100, got 0"),
        ({"params": [nn.Parameter(torch.zeros(3))]}, r"got one of shape \(3,\): give others= for the rest"),
        ({"betas": (0.9, 0.9)}, "there is no option 'betas': those of another optimizer need others="),
        (
            {"others": torch.optim.AdamW},
            "group 0, parameter 0 has no name, so others= cannot have embeddings and heads",
        ),
        ({"others": torch.optim.AdamW, "momentun": 0.9}, "there is no option 'momentun': did you mean 'momentum'"),
        ({"others": torch.optim.AdamW, "params": nn.LayerNorm(3)}, "params holds no matrix for Muon"),
        ({"others": torch.optim.AdamW, "params": [{"params": nn.Linear(3, 4), "beta": 1}]}, "did you mean 'betas'"),
    ],
)
def test_refused_in_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Muon(**({"params": [nn.Parameter(torch.zeros(3, 4))]} | options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rate_in_a_tensor_may_have_an_axis(dtype):
    found = []
    for rate in (0.1, torch.tensor(0.1), torch.tensor([0.1])):
        weight = nn.Parameter(torch.linspace(-1, 1, 48).reshape(6, 8).to(dtype))
        weight.grad = torch.linspace(2, -1, 48).reshape(6, 8).to(dtype)
        Muon([weight], lr=rate, weight_decay=0.5).step()
        found.append(weight.detach())
    torch.testing.assert_close(found[1], found[0])
    assert torch.equal(found[2], found[1])


OTHERS = {
    "AdamW": (torch.optim.AdamW, {"betas": (0.8, 0.9)}),
    "SGD": (partial(torch.optim.SGD, momentum=0.5), {}),
    "Adagrad": (torch.optim.Adagrad, {}),  # has a state before its first step
}
MATRICES = ["layers.0.weight", "layers.2.weight"]


def both(model, kind=torch.optim.AdamW, **options):
    return Muon(model, lr=0.02, weight_decay=0.1, others=kind, **options)


@pytest.mark.parametrize(("kind", "options"), OTHERS.values(), ids=OTHERS)
def test_with_others_each_trains_what_it_would_alone(kind, options):
    """Two optimizers side by side are what one with others= must equal, with a schedule of their rates."""
    model, alone = network(), network()
    optimizer = both(model, kind, **options)
    named = dict(alone.named_parameters())
    pair = [Muon([named.pop(name) for name in MATRICES], lr=0.02, weight_decay=0.1)]
    pair.append(kind([*named.values()], lr=0.02, weight_decay=0.1, **options))
    halve = partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5)
    schedules = [halve(one) for one in (optimizer, *pair)]

    def step_pair():
        pair[1].step()
        for one in schedules:
            one.step()

    for _ in range(4):
        train(model, optimizer, 1)
        train(alone, pair[0], 1, after=step_pair)
        alone.zero_grad()
    assert same(model, alone)
    assert not same(model, network())


@pytest.mark.parametrize(("kind", "options"), OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("way", ["file", "copy", "pickle"])
def test_with_others_it_goes_on_bit_for_bit(kind, options, way):
    model = network()
    optimizer = both(model, kind, **options)
    train(model, optimizer, 3)
    if way == "file":
        again = network()
        again.load_state_dict(model.state_dict())
        other = both(again, kind, **options)
        other.load_state_dict(stored(optimizer.state_dict()))
    else:
        pair = model, optimizer
        again, other = copy.deepcopy(pair) if way == "copy" else pickle.loads(pickle.dumps(pair))
    before = copy.deepcopy(again)
    for one, maker in ((model, optimizer), (again, other)):
        for group in maker.param_groups:
            group["lr"] *= 0.5  # must reach others= after loading too
        train(one, maker, 3)
    assert same(model, again)
    assert not any(torch.equal(*pair) for pair in zip(before.parameters(), again.parameters(), strict=True))


def test_who_trains_what():
    """By kind, name and axes; experts are stacks of matrices, kernels are not."""
    model = network()
    model.add_module("conv", nn.Conv1d(24, 24, 3))
    model.register_parameter("experts", nn.Parameter(draw(2, 3, 4, dtype=torch.float32)))
    chosen = lambda optimizer: [
        name for group in optimizer.param_groups if "rounds" in group for name in group["param_names"]
    ]
    assert chosen(both(model)) == ["experts", *MATRICES]
    assert chosen(both(model.named_parameters())) == ["experts", *MATRICES]
    assert chosen(both(model, skip=["layers"])) == ["experts", "lm_head.weight"]  # the embedding by its kind
    assert chosen(both(list(network().layers.parameters()), skip=())) == [
        "group 0, parameter 0",
        "group 0, parameter 2",
    ]


def test_groups_have_options_of_their_own_and_may_come_later():
    model, asked = network(), {"lr": 0.3, "weight_decay": 0.4, "betas": (0.5, 0.6), "momentum": 0.7}
    layer = [(f"layers.0.{name}", each) for name, each in model.layers[0].named_parameters()]
    optimizer = both([{"params": model.layers[2]}], partial(torch.optim.AdamW, weight_decay=0.0))
    optimizer.add_param_group({"params": layer, **asked})
    keys = ("lr", "weight_decay", "betas", "momentum")
    assert [tuple(group.get(key) for key in keys) for group in optimizer.param_groups] == [
        (0.02, 0.0, (0.9, 0.999), None), (0.02, 0.1, None, 0.95), (0.3, 0.4, (0.5, 0.6), None), (0.3, 0.4, None, 0.7),
    ]  # fmt: skip
    assert repr(optimizer) == "Muon(2 matrices, lr=0.02, AdamW for the rest)"
    before = copy.deepcopy(model)
    train(model, optimizer, 1)
    moved = [name for name, each in model.named_parameters() if not torch.equal(each, before.get_parameter(name))]
    assert moved == [f"layers.{place}.{name}" for place in (0, 2) for name in ("weight", "bias")]


def test_flattened_parameters_are_refused():
    """What DeepSpeed's ZeRO puts in their place, and takes for the parameters."""
    for optimizer in (both(network()), GaLore(network(), rank=4)):
        flat = nn.Parameter(torch.zeros(24 * 40))
        flat.grad = torch.ones(24 * 40)
        optimizer.param_groups[-1]["params"] = [flat]
        optimizer.param_groups[:] = optimizer.param_groups[-1:]
        with pytest.raises(ValueError, match=r"flattened.*as DeepSpeed's ZeRO 1 to 3 do: use ZeRO 0 or FSDP2"):
            optimizer.step()
        assert not flat.any()


def test_memory_knows_who_keeps_what():
    """Muon one number for each entry, AdamW two."""
    model = network()
    optimizer = both(model)
    train(model, optimizer, 1)
    counts = {name: each.numel() for name, each in model.named_parameters()}
    matrices = sum(counts.pop(name) for name in MATRICES)
    total = memory(model, optimizer).total
    assert total.formula.states == 4 * (matrices + 2 * sum(counts.values()))
    assert total.measured.states == total.formula.states + 4 * len(counts)  # step counts
