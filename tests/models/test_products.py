"""Batched linear maps: gradients against finite differences, and equal to torch's own expression."""

from __future__ import annotations

import torch

from joma.models.products import linear


def test_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w, b = (
        torch.randn(*shape, dtype=torch.double, generator=generator, requires_grad=True)
        for shape in ((2, 3, 4), (2, 4, 5), (2, 5))
    )
    assert torch.autograd.gradcheck(linear, (x, w, b))
    assert torch.autograd.gradcheck(lambda x: linear(x, w.detach(), b.detach()), (x,))
    torch.testing.assert_close(linear(x, w, b), x @ w + b[:, None])


def test_transposed_weights() -> None:
    x, w = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    torch.testing.assert_close(linear(x, w.mT, torch.zeros(2, 5)), x @ w.mT)
