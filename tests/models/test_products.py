"""Batched linear maps: gradients against finite differences, and equal to torch's own expression."""

from __future__ import annotations

import pytest
import torch

from joma.models.products import LARGEST, SCALE, _HalfProduct, half_products, linear, scaled


def test_gradients():
    generator = torch.Generator().manual_seed(0)
    x, w, b = (
        torch.randn(*shape, dtype=torch.double, generator=generator, requires_grad=True)
        for shape in ((2, 3, 4), (2, 4, 5), (2, 5))
    )
    assert torch.autograd.gradcheck(linear, (x, w, b))
    assert torch.autograd.gradcheck(lambda x: linear(x, w.detach(), b.detach()), (x,))
    torch.testing.assert_close(linear(x, w, b), x @ w + b[:, None])


def test_scaled_and_its_gradients():
    generator = torch.Generator().manual_seed(1)
    x, scale, shift = (
        torch.randn(*shape, dtype=torch.double, generator=generator, requires_grad=True)
        for shape in ((2, 3, 4), (2, 4), (2, 4))
    )
    torch.testing.assert_close(scaled(x, scale, shift), x * scale[:, None] + shift[:, None])
    assert torch.autograd.gradcheck(scaled, (x, scale, shift))
    for alone in range(3):  # the others do not learn
        given = [t.detach() for t in (x, scale, shift)]
        assert torch.autograd.gradcheck(
            lambda one, given=given, alone=alone: scaled(*given[:alone], one, *given[alone + 1 :]),
            ((x, scale, shift)[alone],),
        )


def test_transposed_weights():
    x, w = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    torch.testing.assert_close(linear(x, w.mT, torch.zeros(2, 5)), x @ w.mT)


def test_half_products_and_their_gradients(monkeypatch):
    """As on a GPU, whose products of half factors have sums in float32; gradients of 1e-7, below what half holds."""

    def bmm(a, b, *, out_dtype):
        assert a.dtype == b.dtype == torch.half
        return a.to(out_dtype) @ b.to(out_dtype)

    monkeypatch.setattr(torch, "bmm", bmm)
    generator = torch.Generator().manual_seed(3)
    x, w, given = (torch.randn(*shape, generator=generator) for shape in ((2, 3, 4), (2, 4, 5), (2, 3, 5)))
    x, w = x.requires_grad_(), w.requires_grad_()
    for size in (1.0, 1e-7):
        found = _HalfProduct.apply(x, w)
        by_x, by_w = torch.autograd.grad(found, (x, w), given * size)
        assert found.dtype == by_x.dtype == by_w.dtype == torch.float32
        torch.testing.assert_close(found, x @ w, rtol=0, atol=1e-2)
        torch.testing.assert_close(by_x / size, given @ w.mT, rtol=0, atol=1e-2)
        torch.testing.assert_close(by_w / size, x.mT @ given, rtol=0, atol=1e-2)
    one = torch.ones(1, 1, 1, requires_grad=True)
    for size in (1e9, -1e9):  # held at the largest number that half has
        (most,) = torch.autograd.grad(_HalfProduct.apply(one, torch.ones(1, 1, 1)), one, torch.full((1, 1, 1), size))
        assert most.item() == pytest.approx(LARGEST / SCALE if size > 0 else -LARGEST / SCALE)


def test_half_ends_where_it_began():
    from joma.models.products import _HALF

    with half_products():
        with half_products(False):
            assert not _HALF["on"]
        assert _HALF["on"]
    assert not _HALF["on"]
