"""Muon against a slow version in float64, and torch's own, which computes in bfloat16."""

import io

import numpy as np
import pytest
import torch
from torch import nn

from joma.optim import GaLore, Muon
from joma.optim.muon import orthogonal


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def slow_orthogonal(matrix, rounds=5):
    """By its singular values alone: each goes through the quintic by itself."""
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


def test_updates_are_about_orthogonal():
    for rows, columns in ((8, 20), (20, 8)):
        values = torch.linalg.svdvals(orthogonal(draw(3, rows, columns)))
        assert 0.5 < values.min() < values.max() < 1.3


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


def test_it_resumes():
    weights = [nn.Parameter(draw(4, 6)) for _ in range(2)]
    first, other = (Muon([each], lr=0.1) for each in weights)
    weights[0].grad = draw(4, 6, seed=1)
    first.step()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    weights[1].data.copy_(weights[0].data)
    for each, optimizer in zip(weights, (first, other), strict=True):
        each.grad = draw(4, 6, seed=2)
        optimizer.step()
    assert torch.equal(*weights)


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
        ({"params": [nn.Parameter(torch.zeros(3))]}, r"params must hold matrices, got one of shape \(3,\)"),
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
