"""A gradient of zeros has no directions. Layers before one that starts at zero have it in the first step."""

import io

import pytest
import torch
from torch import nn

from joma.optim import GaLore

TARGET = torch.randn(64, 2, generator=torch.Generator().manual_seed(0)) @ torch.randn(
    2, 80, generator=torch.Generator().manual_seed(1)
)


def made(weight, **options):
    return GaLore([weight], torch.optim.SGD, **({"rank": 4, "scale": 1.0, "lr": 1.0} | options))


def step(weight, optimizer, *, zero=False):
    """Towards the target, by backward, so that hooks run."""
    optimizer.zero_grad()
    (weight * ((weight - TARGET) * (0.0 if zero else 0.5)).detach()).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("projector", ["randomized", "exact", "random"])
def test_the_first_gradient_that_is_not_zero_decides(projector, per_layer):
    """Before, a subspace of noise was kept for `refresh` updates."""
    weight, other = nn.Parameter(torch.zeros(64, 80)), nn.Parameter(torch.zeros(64, 80))
    optimizer, plain = (made(each, projector=projector, per_layer=per_layer) for each in (weight, other))
    step(weight, optimizer, zero=True)
    step(weight, optimizer, zero=True)
    assert not weight.any()
    for _ in range(8):
        step(weight, optimizer)
        step(other, plain)
    if projector != "random":
        torch.testing.assert_close(weight, other, rtol=1e-4, atol=1e-4)
        assert float((weight - TARGET).detach().norm() / TARGET.norm()) < 0.01
    assert next(iter(optimizer.captured().values())) > 0


def test_a_refresh_that_meets_zeros_keeps_the_subspace_and_is_made_up_for():
    weight = nn.Parameter(torch.zeros(64, 80))
    optimizer = made(weight, refresh=3)
    (matrix,) = optimizer.matrices
    for _ in range(3):
        step(weight, optimizer)
    before = matrix.basis.clone()
    step(weight, optimizer, zero=True)
    assert torch.equal(matrix.basis, before)
    step(weight, optimizer)
    assert not torch.equal(matrix.basis, before)
    assert matrix.refreshed == 4


def test_only_the_matrix_with_zeros_waits():
    first, second = nn.Parameter(torch.zeros(64, 80)), nn.Parameter(torch.zeros(64, 80))
    optimizer = GaLore([("first", first), ("second", second)], torch.optim.SGD, rank=4, lr=1.0)
    first.grad, second.grad = torch.zeros(64, 80), TARGET.clone()
    optimizer.step()
    assert not first.any()
    assert second.any()
    assert [round(each, 3) for each in optimizer.captured().values()] == [0.0, 1.0]
    assert [each.is_due(200) for each in optimizer.matrices] == [True, False]


def test_waiting_is_saved():
    whole, weight = nn.Parameter(torch.zeros(64, 80)), nn.Parameter(torch.zeros(64, 80))
    optimizer, first = made(whole), made(weight)
    step(whole, optimizer, zero=True)
    step(weight, first, zero=True)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    again = made(weight)
    again.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(3):
        step(whole, optimizer)
        step(weight, again)
    assert torch.equal(whole, weight)
