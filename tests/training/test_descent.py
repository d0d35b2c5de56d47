"""The plain loop: what the learning rate is at each step, and which parameters a clipped gradient has."""

import pytest
import torch

from joma.training.descent import descend


def test_every_group_has_its_share_of_its_own_rate_at_every_step():
    """Under a gradient of 1 each parameter moves by just its learning rate: 1, 1/2, 1/4 of 0.4 and of 0.8."""
    slow, fast = (torch.zeros(1, requires_grad=True) for _ in range(2))
    sgd = torch.optim.SGD([{"params": [slow], "lr": 0.4}, {"params": [fast], "lr": 0.8}])
    path = [
        (step, slow.item(), fast.item(), loss.requires_grad)
        for step, loss in descend(sgd, lambda step: (slow + fast).sum(), 3, share=lambda step: 0.5**step)
    ]
    assert [step for step, *_ in path] == [0, 1, 2]
    assert [x for _, x, _, _ in path] == pytest.approx([-0.4, -0.6, -0.7])
    assert [x for _, _, x, _ in path] == pytest.approx([-0.8, -1.2, -1.4])
    assert not any(follows for *_, follows in path)


def test_the_norm_of_the_gradient_is_clipped_by_all_parameters_together():
    """A gradient of (3, 4) has norm 5: clipped to 1 it is (0.6, 0.8), whichever group its parameters are in."""
    one, other = (torch.zeros(1, requires_grad=True) for _ in range(2))
    sgd = torch.optim.SGD([{"params": [one]}, {"params": [other]}], lr=1.0)
    assert len(list(descend(sgd, lambda step: (3 * one + 4 * other).sum(), 1, clip=1.0))) == 1
    assert (one.item(), other.item()) == pytest.approx((-0.6, -0.8), rel=1e-5)
